"""`Groups`: lists and describes groups, and resets or deletes their committed offsets.

On disk: through `GroupOffsets`. Of a store opened "r" each call reads `__consumer_offsets` anew and asks no
coordinator: members are then those that the writer has written to the log. While the coordinator loads a call
is made again, for a minute at most (Kafka: default.api.timeout.ms), and raises KafkaTimeoutError then.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from segstore.config import arguments
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.describe import Looking, patient, share_group
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import check_group, check_partition
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import InvalidArgumentError, InvalidTypeError, SegstoreError, copy_of
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.meta.topics import find_topic

# --- reset -------------------------------------------------------------------------------------

# Where a group shall go on: the earliest or latest record, a time, an offset, or a number of offsets on or
# back (Kafka: ConsumerGroupCommand, --reset-offsets). Threads: any; a `Reset` is immutable.


class OffsetsLog(Protocol):
    """A partition, as far as its offsets go; see `PartitionLog`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def offset_for_time(self, timestamp: int, /) -> int | None: ...


@dataclass(frozen=True)
class Reset:
    """A target, made by one of the class methods. `value`: an offset, a number of offsets, ms since the
    epoch, or ms before now.
    """

    kind: str
    value: int = 0

    @classmethod
    def to_earliest(cls) -> Reset:
        """Reset to the log start offset."""
        return cls("earliest")

    @classmethod
    def to_latest(cls) -> Reset:
        """Reset to the log end offset."""
        return cls("latest")

    @classmethod
    def to_current(cls) -> Reset:
        """Reset to the committed offset; the log end offset where the group has committed none."""
        return cls("current")

    @classmethod
    def to_offset(cls, offset: int) -> Reset:
        """Reset to that offset, or the nearest that the log has. Raises InvalidArgumentError for a negative
        offset.
        """
        return cls("offset", arguments.whole("offset", offset, 0))

    @classmethod
    def shift_by(cls, records: int) -> Reset:
        """Reset to so many offsets after the committed one, before it where `records` is negative; never
        beyond the log.
        """
        return cls("shift", arguments.whole("records", records, None))

    @classmethod
    def to_datetime(cls, timestamp_ms: int) -> Reset:
        """Reset to the first record with this timestamp or a later one; the log end offset where there is
        none.
        """
        return cls("datetime", arguments.whole("timestamp_ms", timestamp_ms, 0))

    @classmethod
    def by_duration(cls, duration_ms: int) -> Reset:
        """Do what `to_datetime` does, with the time that lies `duration_ms` before now."""
        return cls("duration", arguments.whole("duration_ms", duration_ms, 0))

    def target(self, log: OffsetsLog, committed: OffsetAndMetadata | None, now_ms: int) -> int:
        """Return the offset in that log. Raises InvalidArgumentError where `shift_by` has no committed
        offset to count from.
        """
        start, end = log.start_offset, log.end_offset
        if self.kind == "earliest":
            return start
        if self.kind == "latest":
            return end
        if self.kind in ("datetime", "duration"):
            found = log.offset_for_time(self.value if self.kind == "datetime" else now_ms - self.value)
            return end if found is None else found
        if self.kind == "current" and committed is None:
            return end
        return min(max(self._wanted(log, committed), start), end)

    def _wanted(self, log: OffsetsLog, committed: OffsetAndMetadata | None) -> int:
        if self.kind == "offset":
            return self.value
        if committed is None:
            raise InvalidArgumentError(
                f"{log.topic}-{log.partition}: shift_by counts from a committed offset, and there is none"
            )
        return committed.offset + (self.value if self.kind == "shift" else 0)


@dataclass(frozen=True)
class Moved:
    """What a reset does to one partition; `before` is None where no offset was committed."""

    partition: TopicPartition
    before: int | None
    after: int


def moves(
    partitions: Iterable[TopicPartition],
    to: Reset,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    log: Callable[[TopicPartition], OffsetsLog],
    now_ms: int,
) -> tuple[Moved, ...]:
    """Return what a reset does to partitions. `log` returns a partition's log, or what has its offsets."""
    moved = []
    for tp in partitions:
        before = committed.get(tp)
        moved.append(Moved(tp, before.offset if before else None, to.target(log(tp), before, now_ms)))
    return tuple(moved)


# --- which partitions --------------------------------------------------------------------------

Which = Iterable["TopicPartition | str"]


def chosen_partitions(
    topics: Mapping[str, TopicInfo], partitions: Which, there: bool = True
) -> tuple[TopicPartition, ...]:
    """Return the partitions that are named, in order; a topic's name stands for all of its partitions. They
    must exist, unless `there` is False. Raises InvalidArgumentError where nothing is chosen;
    UnknownTopicOrPartitionError.
    """
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise InvalidTypeError(f"partitions must be a list, as [{partitions!r}]")
    found = set()
    for one in partitions:
        if isinstance(one, str):
            ids = find_topic(topics, one).partition_ids
            found |= {TopicPartition(one, number) for number in ids}
        else:
            tp = check_partition(one)
            if there:
                find_topic(topics, *tp)
            found.add(tp)
    if not found:
        raise InvalidArgumentError("no partitions: name some, or leave it out for all")
    return tuple(sorted(found))


# --- admin ------------------------------------------------------------

T = TypeVar("T")


class Groups(Looking):
    """The groups of `store`, which is open "rw" or "r"."""

    def close(self) -> None:
        """Do nothing: no resource is held."""

    @patient
    def reset(
        self, group: str, to: Reset, partitions: Which | None = None, dry_run: bool = False
    ) -> tuple[Moved, ...]:
        """Set the committed offsets in those partitions (a topic's name stands for all its partitions), by
        default in all for which the group has committed. Return what changed, or with `dry_run` what would
        change.

        All offsets are committed at once, or none. Raises NonEmptyGroupError; GroupNotFoundError where no
        partitions are given; UnknownTopicOrPartitionError, InvalidArgumentError, ReadOnlyError, and what
        `GroupOffsets.commit` raises.
        """
        source = self._source()
        if not isinstance(to, Reset):
            raise InvalidTypeError(f"to must be a Reset, as Reset.to_earliest(), not {type(to).__name__}")
        if partitions is None:
            self._check_there(source, group)
        check_group(group)
        if share_group(source, group) is not None:
            return self._reset_share(group, to, partitions, dry_run)

        def move() -> tuple[Moved, ...]:
            committed = source.fetch(group)
            chosen = tuple(sorted(committed)) if partitions is None else self._chosen(partitions)
            now = self._store.context.clock()
            moved = moves(chosen, to, committed, lambda tp: self._store.partition(*tp), now)
            if not dry_run:
                self._writer().commit(group, {m.partition: OffsetAndMetadata(m.after) for m in moved})
            return moved

        return move() if dry_run else self._while_empty(group, move)

    def _reset_share(
        self, group: str, to: Reset, partitions: Which | None, dry_run: bool
    ) -> tuple[Moved, ...]:
        """Do what `reset` does for a share group: its start offsets are begun anew (KIP-932)."""
        told = self.describe(group).partitions
        starts = {part.partition: part.committed for part in told if part.committed is not None}
        known = tuple(part.partition for part in told)
        chosen = known if partitions is None else self._chosen(partitions)
        now = self._store.context.clock()
        moved = moves(chosen, to, starts, lambda tp: self._store.partition(*tp), now)
        if not dry_run:
            offsets = {move.partition: move.after for move in moved}
            _raise_first(self._share_coordinator().alter_share_offsets(group, offsets).values())
        return moved

    def _share_coordinator(self) -> GroupCoordinator:
        return shared(self._store, GroupCoordinator)

    @patient
    def delete(self, group: str) -> None:
        """Delete the group and all that it committed, or the states of a share group. Raises
        NonEmptyGroupError, GroupNotFoundError.
        """
        self.delete_now(group)

    def delete_now(self, group: str) -> None:
        """Do what `delete` does, but raise OffsetNotAvailableError while the coordinator loads."""
        writer = self._writer()
        self._check_there(writer, group)
        if share_group(writer, group) is not None:
            self._share_coordinator().delete_share_group(group)
            return
        self._while_empty(group, lambda: writer.delete(group))
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.forget(group)

    @patient
    def delete_offsets(self, group: str, partitions: Which) -> set[TopicPartition]:
        """Delete the offsets that the group committed for those partitions; return the partitions that had
        one. Raises what `delete` raises.

        A topic that was deleted is named by its partitions. A share group gives up whole topics; raises
        InvalidArgumentError if only some of the partitions of a topic are named that the group has.
        """
        writer = self._writer()
        self._check_there(writer, group)
        if share_group(writer, group) is not None:
            return self._delete_share_offsets(group, self._chosen(partitions, there=False))
        return self._while_empty(group, lambda: writer.delete(group, self._chosen(partitions, there=False)))

    def _delete_share_offsets(self, group: str, chosen: Sequence[TopicPartition]) -> set[TopicPartition]:
        topics = {tp.topic for tp in chosen}
        held = {part.partition for part in self.describe(group).partitions if part.partition.topic in topics}
        left = sorted(held - set(chosen))
        if left:
            raise InvalidArgumentError(
                f"{left[0].topic}-{left[0].partition} is not named: share group {group!r} gives up a topic "
                "as a whole"
            )
        there = sorted({tp.topic for tp in held})
        _raise_first(self._share_coordinator().delete_share_offsets(group, there).values())
        return held

    def _writer(self) -> GroupOffsets:
        return shared(self._store, GroupOffsets)

    def _while_empty(self, group: str, run: Callable[[], T]) -> T:
        """Return what `run` returns; the group has no members, and gets none while it runs. Raises
        NonEmptyGroupError.
        """
        coordinator = self._coordinator()
        return run() if coordinator is None else coordinator.while_empty(group, run)

    def _chosen(self, partitions: Which, there: bool = True) -> tuple[TopicPartition, ...]:
        return chosen_partitions(self._store.topics(), partitions, there)


def _raise_first(errors: Iterable[SegstoreError | None]) -> None:
    for error in errors:
        if error is not None:
            raise copy_of(error)
