"""`PlainLogs` and `ReplicatedLogs`: the logs by which a query is planned, of the store in one directory, and
of a replicated store in several.

On disk: only reads. Threads: one, that which plans.
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
"""Seconds that one directory's replica is waited for, until it shows again what it has shown."""
_PAUSE = 0.05


class PlannedLog(Protocol):
    """A partition's log, as a plan asks for it; see `PartitionLog`."""

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
    """Which leader epochs a log knows; see `ObservedLog`."""

    @property
    def epoch(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...

    def agreed(self, position: OffsetAndEpoch) -> int: ...


class LogSource(NamedTuple):
    """Offsets from `start` on, below `end`, and the contents of the archive that they are read from; None:
    they are read from the store.
    """

    start: int
    end: int
    archived: LogContents | None = None


class There(NamedTuple):
    """What a log has: offsets from `first` on, below `last`, and up to where it has what lies below the start
    and the end of a micro-batch: those offsets themselves, unless the log goes another way.
    """

    first: int
    last: int
    start: int
    end: int


def open_store(path: str) -> Store:
    """Open the store to read. Raises ConfigError where there is no directory."""
    try:
        return storage.open(path, "r")
    except StorageError as error:
        raise ConfigError(
            f"option path={path!r}: {error.strerror}: give the directory of a store, or of a broker's logs"
        ) from error


def batch_edge(log: PlannedLog, offset: int) -> int:
    """Return the base offset of the batch that has an offset; the offset itself if no batch has it."""
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except CorruptRecordError:
        return offset  # the task that reads this batch reports it
    return min(int(headers["base_offset"][0]), offset) if len(headers) else offset


def await_shown(log: PlannedLog, end: int) -> None:
    """Wait until a log shows all below `end`, where it has that: the high watermark of a replica is older
    behind a kill of its writer than what it has shown (R38; Kafka: KIP-207). What it has not is not waited
    for. Raises OffsetNotAvailableError after PATIENCE seconds: nothing is lost.
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
        """Do nothing: a store that is open to read finds out itself what is new."""

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the partitions of each topic that can be read."""
        return {name: it.partition_ids for name, it in self._store.topics().items() if it.error is None}

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError unless there is such a partition."""
        self._store.partition(topic, partition)

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic that can be read, "" for one of an old broker."""
        return self._store.topics()[topic].topic_id

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Return what a partition's log answers. Raises UnknownTopicOrPartitionError, StoreClosedError."""
        return question(self._store.partition(*partition))

    def agreed(self, partition: TopicPartition, at: OffsetAndEpoch) -> int:
        """See `agreed_with`. Errors as `ask`."""
        observed = ObservedLog(self._store, *partition)
        return self.ask(partition, lambda log: agreed_with(log, observed, at))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: see `ReplicatedLogs`."""

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return where a partition ends, by `end_of`, but at `start` where a replica does not show yet what
        lies below: after a kill of the writer its high watermark is older than what it showed. Leader epochs
        are not looked up.
        """
        begin = 0 if start is None else start.offset
        end, there = self.ask(partition, lambda log: (end_of(log), log.log_end_offset))
        return OffsetAndEpoch(begin if end < begin <= there else end)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Return what there is of a micro-batch; wait for what a replica shows again (`await_shown`). Errors
        as `ask`, and OffsetNotAvailableError.
        """

        def asked(log: PlannedLog) -> There:
            await_shown(log, end.offset)
            observed = ObservedLog(self._store, *partition)
            known = [agreed_with(log, observed, at) for at in (start or OffsetAndEpoch(0), end)]
            return There(log.start_offset, log.end_offset, *known)

        return self.ask(partition, asked)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, -1 if it is not known, as of a directory
        without a sound leader-epoch-checkpoint. Errors as `ask`.
        """
        try:
            return ObservedLog(self._store, *partition).position(offset).epoch
        except UNREADABLE:
            return -1

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return no directories: tasks read that of the option path."""
        return ()

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """See `batch_edge`. Errors as `ask`."""
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return from where a range of offsets is read: the store."""
        return [LogSource(start, end)]


def agreed_with(log: PlannedLog, observed: Observed, at: OffsetAndEpoch) -> int:
    """Return the offset up to which a log has the records of the log that a position was taken from, -1 if
    that is not known but the log is another one: it was restored from an older copy and went on (KIP-320).

    The offset of the position is returned for want of proof: if no leader epochs are known, and if the log
    ends below, which is told by its end.
    """
    if at.epoch < 0:
        return at.offset
    try:
        agreed, known, end = observed.agreed(at), observed.epoch >= 0, observed.log_end_offset
    except UNREADABLE:
        return at.offset
    if not known or agreed >= min(at.offset, end):
        return at.offset
    # A checkpoint that was made anew from the batches lacks an epoch of which compaction left no record.
    held = _held_epoch(log, at.offset - 1)
    lacks_epoch = held is None and agreed in (-1, at.offset - 1)
    return at.offset if lacks_epoch or held == at.epoch else agreed


def _held_epoch(log: PlannedLog, offset: int) -> int | None:
    """Return the leader epoch of the batch with an offset; None if there is no such batch, or damage."""
    try:
        headers = log.read(offset, 0, check_crcs=False).batches
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    return int(headers["leader_epoch"][0]) if len(headers) and headers["base_offset"][0] <= offset else None


class ReplicatedLogs:
    """The logs of the replicas that lead, in the directories `paths`; where one of these can't be read, of
    other replicas that are in sync.
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
        """Read the news of the metadata. Errors as `ReplicatedReader.refresh`."""
        self._reader.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of each topic's partitions, wherever they lie."""
        return self._reader.topics

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError unless there is such a partition."""
        self._reader.state(topic, partition)

    def ask(
        self,
        partition: TopicPartition,
        question: Callable[[ObservedLog], T],
        holding: OffsetAndEpoch | None = None,
    ) -> T:
        """See `ReplicatedReader.ask`."""
        return self._reader.ask(*partition, question, holding)

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """See `ReplicatedReader.await_shown`."""
        self._reader.await_shown(partitions)

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return where a partition ends, by `end_of`. That is `start`, up to which was read before, as
        long as a new leader has what is below it, and does not show it yet (R38).
        """

        def asked(log: ObservedLog) -> OffsetAndEpoch:
            end = end_of(log)
            if start is not None and ((end, epoch) == start or (end <= start.offset and log.holds(start))):
                return start
            return log.position(end)

        epoch = self._reader.state(*partition).leader_epoch
        return self.ask(partition, asked, start)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Return what there is of a micro-batch. What is below its end was shown, also where the replica that
        leads now does not show it yet. Errors as `ask`.
        """
        begin = start or OffsetAndEpoch(0)

        def asked(log: ObservedLog) -> There:
            known = [at.offset if at.epoch < 0 else log.agreed(at) for at in (begin, end)]
            return There(log.start_offset, max(log.end_offset, log.agreed(end)), *known)

        return self.ask(partition, asked, max(begin, end))

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, -1 where it is not known."""
        return self.ask(partition, lambda log: log.position(offset).epoch, OffsetAndEpoch(offset))

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """See `ReplicatedReader.places`."""
        return self._reader.places(*partition)

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """See `batch_edge`. Errors as `ask`."""
        return self.ask(partition, lambda log: batch_edge(log, offset))

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return from where a range of offsets is read: the store."""
        return [LogSource(start, end)]
