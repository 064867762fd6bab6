"""`Groups`: what groups there are, how far each is behind, and how to set or forget what they committed.

On disk: through `GroupOffsets`. Of a store opened "r" it reads `__consumer_offsets` anew at every call and
asks no coordinator: what is told of members is then what the writer has kept of them.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from segstore.config import arguments
from segstore.coordinator.group.describe import Looking
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import check_group, check_partition
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.partition_log import PartitionLog

# --- reset -------------------------------------------------------------------------------------

# Where a group shall go on: the earliest or latest record, a time, an offset, some records on or back.
#
# Nothing on disk. Threads: any; a `Reset` is immutable. (Kafka: ConsumerGroupCommand, --reset-offsets.)


@dataclass(frozen=True)
class Reset:
    """Made by one of its class methods. `value`: an offset, offsets, ms since the epoch, or ms before now."""

    kind: str
    value: int = 0

    @classmethod
    def to_earliest(cls) -> Reset:
        """The log start offset."""
        return cls("earliest")

    @classmethod
    def to_latest(cls) -> Reset:
        """The log end offset."""
        return cls("latest")

    @classmethod
    def to_current(cls) -> Reset:
        """Where the group is; at the log end offset where it has committed nothing."""
        return cls("current")

    @classmethod
    def to_offset(cls, offset: int) -> Reset:
        """That offset, or the nearest that is there. InvalidArgumentError for a negative one."""
        return cls("offset", arguments.whole("offset", offset, 0))

    @classmethod
    def shift_by(cls, records: int) -> Reset:
        """So many offsets on from where the group is, or back if negative; no further than the log goes."""
        return cls("shift", arguments.whole("records", records, None))

    @classmethod
    def to_datetime(cls, timestamp_ms: int) -> Reset:
        """The first record that is stamped so or later; the log end offset where there is none."""
        return cls("datetime", arguments.whole("timestamp_ms", timestamp_ms, 0))

    @classmethod
    def by_duration(cls, duration_ms: int) -> Reset:
        """As `to_datetime`, so long before now."""
        return cls("duration", arguments.whole("duration_ms", duration_ms, 0))

    def target(self, log: PartitionLog, committed: OffsetAndMetadata | None, now_ms: int) -> int:
        """The offset in that log. InvalidArgumentError where `shift_by` has nothing to count from."""
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

    def _wanted(self, log: PartitionLog, committed: OffsetAndMetadata | None) -> int:
        if self.kind == "offset":
            return self.value
        if committed is None:
            raise InvalidArgumentError(
                f"{log.topic}-{log.partition}: shift_by counts from a committed offset, and there is none"
            )
        return committed.offset + (self.value if self.kind == "shift" else 0)


@dataclass(frozen=True)
class Moved:
    """What a reset does to one partition; `before` is None where nothing was committed."""

    partition: TopicPartition
    before: int | None
    after: int


# --- admin ------------------------------------------------------------

T = TypeVar("T")
Which = Iterable["TopicPartition | str"]


class Groups(Looking):
    """`Groups(store)`, of a store opened "rw" or "r"."""

    def close(self) -> None:
        """Nothing is held."""

    def reset(
        self, group: str, to: Reset, partitions: Which | None = None, dry_run: bool = False
    ) -> tuple[Moved, ...]:
        """Set where the group goes on, in those partitions (a topic's name stands for all it has), by default
        in all for which it has committed: what changed, or with `dry_run` what would.

        All is committed at once, or nothing. NonEmptyGroupError; GroupNotFoundError where no partitions are
        given; UnknownTopicOrPartitionError, InvalidArgumentError, ReadOnlyError, and what
        `GroupOffsets.commit` raises.
        """
        source = self._source()
        if not isinstance(to, Reset):
            raise InvalidTypeError(f"to must be a Reset, as Reset.to_earliest(), not {type(to).__name__}")
        if partitions is None:
            self._check_there(source, group)
        check_group(group)

        def move() -> tuple[Moved, ...]:
            committed = source.fetch(group)
            chosen = tuple(sorted(committed)) if partitions is None else self._chosen(partitions)
            now = self._store._context.clock()
            moved = []
            for tp in chosen:
                before = committed.get(tp)
                after = to.target(self._store.partition(*tp), before, now)
                moved.append(Moved(tp, before.offset if before else None, after))
            if not dry_run:
                self._writer().commit(group, {m.partition: OffsetAndMetadata(m.after) for m in moved})
            return tuple(moved)

        return move() if dry_run else self._while_empty(group, move)

    def delete(self, group: str) -> None:
        """Forget the group and all that it committed. NonEmptyGroupError, GroupNotFoundError."""
        writer = self._writer()
        self._check_there(writer, group)
        self._while_empty(group, lambda: writer.delete(group))
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.forget(group)

    def delete_offsets(self, group: str, partitions: Which) -> set[TopicPartition]:
        """Forget what the group committed for those partitions: which there were. Errors as `delete`.

        A topic that is no more is named by its partitions.
        """
        writer = self._writer()
        self._check_there(writer, group)
        return self._while_empty(group, lambda: writer.delete(group, self._chosen(partitions, there=False)))

    def _writer(self) -> GroupOffsets:
        return shared(self._store, GroupOffsets)

    def _while_empty(self, group: str, run: Callable[[], T]) -> T:
        """What `run` gives: the group has no members, and gets none meanwhile. NonEmptyGroupError."""
        coordinator = self._coordinator()
        return run() if coordinator is None else coordinator.while_empty(group, run)

    def _chosen(self, partitions: Which, there: bool = True) -> tuple[TopicPartition, ...]:
        """InvalidArgumentError where nothing is chosen; UnknownTopicOrPartitionError."""
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise InvalidTypeError(f"partitions must be a list, as [{partitions!r}]")
        topics, found = self._store.topics(), set()
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
