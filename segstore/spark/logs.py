"""`PlainLogs` and `ReplicatedLogs`: the logs whose offsets the planner of a query looks up. A plain store has
one directory, a replicated store has several.

On disk: only reads. Threads: one, that of the planner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ConfigError,
    CorruptRecordError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StaleDirectoryError,
    StorageError,
)
from segstore.records import Records
from segstore.replication.observed_log import UNREADABLE, ObservedLog, OffsetAndEpoch
from segstore.storage.store import store as storage
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.archiving.log_contents import LogContents

T = TypeVar("T")

PATIENCE = 20.0
"""The longest time in seconds that `await_shown` waits."""
_PAUSE = 0.05


class PlannedLog(Protocol):
    """A partition's log, as a plan uses it: a part of `PartitionLog`'s interface."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...

    def offset_for_time(self, timestamp_ms: int) -> int | None: ...

    def read(self, offset: int, max_bytes: int, *, check_crcs: bool) -> Records: ...


class Observed(Protocol):
    """The leader epochs that a log knows: a part of `ObservedLog`'s interface."""

    @property
    def epoch(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...

    def agreed(self, position: OffsetAndEpoch) -> int: ...


class LogSource(NamedTuple):
    """Offsets from `start` on, below `end`. `archived` is the contents of the archive that has these offsets,
    or None if the store has them.
    """

    start: int
    end: int
    archived: LogContents | None = None


class There(NamedTuple):
    """The extent of a log in a micro-batch. The log has offsets from `first` on, below `last`.

    `start` is the micro-batch's own start if the log below that offset is the same as when the query was
    planned. Otherwise `start` is the offset from which on the log differs, or -1 if that offset is not known.
    `end` is the same for the micro-batch's end.
    """

    first: int
    last: int
    start: int
    end: int


def open_store(path: str) -> Store:
    """Open the store to read. Raises ConfigError if there is no such directory."""
    try:
        return storage.open(path, "r")
    except StorageError as error:
        raise ConfigError(
            f"option path={path!r}: {error.strerror}: give the directory of a store, or of a broker's logs"
        ) from error


def batch_edge(log: PlannedLog, offset: int) -> int:
    """Return the base offset of the batch that has an offset, or the offset itself if no batch has it."""
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except CorruptRecordError:
        return offset  # the task that reads the batch reports the damage
    return min(int(headers["base_offset"][0]), offset) if len(headers) else offset


def await_shown(log: PlannedLog, end: int) -> None:
    """Wait until a log's high watermark reaches `end`, or until the log ends below `end`.

    After its writer was killed, a replica's high watermark is for a while lower than the high watermark that
    readers saw before (Kafka: KIP-207); no record is lost. Raises OffsetNotAvailableError after PATIENCE
    seconds.
    """
    until = time.monotonic() + PATIENCE
    while (shown := log.end_offset) < end <= log.log_end_offset:
        if time.monotonic() >= until:
            raise OffsetNotAvailableError(
                f"records up to offset {end} are there, and not shown above {shown}, since the writer was "
                "killed: open the store for writing, or let its replicas come into sync, and try again"
            )
        time.sleep(_PAUSE)


class PlainLogs:
    """The logs of the store, of a broker, or of one directory of a replicated store, at `path`."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._store = open_store(path)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def refresh(self) -> None:
        """Do nothing, because a store that is open to read sees new topics by itself."""

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the partitions of each topic that can be read."""
        return {name: it.partition_ids for name, it in self._store.topics().items() if it.error is None}

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError if the partition does not exist."""
        self._store.partition(topic, partition)

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic that can be read, or "" if an old broker made the topic."""
        return self._store.topics()[topic].topic_id

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Call `question` with a partition's log, and return the result. Raises
        UnknownTopicOrPartitionError, StoreClosedError.
        """
        return question(self._store.partition(*partition))

    def agreed(self, partition: TopicPartition, at: OffsetAndEpoch) -> int:
        """Return the result of `agreed_with` for the partition's log and the position `at`. Raises the errors
        of `ask`.
        """
        observed = ObservedLog(self._store, *partition)
        return self.ask(partition, lambda log: agreed_with(log, observed, at))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: `there` waits for each partition instead."""

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return the offset that `end_of` returns for a partition's log. If `start`, the end of the last
        read, is higher, and the log has the records below `start`, return the offset of `start`. The leader
        epoch is not looked up.

        After the writer was killed, `end_of` may return an offset below `start`, because a replica's high
        watermark is then too low for a while.
        """
        begin = 0 if start is None else start.offset
        end, there = self.ask(partition, lambda log: (end_of(log), log.log_end_offset))
        return OffsetAndEpoch(begin if end < begin <= there else end)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Wait until a replica shows all of a micro-batch's records again (`await_shown`). Then return the
        log's bounds and, for the start and for the end of the micro-batch, the offset below which the log has
        the same records as when the query was planned. Raises the errors of `ask`, and
        OffsetNotAvailableError.
        """

        def asked(log: PlannedLog) -> There:
            await_shown(log, end.offset)
            observed = ObservedLog(self._store, *partition)
            known = [agreed_with(log, observed, at) for at in (start or OffsetAndEpoch(0), end)]
            return There(log.start_offset, log.end_offset, *known)

        return self.ask(partition, asked)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, or -1 if it is not known, as in a directory
        without a sound leader-epoch-checkpoint. Raises the errors of `ask`.
        """
        try:
            return ObservedLog(self._store, *partition).position(offset).epoch
        except UNREADABLE:
            return -1

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return an empty tuple, because tasks read the directory of the option path."""
        return ()

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return the base offset of the batch that has an offset (`batch_edge`). Raises the errors of
        `ask`.
        """
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return one source for a range of offsets: the store."""
        return [LogSource(start, end)]


def agreed_with(log: PlannedLog, observed: Observed, at: OffsetAndEpoch) -> int:
    """Compare a log, by leader epochs, with the log from which the position `at` was taken (KIP-320). Return
    the offset from which on the two logs differ, at most the position's own offset, or -1 if the offset is
    not known. Logs differ if, for example, the store was restored from an older copy and then written.

    Without proof of a difference, return the position's own offset. There is no proof if no leader epochs are
    known, or if the log agrees up to its own end. If this end is below the position, the caller notices the
    loss by the end of the log.
    """
    if at.epoch < 0:
        return at.offset
    try:
        agreed, known, end = observed.agreed(at), observed.epoch >= 0, observed.log_end_offset
    except UNREADABLE:
        return at.offset
    if not known or agreed >= min(at.offset, end):
        return at.offset
    # A checkpoint that was rebuilt from the batches lacks an epoch if compaction removed all records of that
    # epoch. Such a lack is no proof of a difference.
    held = _held_epoch(log, at.offset - 1)
    lacks_epoch = held is None and agreed in (-1, at.offset - 1)
    return at.offset if lacks_epoch or held == at.epoch else agreed


def _held_epoch(log: PlannedLog, offset: int) -> int | None:
    """Return the leader epoch of the batch that has an offset, or None if there is no such batch or it is
    corrupt.
    """
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    return int(headers["leader_epoch"][0]) if len(headers) and headers["base_offset"][0] <= offset else None


class ReplicatedLogs:
    """The logs of the leading replicas, in the directories `paths`. If a leader's directory can't be read,
    another in-sync replica is read.
    """

    def __init__(self, paths: Sequence[str], witness: str | None) -> None:
        """Raises ConfigError, QuorumLostError."""
        from segstore.replication.replicated_reader import ReplicatedReader

        try:
            self._reader = ReplicatedReader(paths, witness)
        except (StorageError, StaleDirectoryError) as error:
            raise ConfigError(f"option path={':'.join(paths)!r}: {error}") from None

    def close(self) -> None:
        """Close the directories."""
        self._reader.close()

    def refresh(self) -> None:
        """Read the metadata's new records. Raises the errors of `ReplicatedReader.refresh`."""
        self._reader.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of each topic's partitions, in all directories."""
        return self._reader.topics

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError if the partition does not exist."""
        self._reader.state(topic, partition)

    def ask(
        self,
        partition: TopicPartition,
        question: Callable[[ObservedLog], T],
        holding: OffsetAndEpoch | None = None,
    ) -> T:
        """Call `question` with the log of a replica that has the records below the position `holding`, and
        return the result. The replica is chosen by `ReplicatedReader.ask`.
        """
        return self._reader.ask(*partition, question, holding)

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait until the leaders show the partitions' records, by `ReplicatedReader.await_shown`."""
        self._reader.await_shown(partitions)

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return the offset that `end_of` returns for a partition's log, with its leader epoch. If a new
        leader has the records below `start`, the end of the last read, but does not show them yet, return
        `start`.
        """

        def asked(log: ObservedLog) -> OffsetAndEpoch:
            end = end_of(log)
            if start is not None and ((end, epoch) == start or (end <= start.offset and log.holds(start))):
                return start
            return log.position(end)

        epoch = self._reader.state(*partition).leader_epoch
        return self.ask(partition, asked, start)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Return the log's bounds and, for the start and for the end of a micro-batch, the offset below which
        the log has the same records as when the query was planned. Records of the plan that the leader has,
        but does not show yet, are within the bounds. Raises the errors of `ask`.
        """
        begin = start or OffsetAndEpoch(0)

        def asked(log: ObservedLog) -> There:
            known = [at.offset if at.epoch < 0 else log.agreed(at) for at in (begin, end)]
            return There(log.start_offset, max(log.end_offset, log.agreed(end)), *known)

        return self.ask(partition, asked, max(begin, end))

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, or -1 if it is not known."""
        return self.ask(partition, lambda log: log.position(offset).epoch, OffsetAndEpoch(offset))

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return `ReplicatedReader.places`, the directories from which tasks read the partition."""
        return self._reader.places(*partition)

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return the base offset of the batch that has an offset (`batch_edge`). Raises the errors of
        `ask`.
        """
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return one source for a range of offsets: the store."""
        return [LogSource(start, end)]
