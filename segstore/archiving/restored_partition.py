"""`RestoredPartition`: the files of one partition, made of the segments and pieces of an archive.

On disk: the partition's directory in a new store. Segments come with their indexes; the last one, whose log
is made of pieces or is cut, gets its indexes when the store is opened. Threads: one, beside the threads that
download what `downloads` lists.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from segstore import names
from segstore.archiving.cutting import Limit, cut_log
from segstore.archiving.downloads import Download, Stretch
from segstore.archiving.object_names import PartitionKey
from segstore.archiving.pieces import Piece, Segment
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition
from segstore.archiving.times import Cut
from segstore.errors import ArchiveError, CorruptArchiveError
from segstore.files import Files
from segstore.integers import INT32_MAX
from segstore.leader_epochs import LeaderEpochCache
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log import epoch_history
from segstore.storage.meta.close_note import STEPS
from segstore.storage.meta.offset_checkpoints import format_leader_epochs
from segstore.storage.segment.segment import Segment as LogSegment

_FILES = (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
_HANDLES = 16


class ArchivedLog(NamedTuple):
    """A segment's log as the archive has it: of a sealed segment, or in pieces. Its offsets are from `base`
    on, below `end`.
    """

    base: int
    end: int
    max_timestamp: int
    stretches: tuple[Stretch, ...]
    segment: Segment | None = None


def of_segment(key: PartitionKey, segment: Segment) -> ArchivedLog:
    """Return the log of a sealed segment."""
    log = file_of(key, segment, names.LOG)
    return ArchivedLog(segment.base, segment.end, segment.max_timestamp, (log,), segment)


def file_of(key: PartitionKey, segment: Segment, suffix: str) -> Stretch:
    """Return the object of one of a segment's files, which is a stretch from its first to its last byte."""
    size, crc = segment.files[suffix]
    return Stretch(segment.object(key, suffix), 0, size, crc)


def of_pieces(pieces: Iterable[Piece]) -> Iterator[ArchivedLog]:
    """Yield the logs that pieces make up. Raises CorruptArchiveError if the beginning of one is missing."""
    for base, group in groupby(pieces, key=lambda it: it.base):
        some = list(group)
        if some[0].position:
            where = f"byte {some[0].position} of the segment from offset {base} on"
            raise CorruptArchiveError(some[0].object, f"a piece begins at {where}, and none is before it")
        stretches = tuple(Stretch(it.object, it.at, it.length, it.crc) for it in some)
        yield ArchivedLog(base, some[-1].end, max(it.max_timestamp for it in some), stretches)


class RestoredPartition:
    """One partition. `downloads` lists what is to be brought, and `cut` ends the log then: if it returns
    False, both are called again. `finish` comes last; `start` and `end` are the log's offsets from then on,
    `segments` and `size` (bytes) what it has.
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
        """The log as it was at a `time` (ms), None: in the newest state. `gapped`: compaction may have left
        gaps in it. Raises ArchiveError, CorruptArchiveError.
        """
        self.key = archived.key
        self._files, self._directory, self._archived = files, directory, archived
        end = cut.ends.get(self.key[::2])
        self._limit = Limit(cut.time, archived.end if end is None else end)
        """Its `end` bounds the log also if that is the archive's."""
        self.start = archived.start if time is None or not listed.starts else listed.start_at(time)
        chosen = listed.current if time is None else listed.at(time)
        if end is not None:
            chosen = self._reaching(listed, end)
        self.end = archived.end
        self._are_newest = all(each.until is None for each in chosen)
        self._waiting = self._logs(chosen, gapped)
        self._made: list[tuple[ArchivedLog, bool]] = []
        self._is_cut = False
        self.segments = self.size = 0

    def _reaching(self, listed: SegmentList, end: int) -> tuple[Segment, ...]:
        """Return the segments of a log that ends at an offset: also those that only retention took out of the
        log, if it ends before the log begins.
        """
        chosen, first = listed.current, self._archived.start
        if end < first:
            chosen = listed.readable
            first = chosen[0].base if chosen else first
            self.start = first
        if not first <= end <= self._archived.end:
            there = f"the archive has it from offset {first} to end offset {self._archived.end}"
            raise ArchiveError(f"{self.key} can't end at offset {end}: {there}")
        return chosen

    def _logs(self, chosen: Iterable[Segment], gapped: bool) -> list[ArchivedLog]:
        """Return the logs of segments from the log start offset to the limit, the last one first."""
        logs = [of_segment(self.key, each) for each in chosen]
        sealed = max((each.end for each in logs), default=-1)
        logs += of_pieces(each for each in self._archived.pieces if each.base >= sealed)
        logs = [each for each in logs if each.end > self.start and each.base < self._limit.end]
        if not gapped:
            self._check_joined(logs)
        return logs[::-1]

    def _check_joined(self, logs: list[ArchivedLog]) -> None:
        place = self._archived.segments or str(self.key)
        for before, after in pairwise(logs):
            if before.end != after.base:
                raise CorruptArchiveError(place, f"offsets {before.end} to {after.base - 1} are missing")
        wanted = self._limit.end
        first, last = (logs[0].base, logs[-1].end) if logs else (self.start, self.start)
        if first > self.start:
            raise CorruptArchiveError(place, f"offsets {self.start} to {first - 1} are missing")
        if last < wanted:
            raise CorruptArchiveError(place, f"offsets {last} to {wanted - 1} are missing")

    # --- downloads ------------------------------------------------------------------------

    def downloads(self) -> list[Download]:
        """Return the files to be made, up to the first log that may have to be cut."""
        found: list[Download] = []
        while self._waiting:
            log = self._waiting.pop()
            is_last = self._may_be_cut(log)
            self._made.append((log, is_last))
            found.append(Download(self._path(log.base, names.LOG), log.stretches, True))
            found += self._others(log, is_last)
            if is_last:
                break
        return found

    def _may_be_cut(self, log: ArchivedLog) -> bool:
        time, end = self._limit
        return log.end > end or (time is not None and log.max_timestamp > time)

    def _others(self, log: ArchivedLog, is_last: bool) -> Iterator[Download]:
        """Yield the other files of a segment. Indexes of a log that is cut are made anew."""
        if log.segment is not None:
            for suffix in log.segment.files.keys() & {names.SNAPSHOT, *(() if is_last else _FILES)}:
                stretch = file_of(self.key, log.segment, suffix)
                yield Download(self._path(log.base, suffix), (stretch,), False)

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self._directory, names.segment_file(base, suffix))

    # --- the log's end --------------------------------------------------------------------

    def cut(self) -> bool:
        """Cut the log that was downloaded last, if it reaches beyond the limit; return whether all is there.
        Raises CorruptRecordError, OSError.
        """
        if self._made and self._made[-1][1] and not self._is_cut:
            log = self._made[-1][0]
            end = cut_log(self._files, self._path(log.base, names.LOG), log.base, self._limit)
            if end is not None:
                self._is_cut, self.end, self._waiting = True, end, []
        return not self._waiting

    def finish(self, topic_id: str, newest_epoch: int) -> None:
        """Make the files beside the segments, and the directory durable. The log begins an epoch above
        `newest_epoch`, the largest that the archive knows, when it is opened. Raises OSError.
        """
        if not self._is_cut or self._limit.time is None:
            self.end = self._limit.end
        if self.end <= self.start:
            self._begin_anew()
        for log, _ in self._made:
            self.size += self._files.size(self._path(log.base, names.LOG))
        self.segments = len(self._made)
        epochs = format_leader_epochs(self._epochs(newest_epoch))
        self._files.write_atomic(os.path.join(self._directory, names.LEADER_EPOCHS), epochs)
        if topic_id:
            metadata = names.partition_metadata(topic_id)
            self._files.write_atomic(os.path.join(self._directory, names.PARTITION_METADATA), metadata)
        self._files.sync_dir(self._directory)

    @property
    def cleaned(self) -> int | None:
        """Return the cleaner's offset; None if the segments are those from before a compaction."""
        return self._archived.cleaned if self._are_newest else None

    def _begin_anew(self) -> None:
        """Remove all segments: the log begins, and ends, at its start offset."""
        for name in self._files.listdir(self._directory):
            self._files.unlink(os.path.join(self._directory, name))
        self._made, self.end = [], self.start

    def _epochs(self, newest: int) -> tuple[tuple[int, int], ...]:
        """Return the leader epochs of the log, and behind them one at its end, without records."""
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
        for log, _ in self._made:
            size = self._files.size(self._path(log.base, names.LOG))
            found.append(LogSegment(pool, self._directory, log.base, size, writable=False))
        return found
