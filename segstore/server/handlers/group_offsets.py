"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups.

Threads: the loop's; the coordinator is asked in worker threads.
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
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.storage.store.store import Store

from .coordinating import by_topic, coordinated, coordinator_code

_Committed = structs("OffsetCommitResponse")
_Fetched = structs("OffsetFetchResponse")
_Deleted = structs("OffsetDeleteResponse")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Codes = dict[TopicPartition, Code]


# --- OffsetCommit --------------------------------------------------------------------------------

_TELLS_GROUP = _KNOWS_EPOCHS = 9  # the first version that is told that there is no such group


def offset_commit(node: Node, request: Request) -> Later:
    """Commit for a member, or for a group without members; what is wrong with one partition leaves the
    others alone.
    """
    body, store = request.body, node.store
    offsets = offsets_of(body.topics)
    member = ConsumerGroupMetadata(
        body.group_id, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id
    )

    def run() -> Any:
        codes = commit_apart(
            store,
            offsets,
            lambda good: shared(store, GroupCoordinator).commit(
                member, good, request.version >= _KNOWS_EPOCHS
            ),
        )
        if Code.UNKNOWN_MEMBER_ID in codes.values() and _is_unknown(store, member):
            wrong = Code.GROUP_ID_NOT_FOUND if request.version >= _TELLS_GROUP else Code.ILLEGAL_GENERATION
            codes = {at: wrong if code is Code.UNKNOWN_MEMBER_ID else code for at, code in codes.items()}
        return _committed(codes)

    return coordinated(node, request, run, lambda code: _committed(dict.fromkeys(offsets, code)))


def _is_unknown(store: Store, member: ConsumerGroupMetadata) -> bool:
    """Return whether a member's group is not there (GroupMetadataManager: validateOffsetCommit)."""
    assert member.group_id is not None
    return member.generation_id >= 0 and not shared(store, GroupCoordinator).exists(member.group_id)


def offsets_of(topics: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of an OffsetCommit or a TxnOffsetCommit; a null note is an empty one."""
    return {
        TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
            each.committed_offset, each.committed_metadata or "", each.committed_leader_epoch
        )
        for topic in topics
        for each in topic.partitions
    }


def commit_apart(
    store: Store,
    offsets: Offsets,
    commit: Callable[[Any], None],
    tell: Callable[[BaseException], Code] = coordinator_code,
) -> Codes:
    """Call `commit` with the offsets that may be committed; return a code for each of `offsets`, by `tell`
    where it raises.
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
            codes |= dict.fromkeys(good, tell(error))
    return codes


def _committed(codes: Codes) -> Any:
    topics = by_topic(codes, _Committed.OffsetCommitResponseTopic, _Committed.OffsetCommitResponsePartition)
    return _Committed(topics=topics)


# --- OffsetFetch ---------------------------------------------------------------------------------

_TOP_LEVEL_ERROR, _MANY_GROUPS = 2, 8
_ABSENT = OffsetAndMetadata(-1)


class _Found(NamedTuple):
    """The offsets of one group; `code` is of the whole group."""

    offsets: dict[TopicPartition, tuple[OffsetAndMetadata, Code]]
    code: Code = Code.NONE


def offset_fetch(node: Node, request: Request) -> Later:
    """Answer the committed offsets of one group, from version 8 on of many."""
    body, store = request.body, node.store
    if request.version >= _MANY_GROUPS:

        def run() -> Any:
            return _Fetched(groups=[_group(store, each, body.require_stable) for each in body.groups])

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


def _group(store: Store, asked: Any, require_stable: bool) -> Any:
    try:
        coordinator = shared(store, GroupCoordinator)
        coordinator.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
        found = _look(store, asked.group_id, asked.topics, require_stable)
    except SegstoreError as error:
        found = _failed(asked.topics, coordinator_code(error))
    kinds = _Fetched.OffsetFetchResponseTopics, _Fetched.OffsetFetchResponsePartitions
    return _Fetched.OffsetFetchResponseGroup(
        group_id=asked.group_id,
        topics=[] if found.code else _topics(found, *kinds),
        error_code=found.code,
    )


def _one_group(request: Request, found: _Found) -> Any:
    """Version 1 tells an error of the group with each partition."""
    tells = request.version >= _TOP_LEVEL_ERROR
    kinds = _Fetched.OffsetFetchResponseTopic, _Fetched.OffsetFetchResponsePartition
    topics = [] if found.code and tells else _topics(found, *kinds)
    return _Fetched(topics=topics, error_code=found.code)


def _look(store: Store, group: str, topics: Any, require_stable: bool) -> _Found:
    try:
        kept = shared(store, GroupOffsets)
        # First: a transaction that ends meanwhile has its offsets among the committed ones.
        pending = kept.pending(group) if require_stable else set()
        committed = kept.fetch(group)
    except SegstoreError as error:
        return _failed(topics, coordinator_code(error))
    wanted = sorted(committed) if topics is None else _wanted(topics)
    return _Found(
        {
            at: (_ABSENT, Code.UNSTABLE_OFFSET_COMMIT)
            if at in pending
            else (committed.get(at, _ABSENT), Code.NONE)
            for at in wanted
        }
    )


def _wanted(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _failed(topics: Any, code: Code) -> _Found:
    return _Found(dict.fromkeys(_wanted(topics or ()), (_ABSENT, code)), code)


def _topics(found: _Found, topic_kind: Any, partition_kind: Any) -> list[Any]:
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
    """Delete offsets of topics to which no member of the group subscribes (KIP-496)."""
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
