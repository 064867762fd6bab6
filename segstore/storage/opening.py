"""Opens a partition's directory: its segments and where it ends, after whatever happened to it.

On disk: what `loader` and `recovery` do. Threads: one, before the partition is used.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from segstore.config import TopicConfig
from segstore.index.sparse import MOST
from segstore.storage.handles import HandlePool
from segstore.storage.loader import list_segments, settle
from segstore.storage.recovery import PartitionRecovery, Recovered, behind_last
from segstore.storage.segment import Segment
from segstore.storage.writer import create_segment, remove_segment

log = logging.getLogger("segstore")


class Expected(NamedTuple):
    """What the checkpoints say of a partition. `gaps_end`, `suspect`: see `PartitionRecovery`."""

    clean: bool
    recovery_point: int
    log_start: int
    quarantine: str
    gaps_end: int
    suspect: bool = False


class Opened(NamedTuple):
    """`durable_offset`: up to there all is synced. `recovered` is None where the partition was taken as it
    was.
    """

    segments: list[Segment]
    start_offset: int
    end_offset: int
    durable_offset: int
    recovered: Recovered | None


def open_partition(pool: HandlePool, directory: str, config: TopicConfig, expected: Expected) -> Opened:
    """Segments ready for appending to the last. OSError."""
    segments = load_segments(pool, directory, settle(pool.files, directory), config, writable=True)
    least = max(expected.recovery_point, 0)
    if not segments:
        segments = [create_segment(pool, directory, max(least, expected.log_start), config)]
    recovered = None
    last = segments[-1]
    position, end = behind_last(last) if expected.clean else (-1, -1)
    if position != last.size or end < least:
        recovered = PartitionRecovery(
            segments, config, least, expected.quarantine, expected.gaps_end, expected.suspect
        ).run()
        end = recovered.end_offset
    segments[-1].sealed = False
    segments[-1].attach(None)
    start = _start(segments, expected.log_start, end)
    durable = min(expected.recovery_point, end) if recovered is None else end
    return Opened(segments, start, end, durable, recovered)


def _start(segments: list[Segment], log_start: int, end: int) -> int:
    """The log start offset; segments wholly below it, which a crash left, go."""
    if log_start > end:
        # It is moved to offsets only that are durable: one behind the end is a damaged checkpoint's.
        log.warning("%s: log start offset %d is behind the end %d", segments[0].directory, log_start, end)
        return segments[0].base_offset
    while len(segments) > 1 and segments[1].base_offset <= log_start:
        remove_segment(segments.pop(0))
    return max(segments[0].base_offset, log_start)


def load_segments(
    pool: HandlePool, directory: str, bases: list[int], config: TopicConfig, *, writable: bool
) -> list[Segment]:
    """The segments with these base offsets, sized as their files are, taken for sealed. OSError."""
    segments = []
    for base in bases:
        segment = Segment(pool, directory, base, 0, writable=writable, interval=config.index_interval_bytes)
        segment.size = min(pool.files.size(segment.path), MOST)
        segments.append(segment)
    return segments


def read_only_segments(pool: HandlePool, directory: str, config: TopicConfig) -> list[Segment]:
    """The segments of a directory that another process may be writing. OSError."""
    segments = load_segments(pool, directory, list_segments(pool.files, directory), config, writable=False)
    for segment in segments:
        segment.identity = pool.files.identity(segment.path)
        segment.size = segment.identity[1]
    if segments:
        last = segments[-1]
        last.sealed, last.identity = False, last.identity[:1]  # it grows
    return segments
