"""Appends a received batch of a producer without encoding it anew (Kafka: UnifiedLog.appendAsLeader with
AppendOrigin.CLIENT).

On disk are the log's files, written in the same form as by `append`. On the fast path one call of C checks
the batch, sets its base offset in the received bytes, and writes these bytes. Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib
from segstore.mutex import check_apart
from segstore.records.header import APPEND_TIME_FLAG
from segstore.storage.log.append import SLOW, append, undone
from segstore.storage.log.sent_batch import Received, SentBatch, check_batch, check_received, of_header
from segstore.storage.producers.append_info import ProducerAppendInfo

if TYPE_CHECKING:
    from segstore.storage.log.acks import Acks
    from segstore.storage.log.partition import Partition
    from segstore.storage.log.tail import Tail

_NOW: int = lib.SEG_NOW
_NEW_HEADER = ffi.typeof("seg_batch *")


class AppendedBatch(NamedTuple):
    """The offset of an appended batch. `records` is the number of its records, `log_start_offset` the log's
    first offset. `log_append_time` is the timestamp in ms that the log gave the records, -1 if the records
    keep their own.

    `duplicate` is True if the producer had sent the batch before, so that nothing was written now.
    """

    base_offset: int
    log_append_time: int
    log_start_offset: int
    records: int
    duplicate: bool = False


def append_as_leader(
    partition: Partition, batch: Received, acks: Acks, verified: bool, allow_zstd: bool, where: str
) -> AppendedBatch:
    """Append a received batch, and wait for the replicas that `acks` asks for. If `verified`, the batch may
    begin a transaction. If `allow_zstd`, the batch may be compressed with zstd. `where` names the partition
    in errors. Raises the errors of `PartitionLog.append_as_leader`.
    """
    check_received(batch, allow_zstd)
    header = ffi.new(_NEW_HEADER)
    validator = partition.validator
    if partition.acks is None and (validator.keeps_codec or not validator.codec):
        first = _take(partition.tail, validator.rules, batch, header)
        if first >= 0:
            partition.flushing.flush_if_due(first + header.count)
            stamp = header.max_timestamp if header.attributes & APPEND_TIME_FLAG else -1
            return AppendedBatch(first, stamp, partition.visible.start_offset, header.count)
    if header.size:  # C has found the batch valid
        sent = of_header(batch, header)
    else:
        sent = check_batch(batch, validator, partition.context.clock(), where)
    return _append(partition, sent, acks, verified)


def _take(tail: Tail, rules: Any, batch: Received, header: Any) -> int:
    """Check and append a batch by one call of C. Return its base offset, or SLOW if nothing was appended.
    After SLOW, `header.size` is not 0 if the batch has passed the check. Raises StorageError.
    """
    native = tail.native
    if native.on_append is not None:
        check_apart("append_as_leader()")
    now = _NOW if native.clock is None else native.clock()
    first: int = lib.seg_tail_take(
        native.c, ffi.from_buffer("uint8_t[]", batch), len(batch), rules, now, header
    )
    return first if first >= 0 or first == SLOW else undone(tail, first, len(batch))


def _append(partition: Partition, sent: SentBatch, acks: Acks, verified: bool) -> AppendedBatch:
    template, encoded = sent.template, sent.encoded
    claim = (
        None if template.producer_id < 0 else ProducerAppendInfo(template, sequenced=True, verified=verified)
    )
    first = append(partition, [encoded], sent.records, claim, acks)
    repeated = claim.repeated if claim is not None else []
    append_time = -1
    if partition.config.message_timestamp_type == "LogAppendTime":
        append_time = repeated[0].timestamp if repeated else int(encoded.batches["max_timestamp"][0])
    start = partition.visible.start_offset
    return AppendedBatch(first, append_time, start, sent.records, bool(repeated))
