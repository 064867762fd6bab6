"""Appends of a producer's record batches: one call of C encodes many of them.

Threads: any. Encoding and compression are done before the append takes its place in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from segstore.errors import RecordTooLargeError
from segstore.records import HEADER_SIZE, Columns, Encoded, Template, check_sizes, encode, single
from segstore.records.encoded import PLAIN
from segstore.storage.context import os_errors
from segstore.storage.log.validator import check_keys, check_stamps, codec_for, largest_batch, too_large
from segstore.storage.producers.append_info import Claim, claim_of

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition, Writable

_ANY = 1 << 62  # the whole append is encoded before it takes its place in the queue


class Appended(NamedTuple):
    """Where the records lie: from offset `first` on; `append_time` in ms is the stamp that the log gave them,
    -1 where they keep their own; `size` is bytes on disk.

    `duplicate`: the producer had written these records before, and nothing was written now.
    """

    first: int
    append_time: int
    size: int
    duplicate: bool = False


def append_batches(
    log: Writable,
    columns: Columns,
    cuts: Sequence[int] = (),
    compression: str | None = None,
    template: Template = PLAIN,
    *,
    sequenced: bool = True,
) -> Appended:
    """Append all records with contiguous offsets, or none. A batch ends before each record numbered in
    `cuts`.

    A batch that would be above `max.message.bytes` is split. `compression` applies where the topic's
    `compression.type` is "producer". Raises RecordTooLargeError, InvalidArgumentError (nothing was written
    then), StorageError, ReadOnlyError, StoreClosedError, ForkedError.

    Where `template` has a producer id, its epoch, its sequences and its transaction are judged by Kafka's
    rules (ProducerAppendInfo), and batches that repeat one of the producer's last 5 are not written again.
    Raises InvalidProducerEpochError, OutOfOrderSequenceError, DuplicateSequenceError, InvalidTxnStateError.
    With `sequenced=False`, or a base sequence of -1, sequences are not judged: such are a coordinator's own
    records (Kafka: AppendOrigin.COORDINATOR).
    """
    claim = claim_of(template, sequenced)
    partition = log.partition_for_write()
    if not columns.n:
        return Appended(partition.view.end_offset, -1, 0)
    config, now = partition.config, partition.context.clock()
    codec, level = codec_for(config, compression if config.compression_type == "producer" else None)
    stamps = columns.timestamps
    if stamps is not None:
        check_stamps(config, int(stamps.min()), int(stamps.max()), now)
    check_keys(config, columns.keys.has_nulls)
    limit = largest_batch(config)
    check_sizes(columns, codec, level, limit)
    chunks = list(encode(columns, codec, level, limit, template, _room(columns, len(cuts) + 1), limit, cuts))
    return _append(partition, chunks, columns.n, claim)


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
) -> Appended:
    """Append one record, as `append_batches` does, in a third of the time."""
    claim = claim_of(template, sequenced)
    partition = log.partition_for_write()
    config = partition.config
    codec, level = codec_for(config, compression if config.compression_type == "producer" else None)
    check_stamps(config, timestamp, timestamp, partition.context.clock())
    check_keys(config, key is None)
    encoded = single(value, key, headers, timestamp, template, codec, level)
    limit = largest_batch(config)
    if encoded.size > limit:
        raise RecordTooLargeError(too_large(partition.config, encoded.size))
    return _append(partition, [encoded], 1, claim)


def _append(partition: Partition, chunks: list[Encoded], n: int, claim: Claim | None) -> Appended:
    size = sum(chunk.size for chunk in chunks)
    with os_errors():
        if claim is None:
            first = partition.queue.append(iter(chunks), _ANY)
        else:
            first = partition.queue.put(chunks, claim)
        partition.flushing.settle(first + n)
    append_time = -1
    if partition.config.message_timestamp_type == "LogAppendTime":
        repeated = claim is not None and claim.repeated
        append_time = repeated[0].timestamp if repeated else int(chunks[0].batches["max_timestamp"][0])
    return Appended(first, append_time, size, claim is not None and bool(claim.repeated))


def _room(columns: Columns, batches: int) -> int:
    """An upper bound of the bytes that the records take uncompressed, so that they become one chunk."""
    size = batches * HEADER_SIZE + columns.n * _NUMBERS
    size += int(columns.keys.c.data_len) + int(columns.values.c.data_len)
    if columns.headers:
        c = columns.headers.c
        size += int(c.names.data_len) + int(c.values.data_len) + 10 * int(c.names.n)
    return size


_NUMBERS = 36
"""Bytes of a record's varints and attributes, at most."""
