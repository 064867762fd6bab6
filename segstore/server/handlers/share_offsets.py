"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: the administration of share
groups' start offsets (KIP-932; KIP-1226 adds the lag; Kafka: GroupCoordinatorService).

Threads: handlers run in the loop's thread and call the coordinators in worker threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import SegstoreError, UnknownTopicOrPartitionError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.logs import NO_ID
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.topics import id_of, shown
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.store.store import Store

from .coordinating import coordinated, coordinator_code
from .share_requests import has_share_groups

_Described = structs("DescribeShareGroupOffsetsResponse")
_DescribedGroup = _Described.DescribeShareGroupOffsetsResponseGroup
_DescribedTopic = _Described.DescribeShareGroupOffsetsResponseTopic
_Offset = _Described.DescribeShareGroupOffsetsResponsePartition
_Altered = structs("AlterShareGroupOffsetsResponse")
_Deleted = structs("DeleteShareGroupOffsetsResponse")
_NOT_HERE = "This server does not host this topic-partition."
_NOT_KEPT = "There is no offset information to delete."


# --- DescribeShareGroupOffsets ---------------------------------------------------------------------


def describe_share_group_offsets(node: Node, request: Request) -> Any:
    """Answer with offsets or an error for each group. If a group's `topics` are null, answer with all
    partitions that have a share state of the group.
    """
    groups = request.body.groups
    if not has_share_groups(node):
        return _failed(groups, Code.UNSUPPORTED_VERSION)

    def run() -> Any:
        return _Described(groups=[_described(node.store, each) for each in groups])

    return coordinated(node, request, run, lambda code: _failed(groups, code))


def _failed(groups: Iterable[Any], code: Code) -> Any:
    return _Described(groups=[_DescribedGroup(group_id=each.group_id, error_code=code) for each in groups])


def _described(store: Store, asked: Any) -> Any:
    group = asked.group_id
    try:
        topics = shown(store)
        wanted = _all_of(store, group, topics) if asked.topics is None else _named(asked.topics)
        rows = [_described_topic(store, group, topics.get(name), name, numbers) for name, numbers in wanted]
    except SegstoreError as error:
        return _DescribedGroup(group_id=group, error_code=coordinator_code(error), error_message=str(error))
    return _DescribedGroup(group_id=group, topics=rows)


def _named(topics: Iterable[Any]) -> list[tuple[str, Sequence[int]]]:
    return [(each.topic_name, each.partitions) for each in topics]


def _all_of(store: Store, group: str, topics: dict[str, TopicInfo]) -> list[tuple[str, Sequence[int]]]:
    """Return (topic name, partitions with a share state of the group) for each existing topic that has such
    partitions.
    """
    by_id = {info.topic_id: name for name, info in topics.items()}
    found: dict[str, list[int]] = {}
    for key in shared(store, GroupCoordinator).share_partitions(group):
        if key.topic_id in by_id:
            found.setdefault(by_id[key.topic_id], []).append(key.partition)
    return list(found.items())


def _described_topic(
    store: Store, group: str, info: TopicInfo | None, name: str, numbers: Sequence[int]
) -> Any:
    """Return the struct of one topic; a partition without a share state has start offset -1, and no error."""
    if info is None or not info.topic_id:
        rows = [_Offset(partition_index=number, start_offset=-1) for number in numbers]
        return _DescribedTopic(topic_name=name, topic_id=NO_ID, partitions=rows)
    keys = [ShareKey(group, info.topic_id, number) for number in numbers]
    offsets = shared(store, ShareCoordinator).offsets(group, keys)
    return _DescribedTopic(
        topic_name=name,
        topic_id=id_of(info),
        partitions=[
            _Offset(
                partition_index=key.partition,
                start_offset=offsets[key].start,
                leader_epoch=offsets[key].leader_epoch,
                lag=offsets[key].lag,
            )
            for key in keys
        ],
    )


# --- AlterShareGroupOffsets ------------------------------------------------------------------------


def alter_share_group_offsets(node: Node, request: Request) -> Any:
    """Set start offsets of a group that has no members. A partition that does not exist is answered with an
    error.
    """
    if not has_share_groups(node):
        return _Altered(error_code=Code.UNSUPPORTED_VERSION)
    body = request.body

    def run() -> Any:
        try:
            return _altered(node.store, body)
        except SegstoreError as error:
            return _Altered(error_code=coordinator_code(error), error_message=str(error))

    return coordinated(node, request, run, lambda code: _Altered(error_code=code))


def _altered(store: Store, body: Any) -> Any:
    wanted = {
        TopicPartition(topic.topic_name, each.partition_index): each.start_offset
        for topic in body.topics
        for each in topic.partitions
    }
    # The share coordinator must exist before the change, to drop the changed share partitions from memory.
    shared(store, ShareCoordinator)
    errors = shared(store, GroupCoordinator).alter_share_offsets(body.group_id, wanted)
    by_name = {tuple(tp): error for tp, error in errors.items()}
    topics = shown(store)
    return _Altered(
        responses=[
            _Altered.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=_id_of(topics.get(topic.topic_name)),
                partitions=[
                    _altered_row(each.partition_index, by_name[topic.topic_name, each.partition_index])
                    for each in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def _altered_row(number: int, error: SegstoreError | None) -> Any:
    code, why = _code_and_message(error)
    return _Altered.AlterShareGroupOffsetsResponsePartition(
        partition_index=number, error_code=code, error_message=why
    )


def _code_and_message(error: SegstoreError | None) -> tuple[Code, str | None]:
    if error is None:
        return Code.NONE, None
    # UnknownTopicOrPartitionError is about the requested topic. All other errors may be about the internal
    # topic: their codes are those of a coordinator's errors.
    is_its_own = isinstance(error, UnknownTopicOrPartitionError)
    return code_of(error) if is_its_own else coordinator_code(error), str(error)


def _id_of(info: TopicInfo | None) -> bytes:
    return NO_ID if info is None else id_of(info)


# --- DeleteShareGroupOffsets -----------------------------------------------------------------------


def delete_share_group_offsets(node: Node, request: Request) -> Any:
    """If the group has no members, delete its share states of all partitions of the requested topics."""
    if not has_share_groups(node):
        return _Deleted(error_code=Code.UNSUPPORTED_VERSION)
    body = request.body

    def run() -> Any:
        try:
            return _deleted(node.store, body)
        except SegstoreError as error:
            return _Deleted(error_code=coordinator_code(error), error_message=str(error))

    return coordinated(node, request, run, lambda code: _Deleted(error_code=code))


def _deleted(store: Store, body: Any) -> Any:
    names = list(dict.fromkeys(each.topic_name for each in body.topics))
    # The share coordinator must exist before the change, to drop the changed share partitions from memory.
    shared(store, ShareCoordinator)
    errors = shared(store, GroupCoordinator).delete_share_offsets(body.group_id, names)
    topics = shown(store)
    return _Deleted(responses=[_deleted_row(name, topics.get(name), errors[name]) for name in names])


def _deleted_row(name: str, info: TopicInfo | None, error: SegstoreError | None) -> Any:
    """Return the struct of a topic, with the code and message of `error`. If the topic does not exist, or the
    group has no share state of it, the message is Kafka's.
    """
    code, why = _code_and_message(error)
    if code is Code.UNKNOWN_TOPIC_OR_PARTITION:
        why = _NOT_HERE if info is None else _NOT_KEPT
    return _Deleted.DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=_id_of(info), error_code=code, error_message=why
    )


HANDLERS = {
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    Api.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    Api.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
}
