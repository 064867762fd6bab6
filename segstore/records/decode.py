"""Record batches into Records: scan and validate headers, decompress, decode; nothing on disk.

Functions without state over bytes that were read already: safe from any thread. Nothing is
allocated for a length that the bytes claim before that length was found possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from segstore._native import ffi, lib
from segstore.errors import CorruptRecordError
from segstore.records.codecs import MAX_PLAIN, DecompressError, bound, decompress_into, guess
from segstore.records.header import BATCH, CODEC_MASK, CODECS, HEADER_SIZE, batch_ptr
from segstore.records.records import ROWS, Records, empty_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes = Any
"""bytes, or whatever lends its buffer: bytearray, memoryview, mmap, numpy uint8."""

_NO_LIMIT = (1 << 63) - 1

SCAN_REASONS = {
    lib.SEG_BAD_LENGTH: "its length field is impossible",
    lib.SEG_BAD_MAGIC: "it is not of magic 2",
    lib.SEG_BAD_CRC: "its CRC-32C is wrong",
    lib.SEG_BAD_OFFSETS: "its offsets are negative, or not above those before",
    lib.SEG_BAD_COUNT: "its record count is impossible",
}
"""What a scan's status of damage means; other statuses are no damage."""

_DECODE_REASONS = {
    lib.SEG_E_VARINT: "a varint is damaged",
    lib.SEG_E_RECORD: "a record's length and its content disagree",
    lib.SEG_E_TRAILING: "bytes are left after its last record",
    lib.SEG_E_FEW: "it has fewer records than its header says",
}


class ScanEnd(NamedTuple):
    """Where and why a scan stopped (`seg_scan_end`); `status` is one of lib.SEG_END .. SEG_BAD_COUNT."""

    position: int
    need: int
    last_offset: int
    status: int

    @property
    def damaged(self) -> str | None:
        """What is wrong with the batch at `position`, or None."""
        return SCAN_REASONS.get(self.status)


def scan(
    buf: Bytes,
    position: int = 0,
    from_offset: int = 0,
    end_offset: int = _NO_LIMIT,
    max_bytes: int = _NO_LIMIT,
    check_crcs: bool = True,
) -> tuple[NDArray[np.void], ScanEnd]:
    """The headers (BATCH array) of the batches in `buf`, whose first byte lies at `position` in the file.

    Batches that end below `from_offset` are skipped unchecked; those from `end_offset` on, or
    beyond `max_bytes` (one is always taken), are left. Stops before damage: `ScanEnd.damaged` tells.
    """
    data, end = ffi.from_buffer("uint8_t[]", buf), ffi.new("seg_scan_end *")
    size = len(data)
    # As many as there can be at most: a second pass would cost more than pages that stay untouched.
    capacity = size // HEADER_SIZE + 1
    batches = np.empty(capacity, BATCH)
    n = lib.seg_scan(
        data, size, position, from_offset, end_offset, max_bytes, check_crcs,
        ffi.from_buffer("seg_batch *", batches), capacity, end,
    )  # fmt: skip
    taken = batches[:n] if 2 * n >= capacity else batches[:n].copy()
    return taken, ScanEnd(end.position, end.need, end.last_offset, end.status)


def decode(
    buf: Bytes,
    batches: NDArray[np.void],
    where: str,
    position: int = 0,
    next_offset: int | None = None,
    limit: int = MAX_PLAIN,
) -> Records:
    """The records of `batches` (from `scan`, or some of them) in `buf`, read at `position` of file `where`.

    Uncompressed ones stay in `buf` where that is bytes: the Records keep it. `next_offset` is by
    default the one after the last batch. CorruptRecordError where the bytes are damaged, or one
    batch is more than `limit` once decompressed.
    """
    n = len(batches)
    if n == 0:
        return empty_records(next_offset or 0)
    if next_offset is None:
        next_offset = int(batches["last_offset"][-1]) + 1
    if (batches["attributes"] & CODEC_MASK).any():
        arena, at, lens = _decompress(buf, batches, where, position, limit)
    else:
        arena = buf if type(buf) is bytes else bytes(buf)
        at = batches["position"] - (position - HEADER_SIZE)
        lens = np.subtract(batches["size"], HEADER_SIZE, dtype=np.int64)
    matrix, with_headers = _decode(arena, batches, at, lens, where)
    return Records(arena, matrix, next_offset, batches, with_headers)


def _decode(
    arena: bytes, batches: NDArray[np.void], at: NDArray[np.int64], lens: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], bool]:
    counts = batches["count"]
    n = len(batches)
    capacity = int(counts.sum(dtype=np.int64)) if n > 1 else int(counts[0])
    # A record takes 7 bytes at least: a count beyond that is a lie, and gets no memory.
    if capacity * 7 > len(arena):
        _refuse_counts(batches, lens, where)
    matrix = np.empty((ROWS, capacity), np.int64)
    row = ffi.from_buffer("int64_t *", matrix) if capacity else ffi.new("int64_t[1]")
    out = ffi.new("seg_decoded *")
    done = lib.seg_decode(
        arena_pointer(arena), len(arena), batch_ptr(batches),
        ffi.from_buffer("int64_t *", at), ffi.from_buffer("int64_t *", lens), n, capacity,
        row, row + capacity, row + 2 * capacity, row + 3 * capacity, row + 4 * capacity,
        row + 5 * capacity, row + 6 * capacity, out,
    )  # fmt: skip
    if done < 0:
        _corrupt(where, batches[out.fault_batch], f"{_reason(done)} (record {out.fault_record})")
    return matrix if done == capacity else matrix[:, :done].copy(), out.with_headers > 0


def arena_pointer(arena: bytes) -> Any:
    """The arena's address for C; valid while the arena lives."""
    return ffi.from_buffer("uint8_t[]", arena)


def _refuse_counts(batches: NDArray[np.void], lens: NDArray[np.int64], where: str) -> None:
    wrong = batches["count"].astype(np.int64) * 7 > lens
    if wrong.any():
        batch = batches[int(wrong.argmax())]
        _corrupt(where, batch, f"its record count {batch['count']} is impossible")


def _reason(code: int) -> str:
    return _DECODE_REASONS.get(code, f"its records can't be decoded ({code})")


def _corrupt(where: str, batch: np.void, reason: str) -> NoReturn:
    raise CorruptRecordError(where, int(batch["position"]), int(batch["base_offset"]), reason)


def _decompress(
    buf: Bytes, batches: NDArray[np.void], where: str, position: int, limit: int
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """One arena with the plain records of all batches, and where each batch's lie in it."""
    view = memoryview(buf)
    starts = (batches["position"] - (position - HEADER_SIZE)).tolist()
    ends = (batches["position"] - position + batches["size"]).tolist()
    codecs = (batches["attributes"] & CODEC_MASK).tolist()
    at, arena = [0], _Arena(sum(ends) - sum(starts))
    for i, (start, end, codec) in enumerate(zip(starts, ends, codecs, strict=True)):
        if codec >= len(CODECS):
            _corrupt(where, batches[i], f"its codec {codec} is unknown")
        try:
            at.append(arena.add(codec, view[start:end], limit))
        except DecompressError as e:
            _corrupt(where, batches[i], str(e))
    places = np.array(at, np.int64)
    return arena.bytes(), places[:-1], np.diff(places)


class _Arena:
    """A buffer that grows as batches are decompressed into it one after the other."""

    def __init__(self, size: int) -> None:
        self._buffer = np.empty(6 * size + 4096, np.uint8)
        self._used = 0

    def add(self, codec: int, data: memoryview, limit: int) -> int:
        """Append the plain bytes of `data`; returns the bytes used so far."""
        if codec == 0:
            limit = len(data)
        room = guess(codec, data, limit) if codec else len(data)
        while True:
            self._reserve(room)
            n = decompress_into(codec, data, self._buffer.data[self._used :], limit)
            if n >= 0:
                self._used += n
                return self._used
            room = min(bound(codec, len(data), limit), 4 * max(room, len(self._buffer) - self._used))

    def _reserve(self, room: int) -> None:
        need = self._used + room
        if need > len(self._buffer):
            larger = np.empty(max(need, 2 * len(self._buffer)), np.uint8)
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger

    def bytes(self) -> bytes:
        return self._buffer[: self._used].tobytes()
