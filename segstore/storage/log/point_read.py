"""The fast path to single records: each read is one call of C, which searches the index, reads, checks the
CRC and finds the record.

Files on disk are only read. Threads: any, without locks, because each call has working memory of its own. The
slow path is `read.py`. It handles all cases, and it alone handles compressed batches, damage, gaps, control
batches and errors. If both paths find a record, they find the same record. The fast path checks the CRC of
the batch, and the batch's records up to the requested record. The slow path checks all records of the batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from segstore._native import ffi, unset
from segstore.arrays import np
from segstore.errors import CorruptRecordError, is_refusal
from segstore.records import Record, Records, batch_type, decode
from segstore.records.lazy_columns import Headers, headers_of
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

ROOM = 1 << 17
"""The largest batch that the fast path reads, in bytes."""

# `_record` makes a `Record` by one call of C. A Python function would be slower.
_record: Callable[[tuple[Any, ...]], Record] = partial(tuple.__new__, Record)
_unpack = struct.Struct("8q").unpack


class _Point:
    """The working memory of one call of C. `c` is the `seg_point`; `found` has its fields that describe the
    record that was found, and `buffer` has the record's bytes. `segment` is the `seg_segment` that is read.
    """

    __slots__ = ("buffer", "c", "found", "memory", "of", "segment")

    def __init__(self) -> None:
        # The memory is not zeroed, because pages that were never written take no physical memory.
        self.memory = unset("uint8_t[]", ROOM)
        self.buffer = ffi.buffer(self.memory)
        self.c = ffi.new("seg_point *", {"buffer": self.memory, "room": ROOM})
        first = ffi.offsetof("seg_point", "offset")
        self.found = memoryview(ffi.buffer(self.c))[first:]
        self.segment = ffi.new("seg_segment *")
        self.of = ffi.buffer(self.segment)


_unused: list[_Point] = []
"""Working memory for the next calls. A call takes one object, and puts it back when it ends. There may be
several objects, because a signal handler may interrupt a read, and make a read itself.
"""


@contextmanager
def borrowed() -> Iterator[_Point]:
    """Context manager: yield working memory that no other call uses during the block."""
    try:
        point = _unused.pop()
    except IndexError:
        point = _Point()
    yield point
    _unused.append(point)


def leave(error: OSError | CorruptRecordError) -> None:
    """Raise `error` if a signal handler has raised it. Return if `error` comes from the disk or from damage,
    because the slow path then raises the error.
    """
    if isinstance(error, OSError) and not is_refusal(error):
        try:
            raise error
        finally:
            # the traceback refers to this frame; a frame that refers to the error would make a reference
            # cycle
            del error


def _find(view: LogView, offset: int) -> tuple[Segment, _Point] | None:
    """Find the record at `offset`, or the next record that exists. Return its segment and the working memory
    with the record; None if the slow path must be taken.
    """
    segments, bases, start, end_offset, end, _ = view
    if not start <= offset < end_offset:
        return None
    slot = bisect_right(bases, offset, 1)
    segment = segments[slot - 1]
    if slot < len(bases):
        end, end_offset = segment.final_size, min(bases[slot], end_offset)
    try:
        handle = segment.handle
        try:
            point = _unused.pop()
        except IndexError:
            point = _Point()
        _index = segment.fill(point.segment, point.of, end, end_offset)
        found = segment.pool.files.read_one(handle, point.segment, offset, point.c)
    except (OSError, CorruptRecordError) as error:
        leave(error)
        return None
    if found:
        return segment, point
    _unused.append(point)
    return None


def read_one(view: LogView, offset: int) -> Record | None:
    """Return the record at `offset`, or the next record that exists; None if the slow path must be taken."""
    found = _find(view, offset)
    if found is None:
        return None
    point = found[1]
    at, timestamp, key_at, key_end, value_at, value_end, headers_at, headers_end = _unpack(point.found)
    buffer = point.buffer
    key = None if key_end < 0 else buffer[key_at:key_end]
    value = None if value_end < 0 else buffer[value_at:value_end]
    headers: Headers = [] if headers_end < 0 else headers_of(buffer[headers_at:headers_end], 0)
    _unused.append(point)
    return _record((at, timestamp, key, value, headers))


def read_batch(view: LogView, offset: int) -> Records | None:
    """Return the records from `offset` on of the batch that contains `offset`; None if the slow path must be
    taken.
    """
    found = _find(view, offset)
    if found is None:
        return None
    segment, point = found
    header, at = point.c.batch, point.c.batch_at
    data, position = point.buffer[at : at + header.size], header.position
    batches = np.frombuffer(bytearray(ffi.buffer(ffi.addressof(header))), batch_type())
    _unused.append(point)
    try:
        return decode(data, batches, segment.path, position, from_offset=offset)
    except CorruptRecordError:
        return None
