"""What one partition of `__consumer_offsets` says, in memory. Nothing on disk.

A record counts by its place in the log: of a key the last one does, whenever its transaction was committed,
as compaction sees it too. What an open transaction wrote waits in `pending`, by producer id.
Threads: under the lock of the partition; see `offsets`.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.coordinator.offsets.schema import Commit, GroupRecord
from segstore.coordinator.structs import TopicPartition
from segstore.errors import UnsupportedVersionError


class Held(NamedTuple):
    """A commit, and the offset of its record."""

    commit: Commit
    at: int


class GroupState:
    """A group's offsets and membership. By key: `refused`, why a record of it can't be used; `foreign`, the
    kinds of its records that belong to a newer group protocol.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, Held] = {}
        self.record: GroupRecord | None = None
        self.refused: dict[bytes, str] = {}
        self.foreign: dict[bytes, int] = {}

    @property
    def empty(self) -> bool:
        return not (self.offsets or self.record or self.refused or self.foreign)


_NOTHING = GroupState()


class OffsetsState:
    """Groups by id; a group of which nothing is left is not among them."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupState] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], Held]] = {}

    def names(self) -> set[str]:
        """All groups, those too of which there is nothing but what is pending."""
        return self.groups.keys() | {name for keys in self.pending.values() for name, _ in keys}

    def usable(self, group: str) -> GroupState:
        """UnsupportedVersionError where a record of the group is not understood."""
        held = self.groups.get(group, _NOTHING)
        if held.refused:
            raise UnsupportedVersionError(f"group {group!r}: {next(iter(held.refused.values()))}")
        return held

    def classic(self, group: str) -> GroupState:
        """As `usable`, and UnsupportedVersionError for a group of a newer protocol."""
        held = self.usable(group)
        if held.foreign:
            kinds = sorted(set(held.foreign.values()))
            raise UnsupportedVersionError(
                f"group {group!r} is of a newer group protocol (record types {kinds}): only its offsets can "
                "be read"
            )
        return held

    def pending_of(self, group: str) -> set[TopicPartition]:
        """What open transactions are about to commit."""
        return {tp for keys in list(self.pending.values()) for name, tp in keys if name == group}

    # --- what records do ---------------------------------------------------------------------

    def put_offset(self, group: str, partition: TopicPartition, commit: Commit, at: int) -> None:
        """A commit whose record is at offset `at`."""
        offsets = self.groups.setdefault(group, GroupState()).offsets
        before = offsets.get(partition)
        if before is None or before.at < at:
            offsets[partition] = Held(commit, at)
            self._overtake(group, partition, at)

    def drop_offset(self, group: str, partition: TopicPartition, at: int) -> None:
        """A tombstone."""
        held = self.groups.get(group)
        if held is not None:
            held.offsets.pop(partition, None)
            self._forget_empty(group)
        self._overtake(group, partition, at)

    def put_pending(
        self, producer_id: int, group: str, partition: TopicPartition, commit: Commit, at: int
    ) -> None:
        """A commit of an open transaction."""
        self.pending.setdefault(producer_id, {})[group, partition] = Held(commit, at)

    def put_group(self, group: str, record: GroupRecord | None) -> None:
        """A membership; None is its tombstone."""
        if record is None and group not in self.groups:
            return
        self.groups.setdefault(group, GroupState()).record = record
        self._forget_empty(group)

    def put_foreign(self, group: str, key: bytes, kind: int) -> None:
        """A record of a newer group protocol."""
        self.groups.setdefault(group, GroupState()).foreign[key] = kind

    def refuse(self, group: str, key: bytes, reason: str) -> None:
        """A record that is not understood."""
        self.groups.setdefault(group, GroupState()).refused[key] = reason

    def end(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction was ended."""
        for (group, partition), held in self.pending.pop(producer_id, {}).items():
            if committed:
                self.put_offset(group, partition, held.commit, held.at)

    def _overtake(self, group: str, partition: TopicPartition, at: int) -> None:
        """What lies before a newer record of its key can't come to count any more."""
        for producer_id, keys in list(self.pending.items()):
            held = keys.get((group, partition))
            if held is not None and held.at < at:
                del keys[group, partition]
                if not keys:
                    del self.pending[producer_id]

    def _forget_empty(self, group: str) -> None:
        if self.groups[group].empty:
            del self.groups[group]
