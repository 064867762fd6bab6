"""A reserve: files whose blocks are freed for metadata when the file system is full.

A reserve is a few files with allocated blocks, whose content means nothing. Without a reserve no space could
be freed on a full file system, because a log start offset is written before a segment is removed, and a
topic's settings are written before its directories are removed. The files are truncated piece by piece, only
as far as needed, because other writers take each block that becomes free. When the last piece of a file is
freed, the file is removed. This also frees an inode. Log data never uses the reserve.

Threads: any; a thread may use a reserve within its `with` block. If an interrupt prevents `__exit__` of a
block, no thread may use the reserve after the block, and the end of the next block allocates the reserve
again.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from segstore.files.handle import Handle
    from segstore.files.stats import Space

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors for a full file system, and for a used-up quota."""
SIZE = 1 << 17
"""Bytes in the reserve of a store with few partitions."""
FILES = 8
"""Number of files in a reserve. The removal of each file also frees an inode; the first close of a store
needs five inodes.
"""
PIECE = 1 << 12  # in bytes, the size of a block in most file systems
LOOK = ".look"
"""The suffix of the files that `Reserve.has_room` creates and removes."""


T = TypeVar("T")


class Calls(Protocol):
    """The methods of `Files` that a reserve calls."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Handle: ...

    def size(self, file: str | Handle) -> int: ...

    def allocation(self, path: str) -> tuple[int, int, int]: ...

    def space(self, path: str) -> Space: ...

    def allocate(self, handle: Handle, position: int, length: int) -> None: ...

    def truncate(self, handle: Handle, size: int) -> None: ...

    def unlink(self, path: str) -> None: ...


Frame = tuple[int, "CodeType"]
"""The id and the code of a frame. A reference to the frame itself would keep its variables alive, perhaps a
store.
"""


class _Using(threading.local):
    """The `with` blocks of reserves that a thread has entered, the innermost last, each with its frame. A
    block whose `__exit__` was interrupted may still be listed.
    """

    blocks: tuple[tuple[Reserve, Frame], ...] = ()


_using = _Using()


def _usable() -> list[Reserve]:
    """Return the reserves whose `with` blocks the calling thread has entered. Forget `with` blocks whose
    frame is no longer on the stack.
    """
    alive: set[Frame] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        alive.add((id(frame), frame.f_code))
        frame = frame.f_back
    _using.blocks = tuple([block for block in _using.blocks if block[1] in alive])
    return [reserve for reserve, _ in _using.blocks]


def give(need: int) -> bool:
    """Free `need` bytes, and PIECE bytes for the file system itself, from a reserve that the calling thread
    may use. Return False if nothing could be freed, else True.
    """
    return bool(_using.blocks) and any(reserve.give(need) for reserve in reversed(_usable()))


def in_reserve(change: Callable[[], T], need: int = 0) -> T:
    """Call `change`, and return its result. If the file system is full, free `need` bytes of the calling
    thread's reserve, and call `change` again. Raises OSError.
    """
    while True:
        try:
            return change()
        except OSError as error:
            if error.errno not in NO_ROOM or not give(need):
                raise


class Sparing:
    """A `with` block in which the calling thread uses no reserve, because it writes optional files."""

    def __enter__(self) -> None:
        self._before, _using.blocks = _using.blocks, ()

    def __exit__(self, *_: object) -> None:
        _using.blocks = self._before


class Reserve:
    """A reserve of FILES files. A file may be missing or short. Within its `with` block the calling thread
    may use the reserve; at the end of the outermost block the used part is allocated again.
    """

    def __init__(self, files: Calls, path: str) -> None:
        """`path` is the path of each file, without the file's number."""
        self._files = files
        self._paths = [f"{path}.{n}" for n in range(FILES)]
        self._each, self._is_whole = 0, True

    def take(self, size: int) -> None:
        """Allocate `size` bytes, or as many as possible. No OSError is raised, because the reserve must not
        prevent an open.
        """
        self._each, self._is_whole = size // FILES, False
        self._fill_all(anew=True)

    def take_again(self) -> bool:
        """Allocate the freed bytes again, or as many as possible. Return whether the reserve is complete."""
        if not self._is_whole:
            self._fill_all()
        return self._is_whole

    def _fill_all(self, anew: bool = False) -> None:
        # This is set first: another thread that frees bytes sets the flag to False again.
        self._is_whole = True
        try:
            for path in self._paths:
                self._fill(path, anew)
        except BaseException as error:
            self._is_whole = False
            if not isinstance(error, OSError):
                raise

    def _fill(self, path: str, anew: bool) -> None:
        """Allocate the missing bytes of one file. If `anew`, its existing bytes are allocated again if they
        may have no blocks. Raises OSError; a part may be allocated then.
        """
        files = self._files
        size_now, allocated, names = self._allocation(path)
        if anew and names > 1:
            files.unlink(path)  # another hard link keeps this file's blocks, so a new file is made
        # A copy of a store by other tools may have the size without the blocks (holes), or an older, larger
        # size.
        if anew and (names > 1 or size_now != self._each or allocated < size_now):
            size_now = 0
        piece = self._each - size_now
        if piece <= 0:
            return
        with files.open(path, write=True, create=True) as handle:
            if files.size(handle) > self._each:
                files.truncate(handle, self._each)
            while size_now < self._each:
                piece = min(piece, self._each - size_now)
                try:
                    files.allocate(handle, size_now, piece)
                except OSError as error:
                    if error.errno not in NO_ROOM or piece <= PIECE:
                        raise
                    piece = max(piece // 2, PIECE)
                else:
                    size_now += piece

    def _allocation(self, path: str) -> tuple[int, int, int]:
        try:
            return self._files.allocation(path)
        except FileNotFoundError:
            return 0, 0, 0

    def has_room(self, need: int = 0) -> bool:
        """Return whether the reserve is complete, and the file system has room for FILES more files, SIZE
        bytes and `need` bytes.
        """
        files, looks = self._files, [path + LOOK for path in self._paths]
        try:
            if not self.take_again() or (need and files.space(self._paths[0]).usable < need):
                return False
            with ExitStack() as made:
                handles = [made.enter_context(files.open(path, write=True, create=True)) for path in looks]
                files.allocate(handles[0], 0, SIZE + need)
        except OSError:
            return False
        finally:
            self.forget_looks()
        return True

    def forget_looks(self) -> None:
        """Remove the files that `has_room` makes. A killed process may have left them."""
        for path in self._paths:
            with suppress(OSError):
                self._files.unlink(path + LOOK)

    def give(self, need: int) -> bool:
        """Free `need` + PIECE bytes, rounded up to whole pieces, or fewer if the reserve has fewer. Return
        False if nothing was freed, else True.
        """
        self._is_whole = False
        to_free = need + PIECE
        for path in reversed(self._paths):
            if to_free > 0:
                with suppress(OSError):
                    to_free -= self._cut(path, to_free)
        return to_free < need + PIECE

    def _cut(self, path: str, most: int) -> int:
        """Free `most` bytes of a file, rounded up to whole blocks of PIECE bytes, or all its bytes if it has
        fewer. Remove the file if no bytes are left. Return the number of freed bytes. Raises OSError.
        """
        files = self._files
        with files.open(path, write=True) as handle:
            size_now = files.size(handle)
            size = max(size_now - most, 0) // PIECE * PIECE
            files.truncate(handle, size)
        if not size:
            files.unlink(path)
        return max(size_now - size, 1)

    def __enter__(self) -> None:
        frame = sys._getframe(1)
        _using.blocks = (*_using.blocks, (self, (id(frame), frame.f_code)))

    def __exit__(self, *_: object) -> None:
        frame, blocks = sys._getframe(1), _using.blocks
        while blocks and blocks[-1][1] != (id(frame), frame.f_code):
            blocks = blocks[:-1]  # an interrupt has prevented `__exit__` of an inner block
        _using.blocks = blocks[:-1]
        if not self._is_whole and self not in _usable():
            self.take_again()
