"""Reads a partition of `__consumer_offsets` into memory, a broker's too. On disk: reads only. Threads: any.

Of all records of a key only the last is looked into: a log that was never compacted is read at the speed of
columns. A record that is none of a group is passed over, and the last readable one of its key counts: the log
is read again for those keys. A record of a newer version keeps its group from being used, for what it says
would be lost if it was overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from segstore.coordinator.offsets.schema import (
    ForeignKey,
    GroupKey,
    Key,
    parse_group,
    parse_key,
    parse_offset,
)
from segstore.coordinator.offsets.state import OffsetsState
from segstore.coordinator.unreadable import Unreadable, warn
from segstore.errors import UnsupportedVersionError
from segstore.records import Records
from segstore.storage.producers.outcomes import COMMITTED, OPEN, outcomes
from segstore.storage.store.partition_log import PartitionLog

_CHUNK = 4 << 20


class _Value(NamedTuple):
    value: bytes | None
    at: int


Wanted = Callable[[bytes, _Value], bool]


class _Last:
    """The last `wanted` record of each key: of those that count, and of those in each producer's open
    transaction.
    """

    def __init__(self, wanted: Wanted | None = None) -> None:
        self.settled: dict[bytes, _Value] = {}
        self.open: dict[int, dict[bytes, _Value]] = {}
        self._wanted = wanted

    def take(self, records: Records) -> None:
        self.settled.update(each for each in _by_key(records) if self._wanted is None or self._wanted(*each))

    def take_open(self, records: Records) -> None:
        producers = records.batches["producer_id"][records.batch_indexes()].tolist()
        for producer_id, (key, value) in zip(producers, _by_key(records), strict=True):
            if self._wanted is None or self._wanted(key, value):
                self.open.setdefault(producer_id, {})[key] = value


def _by_key(records: Records) -> Iterator[tuple[bytes, _Value]]:
    keys = [key or b"" for key in records.keys.tolist()]
    return zip(keys, map(_Value, records.values.tolist(), records.offsets.tolist()), strict=True)


def load(source: PartitionLog) -> OffsetsState:
    """What the log says up to its present end; one warning where records are passed over. CorruptRecordError,
    StorageError.
    """
    state, unreadable = understand(source)
    warn(source, "a group's", unreadable)
    return state


def understand(source: PartitionLog) -> tuple[OffsetsState, list[Unreadable]]:
    """As `load`, and which of the records that came last of their keys can't be read. CorruptRecordError,
    StorageError.
    """
    state, found, end = OffsetsState(), dict[bytes, Unreadable](), source.end_offset
    _put_all(state, _gather(source, end, None), found)
    passed = {key for key, each in found.items() if not each.newer and _has_meaning(key)}
    if passed:
        earlier = _gather(source, end, lambda key, record: key in passed and not _why(key, record))
        _put_all(state, earlier, {})
    return state, list(found.values())


def _gather(source: PartitionLog, end: int, wanted: Wanted | None) -> _Last:
    last, ended, at = _Last(wanted), outcomes(source), source.start_offset
    while at < end:
        records = source.read(at, _CHUNK)
        at = records.next_offset
        if at > end:
            records = records.take(records.offsets < end)
        told = ended.of(records)
        last.take(records.take(told == COMMITTED) if told.any() else records)
        if (told == OPEN).any():
            last.take_open(records.take(told == OPEN))
    return last


def _put_all(state: OffsetsState, last: _Last, found: dict[bytes, Unreadable]) -> None:
    """`found`: gets those that can't be read, by key."""
    for producer_id, records in (*last.open.items(), (None, last.settled)):
        for data, record in records.items():
            unreadable = _take(state, data, record, producer_id)
            if unreadable is not None:
                found[data] = unreadable


def _has_meaning(data: bytes) -> bool:
    try:
        parse_key(data)
    except ValueError:
        return False
    return True


def _why(data: bytes, record: _Value) -> Unreadable | None:
    return _take(OffsetsState(), data, record)


def _take(
    state: OffsetsState, data: bytes, record: _Value, producer_id: int | None = None
) -> Unreadable | None:
    """What keeps the record from being read, if anything."""
    try:
        key = parse_key(data)
        try:
            _put(state, data, key, record, producer_id)
        except UnsupportedVersionError as error:
            state.refuse(key.group, data, f"its record at offset {record.at} is not understood: {error}")
            return Unreadable(record.at, f"group {key.group!r}: {error}", newer=True)
    except ValueError as error:
        return Unreadable(record.at, str(error))
    return None


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
