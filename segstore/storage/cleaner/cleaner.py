"""Compacts one partition: it keeps the latest value of every key, with its offset (Kafka: Cleaner.doClean).

The segments from the log's beginning to the end of the dirty part (the part that was not compacted yet) are
rewritten, one group of neighbouring segments after the other. Threads: one cleaning of a partition at a time,
in the cleaning thread; other threads append and read at the same time.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError, StoreClosedError
from segstore.index import OffsetIndex, TimeIndex
from segstore.index.sparse import MOST_RELATIVE
from segstore.integers import INT64_MAX
from segstore.logger import Logger
from segstore.storage.cleaner.cleanable import Dirty, dirtiness
from segstore.storage.cleaner.offset_map import OffsetMap
from segstore.storage.cleaner.retain import Aborted, Decided, Policy
from segstore.storage.cleaner.rewrite import CleanerStats, Output, Rewriter
from segstore.storage.cleaner.segment_reader import SegmentReader, pieces
from segstore.storage.cleaner.swap import check_settled, remove_strays, swap, undo, undone_on_error
from segstore.storage.cleaner.throttle import CleaningStopped, Throttler
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from segstore.config import StoreConfig
    from segstore.storage.log.partition import Partition


# --- grouping ----------------------------------------------------------------------------------

# A group of neighbouring segments is rewritten into one segment (Kafka: Cleaner.groupSegmentsBySize).


def group(segments: Sequence[Segment], config: TopicConfig, until: int, most: int) -> list[list[Segment]]:
    """Split the segments, in order, into groups. The logs and the indexes of a group fit into one segment.

    All records of the segments lie below offset `until`. A group has at most `most` segments, because all
    files of a group are open at the same time.
    """
    groups: list[list[Segment]] = []
    ends = [*(s.base_offset for s in segments[1:]), until] if segments else []
    room = (0, 0, 0)
    for segment, end in zip(segments, ends, strict=True):
        sizes = _sizes(segment)
        room = (room[0] - sizes[0], room[1] - sizes[1], room[2] - sizes[2])
        fits_offsets = groups and (not segment.size or end - 1 - groups[-1][0].base_offset <= MOST_RELATIVE)
        if fits_offsets and min(room) >= 0 and len(groups[-1]) < most:
            groups[-1].append(segment)
            continue
        groups.append([segment])
        limit = config.segment_index_bytes
        room = (config.segment_bytes - sizes[0], limit - sizes[1], limit - sizes[2])
    return groups


def _sizes(segment: Segment) -> tuple[int, int, int]:
    offsets, times = segment.indexes
    return segment.size, offsets.entries * OffsetIndex.ENTRY.size, times.entries * TimeIndex.ENTRY.size


# --- mapping -----------------------------------------------------------------------------------

# The offset map is filled from the dirty part of a log (Kafka: Cleaner.buildOffsetMap).


def fill(
    offsets: OffsetMap,
    segments: Sequence[Segment],
    first: int,
    until: int,
    aborted: Aborted,
    chunk: int,
    throttle: Throttler,
) -> None:
    """Put the keys of the records of `segments` into the map, from offset `first` on. `until` is the end
    offset of `segments`. A full map ends the fill early. `offsets.latest` becomes the last offset up to which
    the map has all keys.

    Raises CorruptRecordError, OSError, CleaningStopped.
    """
    offsets.latest = first - 1
    stretch = SegmentReader(chunk, throttle.at_once)
    bases = [segment.base_offset for segment in segments]
    for segment in segments[max(bisect_right(bases, first) - 1, 0) :]:
        position = _pass_plain(offsets, segment, first, stretch, throttle)
        if not _take(offsets, segment, position, first, aborted, chunk, throttle):
            return
    offsets.latest = until - 1


def _pass_plain(
    offsets: OffsetMap, segment: Segment, first: int, stretch: SegmentReader, throttle: Throttler
) -> int:
    """Put the keys of the segment's records from offset `first` on into the map, up to the first batch that
    `SegmentReader.put` does not read. Return the position of that batch, or the end of the segment.
    """
    stretch.begin(segment, _position(segment, first))
    while not stretch.is_over and (passed := stretch.put(offsets, first)):
        throttle(passed)
    return stretch.position


def _take(
    offsets: OffsetMap,
    segment: Segment,
    position: int,
    first: int,
    aborted: Aborted,
    chunk: int,
    throttle: Throttler,
) -> bool:
    """Put the keys of the segment's records from byte `position` on into the map. Return False if the map is
    full, else True.
    """
    for piece in pieces(segment, position, chunk, throttle, lambda batches: ~aborted.without_keys(batches)):
        done = offsets.put(piece.records, first)
        if done < len(piece.records):
            offsets.latest = int(piece.records.offsets[done]) - 1
            return False
    return True


def _position(segment: Segment, offset: int) -> int:
    """Return the position of the batch that has `offset`, or of the first later batch."""
    if offset <= segment.base_offset:
        return 0
    found = segment.locate(offset, segment.size)
    return segment.size if found is None else int(found.position)


# --- cleaner ------------------------------------------------------------

log = Logger("segstore")


class CleanResult(NamedTuple):
    """The result of a cleaning. `end_offset` is the offset for cleaner-offset-checkpoint.

    The counts of bytes, segments and records are those of the replaced segments (before) and of the new
    segments (after). `keyless` is the number of records that were dropped because they had no key. `stopped`:
    the cleaning ended early, because the store was closed, the topic was deleted, or retention removed
    segments. Segments that were replaced before the end stay replaced.
    """

    end_offset: int
    passes: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keyless: int = 0
    stopped: bool = False

    def plus(self, other: CleanResult) -> CleanResult:
        """Return the sum of this result and `other`, a later result. `end_offset` and `stopped` are those of
        `other`.
        """
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return CleanResult(other.end_offset, stopped=other.stopped, **counts)


_COUNTS = CleanResult._fields[1:-1]


def clean(
    partition: Partition,
    config: StoreConfig,
    now_ms: int,
    throttle: Throttler,
    checkpoint_offset: int | None = None,
    advanced: Callable[[int], object] = lambda offset: None,
    swapped: Callable[[CleanResult], object] = lambda counts: None,
    flushed: Callable[[], object] = lambda: None,
) -> CleanResult:
    """Compact the dirty part of a log, in several passes if its keys don't fit into the dedupe buffer.

    `advanced` is called after each pass with the offset for the cleaner's checkpoint. `swapped` is called
    with the counts of each replaced group of segments. `flushed` is called before each pass, and must make
    the recovery point durable: compaction leaves offset gaps, and recovery accepts gaps only below that
    point. Raises CorruptRecordError, StorageError, OSError. After an error no record is lost, and finished
    groups stay compacted.
    """
    check_settled(partition)
    done = CleanResult(checkpoint_offset or 0)

    def counted(counts: CleanResult) -> None:
        nonlocal done
        done = done.plus(counts._replace(end_offset=done.end_offset))
        swapped(counts)

    try:
        dirty = dirtiness(partition, checkpoint_offset, now_ms)
        done = CleanResult(dirty.first_dirty)
        while dirty.bytes and dirty.first_dirty < dirty.until:
            # Before a record is removed, the later record of its key must be durable. The markers of
            # transactions below `dirty.until` must be durable, too, even if a marker lies above that offset.
            partition.flusher.flush(partition.view.end_offset)
            flushed()
            # When an altered setting switches compaction off, the recovery point of that moment is stored as
            # the end of all offset gaps. No gap may be made above that end afterwards.
            if "compact" not in partition.config.cleanup_policy:
                raise CleaningStopped
            end = _Pass(partition, config, now_ms, throttle, dirty, counted).run()
            done = done.plus(CleanResult(end, passes=1))
            advanced(end)
            dirty = dirtiness(partition, done.end_offset, now_ms)._replace(until=dirty.until)
    except (CleaningStopped, StoreClosedError):
        done = done._replace(stopped=True)
    if done.keyless:
        name = os.path.basename(partition.directory)
        log.warning("%s: %d records without a key were dropped by compaction", name, done.keyless)
    return done


class _Pass:
    """One pass: it fills the map, and rewrites all segments that begin at or below `offsets.latest`, the last
    offset up to which the map has all keys.
    """

    def __init__(
        self,
        partition: Partition,
        config: StoreConfig,
        now_ms: int,
        throttle: Throttler,
        dirty: Dirty,
        counted: Callable[[CleanResult], object],
    ) -> None:
        self.partition, self.topic, self.dirty, self.throttle = partition, partition.config, dirty, throttle
        self.now, self.counted = now_ms, counted
        self.chunk = config.log_cleaner_io_buffer_size
        keys = dirty.until - dirty.first_dirty
        self.offsets = OffsetMap(
            config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_buffer_load_factor, keys
        )
        # A segment is dropped from this list when it is replaced. If it stayed in the list, its file would
        # stay open, and its space on disk would not be freed.
        self._left = [s for s in partition.view.segments[:-1] if s.base_offset < dirty.until]

    def run(self) -> int:
        """Run the pass, and return the offset up to which the log is compacted. Raises CleaningStopped,
        StoreClosedError, CorruptRecordError, OSError.
        """
        try:
            return self._run()
        except (CorruptRecordError, OSError) as error:
            # If segments were removed during the pass, their files are missing, or are those of a new topic
            # with the same name. So the error does not mean damage.
            if not set(self._left) <= set(self.partition.view.segments):
                raise CleaningStopped from error
            raise

    def _run(self) -> int:
        dirty, aborted = self.dirty, Aborted(lambda: self.partition.view)
        fill(self.offsets, self._left, dirty.first_dirty, dirty.until, aborted, self.chunk, self.throttle)
        end = self.offsets.latest + 1
        decided = Decided(aborted, self.now)
        segments = [s for s in self._left if s.base_offset < end]
        open_at_once = max(self.partition.context.pool.limit // 4, 2)
        sizes = [len(one) for one in group(segments, self.topic, dirty.until, open_at_once)]
        del segments
        for count in sizes:
            self._clean_group(self._left[:count], decided)
            del self._left[:count]
        return end

    def _clean_group(self, old: Sequence[Segment], decided: Decided) -> None:
        policy = Policy(self.topic, decided, self.partition.last_records(), self.dirty.until)
        horizon = min(self.now + self.topic.delete_retention_ms, INT64_MAX)
        rewriter = Rewriter(self.offsets, policy, self.now, horizon)
        most = self.topic.segment_bytes if policy.recodes else MOST_RELATIVE
        decided.kept.clear()
        remove_strays(self.partition)
        output = Output(self.partition, old[0].base_offset, most)
        with undone_on_error(self.partition, lambda: output.segments):
            for segment in old:
                rewriter.rewrite(segment, output, self.chunk, self.throttle)
            if len(old) == 1 and not rewriter.counts.changed:
                undo(self.partition, output.segments)
                return
            new = output.finish(decided.kept, old[-1])
            swap(self.partition, old, new)
        self._count(old, new, rewriter.counts)

    def _count(self, old: Sequence[Segment], new: Sequence[Segment], counts: CleanerStats) -> None:
        done = CleanResult(
            self.dirty.first_dirty,
            segments_before=len(old),
            segments_after=len(new),
            bytes_before=sum(s.size for s in old),
            bytes_after=sum(s.size for s in new),
            records_before=counts.records_before,
            records_after=counts.records_after,
            keyless=counts.keyless,
        )
        self.counted(done)
