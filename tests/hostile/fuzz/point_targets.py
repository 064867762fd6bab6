"""Single records by offset, of a log and an offset index of which either may be changed. On disk: files in
memory.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
from oracle import Malformed, Record, decode_records, split_batch

from fuzz import batches
from fuzz.batch_targets import _in_memory, _sizes
from fuzz.target import Target
from segstore._native import ffi
from segstore.files import Files
from segstore.records.lazy_columns import HeaderColumn

_MOST = (1 << 63) - 1
_ZERO = np.zeros(1, np.int64)
_POSITIONS = ("key", "value", "headers")


def _point(room: int) -> tuple[Any, Any]:
    """A `seg_point` and its buffer, exactly as large, so that the sanitizer sees a step beyond it."""
    buffer = ffi.new(f"uint8_t[{room}]")
    return ffi.new("seg_point *", {"buffer": buffer, "room": room}), buffer


def _record(point: Any, buffer: Any) -> Record:
    ends = [(getattr(point, f"{name}_at"), getattr(point, f"{name}_end")) for name in _POSITIONS]
    data = ffi.buffer(buffer)
    assert all(end < 0 or 0 <= at <= end <= len(data) for at, end in ends)
    key, value, headers = (None if end < 0 else data[at:end] for at, end in ends)
    names = [] if headers is None else HeaderColumn(headers, _ZERO, True).tolist()[0]
    return Record(point.offset, point.timestamp, key, value, names)


def _checked(data: bytes, offset: int, found: Record, point: Any) -> None:
    """Its batch is whole, with the right CRC; and the oracle finds the same record, if it finds the batch
    sound.
    """
    at = point.batch.position
    batch, count, payload, size = split_batch(data[at:])
    assert (batch.base_offset, size) == (point.batch.base_offset, point.batch.size)
    assert batch.base_offset <= offset <= found.offset <= batch.base_offset + batch.last_offset_delta
    try:
        records = decode_records(batch, count, payload)
    except Malformed:
        return  # behind the record that was asked for
    wanted = next(record for record in records if record.offset >= offset)
    assert found[:4] == wanted[:4]
    assert [value for _, value in found.headers] == [value for _, value in wanted.headers]


def _indexes(data: bytes, there: list[tuple[int, int, int]], base: int) -> list[bytes]:
    """None at all; a right one with an entry for each other batch; others."""
    right = [struct.pack(">ii", (last - base) & 0x7FFFFFFF, at) for at, _, last in there[::2]]
    rng = Random(data)
    return [b"", b"".join(right), b"".join(reversed(right)), rng.randbytes(24), data[: len(data) & 0x38]]


def point(data: bytes) -> str:
    """A record that is found is one of the log's, whatever the index says; many are found as one alone is."""
    there = _sizes(data)
    base = there[0][1] if there else 10
    offsets = sorted(
        {base, 10, 11, 13, 35, _MOST - 1, *(last for _, _, last in there), *(o for _, o, _ in there)}
    )
    said = set()
    with _in_memory(data) as handle:
        for nth, index in enumerate(_indexes(data, there, base)):
            for room in (len(data) + 300, 150):
                (one, buffer), (many, _) = _point(room), _point(room)
                entries = _exact(index)
                seen = ffi.new("seg_segment *", (1, len(index) // 8, base, len(data), _MOST, entries))
                found = {}
                for offset in offsets + offsets[::-1]:
                    if offset >= base and Files().read_one(handle, seen, offset, one):
                        record = _record(one, buffer)
                        if nth < 2:
                            _checked(data, offset, record, one)
                        found[offset] = record.offset
                _all(handle, seen, [offset for offset in offsets if offset >= base], many)
                said.add(min(len(found), 3))
    return f"{sorted(said)}"


def _all(handle: Any, seen: Any, offsets: list[int], many: Any) -> None:
    n = len(offsets)
    arena, rows, headers = ffi.new("uint8_t[500]"), ffi.new(f"int64_t[{7 * n}]"), ffi.new(f"seg_batch[{n}]")
    room = {"arena": arena, "room": 500, "rows": rows, "stride": n, "batches": headers}
    out = ffi.new("seg_points *", room)
    done = Files().read_many(handle, seen, ffi.new("int64_t[]", offsets), n, many, out)
    assert 0 <= out.n_batches <= done == out.records <= n
    assert 0 <= out.used <= 500
    assert all(
        row >= offset for row, offset in zip(ffi.unpack(rows, done) if done else [], offsets, strict=False)
    )


def _exact(data: bytes) -> Any:
    return ffi.new(f"uint8_t[{len(data)}]", data) if data else ffi.NULL


TARGETS = {"single records": Target(point, batches.made, batches.MUTATORS, batches.with_crcs)}
