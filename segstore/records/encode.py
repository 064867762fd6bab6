"""Encodes columns of records into record batches, chunk by chunk; nothing is on disk.

An iterator of `encode` belongs to one thread; another thread may write and release each Encoded that the
iterator yields. If an Encoded is released before the next Encoded is made, the next Encoded can use the
same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError, RecordTooLargeError
from segstore.records.codecs import MAX_PLAIN, compress
from segstore.records.column import FIXED, NULLS
from segstore.records.columns import Columns, Header, headers_of_one
from segstore.records.encoded import CHUNK_BYTES, PLAIN, Encoded, Template, check_plain, checked, pool
from segstore.records.header import CODEC_MASK, HEADER_SIZE, batch_ptr, batch_type

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode(
    columns: Columns,
    codec: int = 0,
    level: int | None = None,
    batch_bytes: int = 65536,
    template: Template = PLAIN,
    chunk_bytes: int = CHUNK_BYTES,
    max_bytes: int | None = None,
    cuts: Sequence[int] = (),
) -> Iterator[Encoded]:
    """Yield all records in batches of about `batch_bytes` (before compression, header included).

    Each Encoded is made by one call of C, and has about `chunk_bytes` before compression. If `codec` is not
    0, the batches of the Encoded are then compressed one by one. A batch of several records never exceeds
    `max_bytes` (`max.message.bytes`); `check_sizes` checks single records beforehand. `cuts` has indexes of
    records in rising order; a batch also ends before each of these records.
    """
    if batch_bytes < 1 or chunk_bytes < 1:
        raise InvalidArgumentError(f"batch_bytes {batch_bytes}, chunk_bytes {chunk_bytes}: least is 1")
    run = Run(columns, codec, batch_cap(codec, batch_bytes, max_bytes), template, cuts)
    while run.first < columns.n:
        chunk = run.next_chunk(chunk_bytes)
        yield compressed(chunk, codec, level) if codec else chunk


def batch_cap(codec: int, batch_bytes: int, max_bytes: int | None) -> int:
    """Return the largest uncompressed size of a batch, at most `batch_bytes`, with which the compressed batch
    stays within `max_bytes`.
    """
    if max_bytes is None:
        return batch_bytes
    # Snappy's output is at worst one sixth larger than its input; other codecs add far less.
    room = max_bytes - max_bytes // 6 - 128 if codec else max_bytes
    return max(1, min(batch_bytes, room))


class Run:
    """The progress of an `encode`: the next record, and the arguments of C that stay the same."""

    def __init__(
        self, columns: Columns, codec: int, batch_bytes: int, template: Template, cuts: Sequence[int] = ()
    ) -> None:
        self.first, self.columns, self.batch_bytes = 0, columns, min(batch_bytes, MAX_PLAIN)
        self.template = c_template(template, codec)
        self.made = ffi.new("int64_t[2]")  # numbers of batches and records of the last call
        self.cuts = np.array(cuts, np.int64)
        self.timestamps, self.offsets = _int64s(columns.timestamps), _int64s(columns.offsets)

    def next_chunk(self, chunk_bytes: int, most_batches: int = 1 << 20) -> Encoded:
        """Return whole batches of at most `chunk_bytes`, or one larger batch."""
        buffer = pool.take(chunk_bytes)
        size, batches = self._fill(buffer, chunk_bytes, most_batches)
        if size == lib.SEG_E_ROOM:
            # The next batch is larger than a chunk: it gets a buffer of its own size.
            pool.give(buffer)
            largest = largest_record(self.columns, self.first, self.columns.n)[0] + HEADER_SIZE
            buffer = np.empty(max(self.batch_bytes, largest), np.uint8)
            size, batches = self._fill(buffer, len(buffer), 1)
        checked(size)
        self._advance(batches)
        return Encoded(buffer, size, batches)

    def _fill(self, buffer: NDArray[np.uint8], capacity: int, most: int) -> tuple[int, NDArray[np.void]]:
        columns, made = self.columns, self.made
        likely = capacity // max(HEADER_SIZE, min(self.batch_bytes, 4096)) + 16 + len(self.cuts)
        room = min(columns.n - self.first, most, likely)
        batches = np.empty(room, batch_type())
        size = lib.seg_encode_cut(
            columns.keys.c,
            columns.values.c,
            columns.headers.c if columns.headers else ffi.NULL,
            self.timestamps,
            columns.timestamp,
            self.offsets,
            self.first,
            columns.n,
            self.batch_bytes,
            _int64s(self.cuts),
            len(self.cuts),
            self.template,
            ffi.from_buffer("uint8_t *", buffer),
            capacity,
            batch_ptr(batches),
            room,
            made,
            made + 1,
        )
        return size, batches[: made[0]] if size >= 0 else batches[:0]

    def _advance(self, batches: NDArray[np.void]) -> None:
        taken, t = self.made[1], self.template
        self.first += taken
        if self.columns.offsets is None:
            t.base_offset += taken
        if t.base_sequence >= 0:
            t.base_sequence = (t.base_sequence + taken) & 0x7FFFFFFF


def c_template(template: Template, codec: int) -> Any:
    """Return a new `seg_template *` with the fields of a Template, and the codec in its attributes."""
    return fill_template(ffi.new("seg_template *"), template, codec)


def fill_template(t: Any, template: Template, codec: int) -> Any:
    """Fill `t`, an existing `seg_template *`, with the fields of a Template and the codec. Return `t`."""
    t.base_offset, t.producer_id = template.base_offset, template.producer_id
    t.producer_epoch, t.base_sequence = template.producer_epoch, template.base_sequence
    t.leader_epoch, t.delete_horizon = template.leader_epoch, template.delete_horizon
    t.attributes = (template.attributes & ~CODEC_MASK) | codec
    return t


def _int64s(array: NDArray[np.int64] | None) -> Any:
    return ffi.NULL if array is None or not len(array) else held("int64_t *", array)


def compressed(plain: Encoded, codec: int, level: int | None) -> Encoded:
    """Return the batches of `plain` with compressed records and new CRCs. Releases `plain`."""
    if plain.n == 1:
        return _compressed_alone(plain, codec, level)
    view, batches = plain.data, plain.batches
    spans = zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)
    packed = [compress(codec, view[at + HEADER_SIZE : at + size], level) for at, size in spans]
    new_sizes = [HEADER_SIZE + len(data) for data in packed]
    buffer = pool.take(sum(new_sizes))
    out, at = Encoded(buffer, sum(new_sizes), batches), 0
    batches["size"] = new_sizes
    headers, view = batch_ptr(batches), buffer.data
    for i, (data, size) in enumerate(zip(packed, new_sizes, strict=True)):
        headers[i].position = at
        view[at + HEADER_SIZE : at + size] = data
        checked(lib.seg_seal(out.ptr + at, size, headers + i))
        at += size
    plain.release()
    return out


def _compressed_alone(plain: Encoded, codec: int, level: int | None) -> Encoded:
    """Return the one batch of `plain`, compressed, in the buffer of `plain` if this buffer is large
    enough.
    """
    packed = compress(codec, plain.data[HEADER_SIZE:], level)
    size, out = HEADER_SIZE + len(packed), plain
    if size > len(plain.buffer):
        out = Encoded(pool.take(size), size, plain.batches)
        plain.release()
    memoryview(out.buffer)[HEADER_SIZE:size] = packed
    out.size = out.headers.size = size
    checked(lib.seg_seal(out.ptr, size, out.headers))
    return out


def largest_record(columns: Columns, first: int, last: int) -> tuple[int, int]:
    """Return (bytes, index) of the largest record in [first, last); the size is at most 20 bytes too
    large.
    """
    index = ffi.new("int64_t *")
    headers = columns.headers.c if columns.headers else ffi.NULL
    size = lib.seg_largest(columns.keys.c, columns.values.c, headers, first, last, index)
    checked(size)
    return size, index[0]


# --- single ------------------------------------------------------------------------------------

# `single` encodes one record as one batch, without arrays or columns of one element. Each call has its own
# arguments for C, so that `single` is safe from any thread, and from a signal handler that interrupts another
# call.

_ROOM = HEADER_SIZE + 64
"""Largest size of a batch with one record, without the record's key, value and headers."""
_KINDS = (bytes, bytearray, memoryview)


class _Arguments:
    """Arguments of seg_encode for one call at a time. A signal handler that appends takes another object."""

    def __init__(self) -> None:
        self.key, self.value = ffi.new("seg_column *"), ffi.new("seg_column *")
        self.key.n = self.value.n = 1
        self.made = ffi.new("int64_t[2]")  # numbers of batches and records of the last call
        self.records = self.made + 1
        self.filled = ffi.new("seg_template *")
        self.of: Template | None = None
        self.codec = 0

    def fill(self, template: Template, codec: int) -> Any:
        """Fill `filled` with the template and codec. Return `filled`."""
        self.of = None  # None until `filled` is complete: an interrupt may leave it half filled
        fill_template(self.filled, template, codec)
        self.codec = codec
        self.of = template
        return self.filled


_unused: list[_Arguments] = []


def single(
    value: bytes | None,
    key: bytes | None = None,
    headers: Iterable[Header] = (),
    timestamp: int = -1,
    template: Template = PLAIN,
    codec: int = 0,
    level: int | None = None,
) -> Encoded:
    """Return a batch of one record.

    Types are checked as in `Columns`; the caller checks the size of the result and the timestamp (ms).
    """
    try:
        a = _unused.pop()
    except IndexError:
        a = _Arguments()
    # C reads the data through these views, so they must exist until `seg_encode` returns.
    views = _set(a.value, value, "value"), b"" if key is None else _set(a.key, key, "key")
    if key is None:
        a.key.kind = NULLS
    plain = len(views[0]) + len(views[1])
    if plain > MAX_PLAIN:  # the size is checked before this much memory is allocated
        check_plain(plain)
    size = plain + _ROOM
    try:
        some = bool(headers)
    except ValueError:  # an array of headers has no truth value; its elements are checked below
        some = True
    more = headers_of_one(headers) if some else None
    if more:
        size += more.c.names.data_len + more.c.values.data_len + 20 * more.c.names.n
    encoded = Encoded.alone(size)
    done = lib.seg_encode(
        a.key, a.value, more.c if more else ffi.NULL, ffi.NULL, timestamp, ffi.NULL, 0, 1, size,
        a.filled if template is a.of and codec == a.codec else a.fill(template, codec),
        encoded.ptr, size, encoded.headers, 1, a.made, a.records,
    )  # fmt: skip
    _unused.append(a)
    if not 0 <= done <= MAX_PLAIN:
        checked(done)
        check_plain(done)
    encoded.size = done
    return _compressed_alone(encoded, codec, level) if codec else encoded


def _set(column: Any, data: Any, name: str) -> Any:
    """Make a column of one element point to the bytes of `data`. Return the object that has these bytes; the
    caller keeps it alive while C reads the column.
    """
    if data is None:
        column.kind = NULLS
        return b""
    if not isinstance(data, _KINDS):
        hint = "; encode it first" if isinstance(data, str) else ""
        allowed = "bytes, bytearray, memoryview or None"
        raise InvalidTypeError(f"{name} is {type(data).__name__}: allowed is {allowed}{hint}")
    # Mutable data is copied, because after a failed call nothing may still refer to the caller's object.
    pointer = held("char[]", data if type(data) is bytes else bytes(data))
    column.kind, column.data = FIXED, pointer
    column.data_len = column.width = len(pointer)
    return pointer


# --- sizes -------------------------------------------------------------------------------------

# `check_sizes` refuses records that are too large, before anything is written.

_NUMBERS = 40
"""Largest size of the varints of a record, without the varints of its headers."""


def check_sizes(
    columns: Columns, codec: int = 0, level: int | None = None, max_bytes: int = MAX_PLAIN
) -> None:
    """Raise RecordTooLargeError (index, size, limit) for a record whose batch would exceed `max_bytes`.

    The check is exact, because a record that might be too large is encoded alone, and compressed.
    """
    doubtful = batch_cap(codec, MAX_PLAIN, max_bytes)
    if _bound(columns, doubtful) <= doubtful:
        return
    ranges = [(0, columns.n)]
    while ranges:
        first, last = ranges.pop()
        if first >= last:
            continue
        size, i = largest_record(columns, first, last)
        if size + HEADER_SIZE > doubtful:
            _check_one(columns, i, codec, level, max_bytes)
            ranges += [(first, i), (i + 1, last)]


def _bound(columns: Columns, enough: int) -> int:
    """Return an upper bound of the size of a batch of one record: the sizes of the longest key, the longest
    value and all headers, added up.
    """
    size = columns.keys.longest(enough >> 2) + columns.values.longest(enough >> 2) + HEADER_SIZE + _NUMBERS
    if columns.headers:
        c = columns.headers.c
        size += c.names.data_len + c.values.data_len + 10 * c.names.n
    return size


def _check_one(columns: Columns, i: int, codec: int, level: int | None, max_bytes: int) -> None:
    run = Run(columns, codec, 1, PLAIN)
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
        by = "" if allowed == MAX_PLAIN else " (max.message.bytes, or segment.bytes if that is less)"
        raise RecordTooLargeError(f"record {i} makes a batch of {size:,} bytes: allowed are {allowed:,}{by}")
