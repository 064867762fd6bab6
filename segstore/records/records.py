"""Records: the result of a read, as columns over one piece of memory; nothing is on disk.

Records are immutable, and independent of the files they were read from. So Records are safe from any thread,
and stay valid after retention or compaction has removed the segment they were read from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from segstore._native import held, lib
from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing
from segstore.records.header import batch_type
from segstore.records.lazy_columns import ByteColumn, HeaderColumn, chunks

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

ROWS = 7
"""Number of rows of the matrix of `Records`, which has one column per record; the names below are the indexes
of the rows.
"""
OFFSET, TIMESTAMP, KEY_AT, KEY_LEN, VALUE_AT, VALUE_LEN, HEADERS_AT = range(ROWS)


class Record(NamedTuple):
    """One record: offset, timestamp (ms since the epoch), key and value (bytes or None), headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_make_record: Any = partial(tuple.__new__, Record)


class Records:
    """Records in order of offset, or for `PartitionLog.read_many` in the order of the requested offsets.

    `next_offset` is the offset of the next read. `batches` are the headers of the batches that were read (an
    array of `batch_type`), including batches whose records were sliced off. `arena` is the memory of keys,
    values and headers.
    """

    __slots__ = ("_matrix", "_with_headers", "arena", "batches", "next_offset")

    def __init__(
        self,
        arena: bytes,
        matrix: NDArray[np.int64],
        next_offset: int,
        batches: NDArray[np.void],
        with_headers: bool,
    ) -> None:
        self.arena, self._matrix, self.next_offset = arena, matrix, next_offset
        self.batches, self._with_headers = batches, with_headers

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets, int64, one per record, rising."""
        offsets: NDArray[np.int64] = self._matrix[OFFSET]
        return offsets

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """Return the timestamps, int64 ms since the epoch (UTC), one per record; -1 for a record without a
        timestamp.
        """
        timestamps: NDArray[np.int64] = self._matrix[TIMESTAMP]
        return timestamps

    @property
    def keys(self) -> ByteColumn:
        """Return the keys: a sequence of bytes or None, made on access."""
        return ByteColumn(self.arena, self._matrix[KEY_AT], self._matrix[KEY_LEN])

    @property
    def values(self) -> ByteColumn:
        """Return the values: a sequence of bytes or None, made on access."""
        return ByteColumn(self.arena, self._matrix[VALUE_AT], self._matrix[VALUE_LEN])

    @property
    def headers(self) -> HeaderColumn:
        """Return the headers: a sequence of lists of (str, bytes or None), made on access."""
        return HeaderColumn(self.arena, self._matrix[HEADERS_AT], self._with_headers)

    @property
    def timestamp_types(self) -> NDArray[np.int8]:
        """Return the timestamp types, int8, one per record: 0 CreateTime, 1 LogAppendTime."""
        return ((self.batches["attributes"][self.batch_indexes()] >> 3) & 1).astype(np.int8)

    @property
    def leader_epochs(self) -> NDArray[np.int32]:
        """Return the leader epochs, int32, one per record."""
        epochs: NDArray[np.int32] = self.batches["leader_epoch"][self.batch_indexes()]
        return epochs

    def batch_indexes(self) -> NDArray[np.intp]:
        """Return for each record the index of its batch in `batches`."""
        return np.searchsorted(self.batches["base_offset"], self.offsets, "right") - 1

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of memory that this object keeps alive, including memory that it shares
        with slices.
        """
        return len(self.arena) + self._matrix.nbytes + self.batches.nbytes

    def __len__(self) -> int:
        return int(self._matrix.shape[1])

    def __repr__(self) -> str:
        n = len(self)
        span = f", offsets {self.offsets[0]} to {self.offsets[-1]}" if n else ""
        return f"<Records: {n:,}{span}, next offset {self.next_offset}>"

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        """Return one Record for an index, and Records over the same memory for a slice."""
        if isinstance(index, slice):
            return self._slice(index)
        row = self._matrix[:, index].tolist()
        offset, timestamp, key_at, key_len, value_at, value_len, _ = row
        key = None if key_len < 0 else self.arena[key_at : key_at + key_len]
        value = None if value_len < 0 else self.arena[value_at : value_at + value_len]
        headers = self.headers[index] if self._with_headers else []
        record: Record = _make_record((offset, timestamp, key, value, headers))
        return record

    def _slice(self, index: slice) -> Records:
        start, stop, step = index.indices(len(self))
        next_offset = self.next_offset
        if step == 1 and max(start, stop) < len(self):
            next_offset = int(self._matrix[OFFSET, max(start, stop)])
        return self._with(self._matrix[:, index], next_offset)

    def _with(self, matrix: NDArray[np.int64], next_offset: int) -> Records:
        return Records(self.arena, matrix, next_offset, self.batches, self._with_headers)

    def from_offset(self, offset: int) -> Records:
        """Return the records from `offset` on, over the same memory. Raises InvalidTypeError."""
        try:
            offset = operator.index(offset)
        except TypeError:
            raise InvalidTypeError(f"offset must be an int, not {type(offset).__name__}") from None
        matrix = self._matrix
        skip = first_at(matrix, offset) if matrix.shape[1] else 0
        return self._with(matrix[:, skip:], self.next_offset) if skip else self

    def take(self, mask: NDArray[np.bool_]) -> Records:
        """Return the records whose element in the boolean `mask` (one per record) is true; `next_offset` is
        the same. Raises InvalidArgumentError.
        """
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise InvalidArgumentError(
                f"mask is {mask.dtype} of shape {mask.shape}: must be bool of shape ({len(self)},)"
            )
        return self._with(np.compress(mask, self._matrix, axis=1), self.next_offset)

    def __iter__(self) -> Iterator[Record]:
        """Return an iterator of the records, which makes the objects of some hundred records at a time to use
        little memory.
        """
        return chain.from_iterable(map(self._records, chunks(len(self))))

    def _records(self, span: slice) -> Iterator[Record]:
        matrix = self._matrix[:, span]
        keys = ByteColumn(self.arena, matrix[KEY_AT], matrix[KEY_LEN]).tolist()
        values = ByteColumn(self.arena, matrix[VALUE_AT], matrix[VALUE_LEN]).tolist()
        headers = HeaderColumn(self.arena, matrix[HEADERS_AT], self._with_headers).tolist()
        offsets, timestamps = matrix[OFFSET].tolist(), matrix[TIMESTAMP].tolist()
        return map(_make_record, zip(offsets, timestamps, keys, values, headers, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        same = len(self) == len(other) and self.next_offset == other.next_offset
        return same and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """Return a pyarrow.Table with all columns, or only with `columns`: offset and timestamp (ms) are
        int64, key and value are binary; headers are list<struct<key: string, value: binary>>, and null for a
        record without headers. Raises MissingPackageError without pyarrow.
        """
        with Needing("pyarrow", "to_arrow"):
            from segstore.records.arrow import table
        return table(self, columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        matrix = np.ascontiguousarray(self._matrix)
        return Records, (self.arena, matrix, self.next_offset, self.batches, self._with_headers)


def first_at(matrix: NDArray[np.int64], offset: int) -> int:
    """Return the index of the first column whose offset is at least `offset`; the matrix must have at least
    one column.
    """
    skip = int(offset - matrix.item(OFFSET, 0))
    # If there are no gaps in the offsets, the index is the difference of two offsets.
    if skip > 0 and (skip >= matrix.shape[1] or matrix.item(OFFSET, skip) != offset):
        skip = int(np.searchsorted(matrix[OFFSET], offset))
    return max(skip, 0)


def empty_records(next_offset: int) -> Records:
    """Return empty Records with this `next_offset`."""
    return Records(b"", np.empty((ROWS, 0), np.int64), next_offset, np.empty(0, batch_type()), False)


def concat(parts: Sequence[Records]) -> Records:
    """Return the records of several parts, in order, as one Records over new memory."""
    matrix = np.concatenate([part._matrix for part in parts], axis=1)
    done, arena = 0, 0
    for part in parts:
        matrix[[KEY_AT, VALUE_AT, HEADERS_AT], done : done + len(part)] += arena
        done, arena = done + len(part), arena + len(part.arena)
    batches = np.concatenate([part.batches for part in parts])
    with_headers = any(part._with_headers for part in parts)
    return Records(
        b"".join(part.arena for part in parts), matrix, parts[-1].next_offset, batches, with_headers
    )


def rearranged(records: Records, places: NDArray[np.intp]) -> Records:
    """Return the records at these indexes, in this order, over the same memory."""
    return records._with(records._matrix[:, places], records.next_offset)


def picked(records: Records, places: NDArray[np.intp]) -> Records:
    """Return the records at these non-decreasing indexes, over a copy of the bytes of these records only."""
    once, again = np.unique(places, return_inverse=True)
    matrix = records._matrix[:, once]
    starts = matrix[KEY_AT]
    # A record's bytes end before the key of the next record.
    lengths = np.append(records._matrix[KEY_AT, 1:], len(records.arena))[once] - starts
    arena, ends = np.empty(int(lengths.sum()), np.uint8), np.empty(len(once) + 1, np.int64)
    lib.seg_gather(
        records.arena, len(records.arena),
        held("int64_t *", np.ascontiguousarray(starts)), held("int64_t *", lengths), len(once), 1,
        held("uint8_t *", arena), len(arena), held("uint8_t *", ends),
    )  # fmt: skip
    matrix[[KEY_AT, VALUE_AT, HEADERS_AT]] += ends[:-1] - starts
    with_headers = records._with_headers
    next_offset = matrix.item(OFFSET, -1) + 1
    return Records(arena.tobytes(), matrix[:, again], next_offset, records.batches, with_headers)
