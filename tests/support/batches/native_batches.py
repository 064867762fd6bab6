"""Calls the C codec of record batches with plain Python values, for tests.

Every buffer is allocated in its exact size, so that the sanitizers notice an access beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle import Batch, Malformed, Record, decode_records

from segstore._native import ffi, held, lib
from segstore.records import Encoded
from segstore.records.header import HEADER_SIZE, batch_type

INT31 = (1 << 31) - 1
INT63 = (1 << 63) - 1
ONE = Batch(
    10, 4, 0, 1, 5, 6, records=[Record(10, 5, b"k", b"v", []), Record(11, 6, None, b"", [(b"h", None)])]
)
NAMES = {getattr(lib, name): name for name in dir(lib) if name.startswith("SEG_E_")}
STATUS = {
    code: name
    for name, code in ((name, getattr(lib, name)) for name in dir(lib))
    if re.match("SEG_(END|SHORT|FULL|STOP|BAD_[A-Z]+)$", name)
}
KINDS = ("offsets32", "offsets64", "fixed", "spans", "nulls")


class NativeError(Exception):
    """An error code SEG_E_*, by its name."""

    def __init__(self, code: int) -> None:
        super().__init__(NAMES.get(code, str(code)))


def assign(
    encoded: Encoded, base_offset: int, leader_epoch: int, append_time: int = -1, position: int = 0
) -> int:
    """Give batches their offsets and file positions, as a log does; returns the next offset."""
    batches = encoded.headers, len(encoded.batches)
    return checked(
        lib.seg_assign(encoded.ptr, encoded.size, *batches, base_offset, leader_epoch, append_time, position)
    )


def checked(result: int) -> int:
    if result < 0:
        raise NativeError(result)
    return result


def exact(data: bytes) -> Any:
    # The size is given, since cffi would add a NUL to a uint8_t[].
    return ffi.new(f"uint8_t[{len(data)}]", data) if data else ffi.NULL


def int64s(values: Sequence[int] | None) -> Any:
    return ffi.NULL if values is None else ffi.new("int64_t[]", list(values))


class Column:
    """A seg_column of `items`, with the memory that it points to; the validity bitmap begins at `bit`."""

    def __init__(self, items: Sequence[bytes | None], kind: str = "offsets64", bit: int = 3) -> None:
        self.c = c = ffi.new("seg_column *")
        c.n, c.kind = len(items), {"nulls": 0, "offsets32": 1, "offsets64": 2, "fixed": 3, "spans": 4}[kind]
        if kind == "nulls":
            return
        if kind == "spans":
            self.data = [exact(item or b"") for item in items]
            self.offsets = ffi.new("seg_span[]", len(items))
            for span, data, item in zip(self.offsets, self.data, items, strict=True):
                span.data, span.len = data, -1 if item is None else len(item)
            c.offsets, c.data_len = self.offsets, sum(len(item or b"") for item in items)
            return
        plain = [item or b"" for item in items]
        if kind == "fixed":
            c.width = max(map(len, plain), default=0)
            plain = [item.ljust(c.width, b"\0") for item in plain]
        data = b"".join(plain)
        ends = np.concatenate([[0], np.cumsum([len(item) for item in plain])])
        self.data, self.offsets = exact(data), None
        c.data, c.data_len = self.data, len(data)
        if kind != "fixed":
            width = "int32_t[]" if kind == "offsets32" else "int64_t[]"
            self.offsets = ffi.new(width, [int(end) for end in ends])
            c.offsets = self.offsets
        if None in items:
            bits = [0] * bit + [item is not None for item in items]
            self.validity = exact(np.packbits(bits, bitorder="little").tobytes())
            c.validity, c.validity_bit = self.validity, bit


class HeaderColumns:
    def __init__(self, of_records: Sequence[Sequence[tuple[bytes | None, bytes | None]]]) -> None:
        self.names = Column([name for pairs in of_records for name, _ in pairs])
        self.values = Column([value for pairs in of_records for _, value in pairs])
        self.offsets = int64s([0, *np.cumsum([len(pairs) for pairs in of_records]).tolist()])
        self.c = ffi.new("seg_header_columns *")
        self.c.offsets, self.c.n = self.offsets, len(of_records)
        self.c.names, self.c.values = self.names.c[0], self.values.c[0]


def template(**fields: int) -> Any:
    t = ffi.new("seg_template *")
    t.producer_id = t.producer_epoch = t.base_sequence = t.delete_horizon = -1
    for name, value in fields.items():
        setattr(t, name, value)
    return t


class Input:
    """The columns of some records, as seg_encode and seg_largest take them."""

    def __init__(self, records: Sequence[Record], keys: str = "offsets64", values: str = "offsets64") -> None:
        self.n = len(records)
        self.keys, self.values = (
            Column([r.key for r in records], keys),
            Column([r.value for r in records], values),
        )
        self.headers = (
            HeaderColumns([r.headers for r in records]) if any(r.headers for r in records) else None
        )
        self.columns = (self.keys.c, self.values.c, self.headers.c if self.headers else ffi.NULL)
        self.timestamps = [r.timestamp for r in records]
        self.offsets: list[int] | None = [r.offset for r in records]

    def largest(self) -> tuple[int, int]:
        index = ffi.new("int64_t *")
        return checked(lib.seg_largest(*self.columns, 0, self.n, index)), index[0]

    def encode(
        self,
        t: Any = None,
        first: int = 0,
        batch_bytes: int = 65536,
        capacity: int = 1 << 18,
        max_batches: int = 1000,
    ) -> tuple[bytes, np.ndarray, int]:
        """Call seg_encode once; return (bytes, array of `batch_type`, records taken). Nothing behind the
        capacity may change.
        """
        out = exact(b"\xa5" * (capacity + 64))
        batches, left = np.zeros(max_batches, batch_type()), ffi.new("int64_t[2]")
        size = lib.seg_encode(
            *self.columns, int64s(self.timestamps), 0, int64s(self.offsets), first, self.n, batch_bytes,
            template() if t is None else t, out, capacity, ffi.from_buffer("seg_batch *", batches),
            max_batches, left, left + 1,
        )  # fmt: skip
        assert bytes(ffi.buffer(out))[capacity:] == b"\xa5" * 64
        checked(size)
        return bytes(ffi.buffer(out, size)), batches[: left[0]], left[1]


def scan(
    data: bytes,
    position: int = 0,
    from_offset: int = 0,
    end_offset: int = INT63,
    max_bytes: int = INT63,
    check_crcs: bool = True,
    capacity: int = 1000,
    least: int = -1,
) -> tuple[np.ndarray, Any]:
    batches, end = np.zeros(max(capacity, 1), batch_type()), ffi.new("seg_scan_end *")
    n = lib.seg_scan(
        exact(data), len(data), position, least, from_offset, end_offset, max_bytes, check_crcs,
        ffi.from_buffer("seg_batch *", batches), capacity, end,
    )  # fmt: skip
    return batches[:n], end


def decode(plain: bytes, batches: np.ndarray, at: Sequence[int], lens: Sequence[int]) -> list[Record]:
    """Return all records of batches whose uncompressed payloads lie in one arena. Raises NativeError."""
    room = max(int(batches["count"].sum()), 1)
    columns, out, arena = np.zeros((7, room), np.int64), ffi.new("seg_decoded *"), exact(plain)
    rows = [held("int64_t *", row) for row in columns]
    headers = (batches, int64s(at), int64s(lens))
    pointer = held("seg_batch *", headers[0]) if len(batches) else ffi.NULL
    n = checked(lib.seg_decode(arena, len(plain), pointer, *headers[1:], len(batches), room, *rows, out))
    assert n == out.records
    rows_of = columns[:, :n].tolist()
    found = _headers(arena, plain, rows_of[6])
    keys, values = (_slices(plain, rows_of[i], rows_of[i + 1]) for i in (2, 4))
    assert (out.null_keys, out.null_values) == (keys.count(None), values.count(None))
    assert out.with_headers == sum(map(bool, found))
    return [Record(*row) for row in zip(rows_of[0], rows_of[1], keys, values, found, strict=True)]


def _slices(plain: bytes, at: list[int], lens: list[int]) -> list[bytes | None]:
    return [None if size < 0 else plain[a : a + size] for a, size in zip(at, lens, strict=True)]


def _headers(arena: Any, plain: bytes, at: list[int]) -> list[list[tuple[bytes, bytes | None]]]:
    counts = ffi.new("int64_t[]", max(len(at), 1))
    fixed = (arena, len(plain), int64s(at), len(at))
    total = checked(lib.seg_headers(*fixed, 0, counts, *[ffi.NULL] * 4))
    columns = [ffi.new("int64_t[]", max(total, 1)) for _ in range(4)]
    assert lib.seg_headers(*fixed, total, counts, *columns) == total
    lists = [list(column)[:total] for column in columns]
    pairs = iter(zip(_slices(plain, *lists[:2]), _slices(plain, *lists[2:]), strict=True))
    return [[next(pairs) for _ in range(count)] for count in list(counts)[: len(at)]]


def decode_all(data: bytes) -> list[Record]:
    """Return the records of whole, uncompressed batches. Raises NativeError, or ValueError with the scan's
    status.
    """
    batches, end = scan(data)
    if end.status != lib.SEG_END:
        raise ValueError(STATUS[end.status])
    at = (batches["position"] + HEADER_SIZE).tolist()
    return decode(data, batches, at, (batches["size"] - HEADER_SIZE).tolist())


def as_batch(header: Batch, count: int, size: int = 0) -> np.ndarray:
    """Return an array of `batch_type` with one row."""
    row = np.zeros(1, batch_type())
    for name in (
        "base_offset",
        "leader_epoch",
        "attributes",
        "base_timestamp",
        "max_timestamp",
        "producer_id",
    ):
        row[name] = getattr(header, name)
    row["producer_epoch"], row["base_sequence"] = header.producer_epoch, header.base_sequence
    row["last_offset"] = header.base_offset + header.last_offset_delta
    row["count"], row["size"], row["magic"] = count, size, 2
    return row


def decode_both(header: Batch, count: int, plain: bytes, pad: int = 0) -> tuple[Any, Any]:
    """Return what C and the oracle decode from a payload; in C's arena, `pad` more bytes lie before and
    behind it.
    """
    try:
        want: Any = decode_records(header, count, plain)
    except Malformed:
        want = None
    try:
        rows = as_batch(header, count)
        got: Any = decode(b"\x80" * pad + plain + b"\xff" * pad, rows, [pad], [len(plain)])
    except NativeError as e:
        return str(e), want
    return got, want
