"""Keeps the memory of the last few large reads, and reuses it for later reads. This module touches no files.

The C library returns large pieces of memory to the system as soon as they are free. Getting such a piece
again, page by page, takes a third of the time of a read of 8 MiB. So the last few pieces are kept in a list.
A piece is reused for a read of a similar size if only the list refers to it: no Records object, no column and
no view of a column does.

Threads: any. A call that has taken a piece is its only user until it returns the piece by `keep`. If an
interrupt ends the call before `keep`, the piece is freed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from segstore._native import ffi, held
from segstore.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST, LARGE, MOST = 1 << 17, 2 << 20, 16 << 20
"""Pieces with `LEAST` to `MOST` bytes are kept. A piece is large if it has at least `LARGE` bytes.
The C library itself reuses pieces below `LEAST` bytes; pieces above `MOST` bytes are rare.
"""
KEPT = 2
"""A `Spare` keeps two small and two large pieces, because most readers still have one result while they read
the next one.
"""
_WASTE = 5
"""A piece is used only for reads of at least a fifth of its size. So a Records object has at most five times
the memory that it needs, and a piece of 18 MiB, which `matrix` made for 16 MiB, can be used for 4 MiB.
"""
# There are two references to a free piece in `take`: the variable, and the argument of `getrefcount`.
_ALONE = 2

T = TypeVar("T")


class Spare(Generic[T]):
    """The kept pieces of one type (bytes or arrays), each with its room, which is its size in bytes. There
    are at most `KEPT` small and `KEPT` large pieces, the newest last.
    """

    def __init__(self) -> None:
        self._pieces: tuple[list[tuple[int, T]], list[tuple[int, T]]] = [], []

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def take(self, size: int, usable: Callable[[T], bool] | None = None) -> tuple[int, T] | None:
        """Remove a piece for a read of `size` bytes, and return (room, piece). Return None if no piece has a
        suitable size, is free, and is accepted by the function `usable`.
        """
        pieces = self._pieces[size >= LARGE]
        for _ in range(len(pieces)):
            try:
                room, piece = pieces.pop(0)
            except IndexError:  # Another thread has taken the last piece.
                return None
            alone = size <= room <= _WASTE * size and sys.getrefcount(piece) == _ALONE
            if alone and (usable is None or usable(piece)):
                return room, piece
            pieces.append((room, piece))
        return None

    def keep(self, room: int, piece: T) -> None:
        """Keep a piece for a later `take`. If there are more than `KEPT` pieces of its kind, small or large,
        drop the oldest of them.
        """
        pieces = self._pieces[room >= LARGE]
        pieces.append((room, piece))
        del pieces[:-KEPT]


# --- bytes -------------------------------------------------------------------------------------

_bytes: Spare[bytes] = Spare()


def filled(size: int, make: Callable[[], bytes], fill: Callable[[Any], int]) -> bytes:
    """Return the bytes of a read of up to `size` bytes. If memory can be reused, call `fill`, which must
    write the bytes into this memory and return their number. If no memory can be reused, call `make`, which
    must return the bytes.
    """
    if not LEAST <= size <= MOST:
        return make()
    reused = unset(size)
    if reused is None:
        room, data, done = size, make(), size
    else:
        room, data = reused
        done = fill(ffi.buffer(held("char[]", data)))
    if len(data) != size:
        return data
    keep(room, data)
    return data if done == size else data[:done]


def unset(size: int) -> tuple[int, bytes] | None:
    """Take a piece, and set its length to `size`. Return (room, bytes); None if no piece fits. The caller may
    overwrite the bytes, and must then pass both members to `keep`.
    """
    reused = _bytes.take(size, _is_unused)
    if reused is not None:
        _resize(reused[1], size)
    return reused


def keep(room: int, data: bytes) -> None:
    """Keep `data` for a later read. `room` is what `unset` has returned; for new bytes it is their length."""
    _bytes.keep(room, data)


# A CPython bytes object has in its memory, in this order, its length, its hash (-1 until it is computed), its
# content and a NUL. CPython frees this memory correctly even if `_resize` has changed the length.
_LENGTH, _HASH = -2, -1
_UNKNOWN = -1


def _fields(data: bytes) -> Any:
    return ffi.cast("int64_t *", held("char[]", data))


def _is_unused(data: bytes) -> bool:
    """Return whether the hash of the bytes was never computed, so that they may be overwritten."""
    fields = _fields(data)
    return bool(fields[_HASH] == _UNKNOWN and fields[_LENGTH] == len(data))


def _resize(data: bytes, size: int) -> None:
    """Change the length of bytes to which nothing else refers. Their memory must have room for `size`."""
    if len(data) != size:
        _fields(data)[_LENGTH] = size
        ffi.cast("char *", held("char[]", data))[size] = b"\0"


# --- int64 -------------------------------------------------------------------------------------

_arrays: Spare[NDArray[np.int64]] = Spare()


def matrix(rows: int, columns: int) -> NDArray[np.int64]:
    """Return an int64 array with this number of rows and columns; its values are undefined."""
    n = rows * columns
    if not LEAST <= 8 * n <= MOST:
        return np.empty((rows, columns), np.int64)
    reused = _arrays.take(8 * n)
    # A new array gets an eighth more room, because the next read may have a few more records.
    array = np.empty(n + n // 8, np.int64) if reused is None else reused[1]
    _arrays.keep(array.nbytes, array)
    return array[:n].reshape(rows, columns)
