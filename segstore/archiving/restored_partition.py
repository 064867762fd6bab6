"""`RestoredPartition`: makes the files of one partition from the segments and pieces of an archive.

The files are made in the partition's directory of a new store. Segments are downloaded with their indexes. If
the log of the last segment is made of pieces, or was cut, its indexes are made when the store is opened.
Threads: one, in addition to the threads of the downloads.
"""

from __future__ import annotations

import os
import secrets

from segstore import names
from segstore.archiving.cutting import Limit, cut_log, drop_below
from segstore.archiving.downloads import Download
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.restored_logs import RestoredLog, check_joined, file_of, restored_logs
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition
from segstore.archiving.times import Cut
from segstore.errors import ArchiveError
from segstore.files import Files
from segstore.index import txn_index
from segstore.integers import INT32_MAX
from segstore.leader_epochs import LeaderEpochCache
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log import epoch_history
from segstore.storage.meta.close_note import STEPS
from segstore.storage.meta.offset_checkpoints import format_leader_epochs
from segstore.storage.segment.segment import Segment as LogSegment

_INDEXES = (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
_HANDLES = 16


class RestoredPartition:
    """A partition that is being restored. Make the files of `downloads`, then call `cut`, and repeat both
    while `cut` returns False. Call `finish` last. After `finish`, `start` and `end` are the start offset and
    the end offset of the log, `segments` is the number of segments, and `size` is their size in bytes.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        archived: ArchivedPartition,
        listed: SegmentList,
        cut: Cut,
        time: int | None,
        *,
        gapped: bool,
    ) -> None:
        """Restore the log as it was at a `time` (ms), or in the newest state if `time` is None. If `gapped`,
        compaction may have left gaps. Raises ArchiveError, CorruptArchiveError.
        """
        self.key = archived.key
        self._files, self._directory, self._archived = files, directory, archived
        end = cut.ends.get(self.key[::2])
        self._limit = Limit(cut.time, archived.end if end is None else end)
        """The limits of the log: the requested time, and the requested end offset (if none was requested, the
        archive's end offset).
        """
        self.start = archived.start if time is None or not listed.starts else listed.start_at(time)
        chosen = listed.current if time is None else listed.at(time)
        if end is not None:
            chosen = self._reaching(listed, end)
        self.end = archived.end
        self._are_newest = all(each.until is None for each in chosen)
        logs = restored_logs(self.key, chosen, archived.pieces, self.start, self._limit.end)
        if not gapped:
            check_joined(logs, self.start, self._limit.end, archived.segments or str(self.key))
        self._waiting = logs[::-1]
        self._made: list[RestoredLog] = []
        self._last_indexes: list[Download] = []
        """The indexes of a log that `cut` did not have to cut; `downloads` returns them next."""
        self._looked_at, self._is_doubtful = 0, False
        self._reaches: int | None = None
        """The offset after the last record of the log that `cut` has cut, or None if no log was cut."""
        self.segments = self.size = 0

    def _reaching(self, listed: SegmentList, end: int) -> tuple[ArchivedSegment, ...]:
        """Return the segments from which a log with the end offset `end` is made. Raises ArchiveError if the
        archive lacks this offset.
        """
        chosen, first = listed.current, self._archived.start
        if end < first:
            # `end` is below the log start offset, so segments that retention has removed are needed, too.
            chosen = listed.readable
            first = chosen[0].base if chosen else first
            self.start = first
        if not first <= end <= self._archived.end:
            there = f"the archive has it from offset {first} to end offset {self._archived.end}"
            raise ArchiveError(f"{self.key} can't end at offset {end}: {there}")
        return chosen

    # --- downloads ------------------------------------------------------------------------

    def downloads(self) -> list[Download]:
        """Return the next files to make, up to and including the first log that may have to be cut."""
        found, self._last_indexes = self._last_indexes, []
        while self._waiting:
            log = self._waiting.pop()
            self._made.append(log)
            self._is_doubtful = self._may_be_cut(log)
            is_sealed = log.segment is not None
            found.append(Download(self._path(log, names.LOG), log.ranges, True, is_sealed))
            if log.name == log.base:
                found += self._others(log, names.SNAPSHOT)
            if self._is_doubtful:
                break
            found += self._indexes(log)
        return found

    def _may_be_cut(self, log: RestoredLog) -> bool:
        time, end = self._limit
        return log.end > end or (time is not None and log.max_timestamp > time)

    def _indexes(self, log: RestoredLog) -> list[Download]:
        """Return the indexes that fit the log. Offset and time indexes don't fit if the first records of the
        segment are left out.
        """
        return self._others(log, *_INDEXES) if log.name == log.base else self._others(log, names.TXN_INDEX)

    def _others(self, log: RestoredLog, *suffixes: str) -> list[Download]:
        segment = log.segment
        if segment is None:
            return []
        there = [each for each in suffixes if each in segment.files]
        return [Download(self._path(log, it), (file_of(self.key, segment, it),), False, True) for it in there]

    def _path(self, log: RestoredLog, suffix: str) -> str:
        return os.path.join(self._directory, names.segment_file(log.name, suffix))

    # --- the log's end --------------------------------------------------------------------

    def cut(self) -> bool:
        """Remove two kinds of records from each downloaded log: those that the previous log also has, and
        those beyond the limit. Return True if all files are made, or False if `downloads` has more files.
        Raises CorruptRecordError, OSError.
        """
        for log in self._made[self._looked_at :]:
            if log.name > log.base:
                drop_below(self._files, self._path(log, names.LOG), log.base, log.first)
        self._looked_at = len(self._made)
        if self._is_doubtful:
            self._is_doubtful, log = False, self._made[-1]
            self._reaches = cut_log(self._files, self._path(log, names.LOG), log.name, self._limit)
            if self._reaches is None:
                self._last_indexes = self._indexes(log)
            else:
                self._waiting = []
        return not self._waiting and not self._last_indexes

    def finish(self, topic_id: str, newest_epoch: int) -> None:
        """Write the files beside the segments, and sync the directory. The log gets a new leader epoch above
        `newest_epoch`, the largest epoch in the archive. Raises OSError.
        """
        self._find_end()
        if self.end <= self.start:
            self._begin_anew()
        for log in self._made:
            self._drop_first_aborts(log)
            self.size += self._files.size(self._path(log, names.LOG))
        self.segments = len(self._made)
        epochs = format_leader_epochs(self._epochs(newest_epoch))
        self._files.write_atomic(os.path.join(self._directory, names.LEADER_EPOCHS), epochs)
        if topic_id:
            metadata = names.partition_metadata(topic_id)
            self._files.write_atomic(os.path.join(self._directory, names.PARTITION_METADATA), metadata)
        self._files.sync_dir(self._directory)

    def _find_end(self) -> None:
        """Find the log end offset, and make the last segment end there."""
        if self._limit.time is None or self._reaches is None:
            self.end = self._limit.end
        else:
            self.end = self._reaches
            # After a cut at a timestamp the log ends as early as possible: segments without records are
            # removed.
            while len(self._made) > 1 and not self._files.size(self._path(self._made[-1], names.LOG)):
                self._remove(self._made.pop())
                self.end = min(self.end, self._made[-1].end)
                self._reaches = None
        if self._made and self._made[-1].name < self.end and not self._ends_in_record():
            self._begin_empty()

    def _ends_in_record(self) -> bool:
        """Return whether it is known that a record has the last offset below the log end offset."""
        last = self._made[-1]
        if self._reaches is not None:
            return self._reaches == self.end
        # Pieces end with a record. A sealed segment may not, because compaction may have removed its last
        # records.
        return last.segment is None and last.end == self.end

    def _begin_empty(self) -> None:
        """Begin an empty segment at the log end offset."""
        empty = RestoredLog(self.end, self.end, -1, ())
        self._made.append(empty)
        with self._files.open_anew(self._path(empty, names.LOG)) as out:
            self._files.sync(out)

    def _remove(self, log: RestoredLog) -> None:
        for suffix in (names.LOG, names.SNAPSHOT, *_INDEXES):
            path = self._path(log, suffix)
            if self._files.exists(path):
                self._files.unlink(path)

    def _drop_first_aborts(self, log: RestoredLog) -> None:
        """If the first records of a segment are left out, remove the transactions that ended within these
        records from the segment's `.txnindex`.
        """
        path = self._path(log, names.TXN_INDEX)
        if log.name > log.base and self._files.exists(path):
            entries = txn_index.parse(self._files.read_file(path), log.base)
            self._files.write_atomic(path, entries[entries["last_offset"] >= log.first].tobytes())

    @property
    def cleaned(self) -> int | None:
        """Return the offset for the cleaner's checkpoint, or None if the archive has none, or if some
        restored segments are no longer in the store's log.
        """
        return self._archived.cleaned if self._are_newest else None

    def _begin_anew(self) -> None:
        """Remove all segments, so that the log is empty and begins at the log start offset."""
        for name in self._files.listdir(self._directory):
            self._files.unlink(os.path.join(self._directory, name))
        self._made, self.end = [], self.start

    def _epochs(self, newest: int) -> tuple[tuple[int, int], ...]:
        """Return the leader epochs of the log, and a new epoch, which begins at the log's end."""
        cache = LeaderEpochCache(self._archived.epochs)
        cache.truncate_from_end(self.end)
        if self._made and (not cache.entries or cache.entries[0][1] > self.start):
            cache = LeaderEpochCache(epoch_history.derive(self._files, self._segments())[0])
        cache.truncate_from_start(self.start)
        newest = max(newest, cache.current, *(epoch for epoch, _ in self._archived.epochs), 0)
        cache.assign(min(newest + 1 + secrets.randbelow(STEPS), INT32_MAX - 1), self.end)
        return cache.entries

    def _segments(self) -> list[LogSegment]:
        pool, found = HandlePool(self._files, _HANDLES), []
        for log in self._made:
            size = self._files.size(self._path(log, names.LOG))
            found.append(LogSegment(pool, self._directory, log.name, size, writable=False))
        return found
