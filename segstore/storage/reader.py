"""Reads records from a view: by offset and by time.

On disk: reads only. Threads: any, without locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segstore._native import lib
from segstore.errors import CorruptRecordError
from segstore.records import CONTROL_FLAG, Records, ScanEnd, concat, decode, scan
from segstore.storage.segment import Segment
from segstore.storage.view import LogView
from segstore.storage.walk import BAD, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 20
_ON = (lib.SEG_END, lib.SEG_SHORT)
"""How a scan ends that the next segment may go on from."""


class Fetched(NamedTuple):
    """Whole batches as they lie in a segment: `data[0]` is at `position` of its file."""

    segment: Segment
    data: bytes
    position: int
    batches: NDArray[np.void]
    stop: ScanEnd


def fetch(view: LogView, offset: int, limit: int, max_bytes: int, check_crcs: bool) -> list[Fetched]:
    """Batches from the one that holds `offset` on, below offset `limit`: up to `max_bytes`, at least one
    where there is one. CorruptRecordError where the first one is damaged; a later one ends the fetch before
    it.
    """
    found: list[Fetched] = []
    slot, last = view.slot(offset), len(view.segments)
    while slot < last and (max_bytes > 0 or not found):
        segment, end = view.segments[slot], view.end_of(slot)
        try:
            part = _fetch_segment(segment, end, offset, limit, max_bytes, check_crcs, bool(found))
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


def _fetch_segment(
    segment: Segment, end: int, offset: int, limit: int, max_bytes: int, check_crcs: bool, more: bool
) -> Fetched | None:
    """`more`: something was found before, and only what fits is wanted."""
    handle = segment.handle
    first = segment.locate(offset, end, handle)
    if first is None or first.base_offset >= limit or (more and first.size > max_bytes):
        return None
    position, size = first.position, first.size
    if max_bytes > size:
        size = max(size, min(max_bytes, end - position))
    data = segment.pool.files.pread(handle, size, position)
    batches, stop = scan(data, position, offset, limit, max_bytes, check_crcs)
    if not len(batches):
        behind = int(first.last_offset) + 1
        reason = BAD.get(stop.status, "the file was cut")
        raise CorruptRecordError(segment.path, position, max(int(first.base_offset), offset), reason, behind)
    return Fetched(segment, data, position, batches, stop)


def to_records(found: list[Fetched], offset: int) -> Records:
    """Columns of what was fetched, without records before `offset` and without control records."""
    parts = [
        decode(part.data, part.batches, part.segment.path, part.position, from_offset=offset)
        for part in found
    ]
    return without_control(parts[0] if len(parts) == 1 else concat(parts))


def without_control(records: Records) -> Records:
    """The records that are not transaction markers."""
    attributes = records.batches["attributes"]
    n = len(attributes)
    if not (attributes.item(0) if n == 1 else np.bitwise_or.reduce(attributes)) & CONTROL_FLAG:
        return records
    return records.take((attributes & CONTROL_FLAG)[records.batch_indexes()] == 0)


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
