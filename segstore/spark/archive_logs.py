"""`ArchiveAlone` and `ArchiveBelow`: the logs that the plan of a query over an archive uses. `ArchiveAlone`
has only the archive. `ArchiveBelow` has a live store, and its archive for offsets below the store's log start
offsets.

On disk and in the archive: only reads. Threads: one, the planner's.
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
    """The logs of an archive. Each log ends at its archived end offset."""

    def __init__(self, place: ArchivePlace, isolation_level: str) -> None:
        """Raises ConfigError, ArchiveError."""
        self._place, self._committed = place, isolation_level == COMMITTED
        self._logs = place.open()

    def close(self) -> None:
        """Close the archive."""
        self._logs.close()

    def refresh(self) -> None:
        """Read the newest state of the archive. Raises ArchiveError."""
        self._logs.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return a dict from each topic in the archive to the numbers of its partitions."""
        return self._logs.topics

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic in the archive."""
        return self._logs.topic_id(topic)

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError if the archive does not have the partition."""
        self._logs.contents(topic, partition)

    def log(self, partition: TopicPartition) -> ArchivedLog:
        """Return the partition's archived log. Raises UnknownTopicOrPartitionError, ArchiveError."""
        return self._logs.log(*partition)

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Call `question` with a partition's log, and return the result. Raises
        UnknownTopicOrPartitionError, ArchiveError.
        """
        return question(self.log(partition))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: readers see all archived records."""

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Call `end_of` with a partition's log, and return the resulting offset, without a leader epoch."""
        return OffsetAndEpoch(self.ask(partition, end_of))

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Compare a partition's log with the plan of a micro-batch, which is from `start` to `end`. Raises
        the errors of `ask`.
        """
        log = self.log(partition)
        known = [agreed_with(log, log, at) for at in (start or OffsetAndEpoch(0), end)]
        return There(log.start_offset, log.log_end_offset, *known)

    def epoch(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset; -1 if the epoch is not known."""
        return self.log(partition).position(offset).epoch

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return an empty tuple, because tasks read the archive, not a directory."""
        return ()

    def visible(self, partition: TopicPartition) -> int:
        """Return the offset up to which the query may read: the last stable offset if the isolation level is
        read_committed, else the high watermark.
        """
        log = self.log(partition)
        return log.last_stable_offset if self._committed else log.end_offset

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return the base offset of a batch that begins at or shortly before `offset`; `offset` itself if
        that batch is corrupt. Raises the errors of `ask`.
        """
        try:
            return self.log(partition).edge(offset)
        except CorruptRecordError:
            return offset  # The task that reads the corrupt batch will report it.

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return one source for a range of offsets: the archived objects that have these offsets."""
        log = self.log(partition)
        contents = log.contents.part(start, end)
        if self._committed:
            contents = replace(contents, stable=log.last_stable_offset)
        return [LogSource(start, end, contents)]


class LayeredLog:
    """A partition's log whose beginning is in an archive. Offsets below `seam`, the store's log start offset,
    are read from the archive.
    """

    def __init__(self, live: PlannedLog, archived: ArchivedLog | None) -> None:
        self._live, self._archived = live, archived
        self.seam = live.start_offset

    @property
    def start_offset(self) -> int:
        """Return the lowest offset that the archive or the store has."""
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
        """Return the offset of the first record with a timestamp of at least `timestamp_ms`; None if there is
        none.
        """
        if self._archived is not None and self.start_offset < self.seam:
            found = self._archived.offset_for_time(timestamp_ms)
            if found is not None and found < self.seam:
                return found
        return self._live.offset_for_time(timestamp_ms)

    def read(self, offset: int, max_bytes: int, *, check_crcs: bool) -> Records:
        """Return records from `offset` on. They come from the archive if `offset` is below `seam` and the
        archive has it; else they come from the store.
        """
        if self._archived is not None and self._archived.start_offset <= offset < self.seam:
            return self._archived.read(offset, max_bytes)
        return self._live.read(offset, max_bytes, check_crcs=check_crcs)


class ArchiveBelow:
    """The logs of the store at `path`. Offsets below the log start offset of a log are read from the store's
    archive.
    """

    def __init__(self, path: str, place: ArchivePlace, isolation_level: str) -> None:
        """Raises ConfigError, ArchiveError."""
        self._live = PlainLogs(path)
        try:
            self._below, self._place = ArchiveAlone(place, isolation_level), place
        except BaseException:
            self._live.close()
            raise

    def close(self) -> None:
        """Close the store and the archive."""
        self._live.close()
        self._below.close()

    def refresh(self) -> None:
        """Read the newest state of the archive. Raises ArchiveError."""
        self._below.refresh()

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return a dict from each topic of the store to the numbers of its partitions."""
        return self._live.topics

    def check(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError if the store does not have the partition."""
        self._live.check(topic, partition)

    def ask(self, partition: TopicPartition, question: Callable[[PlannedLog], T]) -> T:
        """Call `question` with a partition's log, and return the result.

        Raises UnknownTopicOrPartitionError, StoreClosedError, ConfigError, ArchiveError.
        """
        archived = self._archived(partition)
        return self._live.ask(partition, lambda live: question(LayeredLog(live, archived)))

    def await_shown(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing, because `there` waits for each partition."""
        self._live.await_shown(partitions)

    def end(
        self, partition: TopicPartition, end_of: Callable[[PlannedLog], int], start: OffsetAndEpoch | None
    ) -> OffsetAndEpoch:
        """Return `PlainLogs.end` of the store's log."""
        return self._live.end(partition, end_of, start)

    def there(self, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch) -> There:
        """Compare a partition's log with the plan of a micro-batch, which is from `start` to `end`.

        An offset below the store's log start offset is compared by the archive's leader epochs, a higher
        offset by the store's leader epochs. Raises the errors of `ask`.
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
        """Return the leader epoch of the record before an offset; -1 if the epoch is not known."""
        archived = self._archived(partition)
        if archived is not None and offset <= self._live.ask(partition, lambda log: log.start_offset):
            return archived.position(offset).epoch
        return self._live.epoch(partition, offset)

    def places(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return an empty tuple, because tasks read the archive and the directory of the option path."""
        return ()

    def edge(self, partition: TopicPartition, offset: int) -> int:
        """Return the base offset of a batch, in the archive or in the store, that begins at or shortly before
        `offset`. Raises the errors of `ask`.
        """
        if offset < self._live.ask(partition, lambda log: log.start_offset):
            return self._below.edge(partition, offset)
        return self._live.edge(partition, offset)

    def sources(self, partition: TopicPartition, start: int, end: int) -> list[LogSource]:
        """Return the sources of a range of offsets: the archive for offsets below the store's log start
        offset, the store for higher offsets.

        Offsets that neither of them has are omitted. Raises DataLossError if the archive and the store have
        different records at the same offsets.
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
        """Return the partition's log in the archive; None if the archive does not have the partition. Raises
        ConfigError if the topic's id in the archive is not its id in the store.
        """
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
    """Open the logs that a query reads, by its options path, witness and archive. Raises ConfigError,
    QuorumLostError, ArchiveError.
    """
    if options.archive is None:
        several = len(options.paths) > 1
        return ReplicatedLogs(options.paths, options.witness) if several else PlainLogs(options.paths[0])
    if not options.paths:
        return ArchiveAlone(options.archive, options.isolation_level)
    return ArchiveBelow(options.paths[0], options.archive, options.isolation_level)
