"""Many records from an offset on, of a log and an offset index of which either may be changed. On disk: files
in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import batches
from fuzz.batch_targets import _in_memory, _sizes
from fuzz.point_targets import _exact, _indexes
from fuzz.target import Target
from segstore._native import ffi
from segstore.files import Files
from segstore.records import BATCH_SIZE, decode, scan
from segstore.records.records import ROWS

_MOST = (1 << 63) - 1
_ROOM = 64


def ranges(data: bytes) -> str:
    """What is found is what a scan of the same bytes finds, and its records are decoded as they are alone."""
    there = _sizes(data)
    base = there[0][1] if there else 10
    offsets = sorted({base, 11, 35, *(last for _, _, last in there), *(first for _, first, _ in there)})
    found = 0
    with _in_memory(data) as handle:
        for index in _indexes(data, there, base):
            entries = _exact(index)
            seen = ffi.new("seg_segment *", (1, len(index) // 8, base, len(data), _MOST, entries))
            for size in {len(data), len(data) // 2, 70}:
                for offset in offsets:
                    if offset >= base and 0 < size <= len(data):
                        found += _read(handle, seen, offset, size, data)
    return str(min(found, 3))


def _read(handle: Any, seen: Any, offset: int, size: int, data: bytes) -> int:
    """Memory is exactly as large as it may be used, so that the sanitizer sees a step beyond it."""
    headers, memory = ffi.new(f"seg_batch[{_ROOM}]"), ffi.new(f"uint8_t[{size}]")
    range_ = ffi.new("seg_range *", {"batches": headers, "room": _ROOM})
    for stride in (2, size):
        rows = ffi.new(f"int64_t[{ROWS * stride}]")
        if not Files().read_range(handle, seen, offset, _MOST, 1, memory, size, rows, stride, range_):
            return 0
        at, n, count = range_.position, range_.n_batches, range_.records
        assert bytes(ffi.buffer(memory)) == data[at : at + size]
        scanned, stop = scan(data[at : at + size], at, offset)
        assert scanned.tobytes() == bytes(ffi.buffer(headers)[: n * BATCH_SIZE])
        assert range_.next_offset == stop.last_offset + 1
        if count <= stride:
            wanted = decode(data[at : at + size], scanned, "log", at)
            columns = np.frombuffer(ffi.buffer(rows), np.int64).reshape(ROWS, stride)[:, :count]
            assert np.array_equal(columns, wanted._matrix)
            assert (range_.with_headers > 0) == wanted._with_headers
    return 1


TARGETS = {"ranges of records": Target(ranges, batches.made, batches.MUTATORS, batches.with_crcs)}
