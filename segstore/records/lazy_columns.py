"""Lazy columns: sequences of keys, values and headers whose objects are made on access; nothing is on disk.

Lazy columns are immutable views over the memory of Records, and safe from any thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, overload

from segstore._native import ffi, held, lib
from segstore.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

CHUNK = 512
"""Number of records whose objects are made at a time: few enough to stay in a core's cache."""

T = TypeVar("T")
Headers = list[tuple[str, bytes | None]]


def chunks(n: int) -> Iterator[slice]:
    """Yield slices that cover n elements. The first slices are small, because a caller may need only one
    element.
    """
    at, size = 0, 8
    while at < n:
        yield slice(at, at + size)
        at, size = at + size, min(4 * size, CHUNK)


class _Lazy(Sequence[T]):
    """The common base of the columns. A column equals any sequence with equal elements."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def _cut(self, index: Any) -> Self:
        """Return a column of the elements that a slice selects."""

    @abstractmethod
    def tolist(self) -> list[T]:
        """Return all elements, as a list."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> T | Self:
        return self._cut(index) if isinstance(index, slice) else self._one(index)

    @abstractmethod
    def _one(self, index: int) -> T:
        """Return a single element. Raises IndexError."""

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._cut(span).tolist() for span in chunks(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (str, bytes)) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self._cut(slice(0, 3)).tolist()))
        more = f", ... {len(self):,} in all" if len(self) > 3 else ""
        return f"[{shown}{more}]"


class ByteColumn(_Lazy[bytes | None]):
    """Keys or values: bytes, or None for null. Slices are columns too."""

    __slots__ = ("arena", "at", "lengths")

    def __init__(self, arena: bytes, at: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.arena, self.at, self.lengths = arena, at, lengths

    def __len__(self) -> int:
        return len(self.at)

    def _cut(self, index: Any) -> ByteColumn:
        return ByteColumn(self.arena, self.at[index], self.lengths[index])

    def _one(self, index: int) -> bytes | None:
        start, length = int(self.at[index]), int(self.lengths[index])
        return None if length < 0 else self.arena[start : start + length]

    def tolist(self) -> list[bytes | None]:
        """Return all elements, as a list."""
        arena, lengths = self.arena, self.lengths.tolist()
        least = min(lengths, default=0)
        if least >= 0:
            ends = (self.at + self.lengths).tolist()
            return [arena[start:end] for start, end in zip(self.at.tolist(), ends, strict=True)]
        if max(lengths) < 0:
            return [None] * len(lengths)
        spans = zip(self.at.tolist(), lengths, strict=True)
        return [None if n < 0 else arena[start : start + n] for start, n in spans]


class HeaderColumn(_Lazy[Headers]):
    """The headers of each record: a list of (name, bytes or None). Slices are columns too.

    Names are decoded as in Kafka: bytes that are not UTF-8 become U+FFFD.
    """

    __slots__ = ("arena", "at", "present")

    def __init__(self, arena: bytes, at: NDArray[np.int64], present: bool) -> None:
        self.arena, self.at, self.present = arena, at, present

    def __len__(self) -> int:
        return len(self.at)

    def _cut(self, index: Any) -> HeaderColumn:
        return HeaderColumn(self.arena, self.at[index], self.present)

    def _one(self, index: int) -> Headers:
        return headers_of(self.arena, int(self.at[index])) if self.present else []

    def flat(self) -> tuple[NDArray[np.int64], ByteColumn, ByteColumn]:
        """Return (number of headers of each record, all names, all values)."""
        n = len(self.at)
        at = np.ascontiguousarray(self.at)
        counts = np.empty(n, np.int64)
        fixed = (
            held("uint8_t[]", self.arena), len(self.arena),
            held("int64_t[]", at), n,
        )  # fmt: skip
        counted, null = held("int64_t[]", counts), ffi.NULL
        total = _checked(lib.seg_headers(*fixed, 0, counted, null, null, null, null))
        matrix = np.empty((4, total), np.int64)
        rows = [held("int64_t[]", row) for row in matrix]
        _checked(lib.seg_headers(*fixed, total, counted, *rows))
        names, values = (ByteColumn(self.arena, matrix[i], matrix[i + 1]) for i in (0, 2))
        return counts, names, values

    def tolist(self) -> list[Headers]:
        """Return all elements, as a list."""
        if not self.present or not len(self.at):
            return [[] for _ in range(len(self.at))]
        counts, names, values = self.flat()
        pairs = iter(zip(map(_text, names.tolist()), values.tolist(), strict=True))
        return [[next(pairs) for _ in range(count)] for count in counts.tolist()]


def headers_of(arena: bytes, at: int) -> Headers:
    """Return the headers of the record whose headers begin at byte `at`."""
    fixed = arena, len(arena), ffi.new("int64_t *", at), 1
    count, null = ffi.new("int64_t *"), ffi.NULL
    n = _checked(lib.seg_headers(*fixed, 0, count, null, null, null, null))
    rows = [ffi.new("int64_t[]", n) for _ in range(4)]
    _checked(lib.seg_headers(*fixed, n, count, *rows))
    names, values = (_cut(arena, *rows[i : i + 2]) for i in (0, 2))
    return [*zip(map(_text, names), values, strict=True)]


def _cut(arena: bytes, starts: Any, lengths: Any) -> Iterator[bytes | None]:
    spans = zip(starts, lengths, strict=True)
    return (None if length < 0 else arena[at : at + length] for at, length in spans)


def _text(name: bytes | None) -> str:
    return (name or b"").decode(errors="replace")


def _checked(n: int) -> int:
    # seg_decode has validated every header already.
    if n < 0:
        raise AssertionError(f"headers can't be decoded: {n}")
    return n
