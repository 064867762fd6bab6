"""Appends to a partition: records are checked against the topic's settings, encoded, and written.

On the fast path one call of C appends a record (`append_short`; `_native/tail_append.c`) or a list of an
application's records (`append_list`). `append_one` and `append_columns` append an application's other
records, `append_record` and `append_batches` a producer's. They encode and compress the records in Python;
then C writes the batches (`_write_short`). If C answers `SLOW`, `Partition.put` takes the append token and
writes the batches. `append_pieces` (in a file of its own) appends a producer's batches by one call of C.
Threads: any.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib, seg_list_append, seg_tail_append
from segstore.config import arguments
from segstore.errors import Needing, RecordTooLargeError, StorageError
from segstore.files.reserve import NO_ROOM
from segstore.mutex import check_apart
from segstore.records import HEADER_SIZE, Columns, Encoded, Template, check_sizes, encode, single
from segstore.records.encoded import PLAIN
from segstore.records.header import APPEND_TIME_FLAG
from segstore.storage.log.acks import ALL, Acks
from segstore.storage.log.validator import LogValidator
from segstore.storage.producers.append_info import ExpectedEnd, ProducerAppendInfo, claim_of

if TYPE_CHECKING:
    from segstore.records.arrow_table import TableColumns
    from segstore.storage.log.acks import Acknowledger
    from segstore.storage.log.partition import Partition, Writable
    from segstore.storage.log.tail import Tail


def append(
    partition: Partition,
    chunks: list[Encoded],
    n: int,
    claim: ProducerAppendInfo | ExpectedEnd | None = None,
    acks: Acks = ALL,
) -> int:
    """Append `n` records, which get contiguous offsets and become visible at the same moment. Return the
    first offset. If `claim` is a ProducerAppendInfo, Kafka's rules for the producer are applied first. If
    `claim` is an ExpectedEnd, its offset is first compared with the log's end. After the append, flush if
    `flush.messages` requires a flush, and wait for the replicas that `acks` asks for.

    Raises StorageError, OffsetMismatchError, and the errors of `append_info.judge`. None of the records are
    appended then, unless it was the flush that failed. Also raises the errors of `Acknowledger`.
    """
    expected = claim.offset if isinstance(claim, ExpectedEnd) else -1
    short = len(chunks) == 1 and (claim is None or expected >= 0 or claim.sequenced)
    opens = isinstance(claim, ProducerAppendInfo) and claim.verified
    acknowledger, first = partition.acks, SLOW
    if short and acknowledger is not None:
        first = append_inline(
            partition, acks, n, lambda: _write_due(partition, chunks[0], n, expected, opens)
        )
        if first >= 0:
            return first
    elif short:
        first = _write_short(partition, chunks[0], expected, opens)
    if first < 0:
        return _acknowledged(partition, acknowledger, acks, n, lambda: partition.put(chunks, claim))
    partition.flushing.flush_if_due(first + n)
    return awaited(partition, first, n, acks)


def awaited(partition: Partition, first: int, n: int, acks: Acks = ALL) -> int:
    """Return `first`, the offset of the first of `n` appended records. If the partition has an acknowledger
    now, first wait for the replicas that `acks` asks for. Raises the errors of `Acknowledger`.
    """
    acknowledger = partition.acks
    if acknowledger is not None:
        partition.visible.publisher.notify()
        acknowledger.wait(first + n, acks.acks, acks.timeout_ms)
    return first


def _acknowledged(
    partition: Partition, acknowledger: Acknowledger | None, acks: Acks, n: int, write: Callable[[], int]
) -> int:
    """Append `n` records by `write`, which returns their first offset. Flush if flush.messages requires a
    flush, wait for the replicas that `acks` asks for, and return that offset. If a producer repeats an
    append, nothing is written, but the call waits until the replicas have the batches of the first try.
    """
    if acknowledger is None:
        first = write()
        partition.flushing.flush_if_due(first + n)
        return awaited(partition, first, n, acks)
    acknowledger.check(acks.acks)
    try:
        first = write()
        partition.flushing.flush_if_due(first + n)
    except StorageError as error:
        acknowledge_failure(error, partition, acknowledger)
        raise
    acknowledger.wait(first + n, acks.acks, acks.timeout_ms)
    # The store may have left sync mode and entered it again during the wait. Then the partition has a new
    # acknowledger, and the append waits for that, too.
    return first if partition.acks is acknowledger else awaited(partition, first, n, acks)


def acknowledge_failure(error: StorageError, partition: Partition, acknowledger: Acknowledger) -> None:
    """Report a failed append to the acknowledger. A full disk is reported only if the log is fenced."""
    if partition.segments.fenced is not None or error.errno not in NO_ROOM:
        acknowledger.failed(error)


def append_inline(partition: Partition, acks: Acks, n: int, write: Callable[[], int]) -> int:
    """Append `n` records by `write`, a single call of C. The call writes either all replicas of the
    partition, or the log of a primary whose standby is in sync mode. Then wait, if `acks` asks for it, for
    the standby, or for a follower that lacks the records.

    Return the first offset, or SLOW if nothing was appended. Raises StorageError, and the errors of
    `Acknowledger`.
    """
    acknowledger, native = partition.acks, partition.tail.native
    if acknowledger is None:
        return SLOW
    if native.is_replicated:
        acknowledger.check(acks.acks)
    try:
        first = write()
    except StorageError as error:
        acknowledge_failure(error, partition, acknowledger)
        raise
    if first <= BEHIND:
        return behind(acknowledger, acks, n, first)
    if first >= 0 and native.is_replicated:  # readers see the records after the standby has fetched them
        awaited(partition, first, n, acks)
    elif first >= 0:
        acknowledger.shown()
    return first


def behind(acknowledger: Acknowledger, acks: Acks, n: int, answer: int) -> int:
    """Wait, if `acks` asks for it, for the followers that lack the `n` records at an offset; `answer` is
    `BEHIND - offset`. Return the offset. Raises the errors of `Acknowledger`.
    """
    first = BEHIND - answer
    acknowledger.wait(first + n, acks.acks, acks.timeout_ms)
    return first


# --- the fast path: one call of C --------------------------------------------------------------

SLOW: int = lib.SEG_SLOW
"""C's answer to an append that must take the slow path; C has appended nothing then."""
BEHIND: int = lib.SEG_UNREPLICATED
"""C answers `BEHIND - offset` if a follower lacks the records that were appended at `offset`."""
_NOW: int = lib.SEG_NOW
_write_at, _cast = lib.seg_tail_write, ffi.cast


def append_short(
    tail: Tail,
    value: Any,
    key: Any,
    headers: Any,
    timestamp: int | None,
    expected: int | None = None,
    batch: int = 0,
) -> int:
    """Append a record by one call of C. Return the record's offset, or `BEHIND - offset` if a follower lacks
    the record. Return SLOW if C may not append now, if C can't handle the record (for example, because its
    value is not bytes), or if the log's end is not `expected`.

    `batch` is the address of a `seg_batch`, or 0 if the record's producer has no id. The caller has set the
    producer's fields of the `seg_batch`; C sets all other fields to the values of the batch header. Raises
    StorageError; the record is not in the log then, unless it was the flush that failed.
    """
    native = tail.native
    on_append, flush_left, clock = native.on_append, native.flush_left, native.clock
    if on_append is not None:
        check_apart("append()")
    now = _NOW if clock is None else clock()
    offset: int = seg_tail_append(native.address, value, key, headers, timestamp, expected, now, batch)
    if offset == SLOW:
        return SLOW
    if offset < 0:
        return undone(tail, offset, sum(len(each) for each in (key, value) if each is not None))
    if on_append is not None:
        on_append(offset + 1)
    elif flush_left is not None and offset + 1 - native.commit.synced >= native.c.flush_messages:
        flush_left(offset + 1)
    return offset


def append_list(
    tail: Tail,
    n: int,
    values: Any,
    keys: Any,
    timestamps: Any,
    headers: Any,
    batch_bytes: int,
    expected: int | None = None,
) -> int:
    """Append `n` small records, given in columns, by one call of C. Return the first offset,
    `BEHIND - offset` or SLOW, as `append_short` does. Return SLOW, too, if the records are not small.
    """
    native = tail.native
    on_append, flush_left, clock = native.on_append, native.flush_left, native.clock
    if on_append is not None:
        check_apart("append()")
    now = _NOW if clock is None else clock()
    first: int = seg_list_append(
        native.address, n, values, keys, timestamps, headers, batch_bytes, expected, now
    )
    if first == SLOW:
        return SLOW
    if first < 0:
        return undone(tail, first, sum(len(each) for each in values if each is not None))
    if on_append is not None:
        on_append(first + n)
    elif flush_left is not None and first + n - native.commit.synced >= native.c.flush_messages:
        flush_left(first + n)
    return first


def _write_due(partition: Partition, chunk: Encoded, n: int, expected: int, opens: bool) -> int:
    """Append encoded batches of `n` records by `_write_short`, and return its result. Flush if flush.messages
    or flush.ms requires a flush.
    """
    first = _write_short(partition, chunk, expected, opens)
    if first >= 0:
        partition.flushing.flush_if_due(first + n)
    return first


def _write_short(partition: Partition, chunk: Encoded, expected: int, opens: bool) -> int:
    """Append encoded batches by one call of C. Return the first offset, SLOW, or `BEHIND - offset`.
    `expected` is the offset to append at, -1 for any offset. If `opens`, a transaction may begin with these
    batches.
    """
    native = partition.tail.native
    if native.on_append is not None:
        check_apart("append()")
    now = _NOW if native.clock is None else native.clock()
    n = chunk.n
    first = _write_at(native.c, chunk.ptr, chunk.size, chunk.headers, n, expected, now, opens)
    if first >= 0 or first <= BEHIND:
        chunk.release()
    return first if first >= 0 or first == SLOW else undone(partition.tail, first, chunk.size)


def undone(tail: Tail, answer: int, need: int) -> int:
    """Return `answer` if it is `BEHIND - offset`, which is no error. Else undo the failed append of `need`
    bytes, and raise the error of the append.
    """
    # Taking the token also stops C's appends, and lets followers fetch the records that C appended.
    with tail.token:
        if answer <= BEHIND:
            return answer
        raise tail.torn(-answer, need)


# --- an application's records ------------------------------------------------------------------

# A long append encodes this many bytes before it takes the append token. It encodes the bytes after these
# while it holds the token and other appends wait: the records of one append must be contiguous.
AHEAD_PLAIN = 4 << 20
AHEAD_COMPRESSED = 64 << 20


def append_one(
    partition: Partition,
    value: bytes | None,
    key: bytes | None,
    headers: Any,
    timestamp: int | None,
    acks: Acks = ALL,
    expected: ExpectedEnd | None = None,
) -> int:
    """Append a record; return its offset."""
    if partition.tail.has_standby:
        offset = None if expected is None else expected.offset
        record = partition.tail, value, key, headers, timestamp, offset
        first = append_inline(partition, acks, 1, lambda: append_short(*record))
        if first >= 0:
            return first
    validator, now = partition.validator, partition.context.clock()
    stamp = now if timestamp is None else arguments.whole("timestamp", timestamp, -1)
    validator.check(stamp, stamp, key is None, now)
    encoded = single(value, key, headers, stamp, PLAIN, validator.codec, validator.level)
    if encoded.size > validator.largest_batch:
        raise RecordTooLargeError(validator.too_large(encoded.size))
    return append(partition, [encoded], 1, expected, acks)


def append_columns(
    partition: Partition,
    values: Any,
    keys: Any,
    timestamps: Any,
    headers: Any,
    compression: str | None,
    batch_bytes: int,
    acks: Acks = ALL,
    expected: ExpectedEnd | None = None,
) -> range:
    """Append columns of records; return their offsets."""
    if partition.tail.has_standby and compression is None and isinstance(values, list | tuple):
        n, offset = len(values), None if expected is None else expected.offset
        given = n, values, keys, timestamps, headers, batch_bytes, offset
        first = append_inline(partition, acks, n, lambda: append_list(partition.tail, *given))
        if first >= 0:
            return range(first, first + n)
    validator, now = partition.validator, partition.context.clock()
    n, chunks = encode_columns(validator, now, values, keys, timestamps, headers, compression, batch_bytes)
    if not n:
        end = partition.visible.log_end_offset
        if expected is not None:
            expected.check(end)
        return range(end, end)
    chunk, second = next(chunks), next(chunks, None)
    if second is None:
        first = append(partition, [chunk], n, expected, acks)
        return range(first, first + n)
    codec, _ = validator.named_codec(compression)
    ahead = AHEAD_COMPRESSED if codec else AHEAD_PLAIN
    batches = chain((chunk, second), chunks)
    first = _acknowledged(
        partition, partition.acks, acks, n, lambda: write_long(partition, batches, ahead, expected)
    )
    return range(first, first + n)


def encode_columns(
    validator: LogValidator,
    now: int,
    values: Any,
    keys: Any,
    timestamps: Any,
    headers: Any,
    compression: str | None,
    batch_bytes: int,
) -> tuple[int, Iterator[Encoded]]:
    """Return the number of records in these columns, and an iterator of their batches. A batch has at most
    `batch_bytes`, and is not above the topic's limit. This call, not the iterator, raises the errors of wrong
    columns.
    """
    batch_bytes = arguments.whole("batch_bytes", batch_bytes, 1)
    codec, level = validator.named_codec(compression)
    if isinstance(timestamps, numbers.Integral):
        now_or_one, timestamps = arguments.whole("timestamps", timestamps, -1), None
    else:
        now_or_one = now
    columns = Columns(values, keys, timestamps, headers, now_or_one)
    if not columns.n:
        return 0, iter(())
    validator.check(*columns.span, columns.keys.has_nulls, now)
    limit = validator.largest_batch
    check_sizes(columns, codec, level, limit)
    return columns.n, encode(columns, codec, level, batch_bytes, max_bytes=limit)


def table_columns(table: Any) -> TableColumns:
    """Return the columns that `append_table` takes from a table. Raises MissingPackageError without pyarrow,
    and the errors of `columns_of_table`.
    """
    with Needing("pyarrow", "append_table"):
        from segstore.records.arrow_table import columns_of_table
    return columns_of_table(table)


def write_long(
    partition: Partition, chunks: Iterator[Encoded], ahead: int, expected: ExpectedEnd | None = None
) -> int:
    """Write batches by `Partition.put`, and return the first offset. The first `ahead` bytes are encoded
    before `put` takes the append token. The bytes after these are encoded while `put` holds the append token.
    """
    ready: list[Encoded] = []
    size = 0
    for chunk in chunks:
        ready.append(chunk)
        size += chunk.size
        if size > ahead:
            return partition.put(chain(ready, chunks), expected)
    return partition.put(ready, expected)


# --- a producer's batches ----------------------------------------------------------------------


class Appended(NamedTuple):
    """The offset, size and time of appended records. `first` is the records' first offset, and `size` is
    their bytes on disk. `append_time` is the timestamp in ms that the log gave the records, -1 if the records
    keep their own.

    `duplicate` is True if the producer had written the records before, so that nothing was written now.
    """

    first: int
    append_time: int
    size: int
    duplicate: bool = False


# `_appended` makes an `Appended` by one call of C. A Python function would be slower.
_appended: Callable[[tuple[Any, ...]], Appended] = partial(tuple.__new__, Appended)


def append_batches(
    log: Writable,
    columns: Columns,
    cuts: Sequence[int] = (),
    compression: str | None = None,
    template: Template = PLAIN,
    *,
    sequenced: bool = True,
    acks: Acks = ALL,
) -> Appended:
    """Append all records with contiguous offsets, or none. A batch ends before each record whose number is in
    `cuts`.

    A batch above `max.message.bytes` is split. `compression` is used if the topic's `compression.type` is
    "producer"; otherwise the topic's codec is used. Raises RecordTooLargeError and InvalidArgumentError
    before anything is written. Raises StorageError, ReadOnlyError, StoreClosedError, ForkedError.

    If `template` has a producer id, the producer's epoch, sequences and transaction are checked by Kafka's
    rules (ProducerAppendInfo), and batches that repeat one of the producer's last 5 are not written again.
    Raises InvalidProducerEpochError, OutOfOrderSequenceError, DuplicateSequenceError, InvalidTxnStateError.
    If not `sequenced`, or if the base sequence is -1, sequences are not checked, because a coordinator's own
    records have no sequences (Kafka: AppendOrigin.COORDINATOR).
    """
    claim = claim_of(template, sequenced)
    partition = log.partition_for_write()
    if not columns.n:
        return Appended(partition.visible.log_end_offset, -1, 0)
    validator = partition.validator
    codec, level = validator.codec_for(compression)
    least, most = (-1, -1) if columns.timestamps is None else columns.span
    validator.check(least, most, columns.keys.has_nulls, partition.context.clock())
    limit = validator.largest_batch
    check_sizes(columns, codec, level, limit)
    chunks = list(encode(columns, codec, level, limit, template, _room(columns, len(cuts) + 1), limit, cuts))
    return _append(partition, chunks, columns.n, claim, acks)


def append_record(
    log: Writable,
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    timestamp: int,
    compression: str | None = None,
    template: Template = PLAIN,
    *,
    sequenced: bool = True,
    acks: Acks = ALL,
) -> Appended:
    """Append one record by the rules of `append_batches`, usually by one call of C."""
    partition = log.partition_for_write()
    if compression is None and (sequenced or template.producer_id < 0):
        batch = ffi.new("seg_batch *")
        batch.producer_id, batch.producer_epoch = template.producer_id, template.producer_epoch
        batch.base_sequence, batch.attributes = template.base_sequence, template.attributes
        record = partition.tail, value, key, headers, timestamp, None, int(_cast("uintptr_t", batch))
        acknowledger = partition.acks
        if acknowledger is not None:
            first = append_inline(partition, acks, 1, lambda: append_short(*record))
        elif (first := append_short(*record)) >= 0 and partition.acks is not None:
            awaited(partition, first, 1, acks)
        if first >= 0:
            stamp = batch.max_timestamp if batch.attributes & APPEND_TIME_FLAG else -1
            return _appended((first, stamp, batch.size, False))
    claim = claim_of(template, sequenced)
    validator = partition.validator
    codec, level = validator.codec_for(compression)
    validator.check(timestamp, timestamp, key is None, partition.context.clock())
    encoded = single(value, key, headers, timestamp, template, codec, level)
    if encoded.size > validator.largest_batch:
        raise RecordTooLargeError(validator.too_large(encoded.size))
    return _append(partition, [encoded], 1, claim, acks)


def _append(
    partition: Partition, chunks: list[Encoded], n: int, claim: ProducerAppendInfo | None, acks: Acks
) -> Appended:
    size = sum(chunk.size for chunk in chunks)
    first = append(partition, chunks, n, claim, acks)
    append_time = -1
    if partition.config.message_timestamp_type == "LogAppendTime":
        repeated = claim is not None and claim.repeated
        append_time = repeated[0].timestamp if repeated else int(chunks[0].batches["max_timestamp"][0])
    return Appended(first, append_time, size, claim is not None and bool(claim.repeated))


def _room(columns: Columns, batches: int) -> int:
    """Return a chunk size for `encode` that is large enough for all these records."""
    size = batches * HEADER_SIZE + columns.n * _NUMBERS
    size += int(columns.keys.c.data_len) + int(columns.values.c.data_len)
    if columns.headers:
        c = columns.headers.c
        size += int(c.names.data_len) + int(c.values.data_len) + 10 * int(c.names.n)
    return size


_NUMBERS = 36
"""The largest possible size, in bytes, of the varints and attributes of one record."""
