"""Metadata and DescribeTopicPartitions: requests for topics, and for the leaders of their partitions. A
Metadata request for all topics has null in place of the list of topics, or in version 0 an empty list. From
version 12 on it may have topic ids. A missing topic is created if the client and auto.create.topics.enable
allow it. Source: KafkaApis.handleTopicMetadataRequest, DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import InvalidTopicError, SegstoreError, TopicAlreadyExistsError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.protocol.primitives import Packed
from segstore.server import authorized
from segstore.server.apis import Api
from segstore.server.logs import NO_ID
from segstore.server.node import Node
from segstore.server.partition_rows import PartitionRows, partition
from segstore.server.request import Request
from segstore.server.topics import Leaders, id_of, open_logs, shown, with_id
from segstore.storage.meta.topic_info import INTERNAL, TopicInfo

from .working import in_worker

_Response = structs("MetadataResponse")
_Described = structs("DescribeTopicPartitionsResponse")
_IDS_SINCE = 12
_AT_ONCE = 500
"""If an answer has more partitions than this, a worker thread encodes it, not the loop's thread."""
_KNOWN_AT_ONCE = 5_000
"""`_AT_ONCE` for partitions whose logs are open and whose rows are cached: they take a tenth of the time."""


class _AskedTopic(NamedTuple):
    """One topic of a Metadata request, by name or by id."""

    name: str | None
    topic_id: bytes = NO_ID


def metadata(node: Node, request: Request) -> Any:
    """Answer with topics and their partitions. If a topic must be created, a log must be opened, or the
    answer is long, a worker thread makes the answer.
    """
    body, topics = request.body, shown(node.store)
    everything = body.topics is None or (request.version == 0 and not body.topics)
    if not everything and request.version < _IDS_SINCE and _misuses_ids(body.topics):
        return _refused(body.topics)
    if everything:
        asked = [_AskedTopic(name) for name in topics]
        partitions = sum(info.partitions for info in topics.values())
        return _answer_known(node, request, asked, topics, partitions, Leaders(node.store))
    asked = [_AskedTopic(each.name, each.topic_id) for each in body.topics]
    missing = _creatable(node, body, asked, topics)
    rows, found = node.part(PartitionRows), _all_found(asked, topics)
    leaders = Leaders(node.store)
    if not missing and not leaders.closed(found):
        partitions = _to_encode(rows, request.version, found)
        return _answer_known(node, request, asked, topics, partitions, leaders)
    return in_worker(node, request, lambda: _prepared(node, request, asked, missing, rows))


def _answer_known(
    node: Node,
    request: Request,
    asked: list[_AskedTopic],
    topics: Mapping[str, TopicInfo],
    partitions: int,
    leaders: Leaders,
) -> Any:
    """Answer with topics, without creating a topic or opening a log. If `partitions` is above `_AT_ONCE`, a
    worker thread encodes the answer.
    """
    rows = node.part(PartitionRows)
    if partitions <= _AT_ONCE:
        return _answer(node, request, asked, topics, leaders, rows)
    return in_worker(node, request, lambda: _answer(node, request, asked, topics, Leaders(node.store), rows))


def _to_encode(rows: PartitionRows, version: int, topics: list[TopicInfo]) -> int:
    """Return the number of partitions that count towards `_AT_ONCE`: partitions with cached rows don't count,
    unless `topics` have at most `_AT_ONCE` or more than `_KNOWN_AT_ONCE` partitions.
    """
    count = sum([info.partitions for info in topics])
    # If there are fewer or more partitions than these limits, cached rows make no difference.
    if not _AT_ONCE < count <= _KNOWN_AT_ONCE:
        return count
    return sum(info.partitions for info in topics if not rows.knows(info.name, version, info.partition_ids))


def _misuses_ids(topics: list[Any]) -> bool:
    return any(each.name is None or each.topic_id != NO_ID for each in topics)


def _refused(topics: list[Any]) -> Any:
    failed = [
        _Response.MetadataResponseTopic(error_code=Code.INVALID_REQUEST, name=each.name or "")
        for each in topics
    ]
    return _Response(topics=failed)


def _creatable(
    node: Node, body: Any, asked: list[_AskedTopic], topics: Mapping[str, TopicInfo]
) -> dict[str, Code]:
    """Return the names of the missing topics that may be created, each with Code.NONE. (If the creation of a
    topic fails, `_prepared` replaces this code by the error's code.)
    """
    if not (body.allow_auto_topic_creation and node.config.auto_create_topics_enable):
        return {}
    if node.store.mode == "r":
        return {}
    wanted = (each.name for each in asked if each.topic_id == NO_ID and each.name is not None)
    return {
        name: Code.NONE
        for name in wanted
        if name not in topics and name not in INTERNAL and _name_error(name) is Code.NONE
    }


def _name_error(name: str) -> Code:
    try:
        names.check_topic(name)
    except InvalidTopicError as error:
        return code_of(error)
    return Code.NONE


def _found(asked: _AskedTopic, topics: Mapping[str, TopicInfo]) -> TopicInfo | None:
    """Return the requested topic, by its id if the request has one, else by its name."""
    if asked.topic_id != NO_ID:
        return with_id(topics, asked.topic_id)
    return None if asked.name is None else topics.get(asked.name)


def _all_found(asked: list[_AskedTopic], topics: Mapping[str, TopicInfo]) -> list[TopicInfo]:
    return [info for each in asked if (info := _found(each, topics)) is not None]


def _prepared(
    node: Node, request: Request, asked: list[_AskedTopic], missing: dict[str, Code], rows: PartitionRows
) -> Any:
    """Create the topics in `missing`, open the closed logs of requested topics, then return the answer."""
    for name in missing:
        missing[name] = _created(node, name)
    topics = shown(node.store)
    failed = open_logs(node.store, Leaders(node.store).closed(_all_found(asked, topics)))
    return _answer(node, request, asked, topics, Leaders(node.store, failed), rows, missing)


def _created(node: Node, name: str) -> Code:
    try:
        node.store.create_topic(name, node.config.num_partitions)
    except TopicAlreadyExistsError:  # another client has just created the topic
        return Code.NONE
    except SegstoreError as error:
        return code_of(error)
    return Code.NONE


def _answer(
    node: Node,
    request: Request,
    asked: Collection[_AskedTopic],
    topics: Mapping[str, TopicInfo],
    leaders: Leaders,
    rows: PartitionRows,
    failed: Mapping[str, Code] | None = None,
) -> Any:
    body, found = request.body, []
    for each in dict.fromkeys(asked):
        info = _found(each, topics)
        if info is None:
            found.append(_missing(each, failed or {}))
            continue
        led = leaders.of(info.name, info.partition_ids)
        found.append(_topic(info, rows.of(info.name, request.version, info.partition_ids, led)))
    for each in found:
        asked_for = body.include_topic_authorized_operations and each.error_code == Code.NONE
        each.topic_authorized_operations = authorized.if_requested(asked_for, authorized.ON_TOPICS)
    asked_for = body.include_cluster_authorized_operations
    return _whole(node, found, authorized.if_requested(asked_for, authorized.ON_CLUSTER))


def _whole(node: Node, topics: list[Any], operations: int = authorized.NOT_ASKED) -> Any:
    host, port = node.endpoint
    return _Response(
        brokers=[_Response.MetadataResponseBroker(node_id=node.node_id, host=host, port=port)],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
        cluster_authorized_operations=operations,
    )


def _missing(asked: _AskedTopic, failed: Mapping[str, Code]) -> Any:
    """Return the struct of a topic that does not exist, with the error code that says why."""
    if asked.topic_id != NO_ID:
        return _Response.MetadataResponseTopic(
            error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
        )
    name = asked.name or ""
    error = _name_error(name) or failed.get(name) or Code.UNKNOWN_TOPIC_OR_PARTITION
    return _Response.MetadataResponseTopic(error_code=error, name=name)


def _topic(info: TopicInfo, partitions: Packed) -> Any:
    return _Response.MetadataResponseTopic(
        error_code=Code.NONE if info.error is None else code_of(info.error),
        name=info.name,
        topic_id=id_of(info),
        is_internal=info.internal,
        partitions=partitions,
    )


# --- DescribeTopicPartitions (KIP-966) ------------------------------------------------------------


def describe_topic_partitions(node: Node, request: Request) -> Any:
    """Answer with one page of partitions in topic order, and the cursor at which the next page begins."""
    body, topics = request.body, shown(node.store)
    cursor = body.cursor
    if cursor is not None and cursor.partition_index < 0:
        kind = _Described.DescribeTopicPartitionsResponseTopic
        return _Described(
            topics=[kind(error_code=Code.INVALID_REQUEST, name=each.name) for each in body.topics]
        )
    wanted = sorted(topics if not body.topics else {each.name for each in body.topics})
    begin, first = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    left = max(min(node.config.max_request_partition_size_limit, body.response_partition_limit), 1)
    return _page([name for name in wanted if name >= begin], begin, first, left, topics, Leaders(node.store))


def _page(
    wanted: list[str], begin: str, first: int, left: int, topics: Mapping[str, TopicInfo], leaders: Leaders
) -> Any:
    body = _Described()
    for name in wanted:
        if not left:
            body.next_cursor = _Described.Cursor(topic_name=name, partition_index=0)
            break
        info = topics.get(name)
        if info is None:
            error = _name_error(name) or Code.UNKNOWN_TOPIC_OR_PARTITION
            body.topics.append(
                _Described.DescribeTopicPartitionsResponseTopic(
                    error_code=error, name=name, topic_authorized_operations=authorized.ON_TOPICS
                )
            )
            continue
        numbers = [number for number in info.partition_ids if name != begin or number >= first]
        body.topics.append(_described(info, numbers[:left], leaders))
        if len(numbers) > left:
            body.next_cursor = _Described.Cursor(topic_name=name, partition_index=numbers[left])
            break
        left -= len(numbers)
    return body


def _described(info: TopicInfo, numbers: list[int], leaders: Leaders) -> Any:
    kind = _Described.DescribeTopicPartitionsResponsePartition
    led = leaders.of(info.name, numbers)
    partitions = [partition(kind, *each) for each in zip(numbers, led, strict=True)]
    for each in partitions:
        each.eligible_leader_replicas, each.last_known_elr = [], []
    return _Described.DescribeTopicPartitionsResponseTopic(
        error_code=Code.NONE if info.error is None else code_of(info.error),
        name=info.name,
        topic_id=id_of(info),
        is_internal=info.internal,
        partitions=partitions,
        topic_authorized_operations=authorized.ON_TOPICS,
    )


HANDLERS = {
    Api.METADATA: metadata,
    Api.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
