"""`ArchiveAlone` and `ArchiveBelow`: the logs by which a query over an archive is planned, without a store,
or with the store that is archived above it.

In the archive, and on disk: only reads. Threads: one, that which plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from segstore.archiving.archived_log import ArchivedLog
from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, CorruptRecordError, DataLossError
from segstore.records import Records
from segstore.replication.observed_log import OffsetAndEpoch
from segstore.spark.archive_place import ArchivePlace
from segstore.spark.logs import LogSource, PlainLogs, PlannedLog, ReplicatedLogs, There, agreed_with
from segstore.spark.options import SourceOptions

T = TypeVar("T")
COMMITTED = "read_committed"


class ArchiveAlone:
    """The logs of an archive; each ends where it is archived up to."""

    def __init__(self, place: ArchivePlace, isolation_level: str) -> None:
        """Raises ConfigError, ArchiveError."""
        self._place, self._committed = place, isolation_level == COMMITTED
        self._logs = place.open()

    def close(self) -> None:
        """Let the archive go."""
        self._logs.close()

    def refresh(self) -> None:
        """Read what was archived since. Raises ArchiveError."""
        self._logs.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the partitions of each topic in the archive."""
        return self._logs.topics

    def topic_id(self, topic: str) -> str:
        """See `ArchivedLogs.topic_id`."""
        return self._logs.topic_id(topic)

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError unless there is such a partition."""
        self._logs.contents(topic, partition)

    def log(self, partition: TopicPartition) -> ArchivedLog:
        """See `ArchivedLogs.log`."""
        return self._logs.log(*partition)

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Return what a partition's log answers. Raises UnknownTopicOrPartitionError, ArchiveError."""
        return question(self.log(partition))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: what is archived is shown."""

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return where a partition ends, by `end_of`. Leader epochs are not looked up."""
        return OffsetAndEpoch(self.ask(partition, end_of))

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Return what there is of a micro-batch. Errors as `ask`."""
        log = self.log(partition)
        known = [agreed_with(log, log, at) for at in (start or OffsetAndEpoch(0), end)]
        return There(log.start_offset, log.log_end_offset, *known)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, -1 if it is not known."""
        return self.log(partition).position(offset).epoch

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return no directories: tasks read the archive."""
        return ()

    def visible(self, partition: TopicPartition) -> int:
        """Return the offset up to which records are read at the isolation level."""
        log = self.log(partition)
        return log.last_stable_offset if self._committed else log.end_offset

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """See `ArchivedLog.edge`. Errors as `ask`."""
        try:
            return self.log(partition).edge(offset)
        except CorruptRecordError:
            return offset  # the task that reads this batch reports it

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return from where a range of offsets is read: objects, named in the part of the contents that its
        task needs.
        """
        log = self.log(partition)
        contents = log.contents.part(start, end)
        if self._committed:
            contents = replace(contents, stable=log.last_stable_offset)
        return [LogSource(start, end, contents)]


class LayeredLog:
    """A partition's log whose beginning is in an archive: below `seam`, the store's log start offset."""

    def __init__(self, live: PlannedLog, archived: ArchivedLog | None) -> None:
        self._live, self._archived = live, archived
        self.seam = live.start_offset

    @property
    def start_offset(self) -> int:
        """Return the first offset that archive or store have."""
        return self.seam if self._archived is None else min(self._archived.start_offset, self.seam)

    @property
    def end_offset(self) -> int:
        """Return the store's high watermark."""
        return self._live.end_offset

    @property
    def log_end_offset(self) -> int:
        """Return the store's log end offset."""
        return self._live.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Return the store's last stable offset."""
        return self._live.last_stable_offset

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has a timestamp (ms) of `timestamp_ms` or later."""
        if self._archived is not None and self.start_offset < self.seam:
            found = self._archived.offset_for_time(timestamp_ms)
            if found is not None and found < self.seam:
                return found
        return self._live.offset_for_time(timestamp_ms)

    def read(self, offset: int, max_bytes: int, *, check_crcs: bool) -> Records:
        """Return records from an offset on, of archive or store."""
        if self._archived is not None and self._archived.start_offset <= offset < self.seam:
            return self._archived.read(offset, max_bytes)
        return self._live.read(offset, max_bytes, check_crcs=check_crcs)


class ArchiveBelow:
    """The logs of the store at `path`, and below each log start offset what its archive has."""

    def __init__(self, path: str, place: ArchivePlace, isolation_level: str) -> None:
        """Raises ConfigError, ArchiveError."""
        self._live = PlainLogs(path)
        try:
            self._below, self._place = ArchiveAlone(place, isolation_level), place
        except BaseException:
            self._live.close()
            raise

    def close(self) -> None:
        """Close the store."""
        self._live.close()
        self._below.close()

    def refresh(self) -> None:
        """Read what was archived since. Raises ArchiveError."""
        self._below.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the partitions of each topic of the store."""
        return self._live.topics

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError unless the store has such a partition."""
        self._live.check(topic, partition)

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Return what a partition's log answers. Raises UnknownTopicOrPartitionError, StoreClosedError,
        ConfigError, ArchiveError.
        """
        archived = self._archived(partition)
        return self._live.ask(partition, lambda live: question(LayeredLog(live, archived)))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PlainLogs.await_shown`."""
        self._live.await_shown(partitions)

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """See `PlainLogs.end`."""
        return self._live.end(partition, end_of, start)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Return what there is of a micro-batch, by the leader epochs of the archive below the seam, and of
        the store above it. Errors as `ask`.
        """
        above = self._live.there(partition, start, end)
        archived = self._archived(partition)
        if archived is None or archived.start_offset >= above.first:
            return above
        begin = start or OffsetAndEpoch(0)
        known = [
            agreed_with(archived, archived, at) if at.offset < above.first else agreed
            for at, agreed in ((begin, above.start), (end, above.end))
        ]
        return There(archived.start_offset, above.last, *known)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, -1 if it is not known."""
        archived = self._archived(partition)
        if archived is not None and offset <= self._live.ask(partition, lambda log: log.start_offset):
            return archived.position(offset).epoch
        return self._live.epoch(partition, offset)

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return no directories: tasks read that of the option path, and the archive."""
        return ()

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return an offset at which a batch of archive or store begins. Errors as `ask`."""
        if offset < self._live.ask(partition, lambda log: log.start_offset):
            return self._below.edge(partition, offset)
        return self._live.edge(partition, offset)

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return from where a range of offsets is read: the archive up to the store's log start offset, then
        the store. What neither has is left out. Raises DataLossError if the two are not one log.
        """
        seam = self._live.ask(partition, lambda log: log.start_offset)
        archived = self._archived(partition)
        if archived is None or start >= seam:
            return [LogSource(start, end)]
        self._check_joined(partition, archived)
        last = min(end, seam, self._below.visible(partition))
        found = self._below.sources(partition, start, last) if start < last else []
        return [*found, LogSource(seam, end)] if seam < end else found

    def _archived(self, partition: TopicPartition) -> ArchivedLog | None:
        """Return the log in the archive, None if it has none yet. Raises ConfigError for another topic's."""
        if partition.partition not in self._below.topics.get(partition.topic, ()):
            return None
        ours, theirs = self._live.topic_id(partition.topic), self._below.topic_id(partition.topic)
        if ours != theirs:
            raise ConfigError(
                f"option archive={str(self._place)!r}: it is not that of the store: topic "
                f"{partition.topic!r} has the id {theirs or 'none'} there, and {ours or 'none'} in the store"
            )
        return self._below.log(partition)

    def _check_joined(self, partition: TopicPartition, archived: ArchivedLog) -> None:
        end = min(archived.end_offset, self._live.ask(partition, lambda log: log.log_end_offset))
        agreed = self._live.agreed(partition, archived.position(end))
        if agreed < end:
            raise DataLossError(
                f"{partition.topic}-{partition.partition}: archive and store have other records from offset "
                f"{agreed} on: the store was restored from an older copy, or lacks records that were archived"
            )


Logs = PlainLogs | ReplicatedLogs | ArchiveAlone | ArchiveBelow


def open_logs(options: SourceOptions) -> Logs:
    """Open what the options path, witness and archive say. Raises ConfigError, QuorumLostError,
    ArchiveError.
    """
    if options.archive is None:
        several = len(options.paths) > 1
        return ReplicatedLogs(options.paths, options.witness) if several else PlainLogs(options.paths[0])
    if not options.paths:
        return ArchiveAlone(options.archive, options.isolation_level)
    return ArchiveBelow(options.paths[0], options.archive, options.isolation_level)
