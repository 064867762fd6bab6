"""Authorization of the APIs of share groups: records, offsets and durable states (KIP-932)."""

from __future__ import annotations

from typing import Any

from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

from .judge import DENIED, MESSAGES, Caller, Judge, Verdict, both, named, part, parts, whole

_O, _GROUP, _TOPIC, _CLUSTER = AclOperation, ResourceType.GROUP, ResourceType.TOPIC, ResourceType.CLUSTER


def _of_group(operation: AclOperation) -> Judge:
    """Return a judge of requests about one group. A denial is a top-level error code of the answer."""

    def judge(caller: Caller, request: Request) -> Verdict:
        group = request.body.group_id
        if not group or caller.may(operation, _GROUP, group):  # the handler refuses an empty group id
            return None
        code = DENIED[_GROUP]
        return structs(f"{request.api.message}Response")(error_code=code, error_message=MESSAGES[code])

    return judge


def _topics(operation: AclOperation) -> Judge:
    """Return a judge of requests that have a group and topics. The answer has an error for each denied
    topic.
    """
    return parts(operation, _TOPIC, "topics", "responses", named("topic_name"))


def _describe_offsets(caller: Caller, request: Request) -> Verdict:
    """Leave out topics that the client may not describe. If the request names such a topic, the answer has an
    error for the topic.
    """
    names = {each.group_id: _names(each) for each in request.body.groups}
    denied = part(
        request,
        "groups",
        "groups",
        lambda each: not caller.may(_O.DESCRIBE, _GROUP, each.group_id),
        DENIED[_GROUP],
    )

    def mend(answer: Any) -> Any:
        for group in answer.groups:
            topics = [_visible(caller, each, names[group.group_id]) for each in group.topics]
            group.topics = [each for each in topics if each is not None]
        if denied is not None:
            answer = denied(answer)
            for group in answer.groups:
                group.topics = [] if group.error_code else group.topics
        return answer

    return mend


def _names(group: Any) -> frozenset[str]:
    return frozenset(each.topic_name for each in group.topics or ())


def _visible(caller: Caller, topic: Any, names: frozenset[str]) -> Any:
    if caller.may(_O.DESCRIBE, _TOPIC, topic.topic_name):
        return topic
    if topic.topic_name not in names:
        return None
    kind, code = structs("DescribeShareGroupOffsetsResponse"), DENIED[_TOPIC]
    rows = [
        kind.DescribeShareGroupOffsetsResponsePartition(
            partition_index=each.partition_index,
            start_offset=-1,
            error_code=code,
            error_message=MESSAGES[code],
        )
        for each in topic.partitions
    ]
    return kind.DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=rows)


JUDGES: dict[Api, Judge] = {
    # Requests of a session don't name all partitions, so the handlers check the topics.
    Api.SHARE_FETCH: _of_group(_O.READ),
    Api.SHARE_ACKNOWLEDGE: _of_group(_O.READ),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_offsets,
    Api.ALTER_SHARE_GROUP_OFFSETS: both(_of_group(_O.READ), _topics(_O.READ)),
    Api.DELETE_SHARE_GROUP_OFFSETS: both(_of_group(_O.DELETE), _topics(_O.READ)),
    **dict.fromkeys(
        (
            *(Api.INITIALIZE_SHARE_GROUP_STATE, Api.READ_SHARE_GROUP_STATE, Api.WRITE_SHARE_GROUP_STATE),
            *(Api.DELETE_SHARE_GROUP_STATE, Api.READ_SHARE_GROUP_STATE_SUMMARY),
        ),
        whole(_O.CLUSTER_ACTION, _CLUSTER),
    ),
}
