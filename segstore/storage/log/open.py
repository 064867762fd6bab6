"""Opens a partition's directory for its writer: loads the segments and finds the log end offset.

On disk `segment_files.finish_renames` and `recovery` change files, and segments below the log start offset
are renamed. Threads: one, before the partition is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from segstore.config import TopicConfig
from segstore.index.sparse import MOST
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.recovery import PartitionRecovery, Recovered, end_of_batches, last_whole
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import (
    bury_segment,
    create_segment,
    finish_renames,
    list_segments,
    remove_segment,
)


class Expected(NamedTuple):
    """The state that a partition should have according to its checkpoints. `PartitionRecovery` explains
    `gaps_end` and `suspect`.

    `recovery_point_checked` and `log_start_checked`: whether the source of the recovery point, or of the log
    start offset, has a checksum. A recovery point without a checksum is ignored if it lies beyond the log's
    end; no file is removed because of a log start offset without a checksum. `log_start_claimed`: whether an
    earlier open has reported that the log start offset has no checksum. `now_ms` is the store's clock.
    `messages` are about checkpoints that disagree with each other. `replicated`: this is a replica's log,
    which ends at its last record (R7), because its leader has the later records. `may_be_old` is passed to
    `Segment`. `ends`: the ends of sealed segments that processes may still write to, by base offset (A5).
    """

    clean: bool
    recovery_point: int
    log_start: int
    quarantine: str
    gaps_end: int
    suspect: bool = False
    recovery_point_checked: bool = True
    log_start_checked: bool = True
    log_start_claimed: bool = False
    now_ms: int = 0
    messages: tuple[str, ...] = ()
    replicated: bool = False
    may_be_old: bool = True
    ends: Mapping[int, int] = MappingProxyType({})


class Opened(NamedTuple):
    """An opened log. All records below `durable_offset` are synced. `recovered` is None if no recovery was
    needed. `messages` are about the faults that the open has found, except recoveries. `buried` are paths of
    `.deleted` files, which the caller removes later. `claimed`: whether segments below the log start offset
    were kept, because no source with a checksum confirms that offset.
    """

    segments: list[Segment]
    start_offset: int
    end_offset: int
    durable_offset: int
    recovered: Recovered | None
    messages: tuple[str, ...] = ()
    buried: tuple[str, ...] = ()
    claimed: bool = False


def open_partition(pool: HandlePool, directory: str, config: TopicConfig, expected: Expected) -> Opened:
    """Open a partition's segments, the last segment for appending. Raises OSError."""
    bases, buried = finish_renames(pool.files, directory)
    old = expected.may_be_old
    segments = load_segments(pool, directory, bases, config, writable=True, may_be_old=old)
    for segment in segments:
        if segment.base_offset in expected.ends:
            segment.final_size = min(expected.ends[segment.base_offset], segment.final_size)
    messages: list[str] = []
    least = _recovery_point(segments, expected, messages)
    if not segments:
        begin = expected.log_start if expected.replicated else max(least, expected.log_start)
        segments = [create_segment(pool, directory, begin, config)]
    if expected.replicated:
        segments = _begun_anew(segments, config, expected)
    recovered = None
    last = segments[-1]
    position, end = end_of_batches(last) if expected.clean else (-1, -1)
    if position != last.final_size or end < least:
        recovered = PartitionRecovery(
            segments,
            config,
            least,
            expected.quarantine,
            expected.gaps_end,
            expected.suspect,
            expected.replicated,
        ).run()
        end = recovered.end_offset
    segments[-1].sealed = False
    if recovered is None:
        segments[-1].attach(None)
    start, below = _start(segments, expected, end, messages)
    claimed = bool(below) and (expected.log_start_claimed or not expected.log_start_checked)
    aside_paths = [] if claimed else _put_aside(segments, below, start, expected.now_ms, messages)
    if claimed and not expected.log_start_claimed:
        messages.append(
            f"{below} segments lie below the log start offset {start}, which nothing with a checksum"
            " says: they stay"
        )
    durable = min(least, end) if recovered is None else end
    return Opened(segments, start, end, durable, recovered, tuple(messages), (*buried, *aside_paths), claimed)


def _begun_anew(segments: list[Segment], config: TopicConfig, expected: Expected) -> list[Segment]:
    """Return the segments of a replica's log. If the log start offset has a checksum and lies above the log's
    end, a crash has stopped the replica while it began its log anew (R6). In that case, remove all segments,
    and return only a new segment that begins at the log start offset.
    """
    last, start = segments[-1], expected.log_start
    if not expected.log_start_checked or start <= end_of_batches(last)[1]:
        return segments
    for segment in reversed(segments):
        remove_segment(segment)
    last.pool.files.sync_dir(last.directory)
    return [create_segment(last.pool, last.directory, start, config)]


def _recovery_point(segments: list[Segment], expected: Expected, messages: list[str]) -> int:
    """Return the recovery point. If the recovery point lies beyond the log's end and has no checksum, return
    instead the offset after the log's last whole batch. Recovery cuts nothing below that offset, so no good
    batch is lost.
    """
    claimed = max(expected.recovery_point, 0)
    if expected.log_start_checked and not expected.replicated:
        # A crash may have left some of the segments below the log start offset, with gaps between them. The
        # recovery point is set to at least the log start offset, because recovery does not end a log at a gap
        # below the recovery point.
        claimed = max(claimed, expected.log_start)
    if expected.recovery_point_checked or not segments or claimed <= end_of_batches(segments[-1])[1]:
        return claimed
    pool, directory = segments[0].pool, segments[0].directory
    end = last_whole(pool.files, directory, [segment.base_offset for segment in segments])
    messages.append(
        f"recovery point {claimed} is above the log's end: {end} is taken, after its last whole batch"
    )
    return end


def _start(segments: list[Segment], expected: Expected, end: int, messages: list[str]) -> tuple[int, int]:
    """Return the log start offset, and the number of segments wholly below that offset."""
    log_start, first = expected.log_start, segments[0].base_offset
    if log_start > end:
        # The log start offset only moves to durable offsets. So an offset beyond the end comes from a damaged
        # checkpoint.
        messages.append(f"log start offset {log_start} is above the end {end}: {first} is taken")
        return first, 0
    below = [segment for segment in segments[1:] if segment.base_offset <= log_start]
    return max(first, log_start), len(below)


def _put_aside(
    segments: list[Segment], below: int, start: int, now_ms: int, messages: list[str]
) -> list[str]:
    """A crash has left segments below the log start offset. Rename their files to names that end in
    `.deleted`; return the new paths.
    """
    if not below:
        return []
    messages.append(f"{below} segments below the log start offset {start} were put aside, to be deleted")
    paths = [path for segment in segments[:below] for path in bury_segment(segment, now_ms)]
    segments[0].pool.files.sync_dir(segments[0].directory)
    del segments[:below]
    return paths


def load_segments(
    pool: HandlePool,
    directory: str,
    bases: list[int],
    config: TopicConfig,
    *,
    writable: bool,
    may_be_old: bool = True,
) -> list[Segment]:
    """Return the segments with these base offsets. All are marked as sealed, and each has the size of its
    file. Raises OSError.
    """
    segments = []
    for base in bases:
        segment = Segment(pool, directory, base, 0, writable=writable, interval=config.index_interval_bytes)
        segment.final_size = min(pool.files.size(segment.path), MOST)
        segment.may_be_old = may_be_old
        segments.append(segment)
    return segments


def read_only_segments(
    pool: HandlePool, directory: str, config: TopicConfig, may_be_old: bool
) -> list[Segment]:
    """Return the segments of a directory that another process may be writing. Raises OSError."""
    bases = list_segments(pool.files, directory)
    segments = load_segments(pool, directory, bases, config, writable=False, may_be_old=may_be_old)
    for segment in segments:
        segment.identity = pool.files.identity(segment.path)
        segment.final_size = segment.identity[1]
    if segments:
        last = segments[-1]
        # The writer appends to the active log, so the log's size is not compared.
        last.sealed, last.identity = False, last.identity[:1]
    return segments
