"""Reads a partition of `__consumer_offsets` into memory, a broker's too. On disk: reads only. Threads: any.

Of all records of a key only the last is looked into: a log that was never compacted is read at the speed of
columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from segstore.client.groups.offsets_state import OffsetsState
from segstore.client.groups.schemas import (
    ForeignKey,
    GroupKey,
    Key,
    parse_group,
    parse_key,
    parse_offset,
)
from segstore.errors import UnsupportedVersionError
from segstore.records import Records
from segstore.storage.log import PartitionLog
from segstore.storage.outcomes import COMMITTED, OPEN, outcomes

log = logging.getLogger("segstore")

_CHUNK = 4 << 20


class _Value(NamedTuple):
    value: bytes | None
    at: int


class _Last:
    """The last record of each key: of those that count, and of those in each producer's open transaction."""

    def __init__(self) -> None:
        self.settled: dict[bytes, _Value] = {}
        self.open: dict[int, dict[bytes, _Value]] = {}

    def take(self, records: Records) -> None:
        self.settled.update(_by_key(records))

    def take_open(self, records: Records) -> None:
        producers = records.batches["producer_id"][records.batch_indexes()].tolist()
        for producer_id, (key, value) in zip(producers, _by_key(records), strict=True):
            self.open.setdefault(producer_id, {})[key] = value


def _by_key(records: Records) -> Iterator[tuple[bytes, _Value]]:
    keys = [key or b"" for key in records.keys.tolist()]
    return zip(keys, map(_Value, records.values.tolist(), records.offsets.tolist()), strict=True)


def load(source: PartitionLog) -> OffsetsState:
    """What the log says up to its present end. CorruptRecordError, StorageError."""
    end = source.end_offset
    last = _Last()
    ended = outcomes(source)
    for records in _chunks(source, end):
        told = ended.of(records)
        last.take(records.take(told == COMMITTED) if told.any() else records)
        if (told == OPEN).any():
            last.take_open(records.take(told == OPEN))
    return _understood(source, last)


def _chunks(source: PartitionLog, end: int) -> Iterator[Records]:
    at = source.start_offset
    while at < end:
        records = source.read(at, _CHUNK)
        at = records.next_offset
        yield records.take(records.offsets < end) if at > end else records


def _understood(source: PartitionLog, last: _Last) -> OffsetsState:
    state = OffsetsState()
    for producer_id, records in last.open.items():
        for data, record in records.items():
            _take(source, state, data, record, producer_id)
    for data, record in last.settled.items():
        _take(source, state, data, record)
    return state


def _take(
    source: PartitionLog, state: OffsetsState, data: bytes, record: _Value, producer_id: int | None = None
) -> None:
    try:
        key = parse_key(data)
    except ValueError as error:
        # It keeps nobody from what else is there.
        log.warning("%r, offset %d: no record of a group, passed by: %s", source, record.at, error)
        return
    try:
        _put(state, data, key, record, producer_id)
    except (UnsupportedVersionError, ValueError) as error:
        state.refuse(key.group, data, f"its record at offset {record.at} is not understood: {error}")


def _put(state: OffsetsState, data: bytes, key: Key, record: _Value, producer_id: int | None) -> None:
    value, at = record
    if isinstance(key, ForeignKey):
        if value is not None:
            state.put_foreign(key.group, data, key.kind)
    elif isinstance(key, GroupKey):
        state.put_group(key.group, None if value is None else parse_group(key.group, value))
    elif value is None:
        state.drop_offset(*key, at)
    elif producer_id is None:
        state.put_offset(*key, parse_offset(value), at)
    else:
        state.put_pending(producer_id, *key, parse_offset(value), at)
