"""`ReadyBatch`: a record batch that is encoded for the target of a mirror. Nothing is on disk. Threads: any;
the functions have no state.

Every process that mirrors a log uses the same producer id for a partition, and the same sequence number for
an offset. So if a request of a killed process arrives late, its sequence numbers are duplicates or out of
order, and the target does not append its records a second time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from segstore.arrays import np
from segstore.errors import CorruptRecordError, RecordTooLargeError, UnequalOffsetsError
from segstore.records import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    TRANSACTIONAL_FLAG,
    Template,
    bring_up,
    columns_of,
    decode,
    encode,
    is_old,
    produced,
    scan,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGE = 16_384
"""A stored batch of at least this many bytes is sent alone; smaller batches are merged."""
_OURS = 1 << 62
"""The smallest producer id of mirrors. Kafka gives producers ids from 0 on, and never reaches such large
ids.
"""
_SEQUENCES = 0x7FFFFFFF
_REMADE = APPEND_TIME_FLAG | DELETE_HORIZON_FLAG
_OF_TRANSACTION = CONTROL_FLAG | TRANSACTIONAL_FLAG


class ReadyBatch(NamedTuple):
    """An encoded batch, as a Produce request has it: the base offset in its bytes is 0. In the logs, here and
    at the target, its records have the offsets from `first` to `next_offset` - 1.
    """

    data: bytes | bytearray
    first: int
    next_offset: int


def producer_id(topic_id: str, partition: int) -> int:
    """Return the producer id with which a partition is mirrored: a hash of topic id and partition."""
    digest = hashlib.sha256(f"{topic_id}-{partition}".encode()).digest()
    return _OURS | int.from_bytes(digest[:7], "big")


def ready_batch(data: bytes, offset: int, producer: int, max_bytes: int, where: str) -> ReadyBatch:
    """Make a batch of the records from `offset` on. These records are in the stored batches `data`. The first
    stored batch must have a record with `offset`. The returned batch has at most `max_bytes` bytes
    (`max.message.bytes` at the target).

    Raises RecordTooLargeError, CorruptRecordError, and UnequalOffsetsError for a transaction or a gap in the
    offsets: a producer can neither write the markers of transactions, which have offsets, nor leave offsets
    out.
    """
    batches, _ = scan(data)
    if not len(batches):
        raise CorruptRecordError(where, 0, offset, "the stored batch is damaged")
    if is_old(batches):
        data, batches = bring_up(data, batches, where)
    _check_reachable(batches[0], offset, where)
    template = Template(0, producer, 0, offset & _SEQUENCES, 0, -1)
    first = batches[0]
    run = _run(batches, max_bytes)
    if run == 1 and first["base_offset"] == offset and _goes_as_it_is(first, max_bytes):
        sent = produced(memoryview(data)[: int(first["size"])], first, template)
        return ReadyBatch(sent, offset, int(first["last_offset"]) + 1)
    return _encoded(data, batches[:run], offset, template, max_bytes, where)


def _check_reachable(batch: np.void, offset: int, where: str) -> None:
    base, last = int(batch["base_offset"]), int(batch["last_offset"])
    if batch["attributes"] & _OF_TRANSACTION:
        raise UnequalOffsetsError(
            f"{where}: offset {base} belongs to a transaction, whose markers take offsets that no"
            " producer can give: docs/moving-to-kafka.md says how the log is moved as it is"
        )
    if base > offset or last - base + 1 != batch["count"]:
        raise UnequalOffsetsError(
            f"{where}: offsets are missing between {offset} and {last}, as compaction leaves them, and a"
            " producer can't leave offsets out: docs/moving-to-kafka.md says how the log is moved as it is"
        )


def _goes_as_it_is(batch: np.void, max_bytes: int) -> bool:
    return not batch["attributes"] & _REMADE and int(batch["size"]) <= max_bytes


def _run(batches: NDArray[np.void], max_bytes: int) -> int:
    """Return how many of the first stored batches are sent as one batch. Adjacent small batches with equal
    attributes are merged.
    """
    if batches["size"][0] >= _LARGE or batches["attributes"][0] & _REMADE:
        return 1
    joins = batches["size"] < _LARGE
    joins &= batches["attributes"] == batches["attributes"][0]
    joins &= batches["last_offset"] - batches["base_offset"] + 1 == batches["count"]
    joins[1:] &= batches["base_offset"][1:] == batches["last_offset"][:-1] + 1
    joins &= np.cumsum(batches["size"], dtype=np.int64) <= max_bytes
    joins[0] = True
    return int(np.argmin(joins)) if not joins.all() else len(joins)


def _encoded(
    data: bytes, batches: NDArray[np.void], offset: int, template: Template, max_bytes: int, where: str
) -> ReadyBatch:
    """Encode the first records from `offset` on again, as one batch of at most `max_bytes` bytes."""
    records = decode(data, batches, where, from_offset=offset, most=4 * max_bytes)
    codec = int(batches["attributes"][0]) & CODEC_MASK
    columns = columns_of(records)
    for chunk in encode(columns, codec, None, max_bytes, template, max_bytes=max_bytes):
        one = chunk.batches[0]
        size, count = int(one["size"]), int(one["count"])
        sent = bytes(chunk.data[:size])
        chunk.release()
        break
    if size > max_bytes:
        raise RecordTooLargeError(
            f"{where}: the record at offset {offset} makes a batch of {size:,} bytes, and the target's"
            f" max.message.bytes is {max_bytes:,}"
        )
    return ReadyBatch(sent, offset, offset + count)
