"""What is in a partition, by its public reads and by the batches as they lie in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import segstore
from segstore.records import CONTROL_FLAG
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.log_view import LogView

from .model import Content

_FIELDS = [
    "base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "max_timestamp",
    "attributes", "count", "position",
]  # fmt: skip
KINDS = {0: "abort", 1: "commit"}


class Batch(NamedTuple):
    """One batch in the log; `kind` is that of a control batch, "" for data."""

    first: int
    last: int
    epoch: int
    producer: tuple[int, int]
    timestamp: int
    kind: str


def reads(
    log: segstore.PartitionLog, isolation_level: str, at: int, limit: int
) -> Iterator[segstore.Records]:
    """All from offset `at` to the one that holds `limit`; offsets that do not rise are an error."""
    last = -1
    while at < limit:
        some = log.read(at, 4096, isolation_level=isolation_level)
        assert some.next_offset > at, f"a read at {at} does not get on"
        for offset in some.offsets.tolist():
            assert offset > last, f"offset {offset} comes behind {last}"
            last = offset
        yield some
        at = some.next_offset


def records(log: segstore.PartitionLog, at: int, limit: int) -> dict[int, Content]:
    """Contents by offset, in order, of what anybody may read."""
    found: dict[int, Content] = {}
    for some in reads(log, "read_uncommitted", at, limit):
        headers = map(tuple, some.headers.tolist())
        contents = zip(
            some.keys.tolist(), some.values.tolist(), headers, some.timestamps.tolist(), strict=True
        )
        found.update(zip(some.offsets.tolist(), contents, strict=True))
    return found


def committed(log: segstore.PartitionLog, at: int, limit: int) -> list[int]:
    """Offsets that read_committed gives."""
    return [offset for some in reads(log, "read_committed", at, limit) for offset in some.offsets.tolist()]


def batches(view: LogView, slot: int, start: int) -> list[Batch]:
    """Headers of a segment's batches that end behind `start`, in order."""
    found = []
    segment = view.segments[slot]
    for step in walk(segment.pool.files, segment.handle, 0, view.end_of(slot), check_crcs=True):
        for row in step.batches[_FIELDS].tolist():
            first, last, epoch, producer, producer_epoch, timestamp, attributes, count, position = row
            if last < start:
                continue
            kind = ""
            if attributes & CONTROL_FLAG:
                kind = _kind(step.data[position - step.position :]) if count else "empty"
            found.append(Batch(first, last, epoch, (producer, producer_epoch), timestamp, kind))
    return found


def _kind(batch: bytes) -> str:
    """Of a control batch: type, an int16, behind the version in its only record's key."""
    at = 61
    at = _behind_varint(batch, at) + 1  # length, attributes
    for _ in range(3):  # timestamp delta, offset delta, key length
        at = _behind_varint(batch, at)
    return KINDS[batch[at + 3]]


def _behind_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
