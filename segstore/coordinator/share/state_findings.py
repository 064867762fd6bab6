"""`doubts`: finds faults in the effective records of `__share_group_state`. These are the last snapshot of
each share partition, and the updates after that snapshot.

On disk: only reads. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_requests import DURABLE_STATES
from segstore.coordinator.share.state_schema import StateKind, parse_snapshot, parse_state_key, parse_update
from segstore.errors import UnsupportedVersionError
from segstore.protocol.record_codec import kind_of
from segstore.storage.scans.scan import reads
from segstore.storage.store.partition_log import PartitionLog

MOST_DELIVERIES = 25
"""The largest share.delivery.count.limit that a broker allows."""


class Doubt(NamedTuple):
    """A record that can be decoded, and the reason why its content is wrong."""

    offset: int
    reason: str


def doubts(source: PartitionLog) -> list[Doubt]:
    """Return the faults in the state batches of the records that make up the present states. Ignore records
    that can't be decoded. Raises CorruptRecordError, StorageError.
    """
    found: dict[ShareKey, list[Doubt]] = {}
    for records in reads(source, source.start_offset, source.end_offset):
        for record in records:
            try:
                _take(found, record.offset, record.key or b"", record.value)
            except (ValueError, UnsupportedVersionError):
                """`state_table` reports this record."""
    return sorted(doubt for some in found.values() for doubt in some)


def _take(found: dict[ShareKey, list[Doubt]], at: int, key: bytes, value: bytes | None) -> None:
    """Check a record, and add its faults to `found`; a snapshot or tombstone first removes the faults of
    earlier records. Raises ValueError or UnsupportedVersionError if the record can't be decoded.
    """
    kind = kind_of(key, "a share partition")
    if kind > max(StateKind):
        return
    name = parse_state_key(StateKind(kind), key)
    if value is None:
        found.pop(name, None)
        return
    if kind == StateKind.SNAPSHOT:
        snapshot = parse_snapshot(value)
        found[name] = []
        start, batches = snapshot.start, snapshot.batches
    else:
        update = parse_update(value)
        start, batches = update.start, update.batches
    wrong = sorted(set(_wrong(start, batches)))
    if wrong:
        found.setdefault(name, []).append(Doubt(at, f"share partition {name}: {', '.join(wrong)}"))


def _wrong(start: int, batches: tuple[StateBatch, ...]) -> Iterator[str]:
    before = -1
    for first, last, state, count in sorted(batches):
        place = f"offsets {first} to {last}"
        if last < first:
            yield f"{place}: they end before they begin"
        if first < start:
            yield f"{place} lie below the start offset {start}"
        if first <= before:
            yield f"{place} overlap others"
        if state not in DURABLE_STATES:
            yield f"{place} are in state {state}, which is no durable one"
        if not 0 <= count <= MOST_DELIVERIES:
            yield f"{place} were delivered {count} times: at most {MOST_DELIVERIES} are possible"
        before = max(before, last)
