"""Finds the part of a log that can be compacted, and decides whether its compaction is due. Only batch
headers are read from disk.

The rules are Kafka's (org.apache.kafka.storage.internals.log.LogCleanerManager.cleanableOffsets, LogToClean).
Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore._native import ffi
from segstore.errors import CorruptRecordError
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from segstore.config import TopicConfig
    from segstore.storage.log.partition import Partition


class Dirty(NamedTuple):
    """The part of a log that was not compacted yet, and may be compacted. Its offsets are `first_dirty` to
    `until` - 1, and `until` is a segment's base offset.

    `bytes` is the size of this part. `ratio` is `bytes` divided by the size of the log up to `until`. `late`:
    a record of the part has waited for compaction longer than max.compaction.lag.ms.
    """

    ratio: float
    bytes: int
    first_dirty: int
    until: int
    late: bool = False


def dirtiness(partition: Partition, checkpoint_offset: int | None, now_ms: int) -> Dirty:
    """Return the dirty part of a log (not compacted yet), even if the topic's settings don't ask for
    compaction. `bytes` of the result is 0 if no segment can be compacted. Raises OSError.
    """
    # Read the view before `written_still`: a segment that is sealed between these reads is then the view's
    # active segment, which is not compacted. In the other order this segment would be compacted while another
    # process may still write to it.
    view, config = partition.view, partition.config
    written_still = partition.written_still()
    first = _first_dirty(view, checkpoint_offset)
    last = _first_uncleanable(view, config, first, now_ms)
    # Do not compact a segment that a stopped process may still write to: when the process continues, it
    # truncates the file at the segment's path, which after a compaction would be the new file (rule A5 of
    # docs/shared.md).
    last = min([last, *(view.slot(base) for base in written_still if base >= view.bases[0])])
    sizes = [s.size for s in view.segments[: last + 1]]
    begin = min(view.slot(first), last)
    clean = sum(sizes[: begin + (first > view.bases[begin])])
    dirty = sum(sizes[begin:last])
    until = max(first, view.bases[last])
    ratio = dirty / (clean + dirty) if dirty else 0.0
    return Dirty(ratio, dirty, first, until, bool(dirty) and _is_late(view, config, begin, now_ms))


def cleanable(partition: Partition, checkpoint_offset: int | None, now_ms: int) -> Dirty | None:
    """Return the dirty part of a log, or None if the topic's settings do not ask for its compaction now.
    Raises OSError.

    `checkpoint_offset` is the partition's offset in cleaner-offset-checkpoint, or None if the file has no
    line for the partition.
    """
    config = partition.config
    if "compact" not in config.cleanup_policy:
        return None
    found = dirtiness(partition, checkpoint_offset, now_ms)
    due = found.late or found.ratio > config.min_cleanable_dirty_ratio
    return found if due and found.bytes else None


def _first_dirty(view: LogView, checkpoint_offset: int | None) -> int:
    """Return the offset of the first record that is not known to be compacted."""
    # If the checkpoint offset lies outside of the log, it was written for another log, or this log has lost
    # its end. The whole log is dirty in both cases.
    if checkpoint_offset is None or not view.start_offset <= checkpoint_offset <= view.end_offset:
        return view.start_offset
    return checkpoint_offset


def _first_uncleanable(view: LogView, config: TopicConfig, first: int, now_ms: int) -> int:
    """Return the index in `view.segments` of the first segment that may not be compacted. This is the first
    of these three: the active segment; the segment that contains the last stable offset; the first dirty
    segment with a record that is younger than min.compaction.lag.ms.
    """
    stable = view.stable_offset if view.stable_offset >= 0 else view.end_offset
    last = min(view.slot(stable), len(view.segments) - 1)
    if config.min_compaction_lag_ms > 0:
        for slot in range(view.slot(first), last):
            largest = view.segments[slot].largest_timestamp(view.end_of(slot), view.next_base(slot))
            if largest is None or largest > now_ms - config.min_compaction_lag_ms:
                return slot
    return last


def _is_late(view: LogView, config: TopicConfig, begin: int, now_ms: int) -> bool:
    """Return whether any sealed segment from `view.segments[begin]` on begins with a batch that is older than
    max.compaction.lag.ms.
    """
    before = now_ms - config.max_compaction_lag_ms
    if before <= 0:
        return False
    stamps = [_first_timestamp(s) for s in view.segments[begin:-1]]
    return any(0 < stamp < before for stamp in stamps)


def _first_timestamp(segment: Segment) -> int:
    """Return the largest timestamp of a segment's first batch, in ms, or -1 if the batch can't be read."""
    header = ffi.new("seg_batch *")
    try:
        return -1 if segment.header_at(0, segment.size, header) is None else int(header.max_timestamp)
    except CorruptRecordError:
        return -1
