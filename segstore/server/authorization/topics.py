"""Authorization of APIs that describe, create and delete topics."""

from __future__ import annotations

import copy
from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import NOT_ASKED, AclOperation
from segstore.server.logs import NO_ID, Logs
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType
from segstore.server.topics import shown
from segstore.storage.meta.topic_info import INTERNAL

from .cluster import cluster_operations
from .judge import DENIED, Caller, Judge, Verdict, named, part, parts

_O, _TOPIC, _CLUSTER = AclOperation, ResourceType.TOPIC, ResourceType.CLUSTER
_Metadata = structs("MetadataResponse")
_Described = structs("DescribeTopicPartitionsResponse")
_Deleted = structs("DeleteTopicsResponse")
_IDS_SINCE = 12


# --- Metadata ----------------------------------------------------------------------------------


def _metadata(caller: Caller, request: Request) -> Verdict:
    """Hide topics that the caller may not describe (KafkaApis.handleTopicMetadataRequest).

    If the request has the name of such a topic, the topic's error is TOPIC_AUTHORIZATION_FAILED; if the
    request has the topic's id, the error is UNKNOWN_TOPIC_ID. An answer with all topics leaves such topics
    out.
    """
    body, version = request.body, request.version
    everything = body.topics is None or (version == 0 and not body.topics)
    denied = [] if everything else [each for each in body.topics if _is_denied(caller, each, version)]
    refused = [_refused(each, version) for each in denied]
    if not everything:
        refused += _uncreatable(caller, request, denied)
        _remove(request, denied)
        if version == 0 and not request.body.topics:
            # The handler is not called, because an empty list of topics means all topics.
            request.body.topics = None
            return _nothing(caller, refused)

    def mend(answer: Any) -> Any:
        answer.topics = [
            *(each for each in answer.topics if not everything or _shown(caller, each)),
            *refused,
        ]
        return _with_operations(caller, answer)

    return mend


def _is_denied(caller: Caller, topic: Any, version: int) -> bool:
    name = topic.name
    if topic.topic_id != NO_ID:
        name = caller.node.part(Logs).name_of(topic.topic_id) if version >= _IDS_SINCE else None
    return name is not None and not caller.may(_O.DESCRIBE, _TOPIC, name)


def _refused(topic: Any, version: int) -> Any:
    kind = _Metadata.MetadataResponseTopic
    if topic.topic_id != NO_ID:
        return kind(error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id)
    return kind(error_code=DENIED[_TOPIC], name=topic.name, is_internal=topic.name in INTERNAL)


def _uncreatable(caller: Caller, request: Request, denied: list[Any]) -> list[Any]:
    """Return an answer's struct with an error for each missing topic that the caller may not create. Add
    these topics to `denied`.
    """
    body, node = request.body, caller.node
    if not (body.allow_auto_topic_creation and node.config.auto_create_topics_enable):
        return []
    if caller.may(_O.CREATE, _CLUSTER):
        return []
    known, out = shown(node.store), set(map(id, denied))
    missing = [
        each
        for each in body.topics
        if each.topic_id == NO_ID and each.name is not None and each.name not in known
    ]
    theirs = [
        each for each in missing if id(each) not in out and not caller.may(_O.CREATE, _TOPIC, each.name)
    ]
    denied += theirs
    return [_refused(each, request.version) for each in theirs]


def _remove(request: Request, denied: list[Any]) -> None:
    """Remove the denied topics from the request."""
    if denied:
        out = set(map(id, denied))
        request.body = copy.copy(request.body)
        request.body.topics = [each for each in request.body.topics if id(each) not in out]


def _nothing(caller: Caller, refused: list[Any]) -> Any:
    host, port = caller.node.endpoint
    node_id = caller.node.node_id
    broker = _Metadata.MetadataResponseBroker(node_id=node_id, host=host, port=port)
    return _Metadata(brokers=[broker], topics=refused, controller_id=node_id)


def _shown(caller: Caller, topic: Any) -> bool:
    return topic.name is not None and caller.may(_O.DESCRIBE, _TOPIC, topic.name)


def _with_operations(caller: Caller, answer: Any) -> Any:
    for each in answer.topics:
        if each.topic_authorized_operations != NOT_ASKED:
            each.topic_authorized_operations = caller.operations(_TOPIC, each.name)
    if answer.cluster_authorized_operations != NOT_ASKED:
        answer.cluster_authorized_operations = cluster_operations(caller)
    return answer


def _describe_topic_partitions(caller: Caller, request: Request) -> Verdict:
    """Hide topics that the caller may not describe. If the request names such a topic, the answer has an
    error for the topic.
    """
    # The handler must not be called with an empty list of topics, which means all topics.
    body = request.body
    if not body.topics:
        # The request is for all topics. If denied topics were removed only from the answer, the page would
        # have too few topics.
        known = sorted(shown(caller.node.store))
        kind = structs("DescribeTopicPartitionsRequest").TopicRequest
        request.body = copy.copy(body)
        request.body.topics = [kind(name=name) for name in known if caller.may(_O.DESCRIBE, _TOPIC, name)]
        return _described(caller, []) if request.body.topics else _Described()
    denied = [each for each in body.topics if not caller.may(_O.DESCRIBE, _TOPIC, each.name)]
    kind = _Described.DescribeTopicPartitionsResponseTopic
    refused = [kind(error_code=DENIED[_TOPIC], name=each.name) for each in denied]
    _remove(request, denied)
    return _described(caller, refused) if request.body.topics else _Described(topics=refused)


def _described(caller: Caller, refused: list[Any]) -> Verdict:
    def mend(answer: Any) -> Any:
        for each in answer.topics:
            each.topic_authorized_operations = caller.operations(_TOPIC, each.name)
        answer.topics += refused
        return answer

    return mend


# --- creating and deleting ---------------------------------------------------------------------


def _create_topics(caller: Caller, request: Request) -> Verdict:
    """Require CREATE on the cluster, or on each topic. Leave the new topic's settings out of the answer if
    the caller may not DESCRIBE_CONFIGS.
    """
    verdict = None
    if not caller.may(_O.CREATE, _CLUSTER):
        verdict = part(
            request,
            "topics",
            "topics",
            lambda each: not caller.may(_O.CREATE, _TOPIC, each.name),
            DENIED[_TOPIC],
        )

    def mend(answer: Any) -> Any:
        for each in answer.topics:
            if not each.error_code and not caller.may(_O.DESCRIBE_CONFIGS, _TOPIC, each.name):
                each.topic_config_error_code = DENIED[_TOPIC]
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        return answer if verdict is None else verdict(answer)

    return mend


def _delete_topics(caller: Caller, request: Request) -> Verdict:
    """Refuse the deletion of topics that the caller may not delete. If the request has the id of a denied
    topic, the answer has the topic's name only if the caller may describe the topic
    (ControllerApis.deleteTopics).
    """
    names, refused = caller.node.part(Logs), []
    kind = _Deleted.DeletableTopicResult
    body = request.body
    denied = {name for name in body.topic_names if not caller.may(_O.DELETE, _TOPIC, name)}
    refused += [kind(name=name, error_code=DENIED[_TOPIC]) for name in sorted(denied)]
    others = []
    for each in body.topics:
        name = each.name if each.topic_id == NO_ID else names.name_of(each.topic_id)
        if name is None or caller.may(_O.DELETE, _TOPIC, name):
            others.append(each)
            continue
        is_visible = each.topic_id == NO_ID or caller.may(_O.DESCRIBE, _TOPIC, name)
        refused.append(
            kind(name=name if is_visible else None, topic_id=each.topic_id, error_code=DENIED[_TOPIC])
        )
    request.body = copy.copy(body)
    request.body.topic_names = [name for name in body.topic_names if name not in denied]
    request.body.topics = others

    def mend(answer: Any) -> Any:
        answer.responses += refused
        return answer

    return mend


JUDGES: dict[Api, Judge] = {
    Api.METADATA: _metadata,
    Api.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    Api.CREATE_TOPICS: _create_topics,
    Api.DELETE_TOPICS: _delete_topics,
    Api.CREATE_PARTITIONS: parts(_O.ALTER, _TOPIC, "topics", "results", named("name")),
}
