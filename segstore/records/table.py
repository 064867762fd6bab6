"""`RecordTable`: columns of records in the layout of Arrow's buffers, filled by C; nothing is on disk.

A table belongs to one thread at a time. A length that the bytes claim is checked for plausibility before
memory is allocated for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.integers import INT32_MAX, INT64_MAX
from segstore.records.bring_up import bring_up, is_old
from segstore.records.codecs import MAX_PLAIN
from segstore.records.decode import checked_counts, fault_reason, plain_records
from segstore.records.header import MAGIC, corrupt
from segstore.records.lazy_columns import HeaderColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

_USUAL_RECORD = 64
"""Assumed size of a record, in bytes, before the first record is read. The first memory is allocated for
records of this size.
"""
Empty = Callable[[int, Any], Any]
_FIXED = {"offset": "int64", "timestamp": "int64", "timestamp_type": "int8", "headers_at": "int64"}
"""The columns of numbers; the fields of `seg_table` have these names, with an "s" added."""


class Strings:
    """A column of keys or values in the memory layout of Arrow's binary type."""

    def __init__(self, c: Any, empty: Empty) -> None:
        self._c, self._empty = c, empty
        self.offsets, self.data = np.zeros(1, np.int32), np.empty(0, np.uint8)
        self.validity = np.empty(0, np.uint8)

    @property
    def nulls(self) -> int:
        """Return the number of null rows."""
        return int(self._c.nulls)

    @property
    def used(self) -> int:
        """Return the size, in bytes, of all rows together."""
        return int(self._c.used)

    def make_room(self, rows: int, room: int) -> None:
        """Move the existing rows, whose number is `rows`, into memory for `room` rows."""
        self.offsets = _longer(self._empty, self.offsets, room + 1, rows + 1)
        self.validity = _longer(self._empty, self.validity, (room + 7) // 8, len(self.validity), 0xFF)
        self._c.offsets, self._c.validity = (
            held("int32_t *", self.offsets),
            held("uint8_t *", self.validity),
        )

    def make_byte_room(self, more: int, expected: float) -> None:
        """Make room for `more` bytes. If the memory is too small, make room for `expected` times as many
        bytes.
        """
        need = self.used + more
        if need > len(self.data):
            room = min(max(need, int(expected * more), 2 * len(self.data)), max(need, INT32_MAX))
            self.data = _longer(self._empty, self.data, room, self.used)
            self._c.data, self._c.room = held("uint8_t *", self.data), len(self.data)


class RecordTable:
    """Records of batches, with only the `wanted` columns: offset, timestamp, timestamp_type, key, value,
    headers. Without columns, rows are only counted.

    `next_offset` is the offset to continue at after `add`, even after `add` has raised CorruptRecordError;
    the table has the records below this offset. `plain` counts the decompressed bytes of the batches added so
    far. `expected` is the size, in bytes, of all batches that will be added; memory for all of these batches
    is allocated before the first row is added. `empty` allocates columns, like `numpy.empty`.
    """

    def __init__(self, wanted: Collection[str], expected: int = 0, empty: Empty = np.empty) -> None:
        self._c = c = ffi.new("seg_table *")
        self._empty = empty
        self._expected = expected
        self.next_offset = self.plain = 0
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.empty(0, kind)
            for name, kind in _FIXED.items()
            if name in wanted or (name == "headers_at" and "headers" in wanted)
        }
        self.strings = {
            name: Strings(part, empty)
            for name, part in (("key", c.keys), ("value", c.values))
            if name in wanted
        }
        self.headers: list[tuple[int, HeaderColumn | None]] = []
        """One entry for each run of rows that all have headers or all lack them: the number of rows, and the
        headers or None.
        """

    def __len__(self) -> int:
        return int(self._c.rows)

    def add(
        self,
        buf: bytes,
        batches: NDArray[np.void],
        where: str,
        position: int,
        first: int,
        end: int,
        most: int = INT64_MAX,
    ) -> bool:
        """Add the records of `batches` in `buf` with offsets that are at least `first` and below `end`;
        return whether all batches were added.

        When the decompressed batches have `most` bytes or more, no further batch is added. If all batches are
        uncompressed and of magic 2, `most` has no effect. A batch is not added if its bytes would end beyond
        the range of int32 offsets. Raises CorruptRecordError, after the records before the damage were added.
        """
        arguments = buf, where, position, first, end, most
        try:
            return self._add(batches, *arguments)
        except CorruptRecordError as error:
            lasts = batches["last_offset"]
            before = batches[(lasts >= self.next_offset) & (lasts < error.offset)]
            if 0 < len(before) < len(batches) and not self.add(buf, before, *arguments[1:]):
                return False
            raise

    def _add(
        self,
        batches: NDArray[np.void],
        buf: bytes,
        where: str,
        position: int,
        first: int,
        end: int,
        most: int,
    ) -> bool:
        """Add batches; return whether all batches were added. If a batch can't be decompressed, earlier
        batches may be missing, too; `add` then adds these.
        """
        for run, data, at in _brought_up(buf, batches, where, position, most):
            arena, starts, sizes = plain_records(data, run, where, at, MAX_PLAIN, most)
            taken, size = run[: len(starts)], int(sizes.sum())
            if len(self) and self.plain + size > INT32_MAX:
                return False
            self.plain += size
            counts = checked_counts(taken, sizes, where)
            self._fill(arena, taken, where, starts, sizes, int(counts.sum()), first, end)
            if len(taken) < len(run):
                return False
        return self.next_offset > int(batches["last_offset"][-1])

    def _fill(
        self,
        arena: bytes,
        batches: NDArray[np.void],
        where: str,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        rows: int,
        first: int,
        end: int,
    ) -> None:
        c, before = self._c, len(self)
        self._make_room(rows, int(sizes.sum()))
        with_headers = c.with_headers
        done = lib.seg_fill_table(
            arena, len(arena), held("seg_batch *", batches), held("int64_t *", starts),
            held("int64_t *", sizes), len(batches), first, end, c,
        )  # fmt: skip
        if "headers_at" in self.arrays and len(self) > before:
            at = self.arrays["headers_at"][before : len(self)]
            column = HeaderColumn(arena, at, True) if c.with_headers > with_headers else None
            self.headers.append((len(at), column))
        if done < 0:
            bad = batches[c.fault_batch]
            self.next_offset = int(bad["base_offset"])
            corrupt(where, bad, f"{fault_reason(done)} (record {c.fault_record})")
        self.next_offset = int(batches["last_offset"][-1]) + 1

    def read(self, size: int, r: Any, call: Callable[[Any, Any], Any]) -> None:
        """Add records: `call(table, r)` calls `seg_read_table` with the `seg_table` of this table and with
        `r`, a `seg_table_read`. While the table has too little memory, give it more, and repeat the call.
        Headers are not read. The first batch has `size` bytes.
        """
        r.plain = self.plain
        if not len(self):
            self._make_room(size // _USUAL_RECORD, size)
        while True:
            call(self._c, r)
            if not r.need_rows or r.plain + r.need_bytes > INT32_MAX:
                break
            self._make_room(r.need_rows, r.need_bytes)
        self.plain = r.plain

    def add_range(self, first: int, end: int, timestamp_type: int, expected: int) -> None:
        """Add a row for each offset that is at least `first` and below `end`. The table must have no
        columns except offset and timestamp_type. If the table needs more memory, it gets room for at least
        `expected` rows in total.
        """
        rows, n = len(self), end - first
        if self.arrays:
            self._make_room(n, 0, expected)
        if "offset" in self.arrays:
            self.arrays["offset"][rows : rows + n] = np.arange(first, end)
        if "timestamp_type" in self.arrays:
            self.arrays["timestamp_type"][rows : rows + n] = timestamp_type
        self._c.rows = rows + n

    def _make_room(self, rows: int, size: int, expected: int = 0) -> None:
        """Make room for `rows` more rows, whose batches have `size` bytes. If the columns must grow, they get
        room for at least `expected` rows.
        """
        c, count = self._c, len(self)
        scale = max(1.0, 1.0625 * self._expected / size) if size and not count else 1.0
        if count + rows > c.room:
            c.room = max(count + rows, expected, int(rows * scale), 2 * c.room)
            for name, array in self.arrays.items():
                self.arrays[name] = made = _longer(self._empty, array, c.room, count)
                setattr(c, name if name == "headers_at" else f"{name}s", _pointer(made))
            for strings in self.strings.values():
                strings.make_room(count, c.room)
        for strings in self.strings.values():
            strings.make_byte_room(size, scale)


def _pointer(array: NDArray[Any]) -> Any:
    return held("int8_t *" if array.dtype == np.int8 else "int64_t *", array)


def _longer(empty: Empty, array: NDArray[Any], room: int, used: int, rest: int | None = None) -> NDArray[Any]:
    made: NDArray[Any] = empty(room, array.dtype)
    made[:used] = array[:used]
    if rest is not None:
        made[used:] = rest
    return made


def _brought_up(
    buf: bytes, batches: NDArray[np.void], where: str, position: int, most: int
) -> Iterator[tuple[NDArray[np.void], bytes, int]]:
    """Convert messages of magic 0 and 1 to magic 2. Yield (headers of a run of batches, bytes that have
    these batches, file position of the bytes) for each run.
    """
    if not is_old(batches):
        yield batches, buf, position
        return
    # Batches of magic 2 are yielded as they lie in `buf`: an error then names their positions in the file.
    old = batches["magic"] != MAGIC
    bounds = [0, *(np.flatnonzero(old[1:] != old[:-1]) + 1).tolist(), len(batches)]
    for first, last in itertools.pairwise(bounds):
        run = batches[first:last]
        if not old[first]:
            yield run, buf, position
            continue
        least = int(batches["last_offset"][first - 1]) + 1 if first else -1
        data, made = bring_up(buf, run, where, position, MAX_PLAIN, most, least)
        yield made, data, 0
        if int(made["last_offset"][-1]) < int(run["last_offset"][-1]):
            return
