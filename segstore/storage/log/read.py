"""Reads record batches and records of a partition's view, by offset and by time, and checks gaps in offsets.

Most reads of one record (`point_read`), and most reads of many bytes (`range_read`), are one call of C, and
don't use this module.

On disk everything is only read: logs, indexes, a topic's settings and the cleaner's checkpoint. Threads: any,
without locks, because a cached value is replaced by one assignment.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names, read_buffers
from segstore._native import ffi, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError, SegstoreError
from segstore.files import Files, Handle
from segstore.records import CONTROL_FLAG, Records, ScanEnd, batch_type, concat, decode, scan, stamped
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.segment.batch_scan import BAD, ScanStep, walk_past_damage
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- gaps --------------------------------------------------------------------------------------

# Offsets may be missing from an undamaged log, because compaction removes records, and whole batches. The
# topic's settings and the cleaner's checkpoint say whether compaction may have removed an offset. Both are
# read only if a read finds a gap.

MayBeMissing = Callable[[int], bool]


class Gaps:
    """Decides whether compaction may have made a gap that begins at a given offset. If not, the gap is
    damage.
    """

    def __init__(self, files: Files, root: str, topic: str, partition: int) -> None:
        self._files, self._root, self._key = files, root, (topic, partition)
        self._end = 0

    def __call__(self, offset: int) -> bool:
        if self._end >= 0 and offset >= self._end:
            # The settings and the cleaner's checkpoint may have changed since the last call of `_look`.
            self._end = self._look()
        return self._end < 0 or offset < self._end

    def _look(self) -> int:
        """Return the offset below which there may be gaps, -1 if they may be anywhere. Raises OSError if the
        files can't be read now, but perhaps later.
        """
        try:
            info = TopicFiles(self._files, self._root).load()[0].get(self._key[0])
            if info is None:
                return -1
            path = os.path.join(self._root, names.CLEANER_OFFSETS)
            return info.gaps_end(self._key[1], read_offsets(self._files, path).get(self._key))
        except (SegstoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NOT_A_FILE:
                raise
            return -1  # if the settings are unreadable, no gap counts as damage


def forgets(before: TopicInfo, after: TopicInfo) -> bool:
    """Return whether the settings `before` allowed gaps, and the settings `after` do not. If `before` are a
    broker's settings, return True, because still earlier settings are unknown, and may have allowed gaps.
    """
    return before.gapped and not (after.gapped and before.ours)


def remembering(before: TopicInfo, after: TopicInfo, held: Mapping[int, tuple[LogView, int]]) -> TopicInfo:
    """Return the settings `after` of a topic, and add an offset for each partition: compaction under the
    settings `before` may have left gaps below that offset. The cleaner's checkpoint can't give these offsets,
    because it does not record compactions that were stopped.

    `held` has the view and the recovery point of each partition in which no compaction can begin now; any
    other partition may have gaps anywhere. The cleaner skips the active segment and the records that are not
    synced, so neither of these has gaps. A broker's log may have gaps up to its end, because the log may be a
    replica of a compacted log.
    """
    if not forgets(before, after):
        return after
    ends = dict(before.compacted)
    for number in before.partition_ids:
        end = names.MAX_OFFSET
        if number in held:
            view, flushed = held[number]
            end = min(view.bases[-1], flushed) if before.ours else view.end_offset
        ends[number] = max(end, ends.get(number, 0))
    return replace(after, compacted=tuple(sorted(ends.items())))


# --- read ------------------------------------------------------------

_CHUNK = 1 << 20
_PLAIN_TIMES, _PLAIN_LEAST = 16, 64 << 20
"""A read ends after `_PLAIN_TIMES * max_bytes` decompressed bytes, but not before `_PLAIN_LEAST`."""
_ON = (lib.SEG_END, lib.SEG_SHORT)
"""The statuses of a scan after which the read may continue in the next segment."""


class FetchDataInfo(NamedTuple):
    """Whole batches as they lie in a segment: `data[0]` is byte `position` of the segment's log file."""

    segment: Segment
    data: bytes
    position: int
    batches: NDArray[np.void]
    stop: ScanEnd
    control: bool = True
    """Whether there may be control batches among the batches."""


# Each of these callables makes its object by one call of C. A Python function would be slower.
_fetched: Callable[[tuple[Any, ...]], FetchDataInfo] = partial(tuple.__new__, FetchDataInfo)
_scan_end: Callable[[tuple[Any, ...]], ScanEnd] = partial(tuple.__new__, ScanEnd)


def fetch(
    view: LogView, offset: int, limit: int, max_bytes: int, check_crcs: bool, gaps: MayBeMissing
) -> list[FetchDataInfo]:
    """Return batches below offset `limit`, beginning with the batch that holds `offset`. They have up to
    `max_bytes`, but at least one batch is returned if there is any. Raises CorruptRecordError if the first
    batch is damaged, or if offsets before it are missing because of damage. If a later batch is damaged or
    missing, only the batches before it are returned.
    """
    found: list[FetchDataInfo] = []
    slot, last = bisect_right(view.bases, offset, 1) - 1, len(view.segments)
    while slot < last and offset < limit and (max_bytes > 0 or not found):
        end, below = view.bounds(slot)
        try:
            part = _fetch_segment(
                view, slot, end, below, offset, limit, max_bytes, check_crcs, gaps, bool(found)
            )
        except CorruptRecordError:
            if found:
                return found
            raise
        if part is None and found:
            return found
        if part is not None:
            found.append(part)
            stop = part.stop
            if stop.status not in _ON or stop.position < end:
                return found
            max_bytes -= stop.position - part.position
            offset = stop.last_offset + 1
        slot += 1
    return found


def first_batch(
    view: LogView,
    slot: int,
    end: int,
    offset: int,
    limit: int,
    gaps: MayBeMissing,
    handle: Handle | None = None,
) -> Any:
    """Return the header of the batch of segment `slot` that holds `offset`, or of the next batch; None if
    there is no such batch below byte `end` and offset `limit`. Raises CorruptRecordError if damage, or a gap
    that compaction has not made, lies before that batch; the error has the offset to continue from.
    """
    segment = view.segments[slot]
    try:
        first = segment.locate(offset, end, handle)
        if first is not None and first.base_offset <= offset:
            return first
        return _after_gap(view, slot, offset, limit, first, gaps)
    except CorruptRecordError as error:
        _go_on_below(error, view.next_base(slot))
        raise


def _after_gap(view: LogView, slot: int, offset: int, limit: int, first: Any, gaps: MayBeMissing) -> Any:
    segment, back = view.segments[slot], view.next_base(slot)
    position = view.end_of(slot)
    if first is not None:
        back, position = min(back, int(first.base_offset)), int(first.position)
    segment.check_before(position, offset, back)
    if not gaps(offset):
        raise CorruptRecordError(segment.path, position, offset, f"offsets up to {back} are missing", back)
    if first is None or first.base_offset >= limit or _is_twice(view, slot, first):
        return None
    return first


def _is_twice(view: LogView, slot: int, first: Any) -> bool:
    """Return whether a batch of segment `slot` is also in a later segment. This is so while a compaction's
    swap has given the merged segment its final name, but has not removed all source segments.
    """
    other = view.slot(first.base_offset)
    if other <= slot:
        return False
    found = view.segments[other].locate(first.base_offset, view.end_of(other))
    return found is not None and (found.base_offset, found.last_offset) == (
        first.base_offset,
        first.last_offset,
    )


def _go_on_below(error: CorruptRecordError, next_base: int) -> None:
    """Set the offset at which a reader continues after damage to at most the next segment's base offset."""
    if error.next_offset is None or error.next_offset > next_base:
        error.next_offset = next_base


def _fetch_segment(
    view: LogView,
    slot: int,
    end: int,
    below: int,
    offset: int,
    limit: int,
    max_bytes: int,
    check_crcs: bool,
    gaps: MayBeMissing,
    more: bool,
) -> FetchDataInfo | None:
    """Fetch from one segment, which is visible up to byte `end` and offset `below`. If `more`, batches of an
    earlier segment were fetched already; then the first batch is fetched only if it fits into `max_bytes`.
    Return None if no batch is fetched.
    """
    segment = view.segments[slot]
    handle = segment.handle
    first = first_batch(view, slot, end, offset, limit, gaps, handle)
    while first is not None and not (more and first.size > max_bytes):
        position, size = first.position, first.size
        if max_bytes > size:
            size = max(size, min(max_bytes, end - position))
        files = segment.pool.files
        if size < read_buffers.LEAST:
            data = files.pread(handle, size, position)
        else:
            data = _pread_large(files, handle, size, position)
        alone = max_bytes <= size or (size == end - position and below == view.end_offset)
        if (
            alone
            and first.size == size
            and first.last_offset < below
            and lib.seg_sound(data, len(data), first, check_crcs)
        ):
            return _one_batch(segment, data, first, end)
        batches, stop = scan(data, position, offset, limit, max_bytes, check_crcs, int(first.base_offset))
        if stop.last_offset >= below:
            batches, stop = _within(batches, below)
        if len(batches):
            return FetchDataInfo(segment, data, position, batches, stop)
        try:
            first = _after_damage(segment, first, offset, end, BAD.get(stop.status, "the file was cut"))
        except CorruptRecordError as error:
            _go_on_below(error, below)
            raise
    return None


def _pread_large(files: Files, handle: Handle, size: int, position: int) -> bytes:
    """Read `size` bytes at `position`, like `Files.pread`. If memory of an earlier read is free, read into
    that memory.
    """
    return read_buffers.filled(
        size,
        lambda: files.pread(handle, size, position),
        lambda buffer: files.pread_into(handle, buffer, position),
    )


def _one_batch(segment: Segment, data: bytes, first: Any, end: int) -> FetchDataInfo:
    """Return a FetchDataInfo with the one batch whose header is `first`, without a scan."""
    batches = np.frombuffer(bytearray(ffi.buffer(first)), batch_type())
    position = first.position
    stop = _scan_end((position + first.size, 0, first.last_offset, lib.SEG_FULL))
    return _fetched((segment, data, position, batches, stop, first.attributes & CONTROL_FLAG != 0))


def _within(batches: NDArray[np.void], below: int) -> tuple[NDArray[np.void], ScanEnd]:
    """Return the batches before the first batch that ends at or above offset `below`, and the ScanEnd of a
    scan that stops at that batch. `below` is the base offset of the next segment, or the visible end.
    """
    n = int((batches["last_offset"] < below).argmin())
    last = int(batches["last_offset"][n - 1]) if n else -1
    return batches[:n], ScanEnd(int(batches["position"][n]), 0, last, lib.SEG_BAD_OFFSETS)


def _after_damage(segment: Segment, bad: Any, offset: int, end: int, reason: str) -> Any:
    """Return the header of the batch that holds `offset`. The search begins after the damaged batch `bad`.
    Raises CorruptRecordError if `bad` may hold `offset`.
    """
    base = int(bad.base_offset)
    position = segment.pass_by(int(bad.position), base + 1, max(base, offset), end, reason)
    return segment.locate_from(position, offset, end, bad)


def to_records(
    found: list[FetchDataInfo], offset: int, max_bytes: int, times: tuple[int, int] | None = None
) -> Records:
    """Return the records of the fetched batches, without control records, records before `offset`, and
    records with timestamps outside `times` (first and last ms).

    If the batches become many times as large by decompression, only the first batches are decoded, so that
    the memory stays bounded.
    """
    most, parts = max(_PLAIN_TIMES * max_bytes, _PLAIN_LEAST), []
    for part in found:
        batches, after = part.batches, None  # None stands for the offset after the last record
        if times is not None:
            after = int(batches["last_offset"][-1]) + 1
            batches = batches[stamped(part.data, batches, part.position, *times)]
        records = decode(
            part.data, batches, part.segment.path, part.position, after, from_offset=offset, most=most
        )
        parts.append(records)
        most -= len(records.arena)
        if most <= 0 or records.next_offset <= part.stop.last_offset:
            break
    records = parts[0] if len(parts) == 1 else concat(parts)
    if times is not None:
        stamps = records.timestamps
        records = records.take((stamps >= times[0]) & (stamps <= times[1]))
    return without_control(records) if len(parts) > 1 or found[0].control else records


def without_control(records: Records) -> Records:
    """Return the records that are not transaction markers."""
    attributes = records.batches["attributes"]
    n = len(attributes)
    if not (attributes.item(0) if n == 1 else np.bitwise_or.reduce(attributes)) & CONTROL_FLAG:
        return records
    return records.take((attributes & CONTROL_FLAG)[records.batch_indexes()] == 0)


def offset_for_time(view: LogView, timestamp: int, *, control: bool = False) -> int | None:
    """Return the first offset whose record has a timestamp (ms) at or after `timestamp`, None if there is no
    such record. If `control`, transaction markers count as records. Raises CorruptRecordError if that record
    may lie in damaged bytes.
    """
    for slot in range(view.slot(view.start_offset), len(view.segments)):
        segment, end = view.segments[slot], view.end_of(slot)
        largest = segment.largest_timestamp(end, view.next_base(slot))
        if largest is None or largest >= timestamp:
            found = _search(view, slot, timestamp, control)
            if found is not None:
                return found if found < view.end_offset else None
    return None


def max_timestamp(view: LogView) -> tuple[int, int] | None:
    """Return the largest timestamp (ms) of a log, including transaction markers, and the first offset with
    that timestamp; None if no record has a timestamp (Kafka: OffsetSpec.maxTimestamp, KIP-734). Raises the
    errors of `offset_for_time`.
    """
    first = view.slot(view.start_offset)
    largest = _largest_from_start(view, first)
    for slot in range(first + 1, len(view.segments)):
        found = view.segments[slot].largest_timestamp(view.end_of(slot), view.next_base(slot))
        largest = max(largest, -1 if found is None else found)
    offset = offset_for_time(view, largest, control=True) if largest >= 0 else None
    return None if offset is None else (largest, offset)


def _largest_from_start(view: LogView, slot: int) -> int:
    """Return the largest timestamp of the records in segment `slot` that are not below the log start offset;
    -1 if there is none.
    """
    segment, end, start = view.segments[slot], view.end_of(slot), view.start_offset
    if segment.base_offset >= start:
        found = segment.largest_timestamp(end, view.next_base(slot))
        return -1 if found is None else found
    files, largest = segment.pool.files, -1
    for step in walk_past_damage(files, segment.handle, end, check_crcs=False, sparse=True):
        batches = step.batches[step.batches["last_offset"] >= start]
        inside = batches["base_offset"] >= start
        largest = max(largest, int(batches["max_timestamp"][inside].max(initial=-1)))
        for at in batches["position"][~inside].tolist():  # a batch may begin below the log start offset
            read = next(
                walk_past_damage(files, segment.handle, end, check_crcs=False, start=at, chunk=_CHUNK)
            )
            records = decode(read.data, read.batches[:1], segment.path, read.position).from_offset(start)
            largest = max(largest, int(records.timestamps.max(initial=-1)))
    return largest


def _search(view: LogView, slot: int, timestamp: int, control: bool) -> int | None:
    """Return the first offset of segment `slot` with a timestamp at or after `timestamp`; None if no record
    has such a timestamp.
    """
    segment, end, below = view.segments[slot], view.end_of(slot), view.next_base(slot)
    at = start = segment.position_for_time(timestamp, end)
    files, offset = segment.pool.files, None
    steps = walk_past_damage(files, segment.handle, end, check_crcs=False, start=start, chunk=_CHUNK)
    for step in steps:
        if step.position != at:
            back = int(step.batches["base_offset"][0]) if len(step.batches) else below
            raise _may_hold_it(segment, at, offset, back)
        late = step.batches["max_timestamp"] >= timestamp
        late &= (step.batches["last_offset"] >= view.start_offset) & (step.batches["base_offset"] < below)
        for i in late.nonzero()[0].tolist():
            found = _first_in(view, slot, step, i, timestamp, control)
            if found is not None:
                return found
        at = step.stop.position
        offset = step.stop.last_offset + 1 if len(step.batches) else offset
        if (segment.base_offset if offset is None else offset) >= below:
            return None  # bytes beyond the visible end may be half written
    if at < end:
        raise _may_hold_it(segment, at, offset, below)
    return None


def _may_hold_it(segment: Segment, position: int, offset: int | None, back: int) -> CorruptRecordError:
    first = segment.base_offset if offset is None else offset
    return CorruptRecordError(segment.path, position, first, "no valid batch, and it may hold the time", back)


def _first_in(view: LogView, slot: int, step: ScanStep, i: int, timestamp: int, control: bool) -> int | None:
    """In batch `i` of a step, find the first record with a timestamp at or after `timestamp`. Return its
    offset, or None. The offset may lie beyond the visible end.
    """
    path, batch = view.segments[slot].path, step.batches[i : i + 1]
    base, position = int(batch["base_offset"][0]), int(batch["position"][0])
    begin = position - step.position
    whole, stop = scan(step.data[begin : begin + int(batch["size"][0])], position)
    if not len(whole):
        reason = BAD.get(stop.status, "the file was cut")
        raise CorruptRecordError(path, position, base, reason, int(batch["last_offset"][0]) + 1)
    records = decode(step.data, batch, path, step.position).from_offset(view.start_offset)
    records = records if control else without_control(records)
    hits = (records.timestamps >= timestamp).nonzero()[0]
    return int(records.offsets[hits[0]]) if len(hits) else None
