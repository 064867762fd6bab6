"""The function with which C appends batches to a log's file (`seg_writer` of `_native/contract/active.h`).

C writes by system calls, unless a subclass of `Files` overrides `pwrite` or `pwritev`, as in tests. Then C
calls the overridden methods. Threads: any.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from segstore._native import ffi
from segstore.errors import is_refusal

if TYPE_CHECKING:
    from segstore.files.handle import Handle


class NativeWrite:
    """`c` is the function with which C writes; NULL means `seg_pwritev`."""

    c: Any = ffi.NULL

    def raised(self) -> BaseException | None:
        """Return the exception of the last failed call, or None, and forget the exception. C knows only an
        errno.
        """
        return None

    def check(self) -> None:
        """Raise the exception of the last failed call, if there is one."""


NATIVE = NativeWrite()


class Writing(Protocol):
    """Writes to an open file; raises OSError."""

    def pwrite(self, handle: Handle, data: Any, position: int, /) -> int: ...
    def pwritev(self, handle: Handle, buffers: Sequence[Any], position: int, /) -> int: ...


class OwnWrite(NativeWrite):
    """Writes a file by `pwrite` and `pwritev` of `files`. An `OwnWrite` has only a weak reference to the
    handle.
    """

    def __init__(self, files: Writing, handle: Handle) -> None:
        self._raised: BaseException | None = None
        # These are weak references, because a tail that was stopped must not keep its file open.
        open_file, this = weakref.ref(handle), weakref.ref(self)

        @ffi.callback("seg_writer", error=-errno.EIO)  # type: ignore[untyped-decorator]
        def called_by_c(fd: int, parts: Any, sizes: Any, n: int, position: int) -> int:
            file, own = open_file(), this()
            assert file is not None, "C uses a file that nobody holds"
            assert own is not None, "C writes by what nobody holds"
            data, size = [], 0
            for i in range(n):
                data.append(ffi.buffer(parts[i], sizes[i])[:])
                size += sizes[i]
            try:
                files.pwrite(file, data[0], position) if n == 1 else files.pwritev(file, data, position)
            except BaseException as error:
                own._raised = error
                return -(error.errno or errno.EIO) if is_refusal(error) else -errno.EINTR
            return size

        self.c = called_by_c

    def raised(self) -> BaseException | None:
        """Return the exception of the last failed call, or None, and forget the exception."""
        raised, self._raised = self._raised, None
        return raised

    def check(self) -> None:
        """Raise the exception of the last failed call, if there is one."""
        raised = self.raised()
        try:
            if raised is not None:
                raise raised
        finally:
            # the traceback refers to this frame; a frame that refers to the error would make a reference
            # cycle
            del raised
