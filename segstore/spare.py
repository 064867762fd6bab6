"""Memory of large reads that is used again once nothing refers to it; it touches no files.

The C library gives large pieces of memory back to the system as soon as they are free, and takes them again
page by page, which costs a third of a read of 8 MiB. So the last few pieces are kept. A piece is taken for
another read only when the list here has the one reference to it: whoever has Records, one of their columns or
a view of these has a reference.

Threads: any. A piece belongs to the call that takes it until that call keeps it again. An interrupt between
the two frees the piece.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from segstore._native import ffi, held

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST, MOST = 1 << 20, 16 << 20
"""Bytes of the pieces that are kept: smaller ones stay in the C library's hands, and larger ones are rare."""
KEPT = 2
"""How many pieces of each kind are kept: most readers have one result while they make the next."""
_ALONE = 2  # references to a piece that only `take` knows: its variable, and the argument of `getrefcount`

T = TypeVar("T")


class Spare(Generic[T]):
    """The pieces of one kind, at most `KEPT`: the one that was kept last comes last."""

    def __init__(self) -> None:
        self._pieces: list[T] = []

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """Return a piece to which nothing refers and that fits, and keep it no longer; None where none is."""
        for _ in range(len(self._pieces)):
            try:
                piece = self._pieces.pop(0)
            except IndexError:  # another thread took the last one
                return None
            if sys.getrefcount(piece) == _ALONE and fits(piece):
                return piece
            self._pieces.append(piece)
        return None

    def keep(self, piece: T) -> None:
        """Keep a piece for a later `take`, in place of the oldest one."""
        self._pieces.append(piece)
        del self._pieces[:-KEPT]


# --- bytes -------------------------------------------------------------------------------------

_bytes: Spare[bytes] = Spare()


def filled(size: int, make: Callable[[], bytes], fill: Callable[[Any], int]) -> bytes:
    """Return bytes that `fill` wrote into memory of `size` bytes: as many as it says that it wrote. Where no
    memory is kept, `make` makes them.
    """
    if not LEAST <= size <= MOST:
        return make()
    data = _bytes.take(lambda piece: len(piece) == size and _hash(piece) == _UNKNOWN)
    if data is None:
        data, done = make(), size
    else:
        done = fill(ffi.buffer(held("char[]", data)))
    if len(data) != size:
        return data
    _bytes.keep(data)
    return data if done == size else data[:done]


_UNKNOWN = -1


def _hash(data: bytes) -> int:
    """Return the hash that CPython keeps in front of the bytes, -1 as long as nobody has asked for it. Bytes
    of which it is known are not written again.
    """
    return int(ffi.cast("int64_t *", held("char[]", data))[-1])


# --- int64 -------------------------------------------------------------------------------------

_arrays: Spare[NDArray[np.int64]] = Spare()


def matrix(rows: int, columns: int) -> NDArray[np.int64]:
    """Return an int64 array of this shape, whose values are not set."""
    n = rows * columns
    if not LEAST <= 8 * n <= MOST:
        return np.empty((rows, columns), np.int64)
    array = _arrays.take(lambda piece: n <= len(piece) <= n + n // 4)
    if array is None:
        array = np.empty(n + n // 8, np.int64)  # the next read has a few records more
    _arrays.keep(array)
    return array[:n].reshape(rows, columns)
