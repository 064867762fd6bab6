"""`ObservedLog`: the log of a replica as other processes than its writer read it, and whether it has what
another replica's log had (R4, R37; Kafka: OffsetsForLeaderEpoch, KIP-320).

On disk the partition's files, `leader-epoch-checkpoint` and `replication-offset-checkpoint` are read; nothing
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
"""What is raised where a directory has no such replica, or has it no more."""
UNREADABLE = (OSError, CorruptCheckpointError, NotLeaderOrFollowerError)
"""What is raised where a replica can't be read: also where its directory is lost (StorageError)."""
_TRIES = 100


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch of the record before it, -1 where that is not known. Two logs that have
    the same record before an offset have the same records below it (P1).
    """

    offset: int
    epoch: int = -1


def position_in(epochs: LeaderEpochCache, end: int, offset: int) -> OffsetAndEpoch:
    """Return an offset of a log that ends at `end` with the leader epoch of the record before it."""
    found = epochs.epoch_for_offset(offset - 1) if offset <= end else None
    return OffsetAndEpoch(offset, -1 if found is None else found)


def agreed_in(epochs: LeaderEpochCache, end: int, position: OffsetAndEpoch) -> int:
    """Return the offset up to which a log that ends at `end` surely has the records of the log that a
    position was taken from: that of the position if it has them all.
    """
    if position.epoch < 0:
        return min(position.offset, end)
    found: EpochEnd = epochs.end_offset_for(position.epoch, end)
    if found.epoch < position.epoch:  # also if nothing is known: -1
        return min(found.end_offset, end, position.offset - 1)
    return min(found.end_offset, end, position.offset)


class ObservedLog:
    """The log of a replica, in a store that is open to read. What is read is `PartitionLog`'s, but for the
    high watermark where none is published, as after a power cut: then it is the one on disk (R36).
    """

    def __init__(self, store: Store, topic: str, partition: int, files: Files | None = None) -> None:
        """Raises UnknownTopicOrPartitionError, StorageError."""
        self.log: PartitionLog = store.partition(topic, partition)
        source = self.log.source
        assert isinstance(source, ReadOnlyPartition)
        self._source, self._root, self._files = source, store.path, files or Files()
        self._key = topic, partition

    @property
    def directory(self) -> str:
        """Return the data directory that the replica lies in."""
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
        """Return where the log ends, shown or not."""
        return self._source.written().end_offset

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is ended, and its end is shown."""
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
        """See `PartitionLog.offset_for_time`."""
        return self.log.offset_for_time(timestamp_ms)

    # --- leader epochs --------------------------------------------------------------------

    def _epochs(self) -> tuple[LeaderEpochCache, int]:
        """Return leader epochs and log end offset of one moment. An epoch is in the file before a batch of it
        is in the log, and it goes after what was written under it was cut.
        """
        path = names.below(self._source.directory, names.LEADER_EPOCHS)
        for _ in range(_TRIES):
            epochs = LeaderEpochs.load(self._files, path)
            end = self.log_end_offset
            if LeaderEpochs.load(self._files, path).entries == epochs.entries:
                return epochs, end
        raise NotLeaderOrFollowerError(f"{self._source.directory}: its leader epochs change all the time")

    @property
    def epoch(self) -> int:
        """Return the latest leader epoch that the replica has taken part in, -1 for none. Errors as
        `position`.
        """
        return self._epochs()[0].current

    @property
    def shows_its_epoch(self) -> bool:
        """Return whether the high watermark has come to the start of the latest leader epoch: before that a
        new leader does not show all that was committed (R38). Errors as `position`.
        """
        entries = self._epochs()[0].entries
        return not entries or self.end_offset >= entries[-1][1]

    def position(self, offset: int) -> OffsetAndEpoch:
        """Return an offset with the leader epoch of the record before it. Raises OSError,
        CorruptCheckpointError.
        """
        return position_in(*self._epochs(), offset)

    def agreed(self, position: OffsetAndEpoch) -> int:
        """Return the offset up to which this log surely has the records of the log that a position was taken
        from: that of the position where it has them all. Errors as `position`.
        """
        return agreed_in(*self._epochs(), position)

    def holds(self, position: OffsetAndEpoch) -> bool:
        """Return whether the log has all records below a position. Errors as `position`."""
        return self.agreed(position) == position.offset

    # --- reading --------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, check_crcs: bool = True) -> Records:
        """See `PartitionLog.read`."""
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
        """Return records as `PartitionLog.read` does, but also those below `until` that this replica does not
        show yet: that they are committed is known, since another replica has shown them.

        Raises ReplicaOfflineError where the log does not have them; OffsetOutOfRangeError where they were
        deleted; what `PartitionLog.read` raises besides.
        """
        committed = isolation_level == "read_committed"
        view = self._source.written()
        if committed and 0 <= view.stable_offset < until.offset:  # by what is shown, or by all that is there
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
            raise self._lacks(until) from error  # it was cut in the middle of the read
        if records.next_offset <= offset:
            raise self._lacks(until)
        return records

    def check(self, until: OffsetAndEpoch) -> None:
        """Raise ReplicaOfflineError where the log does not have all records below a position. Errors as
        `position`.
        """
        if not self.holds(until):
            raise self._lacks(until)

    def _lacks(self, until: OffsetAndEpoch) -> ReplicaOfflineError:
        topic, number = self._key
        return ReplicaOfflineError(
            f"the replica of {topic}-{number} in {self._root} does not have the records up to offset "
            f"{until.offset}, leader epoch {until.epoch}"
        )
