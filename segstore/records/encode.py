"""Columns into record batches, chunk by chunk; nothing on disk.

An iterator of `encode` belongs to one thread; the Encoded that it gives may be written and released by
another while the next is being encoded. Buffers come from a small pool that any thread may use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore._native import ffi, lib
from segstore.errors import InvalidArgumentError, RecordTooLargeError
from segstore.records.codecs import MAX_PLAIN, compress
from segstore.records.columns import Columns, Header
from segstore.records.header import (
    BATCH,
    CODEC_MASK,
    HEADER_SIZE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    batch_ptr,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
_POOLED = 4
_LEAST_BATCH = HEADER_SIZE + 7
"""Bytes of a batch with one record that has neither key, value nor headers."""


@dataclass(frozen=True)
class Template:
    """Header fields that all batches of an `encode` share (see `seg_template`).

    `attributes` without the codec; `base_sequence` counts on from batch to batch; `base_offset` need only
    be given where nothing is assigned afterwards.
    """

    attributes: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    base_offset: int = 0
    leader_epoch: int = 0
    delete_horizon: int = -1


PLAIN = Template()


class _Pool:
    """Buffers of CHUNK_BYTES whose pages are already there."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> NDArray[np.uint8]:
        if size <= CHUNK_BYTES:
            with self._lock:
                if self._free:
                    return self._free.pop()
        return np.empty(max(size, CHUNK_BYTES), np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        with self._lock:
            if len(buffer) == CHUNK_BYTES and len(self._free) < _POOLED:
                self._free.append(buffer)


_pool = _Pool()


class Encoded:
    """Whole batches, one after the other: `buffer[:size]`, headers in `batches` (positions from 0).

    `ptr` is the buffer's address for C. After `release` the buffer belongs to the pool again and
    must not be touched; an Encoded that is never released is simply freed.
    """

    __slots__ = ("_pooled", "batches", "buffer", "ptr", "size")

    def __init__(self, buffer: NDArray[np.uint8], size: int, batches: NDArray[np.void]) -> None:
        self.buffer, self.size, self.batches, self._pooled = buffer, size, batches, True
        self.ptr = ffi.from_buffer("uint8_t *", buffer)

    @property
    def data(self) -> memoryview:
        """The bytes to write, as a writable view."""
        return self.buffer.data[: self.size]

    @property
    def records(self) -> int:
        """Records in all batches."""
        return int(self.batches["count"].sum())

    def release(self) -> None:
        """Hand the buffer back; a second call does nothing."""
        if self._pooled:
            self._pooled = False
            _pool.give(self.buffer)


def encode(
    columns: Columns,
    codec: int = 0,
    level: int | None = None,
    batch_bytes: int = 65536,
    template: Template = PLAIN,
    chunk_bytes: int = CHUNK_BYTES,
    max_bytes: int | None = None,
) -> Iterator[Encoded]:
    """Encode all records into batches of about `batch_bytes` (plain bytes, header included).

    Gives one Encoded for each `chunk_bytes` of plain bytes or so, from one call of C; with a
    `codec` the batches of a chunk are then compressed one by one. No batch of several records is
    above `max_bytes` (`max.message.bytes`); `check_sizes` tells beforehand of records that are alone.
    """
    if batch_bytes < 1 or chunk_bytes < 1:
        raise InvalidArgumentError(f"batch_bytes {batch_bytes}, chunk_bytes {chunk_bytes}: least is 1")
    run = _Run(columns, codec, batch_cap(codec, batch_bytes, max_bytes), template)
    while run.first < columns.n:
        chunk = run.next_chunk(chunk_bytes)
        if codec:
            plain, chunk = chunk, _compressed(chunk, codec, level)
            plain.release()
        yield chunk


def batch_cap(codec: int, batch_bytes: int, max_bytes: int | None) -> int:
    """Plain bytes of a batch so that it surely stays within `max_bytes` once compressed."""
    if max_bytes is None:
        return batch_bytes
    # Snappy's worst case is one sixth more; the other codecs' is far less.
    room = max_bytes - max_bytes // 6 - 128 if codec else max_bytes
    return max(1, min(batch_bytes, room))


class _Run:
    """Where an encode is: the next record, and the arguments of C that stay the same."""

    def __init__(self, columns: Columns, codec: int, batch_bytes: int, template: Template) -> None:
        self.first, self.columns, self.batch_bytes = 0, columns, min(batch_bytes, MAX_PLAIN)
        self.template = _c_template(template, codec)
        self.left = ffi.new("int64_t[2]")
        self.timestamps, self.offsets = _int64s(columns.timestamps), _int64s(columns.offsets)

    def next_chunk(self, chunk_bytes: int, most_batches: int = 1 << 20) -> Encoded:
        """Whole batches of `chunk_bytes` at most, or one that is larger."""
        buffer = _pool.take(chunk_bytes)
        size, batches = self._fill(buffer, chunk_bytes, most_batches)
        if size == lib.SEG_E_ROOM:
            # One batch is larger than a chunk: it gets a buffer of its own size.
            _pool.give(buffer)
            largest = largest_record(self.columns, self.first, self.columns.n)[0] + HEADER_SIZE
            buffer = np.empty(max(self.batch_bytes, largest), np.uint8)
            size, batches = self._fill(buffer, len(buffer), 1)
        _check(size)
        self._advance(batches)
        return Encoded(buffer, size, batches)

    def _fill(self, buffer: NDArray[np.uint8], capacity: int, most: int) -> tuple[int, NDArray[np.void]]:
        columns, left = self.columns, self.left
        room = min(columns.n - self.first, most, capacity // min(self.batch_bytes, 4096) + 16)
        batches = np.empty(room, BATCH)
        size = lib.seg_encode(
            columns.keys.c,
            columns.values.c,
            columns.headers.c if columns.headers else ffi.NULL,
            self.timestamps,
            columns.timestamp,
            self.offsets,
            self.first,
            columns.n,
            self.batch_bytes,
            self.template,
            ffi.from_buffer("uint8_t *", buffer),
            capacity,
            batch_ptr(batches),
            room,
            left,
            left + 1,
        )
        return size, batches[: left[0]] if size >= 0 else batches[:0]

    def _advance(self, batches: NDArray[np.void]) -> None:
        taken, t = self.left[1], self.template
        self.first += taken
        if self.columns.offsets is None:
            t.base_offset += taken
        if t.base_sequence >= 0:
            t.base_sequence = (t.base_sequence + taken) & 0x7FFFFFFF


def _c_template(template: Template, codec: int) -> Any:
    t = ffi.new("seg_template *")
    t.base_offset, t.producer_id = template.base_offset, template.producer_id
    t.producer_epoch, t.base_sequence = template.producer_epoch, template.base_sequence
    t.leader_epoch, t.delete_horizon = template.leader_epoch, template.delete_horizon
    t.attributes = (template.attributes & ~CODEC_MASK) | codec
    return t


def _int64s(array: NDArray[np.int64] | None) -> Any:
    return ffi.NULL if array is None or not len(array) else ffi.from_buffer("int64_t *", array)


def _check(size: int) -> None:
    if size == lib.SEG_E_COLUMN:
        raise InvalidArgumentError("a column's offsets point outside its data, or fall")
    if size == lib.SEG_E_NULL:
        raise InvalidArgumentError("a header has no name: allowed is str")
    if size == lib.SEG_E_TOO_LARGE:
        raise RecordTooLargeError(f"a record does not fit a batch: allowed are {MAX_PLAIN:,} bytes")
    if size < 0:
        raise InvalidArgumentError(f"columns can't be encoded: {size}")


def _compressed(plain: Encoded, codec: int, level: int | None) -> Encoded:
    """The same batches with compressed records, sealed."""
    view, batches = plain.data, plain.batches
    spans = zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)
    packed = [compress(codec, view[at + HEADER_SIZE : at + size], level) for at, size in spans]
    new_sizes = [HEADER_SIZE + len(data) for data in packed]
    buffer = _pool.take(sum(new_sizes))
    out, at = Encoded(buffer, sum(new_sizes), batches), 0
    batches["size"] = new_sizes
    headers, view = batch_ptr(batches), buffer.data
    for i, (data, size) in enumerate(zip(packed, new_sizes, strict=True)):
        headers[i].position = at
        view[at + HEADER_SIZE : at + size] = data
        _check(lib.seg_seal(out.ptr + at, size, headers + i))
        at += size
    return out


def assign(
    encoded: Encoded, base_offset: int, leader_epoch: int, append_time: int = -1, position: int = 0
) -> int:
    """Give the batches their place: offsets from `base_offset` on, file positions from `position`.

    `append_time` >= 0 (ms) makes them LogAppendTime with that stamp. Returns the next offset.
    """
    batches = encoded.batches
    offset = lib.seg_assign(
        encoded.ptr, encoded.size, batch_ptr(batches), len(batches),
        base_offset, leader_epoch, append_time, position,
    )  # fmt: skip
    _check(offset)
    return int(offset)


def largest_record(columns: Columns, first: int, last: int) -> tuple[int, int]:
    """(bytes, index) of the largest record in [first, last); at most 13 bytes too many."""
    index = ffi.new("int64_t *")
    headers = columns.headers.c if columns.headers else ffi.NULL
    size = lib.seg_largest(columns.keys.c, columns.values.c, headers, first, last, index)
    _check(size)
    return size, index[0]


def check_sizes(
    columns: Columns, codec: int = 0, level: int | None = None, max_bytes: int = MAX_PLAIN
) -> None:
    """RecordTooLargeError (index, size, limit) for a record whose batch would be above `max_bytes`.

    Exact: a record that might be too large is encoded alone, and compressed, to see.
    """
    doubtful = batch_cap(codec, MAX_PLAIN, max_bytes)
    ranges = [(0, columns.n)]
    while ranges:
        first, last = ranges.pop()
        if first >= last:
            continue
        size, i = largest_record(columns, first, last)
        if size + HEADER_SIZE > doubtful:
            _check_one(columns, i, codec, level, max_bytes)
            ranges += [(first, i), (i + 1, last)]


def _check_one(columns: Columns, i: int, codec: int, level: int | None, max_bytes: int) -> None:
    run = _Run(columns, codec, 1, PLAIN)
    run.first = i
    one = run.next_chunk(CHUNK_BYTES, 1)
    size, allowed = int(one.batches["size"][0]), max_bytes
    if size > MAX_PLAIN:
        allowed = MAX_PLAIN
    elif codec:
        at = int(one.batches["position"][0])
        size = HEADER_SIZE + len(compress(codec, one.data[at + HEADER_SIZE : at + size], level))
    one.release()
    if size > allowed:
        raise RecordTooLargeError(f"record {i} makes a batch of {size:,} bytes: allowed are {allowed:,}")


_NO_HEADERS: tuple[Header, ...] = ()


class _One(threading.local):
    """A thread's own arguments for encoding one record."""

    def __init__(self) -> None:
        self.key, self.value = ffi.new("seg_column *"), ffi.new("seg_column *")
        self.left = ffi.new("int64_t[2]")


_one = _One()


def single(
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[Header] = _NO_HEADERS,
    timestamp: int = -1,
    template: Template = PLAIN,
    codec: int = 0,
    level: int | None = None,
) -> Encoded:
    """One record in one batch: the short way for appending record by record.

    Types are checked as in `Columns`; the size is the caller's to check (`encoded.size`).
    """
    keys, of_one = None if key is None else [key], [headers] if headers else None
    columns = Columns([value], keys, None, of_one, timestamp)
    return next(encode(columns, codec, level, 1, template, 1))
