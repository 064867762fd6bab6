"""The short way to single records (point.c): what it refuses, and by how many calls of pread it finds what is
there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle import Batch, Record, encode_batch

from segstore._native import ffi, lib
from segstore.files import Files, Handle

ROOM = 4096


def batch(base: int, *offsets: int, last: int | None = None, size: int = 10, attributes: int = 0) -> bytes:
    """A batch whose records have these offsets; their values tell them."""
    records = [Record(o, 1000 + o, None, b"%d" % o * size, []) for o in offsets]
    delta = (offsets[-1] if last is None else last) - base
    return encode_batch(Batch(base, 4, attributes, delta, 1000, 2000, records=records))


class Segment:
    """A log, in a file, with base offset 0 and an index."""

    def __init__(self, handle: Handle, batches: list[bytes], entries: list[tuple[int, int]] = []) -> None:  # noqa: B006
        data = b"".join(batches)
        Files().pwrite(handle, data, 0)
        self.handle, self.end, self.index, self.number = handle, len(data), entries, 1
        self.buffer = ffi.new(f"uint8_t[{ROOM}]")
        self.point = ffi.new("seg_point *", {"buffer": self.buffer, "room": ROOM})

    def read(self, offset: int, end: int | None = None, end_offset: int = 1 << 40) -> bytes | None:
        entries = b"".join(struct.pack(">ii", *entry) for entry in self.index)
        index = ffi.new(f"uint8_t[{len(entries)}]", entries) if entries else ffi.NULL
        end = self.end if end is None else end
        seen = ffi.new("seg_segment *", (self.number, len(self.index), 0, end, end_offset, index))
        if not lib.seg_read_one(self.handle.fd, seen, offset, self.point):
            return None
        assert self.point.offset >= offset
        return bytes(ffi.buffer(self.buffer)[self.point.value_at : self.point.value_end])


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Handle]:
    with Handle(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600) as handle:
        yield handle


def value(offset: int, size: int = 10) -> bytes:
    return b"%d" % offset * size


ONE, TWO, THREE = batch(0, 0, 1, 2), batch(3, 3, 4, 5), batch(6, 6, 7, 8)


def test_each_record_is_found_with_and_without_an_index(file: Handle) -> None:
    at = len(ONE), len(ONE) + len(TWO)
    for index in ([], [(5, at[0])], [(5, at[0]), (8, at[1])], [(8, at[1])]):
        segment = Segment(file, [ONE, TWO, THREE], index)
        for offset in [*range(9), *range(8, -1, -1)]:
            assert segment.read(offset) == value(offset)
        assert segment.read(9) is None


def test_the_next_record_of_the_batch_is_found_where_one_is_missing(file: Handle) -> None:
    segment = Segment(file, [batch(0, 0, 4, 5, last=9), batch(10, 10)])
    assert [segment.read(offset) for offset in (0, 1, 4, 5)] == [value(0), value(4), value(4), value(5)]
    assert segment.read(6) is None  # the next one is in another batch


REFUSED = {
    "a gap": ([ONE, THREE], 4),
    "a codec": ([ONE, batch(3, 3, attributes=1)], 3),
    "a marker": ([ONE, batch(3, 3, attributes=0x30)], 3),
    "a flipped bit": ([ONE, TWO[:-3] + b"?" + TWO[-2:]], 3),
    "offsets that fall": ([batch(0, 5, 3, 6, last=8)], 6),
    "a record outside of its batch": (
        [encode_batch(Batch(records=[Record(9, 0, None, b"", [])]))],
        0,
    ),
    "no record": ([encode_batch(Batch(last_offset_delta=3))], 1),
    "a cut batch": ([ONE, TWO[:-1]], 3),
    "a cut header": ([ONE, TWO[:40]], 3),
    "a batch above the room": ([ONE, batch(3, 3, size=ROOM)], 3),
    "nothing": ([], 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_the_long_way(file: Handle, name: str) -> None:
    batches, offset = REFUSED[name]
    segment = Segment(file, batches)
    assert segment.read(offset) is None
    if batches and batches[0] is ONE:
        assert segment.read(2) == value(2)
        assert segment.read(offset) is None


def test_nothing_that_reaches_behind_the_visible_end(file: Handle) -> None:
    segment = Segment(file, [ONE, TWO])
    assert segment.read(3, end_offset=6) == value(3)
    assert segment.read(3, end_offset=5) is None  # a batch is seen whole or not at all
    assert segment.read(3, end=segment.end - 1) is None
    assert segment.read(3, end=len(ONE)) is None
    assert segment.read(1, end=len(ONE), end_offset=3) == value(1)


@pytest.mark.parametrize(
    "entry", [(4, len(ONE)), (5, len(ONE) + 1), (5, 0), (5, -1), (-1, 0), (3, 1 << 30)], ids=str
)
def test_an_entry_that_its_batch_does_not_confirm(file: Handle, entry: tuple[int, int]) -> None:
    segment = Segment(file, [ONE, TWO, THREE], [entry])
    assert segment.read(7) in (None, value(7))
    # A value may look like a batch: an entry may point to it, but must have its last offset too.
    inner = batch(6, 6, 7, 8)
    outer = encode_batch(
        Batch(3, 4, 0, 5, records=[Record(3, 0, None, inner, []), Record(8, 0, None, b"8", [])])
    )
    segment = Segment(file, [ONE, outer], [(5, len(ONE) + outer.index(inner))])
    assert segment.read(7) is None


def test_what_is_remembered_is_of_one_segment(file: Handle, tmp_path: Path) -> None:
    segment = Segment(file, [ONE, TWO, THREE])
    assert segment.read(4) == value(4)
    with Handle(tmp_path / "other", os.O_RDWR | os.O_CREAT, 0o600) as other:
        segment.end = Files().pwrite(other, batch(0, 0) + batch(1, *range(1, 9), size=3), 0)
        segment.handle, segment.number = other, 2
        assert [segment.read(offset) for offset in (4, 8)] == [value(4, 3), value(8, 3)]


def test_neighbours_cost_one_pread_each(file: Handle) -> None:
    batches = [batch(i, i, size=100) for i in range(300)]
    segment = Segment(file, batches)
    segment.read(250)  # without an index all headers before are walked
    for offset in (250, 251, 252, 260, 280):
        before = segment.point.reads
        assert segment.read(offset) == value(offset, 100)
        assert segment.point.reads == before + 1 + (offset == 280)
