"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups.

Threads: handlers run in the loop's thread and call the coordinator in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import GroupNotFoundError, RecordTooLargeError, SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.logs import NO_ID
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.server.topics import id_of
from segstore.storage.store.store import Store

from .coordinating import by_topic, coordinated, coordinator_code
from .named_topics import NamedTopics

_Committed = structs("OffsetCommitResponse")
_Fetched = structs("OffsetFetchResponse")
_Deleted = structs("OffsetDeleteResponse")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Codes = dict[TopicPartition, Code]


# --- OffsetCommit --------------------------------------------------------------------------------

_TELLS_GROUP = _KNOWS_EPOCHS = 9  # the first version whose clients know GROUP_ID_NOT_FOUND and member epochs
_COMMITS_BY_ID = 10


def offset_commit(node: Node, request: Request) -> Later:
    """Commit offsets for a member, or for a group without members. If a partition's offset is refused, the
    answer has an error for this partition, and the offsets of the other partitions are committed.
    """
    body, store = request.body, node.store
    topics = NamedTopics(node, body.topics, request.version >= _COMMITS_BY_ID)
    offsets = offsets_of(topics.known)
    member = ConsumerGroupMetadata(
        body.group_id, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id
    )

    def run() -> Any:
        codes = commit_valid(
            store,
            offsets,
            lambda good: shared(store, GroupCoordinator).commit(
                member, good, request.version >= _KNOWS_EPOCHS, topics.ids
            ),
        )
        return _committed(topics, without_group(store, member, codes, request.version >= _TELLS_GROUP))

    return coordinated(node, request, run, lambda code: _committed(topics, dict.fromkeys(offsets, code)))


def without_group(store: Store, member: ConsumerGroupMetadata, codes: Codes, names_group: bool) -> Codes:
    """Return `codes`. If the group does not exist and `member` has a generation, replace UNKNOWN_MEMBER_ID in
    the returned codes: by GROUP_ID_NOT_FOUND if `names_group` is True, else by ILLEGAL_GENERATION
    (GroupMetadataManager.validateOffsetCommit).
    """
    if Code.UNKNOWN_MEMBER_ID not in codes.values() or member.generation_id < 0:
        return codes
    if shared(store, GroupCoordinator).exists(member.group_id or ""):
        return codes
    wrong = Code.GROUP_ID_NOT_FOUND if names_group else Code.ILLEGAL_GENERATION
    return {at: wrong if code is Code.UNKNOWN_MEMBER_ID else code for at, code in codes.items()}


def offsets_of(topics: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets in an OffsetCommit or a TxnOffsetCommit request, with "" in place of null
    metadata.
    """
    return {
        TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
            each.committed_offset, each.committed_metadata or "", each.committed_leader_epoch
        )
        for topic in topics
        for each in topic.partitions
    }


def commit_valid(
    store: Store,
    offsets: Offsets,
    commit: Callable[[Any], None],
    code_for: Callable[[BaseException], Code] = coordinator_code,
) -> Codes:
    """Call `commit` with the offsets that are valid; return the error code of each partition in `offsets`.
    The error of an invalid offset comes from `GroupOffsets.refused`. If `commit` raises an error, each valid
    offset gets `code_for(error)`, or INVALID_COMMIT_OFFSET_SIZE if the error is a RecordTooLargeError.
    """
    refused = shared(store, GroupOffsets).refused(offsets)
    codes = {at: code_of(refused[at]) if at in refused else Code.NONE for at in offsets}
    good = {at: offset for at, offset in offsets.items() if at not in refused}
    if good:
        try:
            commit(good)
        except RecordTooLargeError:
            codes |= dict.fromkeys(good, Code.INVALID_COMMIT_OFFSET_SIZE)
        except SegstoreError as error:
            codes |= dict.fromkeys(good, code_for(error))
    return codes


def _committed(topics: NamedTopics, codes: Codes) -> Any:
    kinds = _Committed.OffsetCommitResponseTopic, _Committed.OffsetCommitResponsePartition
    return _Committed(topics=topics.with_ids(by_topic(codes, *kinds), lambda each: unknown(each, *kinds)))


def unknown(topic: Any, topic_kind: Any, partition_kind: Any) -> Any:
    """Return a topic's struct for the answer, with UNKNOWN_TOPIC_ID for each partition in `topic`."""
    numbers = [each.partition_index for each in topic.partitions]
    code = Code.UNKNOWN_TOPIC_ID
    parts = [partition_kind(partition_index=number, error_code=code) for number in numbers]
    return topic_kind(topic_id=topic.topic_id, partitions=parts)


# --- OffsetFetch ---------------------------------------------------------------------------------

_TOP_LEVEL_ERROR, _MANY_GROUPS, _FETCHES_BY_ID = 2, 8, 10
_ABSENT = OffsetAndMetadata(-1)


class _GroupOffsets(NamedTuple):
    """The committed offset and the error code of each requested partition of one group. `code` is the error
    code of the whole group.
    """

    offsets: dict[TopicPartition, tuple[OffsetAndMetadata, Code]]
    code: Code = Code.NONE


def offset_fetch(node: Node, request: Request) -> Later:
    """Answer OffsetFetch with the committed offsets of one group, or from version 8 on of several groups."""
    body, store = request.body, node.store
    if request.version >= _MANY_GROUPS:
        by_id = request.version >= _FETCHES_BY_ID
        asked = [(each, NamedTopics(node, each.topics or (), by_id)) for each in body.groups]

        def run() -> Any:
            return _Fetched(groups=[_group(store, *each, body.require_stable) for each in asked])

        return coordinated(node, request, run, lambda code: _all_failed(body, code))
    return coordinated(
        node,
        request,
        lambda: _one_group(request, _look(store, body.group_id, body.topics, body.require_stable)),
        lambda code: _one_group(request, _failed(body.topics, code)),
    )


def _all_failed(body: Any, code: Code) -> Any:
    kind = _Fetched.OffsetFetchResponseGroup
    return _Fetched(groups=[kind(group_id=each.group_id, error_code=code) for each in body.groups])


def _group(store: Store, asked: Any, topics: NamedTopics, require_stable: bool) -> Any:
    wanted = None if asked.topics is None else topics.known
    try:
        coordinator = shared(store, GroupCoordinator)
        coordinator.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
        found = _look(store, asked.group_id, wanted, require_stable)
    except SegstoreError as error:
        found = _failed(wanted, coordinator_code(error))
    kinds = _Fetched.OffsetFetchResponseTopics, _Fetched.OffsetFetchResponsePartitions
    rows = [] if found.code else topics.with_ids(_topics(found, *kinds), _unknown)
    if wanted is None:
        _set_ids(store, rows)
    return _Fetched.OffsetFetchResponseGroup(group_id=asked.group_id, topics=rows, error_code=found.code)


def _unknown(topic: Any) -> Any:
    """Return a topic's struct for the answer, with UNKNOWN_TOPIC_ID for each partition in `topic`."""
    answer = _Fetched.OffsetFetchResponseTopics(topic_id=topic.topic_id)
    for number in topic.partition_indexes:
        answer.partitions.append(
            _Fetched.OffsetFetchResponsePartitions(
                partition_index=number, committed_offset=-1, error_code=Code.UNKNOWN_TOPIC_ID
            )
        )
    return answer


def _set_ids(store: Store, topics: Iterable[Any]) -> None:
    infos = store.topics()
    for topic in topics:
        info = infos.get(topic.name)
        topic.topic_id = NO_ID if info is None else id_of(info)


def _one_group(request: Request, found: _GroupOffsets) -> Any:
    """Return the answer to a request before version 8, which is for one group. (Version 1 has no top-level
    error.)
    """
    tells = request.version >= _TOP_LEVEL_ERROR
    kinds = _Fetched.OffsetFetchResponseTopic, _Fetched.OffsetFetchResponsePartition
    topics = [] if found.code and tells else _topics(found, *kinds)
    return _Fetched(topics=topics, error_code=found.code)


def _look(store: Store, group: str, topics: Any, require_stable: bool) -> _GroupOffsets:
    try:
        kept = shared(store, GroupOffsets)
        # `pending` is read before `committed`. If a transaction commits between the two reads, its offsets
        # are answered as unstable. If `committed` were read first, the offsets from before the transaction
        # would be answered as stable.
        pending = kept.pending(group) if require_stable else set()
        committed = kept.as_sent(group)
    except SegstoreError as error:
        return _failed(topics, coordinator_code(error))
    wanted = sorted(committed) if topics is None else _wanted(topics)
    return _GroupOffsets(
        {
            at: (_ABSENT, Code.UNSTABLE_OFFSET_COMMIT)
            if at in pending
            else (committed.get(at, _ABSENT), Code.NONE)
            for at in wanted
        }
    )


def _wanted(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _failed(topics: Any, code: Code) -> _GroupOffsets:
    return _GroupOffsets(dict.fromkeys(_wanted(topics or ()), (_ABSENT, code)), code)


def _topics(found: _GroupOffsets, topic_kind: Any, partition_kind: Any) -> list[Any]:
    topics: dict[str, Any] = {}
    for (topic, number), (offset, code) in found.offsets.items():
        held = topics.get(topic) or topics.setdefault(topic, topic_kind(name=topic))
        held.partitions.append(
            partition_kind(
                partition_index=number,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=code,
            )
        )
    return list(topics.values())


# --- OffsetDelete --------------------------------------------------------------------------------


def offset_delete(node: Node, request: Request) -> Later:
    """Delete the requested offsets of a group, except the offsets of topics to which a member of the group is
    subscribed (KIP-496).
    """
    body = request.body
    wanted = [TopicPartition(t.name, each.partition_index) for t in body.topics for each in t.partitions]
    return coordinated(
        node,
        request,
        lambda: _delete(node.store, body.group_id, wanted),
        lambda code: _Deleted(error_code=code),
    )


def _delete(store: Store, group: str, wanted: list[TopicPartition]) -> Any:
    groups, kept = shared(store, GroupCoordinator), shared(store, GroupOffsets)
    if not groups.exists(group):
        raise GroupNotFoundError(f"there is no group {group!r}")
    known = store.topics()

    def delete(subscribed: Any) -> Codes:
        codes = {at: _deletable(known, subscribed, at) for at in wanted}
        good = [at for at, code in codes.items() if code is Code.NONE]
        if good:
            kept.delete(group, good)
        return codes

    codes = groups.while_subscribed(group, delete)
    kinds = _Deleted.OffsetDeleteResponseTopic, _Deleted.OffsetDeleteResponsePartition
    return _Deleted(topics=by_topic(codes, *kinds))


def _deletable(known: Mapping[str, Any], subscribed: Any, at: TopicPartition) -> Code:
    if at.topic not in known or at.partition not in known[at.topic].partition_ids:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.GROUP_SUBSCRIBED_TO_TOPIC if at.topic in subscribed else Code.NONE


HANDLERS = {
    Api.OFFSET_COMMIT: offset_commit,
    Api.OFFSET_FETCH: offset_fetch,
    Api.OFFSET_DELETE: offset_delete,
}
