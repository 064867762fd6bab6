"""Memory of large reads that is used again once nothing refers to it; it touches no files.

The C library gives large pieces of memory back to the system as soon as they are free, and takes them again
page by page, which costs a third of a read of 8 MiB. So the last few pieces are kept. A piece is taken for
another read, of its size or somewhat less, only when the list here has the one reference to it: whoever has
Records, one of their columns or a view of these has a reference.

Threads: any. A piece belongs to the call that takes it until that call keeps it again. An interrupt between
the two frees the piece.
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
"""Bytes of the pieces that are kept: the least, where large ones begin, and the most. Smaller ones stay in
the C library's hands, and larger ones are rare.
"""
KEPT = 2
"""How many small and how many large pieces of each kind are kept: most readers have one result while they
make the next.
"""
_WASTE = 5
"""A piece serves reads of a fifth of it and more: Records that stay keep at most five times the memory that
they need. So the pieces of reads of 16 MiB, which have some room to spare, serve reads of 4 MiB, and reads by
turns of both sizes don't push out each other's pieces.
"""
_ALONE = 2  # references to a piece that only `take` knows: its variable, and the argument of `getrefcount`

T = TypeVar("T")


class Spare(Generic[T]):
    """The pieces of one kind, each with the bytes that it has room for: at most `KEPT` small and `KEPT` large
    ones, that which was kept last last.
    """

    def __init__(self) -> None:
        self._pieces: tuple[list[tuple[int, T]], list[tuple[int, T]]] = [], []

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def take(self, size: int, usable: Callable[[T], bool] | None = None) -> tuple[int, T] | None:
        """Return the room of a piece for `size` bytes, and the piece, to which nothing refers, and keep it no
        longer; None where there is none.
        """
        pieces = self._pieces[size >= LARGE]
        for _ in range(len(pieces)):
            try:
                room, piece = pieces.pop(0)
            except IndexError:  # another thread took the last one
                return None
            alone = size <= room <= _WASTE * size and sys.getrefcount(piece) == _ALONE
            if alone and (usable is None or usable(piece)):
                return room, piece
            pieces.append((room, piece))
        return None

    def keep(self, room: int, piece: T) -> None:
        """Keep a piece for a later `take`, in place of the oldest one."""
        pieces = self._pieces[room >= LARGE]
        pieces.append((room, piece))
        del pieces[:-KEPT]


# --- bytes -------------------------------------------------------------------------------------

_bytes: Spare[bytes] = Spare()


def filled(size: int, make: Callable[[], bytes], fill: Callable[[Any], int]) -> bytes:
    """Return bytes that `fill` wrote into memory of `size` bytes: as many as it says that it wrote. Where no
    memory is kept, `make` makes them.
    """
    if not LEAST <= size <= MOST:
        return make()
    found = unset(size)
    if found is None:
        room, data, done = size, make(), size
    else:
        room, data = found
        done = fill(ffi.buffer(held("char[]", data)))
    if len(data) != size:
        return data
    keep(room, data)
    return data if done == size else data[:done]


def unset(size: int) -> tuple[int, bytes] | None:
    """Return `size` bytes for C to write, behind the room of their memory: the caller keeps both by `keep`.
    None where no memory is kept that fits.
    """
    found = _bytes.take(size, _is_unused)
    if found is not None:
        _resize(found[1], size)
    return found


def keep(room: int, data: bytes) -> None:
    """Keep bytes of `unset`, or such as it could return, for a later read."""
    _bytes.keep(room, data)


# CPython keeps the length of bytes, their hash, which is -1 as long as nobody has asked for it, and their
# content side by side, and ends the content with a NUL. Memory is freed as a whole, whatever the length says.
_LENGTH, _HASH = -2, -1
_UNKNOWN = -1


def _fields(data: bytes) -> Any:
    return ffi.cast("int64_t *", held("char[]", data))


def _is_unused(data: bytes) -> bool:
    """Return whether the bytes may be written again: not where their hash is known."""
    fields = _fields(data)
    return bool(fields[_HASH] == _UNKNOWN and fields[_LENGTH] == len(data))


def _resize(data: bytes, size: int) -> None:
    """Change the length of bytes to which nothing else refers, within the room of their memory."""
    if len(data) != size:
        _fields(data)[_LENGTH] = size
        ffi.cast("char *", held("char[]", data))[size] = b"\0"


# --- int64 -------------------------------------------------------------------------------------

_arrays: Spare[NDArray[np.int64]] = Spare()


def matrix(rows: int, columns: int) -> NDArray[np.int64]:
    """Return an int64 array of this shape, whose values are not set."""
    n = rows * columns
    if not LEAST <= 8 * n <= MOST:
        return np.empty((rows, columns), np.int64)
    found = _arrays.take(8 * n)
    # The next read has a few records more.
    array = np.empty(n + n // 8, np.int64) if found is None else found[1]
    _arrays.keep(array.nbytes, array)
    return array[:n].reshape(rows, columns)
