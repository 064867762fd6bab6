"""`PlainLogs` and `ReplicatedLogs`: the logs whose offsets a query's plan needs. `PlainLogs` reads one
directory, `ReplicatedLogs` reads the directories of a replicated store.

On disk: only reads. Threads: one, the planner's.
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
"""The longest time that `await_shown` waits, in seconds."""
_PAUSE = 0.05


class PlannedLog(Protocol):
    """A partition's log, with only the methods of `PartitionLog` that a plan needs."""

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
    """A log whose leader epochs can be compared, with only the methods of `ObservedLog` that a plan needs."""

    @property
    def epoch(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...

    def agreed(self, position: OffsetAndEpoch) -> int: ...


class LogSource(NamedTuple):
    """The source of the offsets from `start` to before `end`. If they are read from an archive, `archived` is
    its contents for these offsets; if they are read from the store, it is None.
    """

    start: int
    end: int
    archived: LogContents | None = None


class There(NamedTuple):
    """A log, compared with the plan of a micro-batch. The log has offsets from `first` to before `last`.

    If the log has the same records below the micro-batch's start as when the micro-batch was planned, `start`
    is that start. If not, `start` is the first offset at which the log differs, -1 if that offset is not
    known. `end` is the same for the micro-batch's end.
    """

    first: int
    last: int
    start: int
    end: int


def open_store(path: str) -> Store:
    """Open a store for reading. Raises ConfigError if there is no such directory."""
    try:
        return storage.open(path, "r")
    except StorageError as error:
        raise ConfigError(
            f"option path={path!r}: {error.strerror}: give the directory of a store, or of a broker's logs"
        ) from error


def batch_edge(log: PlannedLog, offset: int) -> int:
    """Return the base offset of the batch that has `offset`. If no batch has it, or the batch is corrupt,
    return `offset`.
    """
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except CorruptRecordError:
        return offset  # The task that reads the corrupt batch will report it.
    return min(int(headers["base_offset"][0]), offset) if len(headers) else offset


def await_shown(log: PlannedLog, end: int) -> None:
    """Wait until a log's high watermark is at least `end`. If the log end offset is below `end`, return at
    once.

    After the writer of a replicated store was killed, a replica's high watermark is temporarily lower than
    the one that readers have seen before (Kafka: KIP-207). No record is lost. Raises OffsetNotAvailableError
    after PATIENCE seconds.
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
    """The logs in the directory `path`, which is a store, a broker's directory, or one directory of a
    replicated store.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._store = open_store(path)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def refresh(self) -> None:
        """Do nothing, because a store that is open for reading finds new topics by itself."""

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return a dict from each readable topic to the numbers of its partitions."""
        return {name: it.partition_ids for name, it in self._store.topics().items() if it.error is None}

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError if the partition does not exist."""
        self._store.partition(topic, partition)

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic; "" if an old broker has created the topic without an id."""
        return self._store.topics()[topic].topic_id

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Call `question` with a partition's log, and return the result. Raises
        UnknownTopicOrPartitionError, StoreClosedError.
        """
        return question(self._store.partition(*partition))

    def agreed(self, partition: TopicPartition, at: OffsetAndEpoch) -> int:
        """Return `agreed_with` of the partition's log and the position `at`. Raises the errors of `ask`."""
        observed = ObservedLog(self._store, *partition)
        return self.ask(partition, lambda log: agreed_with(log, observed, at))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing, because `there` waits for each partition."""

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Call `end_of` with a partition's log, and return the resulting offset, without a leader epoch.
        `start` is the end of the last read. If `start` is above the resulting offset, and the log has the
        records below `start`, return the offset of `start` instead.

        After the writer was killed, the high watermark of a replica, which `end_of` may return, is
        temporarily too low.
        """
        begin = 0 if start is None else start.offset
        end, there = self.ask(partition, lambda log: (end_of(log), log.log_end_offset))
        return OffsetAndEpoch(begin if end < begin <= there else end)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Wait until readers can see all records of a micro-batch (`await_shown`), then compare the
        partition's log with the plan of the micro-batch, which is from `start` to `end`. Raises
        OffsetNotAvailableError, and the errors of `ask`.
        """

        def asked(log: PlannedLog) -> There:
            await_shown(log, end.offset)
            observed = ObservedLog(self._store, *partition)
            known = [agreed_with(log, observed, at) for at in (start or OffsetAndEpoch(0), end)]
            return There(log.start_offset, log.end_offset, *known)

        return self.ask(partition, asked)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset. Return -1 if the epoch is not known, for
        example because the file leader-epoch-checkpoint is missing. Raises the errors of `ask`.
        """
        try:
            return ObservedLog(self._store, *partition).position(offset).epoch
        except UNREADABLE:
            return -1

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return an empty tuple, because tasks read the directory of the option path."""
        return ()

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return `batch_edge` of the partition's log and `offset`. Raises the errors of `ask`."""
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return one source for a range of offsets: all of them are read from the store."""
        return [LogSource(start, end)]


def agreed_with(log: PlannedLog, observed: Observed, at: OffsetAndEpoch) -> int:
    """Compare a log, by leader epochs, with the log from which the position `at` was taken (KIP-320). The two
    logs differ, for example, if the store was restored from an older copy and then written to.

    If the two logs differ below the position's offset, return the first offset at which they differ; -1 if
    that offset is not known. If there is no proof that they differ, return the position's offset. There is no
    proof if no leader epochs are known, or if the two logs are equal up to the end of `log`. If that end is
    below the position, the caller finds the loss by the log's end.
    """
    if at.epoch < 0:
        return at.offset
    try:
        agreed, known, end = observed.agreed(at), observed.epoch >= 0, observed.log_end_offset
    except UNREADABLE:
        return at.offset
    if not known or agreed >= min(at.offset, end):
        return at.offset
    # If a leader-epoch checkpoint was rebuilt from the batches, it does not have an epoch whose records
    # compaction has removed. So a missing epoch does not prove that the logs differ.
    held = _held_epoch(log, at.offset - 1)
    lacks_epoch = held is None and agreed in (-1, at.offset - 1)
    return at.offset if lacks_epoch or held == at.epoch else agreed


def _held_epoch(log: PlannedLog, offset: int) -> int | None:
    """Return the leader epoch of the batch that has `offset`; None if there is no such batch, or if the batch
    is corrupt.
    """
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    return int(headers["leader_epoch"][0]) if len(headers) and headers["base_offset"][0] <= offset else None


class ReplicatedLogs:
    """The logs of a replicated store in the directories `paths`. A partition's log is that of its leader; if
    the leader's directory can't be read, it is the log of another in-sync replica.
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
        """Read the new records of the metadata log. Raises the errors of `ReplicatedReader.refresh`."""
        self._reader.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return a dict from each topic to the numbers of its partitions, in all directories."""
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
        """Call `question` with the log of a replica, and return the result. `ReplicatedReader.ask` chooses
        the replica, if possible one that has all records below the position `holding`.
        """
        return self._reader.ask(*partition, question, holding)

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait, for a limited time, until readers can see the records that new leaders have
        (`ReplicatedReader.await_shown`).
        """
        self._reader.await_shown(partitions)

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Call `end_of` with a partition's log, and return the resulting offset with its leader epoch.
        `start` is the end of the last read. If a new leader has the records below `start`, but readers can't
        see them yet, return `start` instead.
        """

        def asked(log: ObservedLog) -> OffsetAndEpoch:
            end = end_of(log)
            if start is not None and ((end, epoch) == start or (end <= start.offset and log.holds(start))):
                return start
            return log.position(end)

        epoch = self._reader.state(*partition).leader_epoch
        return self.ask(partition, asked, start)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Compare a partition's log with the plan of a micro-batch, which is from `start` to `end`. Records
        of the micro-batch that the replica has, but that readers can't see yet, are inside the returned
        bounds. Raises the errors of `ask`.
        """
        begin = start or OffsetAndEpoch(0)

        def asked(log: ObservedLog) -> There:
            known = [at.offset if at.epoch < 0 else log.agreed(at) for at in (begin, end)]
            return There(log.start_offset, max(log.end_offset, log.agreed(end)), *known)

        return self.ask(partition, asked, max(begin, end))

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset; -1 if the epoch is not known."""
        return self.ask(partition, lambda log: log.position(offset).epoch, OffsetAndEpoch(offset))

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return the directories from which tasks read the partition (`ReplicatedReader.places`)."""
        return self._reader.places(*partition)

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return `batch_edge` of the partition's log and `offset`. Raises the errors of `ask`."""
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return one source for a range of offsets: all of them are read from the store."""
        return [LogSource(start, end)]
