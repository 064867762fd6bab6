"""Which stretch of a log may be compacted, and whether it is worth it. Nothing on disk: reads headers.

The rules are Kafka's (org.apache.kafka.storage.internals.log.LogCleanerManager.cleanableOffsets, LogToClean).
Threads: any; functions of a view.
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
    """Offsets `first_dirty` to `until`, which is a segment's base offset, were not compacted yet.

    `bytes` of the log are theirs, `ratio` is the part of the log up to `until` that this is; `late`: a
    record waits longer than max.compaction.lag.ms.
    """

    ratio: float
    bytes: int
    first_dirty: int
    until: int
    late: bool = False


def dirtiness(partition: Partition, checkpoint_offset: int | None, now_ms: int) -> Dirty:
    """How dirty a log is, whatever its settings ask for; `bytes` is 0 where nothing can be done. OSError."""
    view, config = partition.view, partition.config
    first = _first_dirty(view, checkpoint_offset)
    last = _first_uncleanable(view, config, first, now_ms)
    sizes = [s.size for s in view.segments[: last + 1]]
    begin = min(view.slot(first), last)
    clean = sum(sizes[: begin + (first > view.bases[begin])])
    dirty = sum(sizes[begin:last])
    until = max(first, view.bases[last])
    ratio = dirty / (clean + dirty) if dirty else 0.0
    return Dirty(ratio, dirty, first, until, bool(dirty) and _is_late(view, config, begin, now_ms))


def cleanable(partition: Partition, checkpoint_offset: int | None, now_ms: int) -> Dirty | None:
    """What there is to compact; None where the settings do not ask for it now. OSError.

    `checkpoint_offset` is the line of cleaner-offset-checkpoint, None without one.
    """
    config = partition.config
    if "compact" not in config.cleanup_policy:
        return None
    found = dirtiness(partition, checkpoint_offset, now_ms)
    due = found.late or found.ratio > config.min_cleanable_dirty_ratio
    return found if due and found.bytes else None


def _first_dirty(view: LogView, checkpoint_offset: int | None) -> int:
    """A checkpoint outside of the log is another log's, or the log lost its end: all of it is dirty."""
    if checkpoint_offset is None or not view.start_offset <= checkpoint_offset <= view.end_offset:
        return view.start_offset
    return checkpoint_offset


def _first_uncleanable(view: LogView, config: TopicConfig, first: int, now_ms: int) -> int:
    """The slot of the segment that ends it: the active one, that of the last stable offset, or the first
    with a record that is younger than min.compaction.lag.ms.
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
    """Whether a sealed segment from slot `begin` on began more than max.compaction.lag.ms ago."""
    before = now_ms - config.max_compaction_lag_ms
    if before <= 0:
        return False
    stamps = [_first_timestamp(s) for s in view.segments[begin:-1]]
    return any(0 < stamp < before for stamp in stamps)


def _first_timestamp(segment: Segment) -> int:
    """Of the first batch (its largest), in ms; -1 where there is none."""
    header = ffi.new("seg_batch *")
    try:
        return -1 if segment.header_at(0, segment.size, header) is None else int(header.max_timestamp)
    except CorruptRecordError:
        return -1
