"""Reads batches of a log as they are stored, for the followers of a replica (Kafka: UnifiedLog.read with
FetchIsolation.LOG_END). Messages of magic 0 and 1 are converted, so that followers get only magic 2.

Logs on disk are only read. Threads: any; no lock is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.errors import StoreClosedError
from segstore.records import LEAST_ENTRY, bring_up, is_old, scan
from segstore.storage.log.partition import Partition
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TRIES = 10  # a read is tried as often as by `PartitionLog.with_view`
_LENGTH_AT, _LENGTH_END = 8, 12
"""The positions in a batch at which its length field begins and ends. The length counts the bytes after the
field.
"""


def raw_read(
    partition: Partition, offset: int, end_offset: int, max_bytes: int, into: NDArray[np.uint8] | None = None
) -> bytes | memoryview:
    """Return whole batches between two offsets as they are stored; `Replica.read` has the details. Raises
    OSError.
    """
    tries, missing = 0, None
    while tries < _TRIES:
        view = partition.visible.written
        view.check(offset, partition.directory)
        try:
            return _read(view, offset, min(end_offset, view.end_offset), max_bytes, into)
        except FileNotFoundError:  # retention has removed the segment; try a later view
            tries = 1 if view.lacks(missing) else tries + 1
            missing = view
    raise StoreClosedError(f"{partition.directory} is gone")


def is_gap(partition: Partition, offset: int, end_offset: int) -> bool:
    """Return whether no batch lies between two offsets. Raises OSError."""
    view = partition.visible.written
    view.check(offset, partition.directory)
    for slot in range(view.slot(offset), len(view.segments)):
        try:
            found = view.segments[slot].locate(offset, view.bounds(slot)[0])
        except FileNotFoundError:  # retention has removed the segment after `view` was read
            return False
        if found is not None:
            return bool(found.base_offset >= end_offset)
    return end_offset <= view.end_offset


def _read(
    view: LogView, offset: int, end_offset: int, max_bytes: int, into: NDArray[np.uint8] | None
) -> bytes | memoryview:
    """Return batches, segment by segment, up to `max_bytes`."""
    pieces: list[bytes | memoryview] = []
    left, slot = max_bytes, view.slot(offset)
    while slot < len(view.segments) and offset < end_offset:
        segment, (end, below) = view.segments[slot], view.bounds(slot)
        first = segment.locate(offset, end)
        if first is not None and first.base_offset < end_offset:
            at, room = int(first.position), None if pieces else into
            piece = _stretch(segment, at, end, end_offset, left, room, at_least_one=not pieces)
            pieces.append(_brought_up(segment, at, piece))
            left -= len(piece)
            if at + len(piece) < end:
                break
        offset, slot = max(below, offset), slot + 1
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _stretch(
    segment: Segment,
    position: int,
    end: int,
    end_offset: int,
    most: int,
    into: NDArray[np.uint8] | None,
    *,
    at_least_one: bool,
) -> bytes | memoryview:
    """Return at most `most` bytes of batches of one segment, from byte `position` on."""
    files, handle = segment.pool.files, segment.handle
    size = min(end - position, max(most, LEAST_ENTRY if at_least_one else 0))
    if size < LEAST_ENTRY:
        return b""
    if into is not None and size <= len(into):
        there = into.data[: files.pread_into(handle, into.data[:size], position)]
        if _first_size(there) <= len(there):
            return there
    data = files.pread(handle, size, position)
    whole = _whole(data, end_offset)
    if not whole and at_least_one:
        data = files.pread(handle, min(_first_size(data), end - position), position)
        whole = _whole(data, end_offset)
    return memoryview(data)[:whole]


def _first_size(data: bytes | memoryview) -> int:
    """Return the size of the first batch in `data`."""
    return _LENGTH_END + int.from_bytes(data[_LENGTH_AT:_LENGTH_END], "big")


def _brought_up(segment: Segment, position: int, data: bytes | memoryview) -> bytes | memoryview:
    """Return the batches in `data`, which lies at `position` of a segment, converted to magic 2."""
    if not segment.may_be_old or not data:
        return data
    # `scan` checks the CRCs now, because the converted batches get new CRCs
    batches, _ = scan(data, position)
    if not len(batches) or not is_old(batches):
        return data
    made, headers = bring_up(data, batches, segment.path, position)
    return made[: int(headers["size"].sum())]


def _whole(data: bytes, end_offset: int) -> int:
    """Return the size of the whole batches in `data` that lie below `end_offset`."""
    batches, _ = scan(data, end_offset=end_offset, check_crcs=False)
    return int(batches["size"].sum())
