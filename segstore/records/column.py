"""Columns of byte strings, and of headers, in the layout that C reads: many values in one piece of memory;
nothing is on disk.

A Column never changes after its constructor, and keeps the memory alive that its pointers point to, so that
any thread may encode from it. Until the encoding is done, the caller must not change an array or a bytearray
that it passed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held, seg_spans
from segstore.arrays import np
from segstore.errors import InvalidTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NULLS, WIDE_OFFSETS, FIXED, SPANS = 0, 2, 3, 4
"""Kinds of `seg_column` that this module makes. Kind 1 (int32 offsets) comes from Arrow."""

_SPAN = 1 << 15  # number of elements in one step of `longest`: few enough to stay in a core's cache
ALLOWED_ITEMS = "bytes, bytearray, memoryview or None"
# Types that can be iterated over, but are never meant as a sequence of elements.
TEXT: tuple[type, ...] = (str, bytes, bytearray, memoryview)


class Column:
    """A column of `n` byte strings, each of which may be null. `c` is the column for C, a `seg_column *`."""

    __slots__ = ("_owners", "c", "n")

    def __init__(
        self,
        kind: int,
        n: int,
        data: Any = None,
        offsets: Any = None,
        validity: Any = None,
        validity_bit: int = 0,
        width: int = 0,
    ) -> None:
        self.n = n
        self.c = c = ffi.new("seg_column *")
        c.kind, c.n, c.width, c.validity_bit = kind, n, width, validity_bit
        keep = [held("char[]", part) for part in (data, offsets, validity) if part is not None and len(part)]
        self._owners: list[Any] = keep
        parts = iter(keep)
        if data is not None and len(data):
            c.data = pointer = next(parts)
            c.data_len = len(pointer)
        if offsets is not None and len(offsets):
            c.offsets = next(parts)
        if validity is not None and len(validity):
            c.validity = next(parts)

    def keep(self, owner: object) -> None:
        """Keep alive an object that has the bytes to which the column's pointers point."""
        self._owners.append(owner)

    @property
    def has_nulls(self) -> bool:
        """Return whether any element is null."""
        c = self.c
        # A column has a validity bitmap only if an element is null.
        return self.n > 0 and (c.kind == NULLS or c.nulls != 0 or c.validity != ffi.NULL)

    def longest(self, enough: int) -> int:
        """Return an upper bound of the length of the longest element. If all elements together have at most
        `enough` bytes, the result may be the number of these bytes, which is found faster.
        """
        c = self.c
        if c.kind == FIXED or c.kind == SPANS:
            return int(c.width)
        if c.kind == NULLS or c.data_len <= enough:
            return int(c.data_len)
        kind: Any
        kind, size = (np.int64, 8) if c.kind == WIDE_OFFSETS else (np.int32, 4)
        offsets = np.frombuffer(ffi.buffer(ffi.cast("char *", c.offsets), (self.n + 1) * size), kind)
        spans = (offsets[at : at + _SPAN + 1] for at in range(0, self.n, _SPAN))
        return max((int((span[1:] - span[:-1]).max()) for span in spans), default=0)


def null_column(n: int) -> Column:
    """Return a column of `n` nulls."""
    return Column(NULLS, n)


def from_list(items: Sequence[Any], name: str) -> Column:
    """Return a Column of a list or tuple of bytes, bytearray, memoryview or None. Raises InvalidTypeError."""
    owners = tuple(items)  # this copy can't change while C reads its elements
    spans_of = seg_spans(owners)
    return _from_mixed(owners, name) if spans_of is None else _of_spans(owners, *spans_of)


def _of_spans(owners: tuple[bytes | None, ...], spans: bytes, size: int, longest: int, nulls: int) -> Column:
    n = len(owners)
    if nulls == n:
        return Column(NULLS, n)
    made = Column(SPANS, n, offsets=spans, width=longest)
    made.c.data_len, made.c.nulls = size, nulls > 0
    made.keep(owners)
    return made


def _from_mixed(items: Sequence[Any], name: str) -> Column:
    """Return a Column of copies of a list's elements, which may be bytes, bytearrays, memoryviews or None.
    Raises InvalidTypeError.
    """
    kinds = set(map(type, items))
    _check_kinds(kinds, items, name)
    validity = None
    if type(None) in kinds:
        present = np.fromiter((item is not None for item in items), np.bool_, len(items))
        validity = np.packbits(present, bitorder="little")
        items = [b"" if item is None else item for item in items]
    if any(issubclass(kind, memoryview) for kind in kinds):
        items = [item.tobytes() if isinstance(item, memoryview) else item for item in items]
    return Column(WIDE_OFFSETS, len(items), b"".join(items), offsets_of(items), validity)


def _check_kinds(kinds: set[type], items: Sequence[Any], name: str) -> None:
    wrong = {kind for kind in kinds if not issubclass(kind, (bytes, bytearray, memoryview, type(None)))}
    if wrong:
        i, item = next((i, item) for i, item in enumerate(items) if type(item) in wrong)
        hint = "; encode it first" if isinstance(item, str) else ""
        raise InvalidTypeError(f"{name}[{i}] is {type(item).__name__}: allowed is {ALLOWED_ITEMS}{hint}")


def offsets_of(items: Sequence[Any]) -> array[int]:
    """Return n + 1 int64s, for `n` elements that are laid end to end: the start of each element, and the end
    of the last.
    """
    return array("q", accumulate(map(len, items), initial=0))


def from_numpy(array: NDArray[Any], name: str) -> Column:
    """Return a Column of a numpy array of dtype S, V or object, or uint8 of two dimensions. Raises
    InvalidTypeError.
    """
    if isinstance(array, np.ma.MaskedArray) or (array.dtype.kind == "O" and array.ndim == 1):
        return from_list(array.tolist(), name)
    if array.dtype == np.uint8 and array.ndim == 2:
        array = np.ascontiguousarray(array)
        return Column(FIXED, len(array), _flat(array), width=array.shape[1])
    if array.dtype.kind not in "SV" or array.ndim != 1:
        raise InvalidTypeError(
            f"{name} is a numpy array of {array.dtype}, {array.ndim}-dimensional: allowed are 1-dimensional "
            "arrays of dtype S, V or object and 2-dimensional ones of uint8"
        )
    array = np.ascontiguousarray(array)
    width = array.dtype.itemsize
    if array.dtype.kind == "V" or not len(array) or not width:
        return Column(FIXED, len(array), _flat(array), width=width)
    return _from_padded(array.view(np.uint8).reshape(len(array), width))


def _flat(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    return array.reshape(-1).view(np.uint8) if array.size and array.dtype.itemsize else None


def _from_padded(table: NDArray[np.uint8]) -> Column:
    """Return a Column of an array of dtype S, whose trailing NULs are padding, as in numpy."""
    n, width = table.shape
    if table[:, -1].all():
        return Column(FIXED, n, table.reshape(-1), width=width)
    lengths = np.char.str_len(table.reshape(-1).view(f"S{width}"))
    data = table[np.arange(width) < lengths[:, None]]
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Column(WIDE_OFFSETS, n, data, offsets)


# --- headers ------------------------------------------------------------


class HeaderColumns:
    """The headers of `n` records in flat arrays. `c` is the `seg_header_columns *`."""

    __slots__ = ("_owners", "c", "n")

    def __init__(self, offsets: Any, names: Column, values: Column, ends: Any = None) -> None:
        """`offsets` (int64) has the index of each record's first header; its last element is the index after
        all headers. If `ends` is given, `offsets` does not have this last element, and `ends` has the index
        after each record's headers.
        """
        pointer = held("int64_t[]", offsets)
        until = None if ends is None else held("int64_t[]", ends)
        self.n = len(pointer) - 1 if until is None else len(until)
        self.c = c = ffi.new("seg_header_columns *")
        c.offsets, c.n = pointer, self.n
        if until is not None:
            c.ends = until
        c.names, c.values = names.c[0], values.c[0]
        self._owners = (pointer, names, values, until)

    @property
    def is_empty(self) -> bool:
        """Return whether no record has a header."""
        return int(self.c.names.n) == 0


def no_headers(n: int) -> HeaderColumns:
    """Return the header columns of `n` records without headers."""
    return HeaderColumns(bytes(8 * (n + 1)), null_column(0), null_column(0))
