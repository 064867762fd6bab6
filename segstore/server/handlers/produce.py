"""Produce: appends the batch of each partition to the partition's log, in the producer's encoding (Kafka:
KafkaApis.handleProduceRequest).

Threads: a request is handled in the loop's thread if its appends take microseconds. A worker thread handles
the request if an append may wait for a disk, for replicas or for a transaction's lock, must open a log, or is
large.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

from segstore import errors
from segstore.coordinator.quotas import PRODUCER_BYTE_RATE, QuotaThrottle, quotas
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.server.apis import Api
from segstore.server.learned.produce import AT_ONCE, ProduceTarget, learned_produce
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.storage.log.append_as_leader import AppendedBatch
from segstore.storage.store.partition_log import PartitionLog

from .working import fail, work

log = Logger("segstore")

_Response = structs("ProduceResponse")
_Topic, _Partition = _Response.TopicProduceResponse, _Response.PartitionProduceResponse
_RecordError = _Response.BatchIndexAndErrorMessage
_ACKS = frozenset({-1, 0, 1})
_ZSTD_SINCE, _ABORTABLE_SINCE, _ADDS_SINCE, _IDS_SINCE = 7, 11, 12, 13
_MOST_CLIENTS = 1000
"""The maximum number of (user, client id) pairs whose throttles are cached."""
NO_RECORDS = memoryview(b"")
_ATTRIBUTES_AT, _PRODUCER_AT, _EPOCH_AT, _HEADER = 22, 43, 51, 61


class _PartitionAppend(NamedTuple):
    """The records of one partition of a request. `log` is the partition's log, or an error code if the log
    was not found.
    """

    topic: str
    number: int
    records: memoryview
    log: PartitionLog | Code


class _Verified(NamedTuple):
    """The partitions that the coordinator has verified as part of a request's transaction.

    If a transactional batch is for a partition that is not in `partitions`, it is refused with the error code
    `otherwise`.
    """

    partitions: frozenset[TopicPartition]
    otherwise: Code

    def has(self, batch: _PartitionAppend) -> bool:
        """Return whether the partition of a batch is in `partitions`."""
        return bool(self.partitions) and TopicPartition(batch.topic, batch.number) in self.partitions


class _Quotas:
    """The produce throttles of a server, by user and client id."""

    def __init__(self, node: Node) -> None:
        self._quotas = quotas(node.store)
        self._throttles: dict[tuple[str, str], QuotaThrottle] = {}

    def throttle(self, request: Request) -> QuotaThrottle:
        """Return the throttle of a request's user and client id."""
        user, client_id = key = request.channel.principal, request.client_id or ""
        throttle = self._throttles.get(key)
        if throttle is None:
            if len(self._throttles) >= _MOST_CLIENTS:
                self._throttles.clear()
            throttle = self._throttles[key] = self._quotas.throttle(PRODUCER_BYTE_RATE, client_id, user)
        return throttle

    def charge(self, request: Request, size: int) -> int:
        """Charge `size` bytes to the quota of the request's client; return the throttle time in ms."""
        throttle = self.throttle(request)
        return throttle.charge(size) if throttle.bound is not None else 0


def produce(node: Node, request: Request) -> Any:
    """Append a request's batches; answer with a base offset or an error for each partition."""
    body, logs, version = request.body, node.part(Logs), request.version
    topics = []
    size, may_wait = 0, body.transactional_id is not None
    for topic in body.topic_data:
        found = [_found(logs, topic, each, version) for each in topic.partition_data]
        topics.append((topic, found))
        for batch in found:
            size += len(batch.records)
            may_wait = may_wait or _may_wait(batch.log, body.acks)
    delay = node.part(_Quotas).charge(request, size)
    if not may_wait and size <= AT_ONCE:
        answer = _answered(node, request, topics, delay)
        _keep(node, request, topics)
        return _final(answer, request)

    def done(result: Any) -> None:
        if isinstance(result, BaseException):
            fail(request, result)
        else:
            request.answer(_final(result, request))

    return work(node, request, lambda: _answered(node, request, topics, delay), done, waits=may_wait)


def _keep(node: Node, request: Request, topics: list[tuple[Any, list[_PartitionAppend]]]) -> None:
    """Set the connection's `learned`, which answers later requests like this one without decoding them."""
    batch = topics[0][1][0] if topics and topics[0][1] else None
    if batch is None or isinstance(batch.log, Code) or not batch.records:
        return
    throttle = node.part(_Quotas).throttle(request)
    failed = partial(_failed, batch._replace(records=NO_RECORDS), _unverified(request.version))
    request.channel.learned = learned_produce(request, ProduceTarget(batch.log, throttle, failed))


def _final(answer: Any, request: Request) -> Any:
    """Return the answer, or None if the request has acks=0."""
    if request.body.acks:
        return answer
    # A request with acks=0 gets no answer. If a partition has an error, the connection is closed, and if a
    # quota is exceeded, the connection's next request is read later (KIP-219).
    channel = request.channel
    channel.mute(answer.throttle_time_ms)
    codes = [each.error_code for topic in answer.responses for each in topic.partition_responses]
    for code in filter(None, codes):
        channel.row(request.api).add_error(code)
    if any(codes):
        channel.close()
    return None


# --- partitions of a request --------------------------------------------------------------


def _found(logs: Logs, topic: Any, partition: Any, version: int) -> _PartitionAppend:
    """Return a partition's batch, with the partition's log, or with an error code if the log is not found."""
    name = topic.name
    if version >= _IDS_SINCE:
        name = logs.name_of(topic.topic_id)
        if name is None:
            return _PartitionAppend("", partition.index, NO_RECORDS, Code.UNKNOWN_TOPIC_ID)
    records = NO_RECORDS if partition.records is None else partition.records
    try:
        return _PartitionAppend(name, partition.index, records, logs.find(name, partition.index))
    except errors.SegstoreError as error:
        return _PartitionAppend(name, partition.index, records, code_of(error))


def _may_wait(target: PartitionLog | Code, acks: int) -> bool:
    return not isinstance(target, Code) and target.append_may_wait(acks)


# --- appends ------------------------------------------------------------------------------


def _answered(
    node: Node, request: Request, topics: list[tuple[Any, list[_PartitionAppend]]], delay: int
) -> Any:
    """Append all batches; return the answer. `delay` is the request's throttle time in ms."""
    if request.body.transactional_id is None:
        return _responses(request, topics, delay, _unverified(request.version))
    batches = [batch for _, found in topics for batch in found]
    with _transaction(node, request, batches) as verified:
        return _responses(request, topics, delay, verified)


def _responses(
    request: Request, topics: list[tuple[Any, list[_PartitionAppend]]], delay: int, verified: _Verified
) -> Any:
    responses = [
        _Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_appended(batch, request, verified) for batch in found],
        )
        for topic, found in topics
    ]
    return _Response(responses=responses, throttle_time_ms=delay)


def _appended(batch: _PartitionAppend, request: Request, verified: _Verified) -> Any:
    body, target = request.body, batch.log
    if body.acks not in _ACKS:
        return _refused(batch, Code.INVALID_REQUIRED_ACKS)
    if isinstance(target, Code):
        return _refused(batch, target)
    if not batch.records:
        return _refused(batch, Code.INVALID_RECORD, "a produce request has exactly one batch a partition")
    try:
        return _success(
            batch.number,
            target.append_as_leader(
                batch.records,
                acks=body.acks,
                timeout_ms=max(body.timeout_ms, 0),
                verified=verified.has(batch),
                allow_zstd=request.version >= _ZSTD_SINCE,
            ),
        )
    except errors.SegstoreError as error:
        return _failed(batch, verified, error)


def _failed(batch: _PartitionAppend, verified: _Verified, error: errors.SegstoreError) -> Any:
    """Return the answer's struct of a partition whose append has raised `error`."""
    if isinstance(error, errors.UnverifiedTransactionError):
        return _refused(batch, verified.otherwise)
    if isinstance(error, errors.InvalidRecordError):
        refused = _refused(batch, code_of(error), str(error))
        refused.record_errors = [
            _RecordError(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
        return refused
    # The message is only strerror, because clients must not see the path.
    reason = error.strerror if isinstance(error, errors.StorageError) else None
    return _refused(batch, _code(error), reason)


def _success(index: int, appended: AppendedBatch) -> Any:
    return _Partition(
        index=index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
    )


def _refused(batch: _PartitionAppend, code: Code, message: str | None = None) -> Any:
    return _Partition(index=batch.number, error_code=code, base_offset=-1, error_message=message)


def _code(error: errors.SegstoreError) -> Code:
    code = code_of(error)
    if code is Code.UNKNOWN_SERVER_ERROR:
        log.error("an append failed: %s: %s", type(error).__name__, error)
    return code


# --- transactions -------------------------------------------------------------------------


@cache
def _unverified(version: int) -> _Verified:
    """Return a `_Verified` without partitions. Its error code is known to clients that send requests of this
    version.
    """
    known = version >= _ABORTABLE_SINCE
    return _Verified(frozenset(), Code.TRANSACTION_ABORTABLE if known else Code.INVALID_TXN_STATE)


@contextmanager
def _transaction(node: Node, request: Request, batches: list[_PartitionAppend]) -> Iterator[_Verified]:
    """Yield the partitions that were verified as part of the request's transaction (KIP-890). If the
    verification fails, yield a `_Verified` without partitions, whose `otherwise` is the code of the error.
    The transaction can't be committed or aborted while the block of the `with` statement runs. From version
    12 on the request adds its partitions to the transaction. (Kafka:
    AddPartitionsToTxnManager.TransactionSupportedOperation.)
    """
    unverified, transactional_id = _unverified(request.version), request.body.transactional_id
    identity, theirs = _transactional(batches)
    if identity is None:
        yield unverified
        return
    entered = False
    try:
        coordinator = shared(node.store, TransactionCoordinator)
        if request.version >= _ADDS_SINCE:
            with coordinator.appending(transactional_id, identity, theirs):
                entered = True
                yield unverified._replace(partitions=theirs)
        else:
            with coordinator.verifying(transactional_id, identity) as partitions:
                entered = True
                yield unverified._replace(partitions=partitions)
    except errors.SegstoreError as error:
        if entered:
            raise
        yield unverified._replace(otherwise=_transaction_code(error, request.version))


def _transactional(
    batches: list[_PartitionAppend],
) -> tuple[tuple[int, int] | None, frozenset[TopicPartition]]:
    """Return ((producer id, producer epoch), partitions) of a request's transactional batches. The first
    member is None if no batch is transactional, or if the batches have several producers.
    """
    theirs = [batch for batch in batches if _is_transactional(batch)]
    identities = {_identity(batch.records) for batch in theirs}
    identity = identities.pop() if len(identities) == 1 else None
    return identity, frozenset(TopicPartition(batch.topic, batch.number) for batch in theirs)


def _is_transactional(batch: _PartitionAppend) -> bool:
    long_enough = not isinstance(batch.log, Code) and len(batch.records) >= _HEADER
    return long_enough and bool(batch.records[_ATTRIBUTES_AT] & TRANSACTIONAL_FLAG)


def _identity(records: memoryview) -> tuple[int, int]:
    """Return (producer id, producer epoch) from a batch's header."""
    return (
        int.from_bytes(records[_PRODUCER_AT:_EPOCH_AT], "big", signed=True),
        int.from_bytes(records[_EPOCH_AT : _EPOCH_AT + 2], "big", signed=True),
    )


def _transaction_code(error: errors.SegstoreError, version: int) -> Code:
    """Return the error code for a transaction that could not be verified."""
    if isinstance(error, (errors.InvalidPidMappingError, errors.TransactionalIdNotFoundError)):
        return Code.INVALID_PRODUCER_ID_MAPPING
    if isinstance(error, errors.ProducerFencedError):
        return Code.INVALID_PRODUCER_EPOCH
    if isinstance(error, errors.ConcurrentTransactionsError) and version >= _ADDS_SINCE:
        return Code.CONCURRENT_TRANSACTIONS
    return Code.NOT_ENOUGH_REPLICAS  # clients of all versions retry after this code


HANDLERS = {Api.PRODUCE: produce}
