"""`ObservedLog`: reads the log of a replica in a process that is not the writer's, and compares leader epochs
to find out whether the logs of two replicas have the same records (R4, R37; Kafka: OffsetsForLeaderEpoch,
KIP-320).

On disk the partition's files, `leader-epoch-checkpoint` and `replication-offset-checkpoint` are read. Nothing
is locked or changed. Threads: any.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from segstore import names
from segstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ReplicaOfflineError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.files import Files
from segstore.leader_epochs import EpochEnd, LeaderEpochCache
from segstore.records import Records
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.offset_checkpoints import LeaderEpochs, read_offsets
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

GONE = (UnknownTopicOrPartitionError, StoreClosedError)
"""The errors of a read if the directory has no such replica or the replica was deleted."""
UNREADABLE = (OSError, CorruptCheckpointError, NotLeaderOrFollowerError)
"""The errors of a read if the replica can't be read. A directory that is lost raises StorageError, a subclass
of OSError.
"""
_TRIES = 100


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch of the record before that offset, or -1 if this epoch is unknown. If
    the epoch is known and two logs have the same `OffsetAndEpoch`, both logs have the same records below the
    offset (P1).
    """

    offset: int
    epoch: int = -1


def position_in(epochs: LeaderEpochCache, end: int, offset: int) -> OffsetAndEpoch:
    """Return (`offset`, leader epoch of the record before `offset`) for a log that ends at `end`. If the log
    does not reach `offset` or has no epoch for that record, the epoch is -1.
    """
    found = epochs.epoch_for_offset(offset - 1) if offset <= end else None
    return OffsetAndEpoch(offset, -1 if found is None else found)


def agreed_in(epochs: LeaderEpochCache, end: int, position: OffsetAndEpoch) -> int:
    """Compare log A, which has the leader epochs `epochs` and ends at `end`, with the log B that `position`
    was taken from. Return an offset: below it, A and B certainly have the same records. If A has all records
    of B below `position.offset`, return `position.offset`.
    """
    if position.epoch < 0:
        return min(position.offset, end)
    found: EpochEnd = epochs.end_offset_for(position.epoch, end)
    if found.epoch < position.epoch:  # `found.epoch` is -1 if the log has no such epoch.
        return min(found.end_offset, end, position.offset - 1)
    return min(found.end_offset, end, position.offset)


class ObservedLog:
    """The log of a replica, in a store that is open for reading. The high watermark is the value that the
    writer has published. If no value is published, for example after a power cut, the high watermark is read
    from `replication-offset-checkpoint` (R36).
    """

    def __init__(self, store: Store, topic: str, partition: int, files: Files | None = None) -> None:
        """Open the log of a partition. Raises UnknownTopicOrPartitionError, StorageError."""
        self.log: PartitionLog = store.partition(topic, partition)
        source = self.log.source
        assert isinstance(source, ReadOnlyPartition)
        self._source, self._root, self._files = source, store.path, files or Files()
        self._key = topic, partition

    @property
    def directory(self) -> str:
        """Return the path of the replica's data directory."""
        return self._root

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        """Return the high watermark. Raises OSError, CorruptCheckpointError, StoreClosedError."""
        return self._shown().end_offset

    @property
    def log_end_offset(self) -> int:
        """Return the log end offset, which may be above the high watermark."""
        return self._source.written().end_offset

    @property
    def last_stable_offset(self) -> int:
        """Return the last stable offset, at most the high watermark."""
        return self.log._stable(self._shown())

    def _shown(self) -> LogView:
        view = self._source.view
        if self._source.is_published:
            return view
        path = os.path.join(self._root, names.HIGH_WATERMARKS)
        high_watermark = read_offsets(self._files, path).get(self._key, 0)
        if high_watermark >= view.end_offset:
            return view
        return view._replace(end_offset=max(high_watermark, view.start_offset), stable_offset=-1)

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with a timestamp of at least `timestamp_ms`, None if there is
        none. See `PartitionLog.offset_for_time`.
        """
        return self.log.offset_for_time(timestamp_ms)

    # --- leader epochs --------------------------------------------------------------------

    def _epochs(self) -> tuple[LeaderEpochCache, int]:
        """Return (leader epochs, log end offset), both read at a time when no batch of a new epoch was being
        appended or truncated, so that they match.
        """
        # The writer adds an epoch to the file before it appends the first batch of the epoch, and removes the
        # epoch after it has truncated all batches of the epoch. So the epochs match the log end offset if the
        # file has the same epochs before and after the offset is read.
        path = names.below(self._source.directory, names.LEADER_EPOCHS)
        for _ in range(_TRIES):
            epochs = LeaderEpochs.load(self._files, path)
            end = self.log_end_offset
            if LeaderEpochs.load(self._files, path).entries == epochs.entries:
                return epochs, end
        raise NotLeaderOrFollowerError(f"{self._source.directory}: its leader epochs change all the time")

    @property
    def epoch(self) -> int:
        """Return the latest leader epoch in the replica's log, -1 if the log has no epoch. Raises the errors
        of `position`.
        """
        return self._epochs()[0].current

    @property
    def shows_its_epoch(self) -> bool:
        """Return whether the high watermark has reached the start of the latest leader epoch. Before that,
        the high watermark of a new leader may be below committed records (R38). Raises the errors of
        `position`.
        """
        entries = self._epochs()[0].entries
        return not entries or self.end_offset >= entries[-1][1]

    def position(self, offset: int) -> OffsetAndEpoch:
        """Return (`offset`, leader epoch of the record before `offset`). Raises OSError,
        CorruptCheckpointError.
        """
        return position_in(*self._epochs(), offset)

    def agreed(self, position: OffsetAndEpoch) -> int:
        """Compare this log with the log that `position` was taken from. Return an offset: below it, both logs
        certainly have the same records. If this log has all records below `position.offset`, return
        `position.offset`. Raises the errors of the method `position`.
        """
        return agreed_in(*self._epochs(), position)

    def holds(self, position: OffsetAndEpoch) -> bool:
        """Return whether this log has all records below `position.offset` of the log that `position` was
        taken from. Raises the errors of the method `position`.
        """
        return self.agreed(position) == position.offset

    # --- reading --------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, check_crcs: bool = True) -> Records:
        """Return records from the offset `offset` on, up to the high watermark, as `PartitionLog.read`
        does.
        """
        return self.log.read(offset, max_bytes, check_crcs=check_crcs)

    def read_below(
        self,
        offset: int,
        max_bytes: int,
        until: OffsetAndEpoch,
        *,
        isolation_level: str = "read_uncommitted",
        times: tuple[int, int] | None = None,
    ) -> Records:
        """Return records as `PartitionLog.read` does, but with `until.offset` in place of this replica's high
        watermark, which may be lower. The records below `until.offset` are committed: another replica has
        shown them to readers.

        Raises the errors of `PartitionLog.read`. Raises ReplicaOfflineError if the log does not have the
        records below `until` yet, and OffsetOutOfRangeError if the records at `offset` were deleted.
        """
        committed = isolation_level == "read_committed"
        view = self._source.written()
        # The published last stable offset may be outdated.
        if committed and 0 <= view.stable_offset < until.offset:
            view = view._replace(stable_offset=-1)
        try:
            records = self.log.read_view(view, offset, max_bytes, committed, True, times)
        except OffsetOutOfRangeError as error:
            if error.start > offset:
                raise
            raise self._lacks(until) from error
        except CorruptRecordError as error:
            if self.holds(until):
                raise
            raise self._lacks(until) from error  # The writer has truncated the log during the read.
        if records.next_offset <= offset:
            raise self._lacks(until)
        return records

    def check(self, until: OffsetAndEpoch) -> None:
        """Raise ReplicaOfflineError if the log lacks records below `until`. Raises the errors of the method
        `position`, too.
        """
        if not self.holds(until):
            raise self._lacks(until)

    def _lacks(self, until: OffsetAndEpoch) -> ReplicaOfflineError:
        topic, number = self._key
        return ReplicaOfflineError(
            f"the replica of {topic}-{number} in {self._root} does not have the records up to offset "
            f"{until.offset}, leader epoch {until.epoch}"
        )
