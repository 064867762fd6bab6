"""Columns of Arrow's in C: spans of columns and views, ranges of lists; hostile numbers are refused, and
nothing is read outside of the memory that was given.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from native_batches import INT31, Column, exact

from segstore._native import ffi, lib

LONG = b"more than twelve bytes"


def found(spans: Any, n: int) -> list[bytes | None]:
    return [None if spans[i].len < 0 else bytes(ffi.buffer(spans[i].data, spans[i].len)) for i in range(n)]


class Views:
    """Views as Arrow has them, and what C makes of them. `at` is the bit of the first one in the bitmap."""

    def __init__(self, items: Sequence[bytes | None], buffers: int = 2, at: int = 3) -> None:
        parts: list[bytes] = [b""] * buffers
        self.views = bytearray()
        for i, item in enumerate(items):
            plain, part = item or b"", i % buffers
            if len(plain) <= 12:
                self.views += struct.pack("<i12s", len(plain), plain)
                continue
            self.views += struct.pack("<i4sii", len(plain), plain[:4], part, len(parts[part]))
            parts[part] += plain
        self.n, self.at = len(items), at
        self.parts = [exact(part) for part in parts]
        self.sizes = [len(part) for part in parts]
        bits = [0] * at + [item is not None for item in items]
        self.validity = exact(np.packbits(bits, bitorder="little").tobytes())

    def call(self) -> tuple[int, list[bytes | None], Any]:
        out, measures = ffi.new("seg_span[]", max(self.n, 1)), ffi.new("seg_measures *")
        buffers = ffi.new("seg_span[]", list(zip(self.parts, self.sizes, strict=True)))
        views = exact(bytes(self.views))
        done = lib.seg_view_spans(
            views, self.n, self.validity, self.at, buffers, len(self.parts), out, measures
        )
        return done, found(out, done) if done > 0 else [], measures

    def put(self, i: int, **fields: int) -> None:
        at = {"length": 0, "index": 8, "offset": 12}
        for name, value in fields.items():
            struct.pack_into("<i", self.views, 16 * i + at[name], value)


def test_views() -> None:
    items = [b"", None, b"a" * 12, LONG, b"b" * 13, None, LONG * 9]
    views = Views(items)
    done, spans, measures = views.call()
    assert (done, spans) == (len(items), items)
    assert (measures.size, measures.nulls, measures.most) == (
        sum(len(i or b"") for i in items),
        2,
        len(LONG) * 9,
    )


def test_a_null_view_is_not_looked_at() -> None:
    views = Views([LONG, None])
    views.put(1, length=INT31, index=-5, offset=INT31)
    assert views.call()[:2] == (2, [LONG, None])


BAD_VIEWS: dict[str, dict[str, int]] = {
    "length negative": {"length": -1},
    "length beyond": {"length": len(LONG) + 1},
    "length of int32": {"length": INT31},
    "index negative": {"index": -1},
    "index beyond": {"index": 2},
    "offset negative": {"offset": -1},
    "offset beyond": {"offset": 1},
    "offset of int32": {"offset": INT31},
}


@pytest.mark.parametrize("name", BAD_VIEWS)
def test_hostile_views(name: str) -> None:
    views = Views([b"short", LONG, LONG])
    views.put(2, **BAD_VIEWS[name])
    done, _, measures = views.call()
    assert (done, measures.row) == (lib.SEG_E_COLUMN, 2)


KINDS = ["offsets32", "offsets64", "fixed", "spans", "nulls"]


@pytest.mark.parametrize("kind", KINDS)
def test_spans_of_a_column(kind: str) -> None:
    items = [None] * 3 if kind == "nulls" else [b"abc", None, b"def"]
    column, out, measures = Column(items, kind), ffi.new("seg_span[]", 3), ffi.new("seg_measures *")
    assert lib.seg_column_spans(column.c, out, measures) == 3
    assert found(out, 3) == items
    assert measures.nulls == items.count(None)
    assert (measures.size, measures.most) == ((0, 0) if kind == "nulls" else (6, 3))


BAD_COLUMNS: dict[str, tuple[Callable[[Any], object], int]] = {
    "offsets fall": (lambda column: column.offsets.__setitem__(1, 9), 1),
    "offsets negative": (lambda column: column.offsets.__setitem__(1, -1), 0),
    "offsets beyond": (lambda column: column.offsets.__setitem__(3, 10), 2),
    "no offsets": (lambda column: setattr(column.c, "offsets", ffi.NULL), 0),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_hostile_columns(name: str) -> None:
    change, row = BAD_COLUMNS[name]
    column, out, measures = Column([b"abc"] * 3), ffi.new("seg_span[]", 3), ffi.new("seg_measures *")
    change(column)
    assert lib.seg_column_spans(column.c, out, measures) == lib.SEG_E_COLUMN
    assert measures.row == row


def ranges(
    offsets: Sequence[int],
    sizes: Sequence[int] | None,
    wide: bool,
    items: int,
    valid: Sequence[bool] | None = None,
) -> tuple[int, list[tuple[int, int]], Any]:
    n = len(offsets) - (sizes is None)
    kind = np.int64 if wide else np.int32
    begins, ends, measures = (
        ffi.new("int64_t[]", max(n, 1)),
        ffi.new("int64_t[]", max(n, 1)),
        ffi.new("seg_measures *"),
    )
    bits = ffi.NULL if valid is None else exact(np.packbits([0, *valid], bitorder="little").tobytes())
    done = lib.seg_list_ranges(
        exact(np.array(offsets, kind).tobytes()),
        ffi.NULL if sizes is None else exact(np.array(sizes, kind).tobytes()),
        wide, n, bits, 1, items, begins, ends, measures,
    )  # fmt: skip
    return done, [(begins[i], ends[i]) for i in range(max(done, 0))], measures


@pytest.mark.parametrize("wide", [False, True])
def test_ranges(wide: bool) -> None:
    done, found_ranges, measures = ranges([2, 4, 4, 7], None, wide, 9)
    assert (done, found_ranges) == (3, [(2, 4), (0, 0), (4, 7)])
    assert (measures.least, measures.most, measures.size) == (2, 7, 5)
    assert ranges([2, 4, 7], None, wide, 9, [False, True])[1] == [(0, 0), (4, 7)]
    done, found_ranges, measures = ranges([5, 0, 99], [3, 2, 7], wide, 9, [True, True, False])
    assert found_ranges == [(5, 8), (0, 2), (0, 0)]
    assert (measures.least, measures.most) == (0, 8)
    done, found_ranges, measures = ranges([0, 0], None, wide, 0)
    assert (found_ranges, measures.least, measures.most) == ([(0, 0)], 0, 0)


BAD_LISTS: dict[str, tuple[Sequence[int], Sequence[int] | None, int]] = {
    "fall": ([0, 4, 3], None, 1),
    "negative": ([0, -1, 3], None, 0),
    "begin negative": ([-3, 0, 3], None, 0),
    "beyond": ([0, 3, 10], None, 1),
    "of int32": ([0, 3, INT31], None, 1),
    "view begins negative": ([0, -1], [1, 1], 1),
    "view is beyond": ([0, 9], [1, 1], 1),
    "view begins beyond": ([0, 10], [1, 0], 1),
    "size negative": ([0, 1], [1, -1], 1),
    "size of int32": ([1, 1], [1, INT31], 1),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", BAD_LISTS)
def test_hostile_lists(name: str, wide: bool) -> None:
    offsets, sizes, row = BAD_LISTS[name]
    done, _, measures = ranges(offsets, sizes, wide, 9)
    assert (done, measures.row) == (lib.SEG_E_COLUMN, row)


def test_lists_near_the_end_of_int64() -> None:
    most = (1 << 63) - 1
    for offsets, sizes in (
        ([0, most, most], None),
        ([most, -most - 1, 0], None),
        ([most, 0], [most, 1]),
        ([-most, 0], [most, 1]),
    ):
        assert ranges(offsets, sizes, True, 9)[0] == lib.SEG_E_COLUMN


def odd(rng: random.Random) -> int:
    return rng.choice([-INT31 - 1, -1, 0, 1, 2, 5, 9, 10, 13, 22, 23, 1 << 20, INT31, rng.randrange(30)])


@pytest.mark.parametrize("seed", range(20))
def test_drawn_numbers(seed: int) -> None:
    """Whatever they are, each span and range that is given lies within its memory."""
    rng = random.Random(seed)
    for _ in range(200):
        views = Views([rng.choice([None, b"x" * rng.randrange(30)]) for _ in range(rng.randrange(1, 6))])
        views.put(rng.randrange(views.n), **{rng.choice(["length", "index", "offset"]): odd(rng)})
        done, spans, measures = views.call()
        assert done in (views.n, lib.SEG_E_COLUMN), seed
        most = sum(views.sizes) + 12 * views.n
        assert done < 0 or sum(len(each or b"") for each in spans) == measures.size <= 6 * most, seed
        offsets, wide = [odd(rng) for _ in range(rng.randrange(1, 6))], rng.random() < 0.5
        sizes = [odd(rng) for _ in offsets] if rng.random() < 0.5 else None
        done, found_ranges, _ = ranges(offsets, sizes, wide, items := rng.randrange(12))
        assert done < 0 or all(0 <= a <= b <= items for a, b in found_ranges), (seed, offsets, sizes)
