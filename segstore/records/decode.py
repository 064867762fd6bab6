"""Decodes record batches into Records: scans and validates headers, decompresses and decodes records.

Nothing is on disk. The functions have no state, and are safe from any thread. A length that the bytes claim
is checked for plausibility before memory is allocated for it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import read_buffers
from segstore._native import ffi, held, lib, unset
from segstore.arrays import np
from segstore.integers import INT64_MAX
from segstore.records.bring_up import bring_up, is_old
from segstore.records.codecs import MAX_PLAIN, DecompressError, bound, decompress_into, guess
from segstore.records.header import (
    BATCH_SIZE,
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    LEAST_ENTRY,
    LEAST_RECORD,
    MAGIC,
    batch_type,
    corrupt,
)
from segstore.records.records import OFFSET, ROWS, Records, concat, empty_records, first_at

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- arena -------------------------------------------------------------------------------------

# `decompress_batches` decompresses batches into one piece of memory, the arena.


def decompress_batches(
    buf: Any, batches: NDArray[np.void], where: str, position: int, limit: int, most: int
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Decompress the batches of `buf`, which was read at `position` of file `where`. Return (arena, which has
    all records in one piece of memory; start of each batch's records in the arena; size of each batch's
    records).

    When the arena has `most` bytes or more, no further batch is decompressed. Raises CorruptRecordError if a
    batch is damaged or larger than `limit`.
    """
    view = memoryview(buf)
    starts = (batches["position"] - (position - HEADER_SIZE)).tolist()
    ends = (batches["position"] - position + batches["size"]).tolist()
    codecs = (batches["attributes"] & CODEC_MASK).tolist()
    at, arena = [0], _Arena(sum(ends) - sum(starts))
    for i, (start, end, codec) in enumerate(zip(starts, ends, codecs, strict=True)):
        if codec >= len(CODECS):
            corrupt(where, batches[i], f"its codec {codec} is unknown")
        try:
            at.append(arena.add(codec, view[start:end], limit if codec else end - start))
        except DecompressError as e:
            corrupt(where, batches[i], str(e))
        if at[-1] >= most:
            break
    places = np.array(at, np.int64)
    return arena.bytes(), places[:-1], np.diff(places)


class _Arena:
    """A growing buffer, into which batches are decompressed one after the other."""

    def __init__(self, size: int) -> None:
        self._buffer = np.empty(6 * size + 4096, np.uint8)
        self._used = 0

    def add(self, codec: int, data: memoryview, limit: int) -> int:
        """Decompress `data` to at most `limit` bytes, and append them to the buffer. Return the number of
        bytes in the buffer.
        """
        room = guess(codec, data, limit)
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
        """Return a copy of the bytes added so far."""
        return self._buffer[: self._used].tobytes()


# --- decode ------------------------------------------------------------

Bytes = Any
"""bytes, or an object with a buffer: bytearray, memoryview, mmap, numpy uint8."""

_FEW = 24
_MANY = read_buffers.LEAST // (8 * ROWS)
_SMALL = (1 << 20) + HEADER_SIZE
"""A scan of at most this many bytes writes its headers into a `_Scratch`; the default size of reads is
smaller.
"""


class _Scratch:
    """Memory for results of C and for the headers of a small scan."""

    def __init__(self) -> None:
        self.end, self.decoded = ffi.new("seg_scan_end *"), ffi.new("seg_decoded *")
        self.capacity = _SMALL // LEAST_ENTRY + 1
        self.headers = unset("seg_batch[]", self.capacity)


_unused: list[_Scratch] = []
"""Scratch memory for the next calls. A call uses one object of its own until its results are copied, because
a signal handler may interrupt the call and read records itself.
"""


_BATCHES, _INT64S = ffi.typeof("seg_batch *"), ffi.typeof("int64_t *")

_DECODE_REASONS = {
    lib.SEG_E_VARINT: "a varint is damaged",
    lib.SEG_E_RECORD: "a record's length and its content disagree",
    lib.SEG_E_TRAILING: "bytes are left after its last record",
    lib.SEG_E_FEW: "it has fewer records than its header says",
}


class ScanEnd(NamedTuple):
    """Position and reason of a scan's end (`seg_scan_end`); `status` is one of lib.SEG_END to
    lib.SEG_BAD_COUNT.
    """

    position: int
    need: int
    last_offset: int
    status: int


def scan(
    buf: Bytes,
    position: int = 0,
    from_offset: int = 0,
    end_offset: int = INT64_MAX,
    max_bytes: int = INT64_MAX,
    check_crcs: bool = True,
    least: int = -1,
) -> tuple[NDArray[np.void], ScanEnd]:
    """Return (headers of the batches in `buf` as an array of `batch_type`, end of the scan). `scan_headers`
    describes the parameters.
    """
    headers, end = scan_headers(buf, position, from_offset, end_offset, max_bytes, check_crcs, least)
    return np.frombuffer(headers, batch_type()), end


def scan_headers(
    buf: Bytes,
    position: int = 0,
    from_offset: int = 0,
    end_offset: int = INT64_MAX,
    max_bytes: int = INT64_MAX,
    check_crcs: bool = True,
    least: int = -1,
) -> tuple[bytearray, ScanEnd]:
    """Return (headers of the batches in `buf`, as bytes of `seg_batch`; end of the scan). `position` is the
    file position of the first byte of `buf`.

    Batches that end below `from_offset` are skipped unchecked. Batches that begin at or after `end_offset`
    are left out. If a batch would exceed `max_bytes`, it and all later batches are left out, but the first
    batch never is. The scan stops before a damaged batch (`ScanEnd.status`); CRCs are compared if
    `check_crcs`. If the first batch is a wrapper message of magic 0 or 1, the offsets of the messages in it
    are at least `least`, which is -1 if the bound is unknown.
    """
    size = len(buf)
    try:
        scratch = _unused.pop()
    except IndexError:
        scratch = _Scratch()
    end = scratch.end
    if size <= _SMALL:
        capacity, out = scratch.capacity, scratch.headers
    else:
        # There is room for the largest possible number of headers, because untouched pages cost less than a
        # second pass.
        capacity = size // LEAST_ENTRY + 1
        out = unset("seg_batch[]", capacity)
    n = lib.seg_scan(
        buf if type(buf) is bytes else ffi.from_buffer("uint8_t[]", buf), size,
        position, least, from_offset, end_offset, max_bytes, check_crcs, out, capacity, end,
    )  # fmt: skip
    # Only the headers that `seg_scan` has written are copied.
    headers = bytearray(ffi.buffer(out, n * BATCH_SIZE))
    scan_end = ScanEnd(end.position, end.need, end.last_offset, end.status)
    _unused.append(scratch)
    return headers, scan_end


def decode(
    buf: Bytes,
    batches: NDArray[np.void],
    where: str,
    position: int = 0,
    next_offset: int | None = None,
    limit: int = MAX_PLAIN,
    from_offset: int = 0,
    most: int = INT64_MAX,
) -> Records:
    """Return the records of some batches in `buf`, which was read at `position` of file `where`. `batches`
    are headers that `scan` has returned, or some of these headers.

    If `buf` is bytes, uncompressed records are not copied, and the Records refer to `buf`. `next_offset`
    becomes `Records.next_offset`; the default is the offset after the last batch. Records below `from_offset`
    are left out. When the decompressed batches have `most` bytes or more, no further batch is decoded;
    `Records.next_offset` is then the offset at which to continue. If all batches are uncompressed and of
    magic 2, `most` has no effect. Messages of magic 0 and 1 are converted first, so that `Records.batches`
    has magic 2 only. Raises CorruptRecordError if the bytes are damaged, or a batch has more than `limit`
    decompressed bytes.
    """
    n = len(batches)
    if n == 0:
        return empty_records(next_offset or 0)
    headers = held(_BATCHES, batches)
    if next_offset is None:
        next_offset = headers[n - 1].last_offset + 1
    first, plain = headers[0], headers[0].size - HEADER_SIZE
    arguments: tuple[Any, ...] | None
    is_one = n == 1 and first.magic == MAGIC
    if is_one and not first.attributes & CODEC_MASK and first.count * LEAST_RECORD <= plain:
        arena = buf if type(buf) is bytes else bytes(buf)
        arguments = (first.position - position + HEADER_SIZE,), (plain,), 1, first.count
    elif n <= _FEW and (arguments := _few(headers, n, position - HEADER_SIZE)):
        arena = buf if type(buf) is bytes else bytes(buf)
    elif is_old(batches):
        return _old(buf, batches, where, position, next_offset, limit, from_offset, most)
    else:
        arena, starts, sizes = plain_records(buf, batches, where, position, limit, most)
        if len(starts) < n:
            n = len(starts)
            batches, next_offset = batches[:n], headers[n - 1].last_offset + 1
        counts = checked_counts(batches, sizes, where)
        pointers = held("int64_t *", starts), held("int64_t *", sizes)
        arguments = (*pointers, n, int(counts.sum()))
    count = arguments[3]
    matrix = np.empty((ROWS, count), np.int64) if count < _MANY else read_buffers.matrix(ROWS, count)
    row = held(_INT64S, matrix)
    try:
        scratch = _unused.pop()
    except IndexError:
        scratch = _Scratch()
    out = scratch.decoded
    done = lib.seg_decode(
        arena, len(arena), headers, *arguments,
        row, row + count, row + 2 * count, row + 3 * count, row + 4 * count, row + 5 * count, row + 6 * count,
        out,
    )  # fmt: skip
    if done != count:
        corrupt(where, batches[out.fault_batch], f"{fault_reason(done)} (record {out.fault_record})")
    with_headers = out.with_headers > 0
    _unused.append(scratch)
    if count and from_offset > matrix.item(OFFSET, 0) and (skip := first_at(matrix, from_offset)):
        matrix = matrix[:, skip:]
    return Records(arena, matrix, next_offset, batches, with_headers)


def _old(
    buf: Bytes,
    batches: NDArray[np.void],
    where: str,
    position: int,
    next_offset: int,
    limit: int,
    from_offset: int,
    most: int,
) -> Records:
    """Decode batches of which some are messages of magic 0 or 1."""
    records = _messages(buf, batches, position, from_offset)
    if records is None:
        records = _brought_up(buf, batches, where, position, limit, from_offset, most)
    if records.next_offset == int(batches["last_offset"][-1]) + 1:
        records.next_offset = next_offset
    return records


def _messages(buf: Bytes, batches: NDArray[np.void], position: int, from_offset: int) -> Records | None:
    """Return the records of uncompressed messages of magic 0 or 1 as they lie in `buf`, without a conversion.

    Return None if C refuses a message, because it is compressed, or its bytes need the checks of `bring_up`.
    """
    n, arena = len(batches), buf if type(buf) is bytes else bytes(buf)
    matrix = np.empty((ROWS, n), np.int64) if n < _MANY else read_buffers.matrix(ROWS, n)
    runs, run_count = np.empty(n, batch_type()), ffi.new("int64_t *")
    done = lib.seg_decode_messages(
        arena,
        len(arena),
        position,
        held(_BATCHES, batches),
        n,
        held(_INT64S, matrix),
        held(_BATCHES, runs),
        run_count,
    )
    if done != n:
        return None
    next_offset = matrix.item(OFFSET, n - 1) + 1
    if from_offset > matrix.item(OFFSET, 0) and (skip := first_at(matrix, from_offset)):
        matrix = matrix[:, skip:]
    return Records(arena, matrix, next_offset, runs[: run_count[0]].copy(), False)


def _brought_up(
    buf: Bytes,
    batches: NDArray[np.void],
    where: str,
    position: int,
    limit: int,
    from_offset: int,
    most: int,
) -> Records:
    """Convert messages of magic 0 and 1, and return the records of all batches."""
    # Batches of magic 2 are decoded as they lie in `buf`: an error then names their positions in the file.
    old = batches["magic"] != MAGIC
    bounds = [0, *(np.flatnonzero(old[1:] != old[:-1]) + 1).tolist(), len(batches)]
    parts: list[Records] = []
    for first, last in itertools.pairwise(bounds):
        run, data, at = batches[first:last], buf, position
        if old[first]:
            least = int(batches["last_offset"][first - 1]) + 1 if first else -1
            data, run = bring_up(buf, run, where, position, limit, most, least)
            at = 0
        parts.append(decode(data, run, where, at, None, limit, from_offset, most))
        most -= len(parts[-1].arena)
        if parts[-1].next_offset <= int(batches["last_offset"][last - 1]):
            break
    return parts[0] if len(parts) == 1 else concat(parts)


def _few(headers: Any, n: int, position: int) -> tuple[Any, ...] | None:
    """Return the arguments of seg_decode for a few uncompressed batches of magic 2.

    Return None if a batch is compressed, has magic 0 or 1, or claims more records than its bytes can hold.
    """
    # NumPy is not used here, because its calls would cost more than the decoding.
    at, lens, codecs, count = [], [], 0, 0
    for i in range(n):
        h = headers[i]
        size = h.size - HEADER_SIZE
        at.append(h.position - position)
        lens.append(size)
        codecs |= h.attributes
        count += h.count
        if h.count * LEAST_RECORD > size or h.magic != MAGIC:
            return None
    return None if codecs & CODEC_MASK else (at, lens, n, count)


def plain_records(
    buf: Bytes, batches: NDArray[np.void], where: str, position: int, limit: int, most: int
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Return (memory with the uncompressed records, start of each batch's records in the memory, size of each
    batch's records). If no batch is compressed, the memory is `buf`.
    """
    if (batches["attributes"] & CODEC_MASK).any():
        return decompress_batches(buf, batches, where, position, limit, most)
    starts = batches["position"] - (position - HEADER_SIZE)
    sizes = np.subtract(batches["size"], HEADER_SIZE, dtype=np.int64)
    return buf if type(buf) is bytes else bytes(buf), starts, sizes


def checked_counts(batches: NDArray[np.void], sizes: NDArray[np.int64], where: str) -> NDArray[np.int64]:
    """Return the record count of each batch. Raises CorruptRecordError for a count that the batch's size
    can't hold.
    """
    counts = batches["count"].astype(np.int64)
    wrong = counts * LEAST_RECORD > sizes
    if wrong.any():
        batch = batches[int(wrong.argmax())]
        corrupt(where, batch, f"its record count {batch['count']} is impossible")
    return counts


def fault_reason(code: int) -> str:
    """Return the reason why records can't be decoded, for an error code of C (SEG_E_*)."""
    return _DECODE_REASONS.get(code, f"its records can't be decoded ({code})")


# --- stamps ------------------------------------------------------------------------------------

# `stamped` finds the batches that may have records of a time range, without decoding records.


def stamped(buf: Any, batches: NDArray[np.void], position: int, least: int, most: int) -> NDArray[np.bool_]:
    """Return for each batch of `buf`, which was read at `position`, whether the batch may have a record with
    a timestamp from `least` to `most` ms, both included. For uncompressed batches of magic 2 the headers and
    the records are checked, for all other batches only the headers.
    """
    may_hold: NDArray[np.bool_] = batches["max_timestamp"] >= least
    judged = ((batches["attributes"] & CODEC_MASK) == 0) & (batches["magic"] == MAGIC)
    plain = np.flatnonzero(may_hold & judged)
    if len(plain):
        may_hold[plain] = _looked_at(buf, batches[plain], position - HEADER_SIZE, least, most)
    return may_hold


def _looked_at(
    buf: Any, batches: NDArray[np.void], position: int, least: int, most: int
) -> NDArray[np.uint8]:
    starts = batches["position"] - position
    sizes = np.subtract(batches["size"], HEADER_SIZE, dtype=np.int64)
    hits = np.empty(len(batches), np.uint8)
    done = lib.seg_stamped(
        ffi.from_buffer("uint8_t[]", buf), len(buf),
        ffi.from_buffer("seg_batch *", batches), ffi.from_buffer("int64_t *", starts),
        ffi.from_buffer("int64_t *", sizes), len(batches), least, most, ffi.from_buffer("uint8_t *", hits),
    )  # fmt: skip
    if done < 0:
        raise AssertionError(f"batches do not lie in the bytes that they were scanned in: {done}")
    return hits
