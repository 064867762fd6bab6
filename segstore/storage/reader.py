"""Reads records from a view: by offset and by time.

On disk: reads only. Threads: any, without locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore._native import lib
from segstore.errors import CorruptRecordError
from segstore.records import CONTROL_FLAG, Records, ScanEnd, concat, decode, scan
from segstore.storage.segment import Segment
from segstore.storage.view import LogView
from segstore.storage.walk import BAD, walk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK = 1 << 20


class Fetched(NamedTuple):
    """Whole batches as they lie in a segment: `data[0]` is at `position` of its file."""

    segment: Segment
    data: bytes
    position: int
    batches: NDArray[np.void]
    stop: ScanEnd


def fetch(view: LogView, offset: int, limit: int, max_bytes: int, check_crcs: bool) -> list[Fetched]:
    """Batches from the one that holds `offset` on, below offset `limit`: at least one where there is one,
    then
    up to `max_bytes`. CorruptRecordError where the first one is damaged; a later one ends the fetch before
    it.
    """
    found: list[Fetched] = []
    slot, last = view.slot(offset), len(view.segments)
    while slot < last and (max_bytes > 0 or not found):
        segment, end = view.segments[slot], view.end_of(slot)
        try:
            part = _fetch_segment(segment, end, offset, limit, max_bytes, check_crcs)
        except CorruptRecordError:
            if found:
                return found
            raise
        if part is not None:
            found.append(part)
            max_bytes -= sum(part.batches["size"].tolist())
            offset = part.stop.last_offset + 1
            if part.stop.status not in (lib.SEG_END, lib.SEG_SHORT) or part.stop.position < end:
                return found
        slot += 1
    return found


def _fetch_segment(
    segment: Segment, end: int, offset: int, limit: int, max_bytes: int, check_crcs: bool
) -> Fetched | None:
    first = segment.locate(offset, end)
    if first is None or first.base_offset >= limit:
        return None
    position = int(first.position)
    size = max(int(first.size), min(max_bytes, end - position))
    data = segment.pool.files.pread(segment.handle, size, position)
    batches, stop = scan(
        data, position, from_offset=offset, end_offset=limit, max_bytes=max_bytes, check_crcs=check_crcs
    )
    if not len(batches):
        behind = int(first.last_offset) + 1
        reason = BAD.get(stop.status, "the file was cut")
        raise CorruptRecordError(segment.path, position, max(int(first.base_offset), offset), reason, behind)
    return Fetched(segment, data, position, batches, stop)


def to_records(found: list[Fetched], offset: int) -> Records:
    """Columns of what was fetched, without records before `offset` and without control records."""
    parts = [decode(f.data, f.batches, f.segment.path, f.position) for f in found]
    return without_control(parts[0] if len(parts) == 1 else concat(parts)).from_offset(offset)


def without_control(records: Records) -> Records:
    """The records that are not transaction markers."""
    control = records.batches["attributes"] & CONTROL_FLAG
    return records.take(control[records.batch_indexes()] == 0) if control.any() else records


def offset_for_time(view: LogView, timestamp: int) -> int | None:
    """The first offset whose record's timestamp is at or after `timestamp` (ms), None where there is none."""
    for slot in range(view.slot(view.start_offset), len(view.segments)):
        segment, end = view.segments[slot], view.end_of(slot)
        if segment.largest_timestamp(end) >= timestamp:
            found = _search(view, segment, end, timestamp)
            if found is not None:
                return found
    return None


def _search(view: LogView, segment: Segment, end: int, timestamp: int) -> int | None:
    position = segment.position_for_time(timestamp, end)
    files, handle = segment.pool.files, segment.handle
    for step in walk(files, handle, position, end, check_crcs=False, chunk=_CHUNK):
        late = step.batches["max_timestamp"] >= timestamp
        late &= step.batches["last_offset"] >= view.start_offset
        for i in late.nonzero()[0].tolist():
            batches = step.batches[i : i + 1]
            if batches["base_offset"][0] >= view.end_offset:
                return None
            records = without_control(decode(step.data, batches, segment.path, step.position))
            records = records.from_offset(view.start_offset)
            hits = (records.timestamps >= timestamp).nonzero()[0]
            if len(hits):
                return int(records.offsets[hits[0]])
    return None
