"""Retention: decides which of a log's oldest segments are removed because of their age or because of the
log's size.

`partition.LogStart` removes the segments. The rules are Kafka's
(org.apache.kafka.storage.internals.log.UnifiedLog.deleteOldSegments). Threads: any; these are functions of a
view.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from segstore.config import TopicConfig
from segstore.files import Files
from segstore.storage.segment.log_view import LogView


def applies(config: TopicConfig) -> bool:
    """Return whether a topic's settings allow the removal of segments because of age or size."""
    return "delete" in config.cleanup_policy and (config.retention_ms >= 0 or config.retention_bytes >= 0)


def breached(view: LogView, config: TopicConfig, now_ms: int, files: Files) -> int:
    """Return the number of segments, from the oldest on, that may be removed: segments below the log start
    offset, then segments above retention.bytes, then segments older than retention.ms. The active segment
    counts only if it is not empty.

    The age of a segment is the time since its largest timestamp, or since the last change of its file if no
    record has a timestamp (Kafka: LogSegment.largestTimestamp). Raises OSError.
    """
    count = view.slot(view.start_offset) if view.start_offset < view.end_offset else len(view.segments) - 1
    if "delete" not in config.cleanup_policy:
        return count
    sizes = [view.end_of(slot) for slot in range(len(view.segments))]
    if config.retention_bytes >= 0:
        ends = list(itertools.accumulate(sizes[count:], initial=0))
        spare, first = ends[-1] - config.retention_bytes, count
        count = _go_on(sizes, count, lambda slot: spare >= ends[slot - first + 1])
    if config.retention_ms >= 0:
        oldest = now_ms - config.retention_ms
        count = _go_on(sizes, count, lambda slot: stamp(view, slot, files) < oldest)
    return count


def _go_on(sizes: Sequence[int], count: int, goes: Callable[[int], bool]) -> int:
    """Return the number of leading segments to remove: the first `count`, and the next segments as long as
    `goes(slot)` is True. A segment that compaction has emptied is removed only together with the next segment
    that has records.
    """
    for slot in range(count, len(sizes)):
        if sizes[slot]:
            if not goes(slot):
                break
            count = slot + 1
    return count


def stamp(view: LogView, slot: int, files: Files) -> int:
    """Return a segment's largest timestamp in ms, or the time of its file's last change if no record has a
    timestamp. Raises OSError.
    """
    segment = view.segments[slot]
    largest = segment.largest_timestamp(view.end_of(slot), view.next_base(slot))
    if largest is None or largest < 0:
        return files.modified(segment.path) // 1_000_000
    return largest


def freed(view: LogView, count: int) -> int:
    """Return the total size, in bytes, of the first `count` segments' logs, without their indexes."""
    return sum(map(view.end_of, range(count)))
