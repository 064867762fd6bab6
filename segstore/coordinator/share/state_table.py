"""`StateTable`: the states of the share partitions of one partition of `__share_group_state`, in memory, and
the load of these states from the log.

Records are applied in the order of the log: a snapshot replaces the earlier state of its share partition, and
an update is combined with the last snapshot. Updates that a snapshot follows are usually not decoded. Records
of unknown types are skipped, and neither the first of them nor any record after it is ever pruned.
On disk: only reads. Threads: under the lock of the partition, which `state_partition` owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segstore.coordinator.loader import UnreadableRecord, warn
from segstore.coordinator.share.core.durable import Fold, PrunePoint, StateDelta
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_schema import (
    StateKind,
    parse_snapshot,
    parse_state_key,
    parse_update,
)
from segstore.errors import InvalidRequestError, UnsupportedVersionError
from segstore.protocol.record_codec import kind_of
from segstore.records import Records
from segstore.storage.scans.scan import reads
from segstore.storage.store.partition_log import PartitionLog


class StateChange(NamedTuple):
    """The change that a record makes to a share partition: `snapshot` or `delta`. If both are None, the
    record is a tombstone.
    """

    key: ShareKey
    snapshot: Durable | None = None
    delta: StateDelta | None = None


class SharePartitionState:
    """A share partition in the table; `fold` has its state. `updates` is the number of ShareUpdate records
    since the last snapshot that was due because of updates. `state_epoch` and `leader_epoch` are the largest
    epochs of any record; the state's own epochs may be lower. If a record has a newer version than this
    segstore can read, the share partition can't be used, and `newer` says why; else `newer` is empty.
    """

    __slots__ = ("fold", "leader_epoch", "newer", "state_epoch", "updates")

    def __init__(self) -> None:
        self.fold, self.updates, self.newer = Fold(), 0, ""
        self.state_epoch = self.leader_epoch = -1


class StateTable:
    """The share partitions of one partition of `__share_group_state`, by key. Records below `prune.offset`
    are not needed. After `updates_per_snapshot` updates of a share partition, a snapshot of its state is due.
    """

    def __init__(self, updates_per_snapshot: int) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self._states: dict[ShareKey, SharePartitionState] = {}
        self.prune: PrunePoint[ShareKey] = PrunePoint()

    def __iter__(self) -> Iterator[ShareKey]:
        """Yield the keys of all share partitions that have a state."""
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def find(self, key: ShareKey) -> SharePartitionState | None:
        """Return the state of a share partition; None if it has no state. Raises UnsupportedVersionError if a
        record has a newer version than this segstore can read.
        """
        state = self._states.get(key)
        if state is not None and state.newer:
            raise UnsupportedVersionError(f"share partition {key}: {state.newer}")
        return state

    def heads(self) -> Iterator[tuple[ShareKey, Durable]]:
        """Yield (key, state) of each usable share partition. A state's batches may lack the last updates."""
        for key, state in self._states.items():
            if state.fold.head is not None and not state.newer:
                yield key, state.fold.head

    def apply(self, change: StateChange, at: int) -> None:
        """Apply the change of the record at offset `at`."""
        key, snapshot, delta = change
        if snapshot is not None:
            self._put(key, snapshot, at)
        elif delta is not None:
            self._update(key, delta)
        else:
            self._states.pop(key, None)
            self.prune.forget(key, at)

    def refuse(self, key: ShareKey, reason: str, at: int, kind: StateKind) -> None:
        """Mark a share partition as unusable, because the record at offset `at` has a newer version than this
        segstore can read. If the record is a snapshot, it is not pruned.
        """
        self._states.setdefault(key, SharePartitionState()).newer = reason
        if kind is StateKind.SNAPSHOT:
            self.prune.snapshot(key, at)

    def skip(self, key: ShareKey, updates: int) -> None:
        """Count `updates` updates that are not applied, because a snapshot follows them."""
        if key in self._states:
            self._states[key].updates += updates

    def leader_epoch(self, key: ShareKey) -> int:
        """Return the largest leader epoch of a share partition; -1 if it has no state."""
        return self._states[key].leader_epoch if key in self._states else -1

    def _put(self, key: ShareKey, snapshot: Durable, at: int) -> None:
        state = self._states.setdefault(key, SharePartitionState())
        state.fold.snapshot(snapshot)
        state.newer = ""
        # A snapshot that was not due because of updates does not restart the count of updates.
        if state.updates >= self.updates_per_snapshot:
            state.updates = 0
        state.state_epoch = max(state.state_epoch, snapshot.state_epoch)
        state.leader_epoch = max(state.leader_epoch, snapshot.leader_epoch)
        self.prune.snapshot(key, at)

    def _update(self, key: ShareKey, delta: StateDelta) -> None:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = SharePartitionState()
        state.fold.update(delta)
        state.updates += 1
        if delta.leader_epoch > state.leader_epoch:
            state.leader_epoch = delta.leader_epoch


# --- load ------------------------------------------------------------------------------------------

_SNAPSHOT = StateKind.SNAPSHOT.to_bytes(2, "big")
_MOST_WAITING = 4096
"""The limit of a share partition's undecoded updates. Kafka never writes so many between two snapshots."""


def load(source: PartitionLog, updates_per_snapshot: int) -> StateTable:
    """Load the table from the log, up to the log's present end. If unreadable records are skipped, log one
    warning. Raises CorruptRecordError, StorageError.
    """
    table, unreadable = understand(source, updates_per_snapshot)
    warn(source, "a share partition's", unreadable)
    return table


def understand(
    source: PartitionLog, updates_per_snapshot: int = 500
) -> tuple[StateTable, list[UnreadableRecord]]:
    """Load the table from the log. Return (table, unreadable records that no later snapshot replaces). Raises
    CorruptRecordError, StorageError.
    """
    loading = _Loading(updates_per_snapshot)
    for records in reads(source, source.start_offset, source.end_offset):
        loading.take(records)
    return loading.finish()


class _WaitingUpdates:
    """The undecoded updates of a share partition, with their offsets. `junk` has the share partition's
    unreadable records.
    """

    __slots__ = ("junk", "key", "updates")

    def __init__(self, key: ShareKey) -> None:
        self.key = key
        self.updates: list[tuple[int, bytes | None]] = []
        self.junk: list[UnreadableRecord] = []

    def exceeds(self, leader_epoch: int) -> bool:
        """Return whether an undecoded update has a leader epoch above `leader_epoch`. Such an update must be
        applied even if a snapshot follows it, because the table keeps the largest leader epoch.
        """
        epochs = (int.from_bytes(v[6:10], "big", signed=True) for _, v in self.updates if v is not None)
        return any(epoch > leader_epoch for epoch in epochs)


class _Loading:
    """The load of a table from its log."""

    def __init__(self, updates_per_snapshot: int) -> None:
        self.table = StateTable(updates_per_snapshot)
        self._nobody: list[UnreadableRecord] = []
        self._by_key: dict[ShareKey, _WaitingUpdates] = {}
        self._by_bytes: dict[bytes, _WaitingUpdates] = {}

    def take(self, records: Records) -> None:
        """Take the next records of the log: apply snapshots, and collect updates undecoded. If a share
        partition has many undecoded updates, apply them.
        """
        known = self._by_bytes
        columns = records.offsets.tolist(), records.keys.tolist(), records.values.tolist()
        for at, key_or_none, value in zip(*columns, strict=True):
            key = key_or_none or b""
            found = known.get(key) or self._meet(key, at)
            if found is None:
                continue
            if key[:2] == _SNAPSHOT:
                self._snapshot(found, at, value)
                continue
            found.updates.append((at, value))
            if len(found.updates) > _MOST_WAITING:
                self._settle(found)

    def finish(self) -> tuple[StateTable, list[UnreadableRecord]]:
        """Apply the undecoded updates. Return (table, unreadable records)."""
        for found in self._by_key.values():
            self._settle(found)
        of_keys = (each for found in self._by_key.values() for each in found.junk)
        return self.table, [*self._nobody, *of_keys]

    def _meet(self, data: bytes, at: int) -> _WaitingUpdates | None:
        """Parse the bytes of a key that `take` has not met before. Return the `_WaitingUpdates` of its share
        partition; None if the bytes are no key of a share partition.
        """
        try:
            kind = kind_of(data, "a share partition")
            if kind > max(StateKind):
                self.table.prune.keep(at)
                return None
            key = parse_state_key(StateKind(kind), data)
        except ValueError as error:
            self._nobody.append(UnreadableRecord(at, str(error)))
            return None
        found = self._by_key.setdefault(key, _WaitingUpdates(key))
        self._by_bytes[data] = found
        return found

    def _snapshot(self, found: _WaitingUpdates, at: int, value: bytes | None) -> None:
        try:
            snapshot = None if value is None else parse_snapshot(value)
        except UnsupportedVersionError as error:
            self._refuse(found, at, error, StateKind.SNAPSHOT)
        except ValueError as error:
            found.junk.append(UnreadableRecord(at, str(error)))
        else:
            if found.exceeds(self.table.leader_epoch(found.key)):
                self._settle(found)
            self.table.skip(found.key, len(found.updates))
            found.updates.clear()
            found.junk.clear()
            self.table.apply(StateChange(found.key, snapshot), at)

    def _settle(self, found: _WaitingUpdates) -> None:
        """Decode and apply a share partition's undecoded updates."""
        for at, value in found.updates:
            try:
                if value is None:
                    raise InvalidRequestError("a ShareUpdate without a value")
                self.table.apply(StateChange(found.key, delta=parse_update(value)), at)
            except UnsupportedVersionError as error:
                self._refuse(found, at, error, StateKind.UPDATE)
            except ValueError as error:
                found.junk.append(UnreadableRecord(at, str(error)))
        found.updates.clear()

    def _refuse(
        self, found: _WaitingUpdates, at: int, error: UnsupportedVersionError, kind: StateKind
    ) -> None:
        reason = f"its record at offset {at} is not understood: {error}"
        self.table.refuse(found.key, reason, at, kind)
        found.junk.append(UnreadableRecord(at, f"share partition {found.key}: {error}", newer=True))
