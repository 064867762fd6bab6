"""What is in the store, by its public reads and by the batches as they lie in the log."""

from __future__ import annotations

from typing import NamedTuple

import segstore
from segstore.records import CONTROL_FLAG
from segstore.storage.view import LogView
from segstore.storage.walk import walk

from .model import Content

KINDS = {0: "abort", 1: "commit"}


class Batch(NamedTuple):
    """One batch in the log; `kind` is that of a control batch, "" for data."""

    first: int
    last: int
    epoch: int
    producer: tuple[int, int]
    timestamp: int
    kind: str


class Seen(NamedTuple):
    """A partition at one moment; `records` are those that anybody may read, `committed` those of
    read_committed.
    """

    start: int
    end: int
    stable: int
    size: int
    batches: list[Batch]
    records: dict[int, Content]
    committed: list[int]


def look(log: segstore.PartitionLog, since: int | None = None) -> Seen:
    """All of a partition, or what begins at offset `since`."""
    start = log.start_offset if since is None else since
    found = records(log, "read_uncommitted", start)
    committed = sorted(records(log, "read_committed", start))
    there = batches(log._source.view, start)
    return Seen(log.start_offset, log.end_offset, log.last_stable_offset, log.size, there, found, committed)


def records(log: segstore.PartitionLog, isolation_level: str, start: int) -> dict[int, Content]:
    """Contents by offset, in order; offsets that do not rise are an error."""
    found: dict[int, Content] = {}
    at, last = start, -1
    limit = log.last_stable_offset if isolation_level == "read_committed" else log.end_offset
    while at < limit:
        some = log.read(at, 4096, isolation_level=isolation_level)
        assert some.next_offset > at, f"a read at {at} does not get on"
        for record in some:
            assert record.offset > last, f"offset {record.offset} comes behind {last}"
            last = record.offset
            found[last] = record.key, record.value, tuple(record.headers), record.timestamp
        at = some.next_offset
    return found


def batches(view: LogView, start: int) -> list[Batch]:
    """Headers of the batches that end behind `start`, in order."""
    found = []
    for slot in range(view.slot(start), len(view.segments)):
        segment = view.segments[slot]
        files, handle = segment.pool.files, segment.handle
        for step in walk(files, handle, 0, view.end_of(slot), check_crcs=True):
            for row in step.batches:
                if row["last_offset"] < start:
                    continue
                kind = ""
                if row["attributes"] & CONTROL_FLAG and row["count"]:
                    kind = _kind(step.data[int(row["position"]) - step.position :])
                elif row["attributes"] & CONTROL_FLAG:
                    kind = "empty"
                found.append(
                    Batch(
                        int(row["base_offset"]),
                        int(row["last_offset"]),
                        int(row["leader_epoch"]),
                        (int(row["producer_id"]), int(row["producer_epoch"])),
                        int(row["max_timestamp"]),
                        kind,
                    )
                )
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
