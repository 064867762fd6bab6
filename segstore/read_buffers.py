"""Memory of large reads, which is reused once nothing refers to it. This module touches no files.

The C library returns large pieces of memory to the system as soon as they are free. To get such a piece
again, page by page, takes a third of the time of a read of 8 MiB. So the last few pieces are kept. A piece is
reused for a read of a similar size, once no Records, column or view of a column refers to it: the list of
kept pieces then has the only reference.

Threads: any. A piece belongs to the call that took it, until that call puts it back with `keep`. An interrupt
between the two frees the piece.
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
"""Pieces of at least `LEAST` and at most `MOST` bytes are kept; pieces of at least `LARGE` bytes are the
large ones. The C library reuses smaller pieces itself, and larger pieces are rare.
"""
KEPT = 2
"""The number of small pieces, and of large pieces, that a `Spare` keeps: two, because most readers still have
one result while they read the next.
"""
_WASTE = 5
"""A piece serves only reads of at least a fifth of its size, so that Records keep alive at most five times
the memory that they need. A fifth lets a piece of 16 MiB, with an eighth more room, serve a read of 4 MiB.
"""
_ALONE = 2  # references to a free piece: the variable of `take`, and the argument of `getrefcount`

T = TypeVar("T")


class Spare(Generic[T]):
    """The kept pieces of one type, bytes or arrays, each with its room in bytes. There are at most `KEPT`
    small and `KEPT` large pieces, the newest last.
    """

    def __init__(self) -> None:
        self._pieces: tuple[list[tuple[int, T]], list[tuple[int, T]]] = [], []

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def take(self, size: int, usable: Callable[[T], bool] | None = None) -> tuple[int, T] | None:
        """Remove and return (room, piece) for a read of `size` bytes; None if there is no free piece that
        fits and is `usable`.
        """
        pieces = self._pieces[size >= LARGE]
        for _ in range(len(pieces)):
            try:
                room, piece = pieces.pop(0)
            except IndexError:  # another thread took the last piece
                return None
            alone = size <= room <= _WASTE * size and sys.getrefcount(piece) == _ALONE
            if alone and (usable is None or usable(piece)):
                return room, piece
            pieces.append((room, piece))
        return None

    def keep(self, room: int, piece: T) -> None:
        """Keep a piece for a later `take`; drop the oldest piece if there are more than `KEPT`."""
        pieces = self._pieces[room >= LARGE]
        pieces.append((room, piece))
        del pieces[:-KEPT]


# --- bytes -------------------------------------------------------------------------------------

_bytes: Spare[bytes] = Spare()


def filled(size: int, make: Callable[[], bytes], fill: Callable[[Any], int]) -> bytes:
    """Return the bytes that `fill` writes into reused memory of `size` bytes. `fill` returns the number of
    bytes that it wrote. If no memory can be reused, return the bytes that `make` returns.
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
    """Return (room, bytes) of a reused piece, cut to `size` bytes that C may overwrite; None if no piece
    fits. The caller must pass both to `keep` afterwards.
    """
    reused = _bytes.take(size, _is_unused)
    if reused is not None:
        _resize(reused[1], size)
    return reused


def keep(room: int, data: bytes) -> None:
    """Keep the result of `unset`, or new bytes and their length, for a later read."""
    _bytes.keep(room, data)


# The memory of a CPython bytes object has its length, its hash (-1 until it is computed), its content and a
# NUL, in this order. The memory is freed as a whole, also if `_resize` has changed the length.
_LENGTH, _HASH = -2, -1
_UNKNOWN = -1


def _fields(data: bytes) -> Any:
    return ffi.cast("int64_t *", held("char[]", data))


def _is_unused(data: bytes) -> bool:
    """Return whether the bytes may be overwritten, because their hash was never computed."""
    fields = _fields(data)
    return bool(fields[_HASH] == _UNKNOWN and fields[_LENGTH] == len(data))


def _resize(data: bytes, size: int) -> None:
    """Change the length of bytes without other references, within the room of their memory."""
    if len(data) != size:
        _fields(data)[_LENGTH] = size
        ffi.cast("char *", held("char[]", data))[size] = b"\0"


# --- int64 -------------------------------------------------------------------------------------

_arrays: Spare[NDArray[np.int64]] = Spare()


def matrix(rows: int, columns: int) -> NDArray[np.int64]:
    """Return an int64 array of this shape with undefined values."""
    n = rows * columns
    if not LEAST <= 8 * n <= MOST:
        return np.empty((rows, columns), np.int64)
    reused = _arrays.take(8 * n)
    # an eighth more room, because the next read may have a few more records
    array = np.empty(n + n // 8, np.int64) if reused is None else reused[1]
    _arrays.keep(array.nbytes, array)
    return array[:n].reshape(rows, columns)
