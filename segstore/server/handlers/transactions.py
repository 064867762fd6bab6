"""AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: the requests of transactional producers
(KIP-98). Newer request versions use a new producer epoch for each transaction (KIP-890).

Threads: handlers run in the loop's thread and call the coordinators in worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import Identity
from segstore.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    SegstoreError,
    StaleMemberEpochError,
    TransactionalIdNotFoundError,
)
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.storage.store.store import Store

from .coordinating import INTERNAL, by_topic, coordinated, coordinator_code, partitions_of
from .group_offsets import commit_valid, offsets_of, unknown, without_group
from .named_topics import NamedTopics

_Added = structs("AddPartitionsToTxnResponse")
_AddedOffsets = structs("AddOffsetsToTxnResponse")
_Committed = structs("TxnOffsetCommitResponse")
_Ended = structs("EndTxnResponse")

Codes = dict[TopicPartition, Code]


def _transactions(store: Store) -> TransactionCoordinator:
    return shared(store, TransactionCoordinator)


def transaction_code(error: BaseException) -> Code:
    """Return the error code for a transactional producer. It is INVALID_PRODUCER_ID_MAPPING if the
    transactional id is not found, and ILLEGAL_GENERATION if a member epoch is stale. For any other error it
    is the result of `coordinator_code`.
    """
    if isinstance(error, TransactionalIdNotFoundError):
        return Code.INVALID_PRODUCER_ID_MAPPING
    if isinstance(error, StaleMemberEpochError):
        return Code.ILLEGAL_GENERATION
    return coordinator_code(error)


def _fenced(code: Code, version: int, since: int) -> Code:
    """Return INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED if `version` is below `since` (KIP-588);
    return any other code as it is.
    """
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and version < since else code


def _check_id(transactional_id: str | None) -> str:
    if not transactional_id:
        raise InvalidRequestError("transactional_id must not be empty")
    return transactional_id


# --- AddPartitionsToTxn --------------------------------------------------------------------------

_ADD_KNOWS_FENCED, _BATCHED, _ABORTABLE = 2, 4, 5


def add_partitions_to_txn(node: Node, request: Request) -> Later:
    """Add all partitions of the request to a transaction, or none of them. From version 4 on a request, which
    only brokers send, may have several transactions.
    """
    body, store, version = request.body, node.store, request.version
    if version >= _BATCHED:

        def run() -> Any:
            return _Added(
                results_by_transaction=[_of_transaction(store, each, version) for each in body.transactions]
            )

        return coordinated(node, request, run, lambda code: _Added(error_code=code))
    wanted = partitions_of(body.v3_and_below_topics)

    def run_one() -> Any:
        identity = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
        codes = _add(store, body.v3_and_below_transactional_id, identity, wanted, False)
        return _Added(results_by_topic_v3_and_below=_results(codes, version))

    return coordinated(
        node,
        request,
        run_one,
        lambda code: _Added(results_by_topic_v3_and_below=_results(dict.fromkeys(wanted, code), version)),
    )


def _of_transaction(store: Store, asked: Any, version: int) -> Any:
    identity = asked.producer_id, asked.producer_epoch
    wanted = partitions_of(asked.topics)
    codes = _add(store, asked.transactional_id, identity, wanted, asked.verify_only)
    if version >= _ABORTABLE:
        codes = {at: _abortable(code) for at, code in codes.items()}
    return _Added.AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id, topic_results=_results(codes, version)
    )


def _abortable(code: Code) -> Code:
    """Return TRANSACTION_ABORTABLE in place of INVALID_TXN_STATE, because it makes newer clients abort
    (KIP-890); return any other code as it is.
    """
    return Code.TRANSACTION_ABORTABLE if code is Code.INVALID_TXN_STATE else code


def _add(
    store: Store, transactional_id: str, identity: Identity, wanted: list[TopicPartition], verify_only: bool
) -> Codes:
    """Add partitions to a transaction, or if `verify_only`, check that they were added. If one partition is
    refused, no partition is added (KafkaApis).
    """
    refused = {at: code for at in wanted if (code := _refused(store, at)) is not Code.NONE}
    if refused and not verify_only:
        return {at: refused.get(at, Code.OPERATION_NOT_ATTEMPTED) for at in wanted}
    try:
        known, name = _transactions(store), _check_id(transactional_id)
        if verify_only:
            return {at: _verify(known, name, identity, at) for at in wanted}
        known.add_partitions(name, identity, wanted)
    except SegstoreError as error:
        return dict.fromkeys(wanted, transaction_code(error))
    return dict.fromkeys(wanted, Code.NONE)


def _verify(known: TransactionCoordinator, name: str, identity: Identity, at: TopicPartition) -> Code:
    try:
        with known.verifying(name, identity) as there:
            return Code.NONE if at in there else Code.INVALID_TXN_STATE
    except SegstoreError as error:
        return transaction_code(error)


def _refused(store: Store, at: TopicPartition) -> Code:
    if at.topic in INTERNAL:
        return Code.TOPIC_AUTHORIZATION_FAILED
    info = store.topics().get(at.topic)
    there = info is not None and at.partition in info.partition_ids
    return Code.NONE if there else Code.UNKNOWN_TOPIC_OR_PARTITION


def _results(codes: Codes, version: int) -> list[Any]:
    topics: dict[str, Any] = {}
    for (topic, number), code in codes.items():
        held = topics.get(topic) or topics.setdefault(topic, _Added.AddPartitionsToTxnTopicResult(name=topic))
        held.results_by_partition.append(
            _Added.AddPartitionsToTxnPartitionResult(
                partition_index=number, partition_error_code=_fenced(code, version, _ADD_KNOWS_FENCED)
            )
        )
    return list(topics.values())


# --- AddOffsetsToTxn, TxnOffsetCommit ------------------------------------------------------------

_OFFSETS_KNOW_FENCED, _COMMIT_ABORTABLE, _COMMIT_ADDS, _COMMITS_BY_ID = 2, 4, 5, 6


def _offsets_of(store: Store, group: str) -> TopicPartition:
    return TopicPartition(TOPIC, shared(store, GroupOffsets).partition_for(group))


def add_offsets_to_txn(node: Node, request: Request) -> Later:
    """Add a group's partition of the offsets topic to a transaction."""
    body = request.body

    def failed(code: Code) -> Any:
        return _AddedOffsets(error_code=_fenced(code, request.version, _OFFSETS_KNOW_FENCED))

    def run() -> Any:
        try:
            at = _offsets_of(node.store, body.group_id)
            identity = body.producer_id, body.producer_epoch
            _transactions(node.store).add_partitions(_check_id(body.transactional_id), identity, [at])
        except SegstoreError as error:
            return failed(transaction_code(error))
        return _AddedOffsets()

    return coordinated(node, request, run, failed)


def txn_offset_commit(node: Node, request: Request) -> Later:
    """Commit offsets in a transaction; the offsets become visible when the transaction is committed. From
    version 5 on clients need not send AddOffsetsToTxn first (KIP-890).
    """
    body, version = request.body, request.version
    knows_epochs = version >= _COMMITS_BY_ID
    topics = NamedTopics(node, body.topics, knows_epochs)
    offsets = offsets_of(topics.known)
    epoch = body.generation_id_or_member_epoch
    member = ConsumerGroupMetadata(body.group_id, epoch, body.member_id, body.group_instance_id)
    identity = body.producer_id, body.producer_epoch

    def commit(good: dict[TopicPartition, OffsetAndMetadata]) -> None:
        _commit_within(node.store, body.transactional_id, identity, member, good, version, topics.ids)

    def run() -> Any:
        codes = commit_valid(node.store, offsets, commit, code_for)
        return _committed(topics, without_group(node.store, member, codes, knows_epochs), version)

    def code_for(error: BaseException) -> Code:
        stale = knows_epochs and isinstance(error, StaleMemberEpochError)
        return Code.STALE_MEMBER_EPOCH if stale else transaction_code(error)

    def failed(code: Code) -> Any:
        return _committed(topics, dict.fromkeys(offsets, code), version)

    return coordinated(node, request, run, failed)


def _commit_within(
    store: Store,
    transactional_id: str,
    identity: Identity,
    member: ConsumerGroupMetadata,
    offsets: dict[TopicPartition, OffsetAndMetadata],
    version: int,
    topic_ids: Mapping[str, str],
) -> None:
    group = member.group_id or ""
    known, kept = _transactions(store), shared(store, GroupOffsets)
    name, at = _check_id(transactional_id), _offsets_of(store, group)

    def write() -> None:
        if version >= _COMMIT_ADDS:
            known.add_partitions(name, identity, [at])
        with known.verifying(name, identity) as there:
            if at not in there:
                raise InvalidTxnStateError(f"the transaction of {name!r} has not the offsets of {group!r}")
            kept.commit_transactional(group, offsets, *identity, topic_ids)

    shared(store, GroupCoordinator).while_valid(member, offsets, write)


def _committed(topics: NamedTopics, codes: Codes, version: int) -> Any:
    """Return the answer, with INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED
    (AddPartitionsToTxnManager).
    """
    answered = dict[TopicPartition, Code]()
    for at, code in codes.items():
        code = Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED else code
        answered[at] = _abortable(code) if version >= _COMMIT_ABORTABLE else code
    kinds = _Committed.TxnOffsetCommitResponseTopic, _Committed.TxnOffsetCommitResponsePartition
    return _Committed(topics=topics.with_ids(by_topic(answered, *kinds), lambda each: unknown(each, *kinds)))


# --- EndTxn --------------------------------------------------------------------------------------

_END_KNOWS_FENCED, _END_RAISES = 2, 5


def end_txn(node: Node, request: Request) -> Later:
    """Commit or abort a transaction. From version 5 on the answer has the epoch of the producer's next
    transaction (KIP-890).
    """
    body, version = request.body, request.version

    def failed(code: Code) -> Any:
        return _Ended(error_code=_fenced(code, version, _END_KNOWS_FENCED))

    def run() -> Any:
        try:
            known, name = _transactions(node.store), _check_id(body.transactional_id)
            identity = body.producer_id, body.producer_epoch
            if version < _END_RAISES:
                known.end_in_epoch(name, identity, body.committed)
                return _Ended()
            producer_id, producer_epoch = known.end(name, identity, body.committed)
            return _Ended(producer_id=producer_id, producer_epoch=producer_epoch)
        except SegstoreError as error:
            return failed(transaction_code(error))

    return coordinated(node, request, run, failed)


HANDLERS = {
    Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    Api.TXN_OFFSET_COMMIT: txn_offset_commit,
    Api.END_TXN: end_txn,
}
