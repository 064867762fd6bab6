"""`Groups`: lists and describes groups, and resets or deletes their committed offsets.

On disk: `GroupOffsets` reads and writes the records. If the store is open "r", each call reads
`__consumer_offsets` anew, and the members are read from that topic, because this process has no coordinator.
A call that fails because the coordinator is loading is repeated; after a minute (Kafka:
default.api.timeout.ms) it raises KafkaTimeoutError. Threads: any.
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

# `Reset`: the offsets that a reset of a group commits: the log start or log end offsets, the first offset of
# a time, a given offset, or the committed offset plus a number (Kafka: ConsumerGroupCommand,
# --reset-offsets). Threads: any; a `Reset` is immutable.


class OffsetsLog(Protocol):
    """The part of `PartitionLog` that a reset reads: the offsets of one partition's log."""

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
    """The target of a reset. Each class method makes one kind of target. `value` is the argument of the class
    method: an offset, a number of offsets, a time in ms since the epoch, or a duration in ms.
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
        """Reset to the committed offset, or to the log end offset if the group has committed no offset."""
        return cls("current")

    @classmethod
    def to_offset(cls, offset: int) -> Reset:
        """Reset to `offset`. If it lies outside of the log, reset to the log start or log end offset,
        whichever is nearer. Raises InvalidArgumentError if `offset` is negative.
        """
        return cls("offset", arguments.whole("offset", offset, 0))

    @classmethod
    def shift_by(cls, records: int) -> Reset:
        """Reset to the committed offset plus `records`, which may be negative. A result below the log start
        offset becomes the log start offset; a result above the log end offset becomes the log end offset.
        """
        return cls("shift", arguments.whole("records", records, None))

    @classmethod
    def to_datetime(cls, timestamp_ms: int) -> Reset:
        """Reset to the first record with this timestamp or a later timestamp, or to the log end offset if the
        log has no such record.
        """
        return cls("datetime", arguments.whole("timestamp_ms", timestamp_ms, 0))

    @classmethod
    def by_duration(cls, duration_ms: int) -> Reset:
        """Reset to the first record of the last `duration_ms`, or to the log end offset if there is no such
        record.
        """
        return cls("duration", arguments.whole("duration_ms", duration_ms, 0))

    def target(self, log: OffsetsLog, committed: OffsetAndMetadata | None, now_ms: int) -> int:
        """Return the offset that the reset sets for the partition of `log`. Raises InvalidArgumentError if
        the target was made by `shift_by` and `committed` is None.
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
    """A partition with its committed offset `before` and `after` a reset. `before` is None if no offset was
    committed.
    """

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
    """Return the changes that a reset makes. `log` returns the `OffsetsLog` of the partition that is passed
    to it.
    """
    moved = []
    for tp in partitions:
        before = committed.get(tp)
        moved.append(Moved(tp, before.offset if before else None, to.target(log(tp), before, now_ms)))
    return tuple(moved)


# --- partitions --------------------------------------------------------------------------------

Which = Iterable["TopicPartition | str"]


def chosen_partitions(
    topics: Mapping[str, TopicInfo], partitions: Which, there: bool = True
) -> tuple[TopicPartition, ...]:
    """Return `partitions`, sorted; a topic's name stands for all partitions of the topic. If `there`, each
    partition must exist. Raises InvalidArgumentError if `partitions` is empty. Raises
    UnknownTopicOrPartitionError if a topic that is given by name, or a partition that must exist, does not
    exist.
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
    """The groups of a store that is open "rw" or "r"."""

    def close(self) -> None:
        """Do nothing: a `Groups` holds no resource."""

    @patient
    def reset(
        self, group: str, to: Reset, partitions: Which | None = None, dry_run: bool = False
    ) -> tuple[Moved, ...]:
        """Set the group's committed offsets in `partitions` to the target `to`. A topic's name stands for all
        its partitions; the default is all partitions with a committed offset. Return the changes. If
        `dry_run`, nothing is written.

        If one offset can't be committed, none is. Raises NonEmptyGroupError, UnknownTopicOrPartitionError,
        InvalidArgumentError, ReadOnlyError, the errors of `GroupOffsets.commit`, and GroupNotFoundError if
        there is no such group and `partitions` is None.
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
        """Reset the start offsets of a share group's partitions (KIP-932), and return the changes."""
        states = self.describe(group).partitions
        starts = {part.partition: part.committed for part in states if part.committed is not None}
        known = tuple(part.partition for part in states)
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
        """Delete the group with its committed offsets or, if it is a share group, with its durable states.
        Raises NonEmptyGroupError, GroupNotFoundError.
        """
        self.delete_now(group)

    def delete_now(self, group: str) -> None:
        """Delete the group like `delete`, but raise OffsetNotAvailableError at once if the coordinator is
        loading.
        """
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
        """Delete the offsets that the group committed in `partitions`, and return the partitions that had an
        offset. Raises NonEmptyGroupError, GroupNotFoundError.

        The partitions of a deleted topic must be listed one by one, not by the topic's name. The offsets of a
        share group can be deleted for whole topics only: if `partitions` names some of the group's partitions
        of a topic, but not all, InvalidArgumentError is raised.
        """
        writer = self._writer()
        self._check_there(writer, group)
        if share_group(writer, group) is not None:
            return self._delete_share_offsets(group, self._chosen(partitions, there=False))
        return self._while_empty(group, lambda: writer.delete(group, self._chosen(partitions, there=False)))

    def _delete_share_offsets(self, group: str, chosen: Sequence[TopicPartition]) -> set[TopicPartition]:
        topics = {tp.topic for tp in chosen}
        owned = {part.partition for part in self.describe(group).partitions if part.partition.topic in topics}
        unnamed = sorted(owned - set(chosen))
        if unnamed:
            raise InvalidArgumentError(
                f"{unnamed[0].topic}-{unnamed[0].partition} is not named: share group {group!r} gives up a "
                "topic as a whole"
            )
        there = sorted({tp.topic for tp in owned})
        _raise_first(self._share_coordinator().delete_share_offsets(group, there).values())
        return owned

    def _writer(self) -> GroupOffsets:
        return shared(self._store, GroupOffsets)

    def _while_empty(self, group: str, run: Callable[[], T]) -> T:
        """Return the result of `run`; if this process has a coordinator, `run` is called by
        `GroupCoordinator.while_empty`. Raises NonEmptyGroupError.
        """
        coordinator = self._coordinator()
        return run() if coordinator is None else coordinator.while_empty(group, run)

    def _chosen(self, partitions: Which, there: bool = True) -> tuple[TopicPartition, ...]:
        return chosen_partitions(self._store.topics(), partitions, there)


def _raise_first(errors: Iterable[SegstoreError | None]) -> None:
    for error in errors:
        if error is not None:
            raise copy_of(error)
