"""A window of a file that is mapped while its bytes are sent, by write(2) or what builds on it.

On disk: reads only. Threads: a window is one transfer's. The bytes of a log below its visible end never
change; a file that somebody has cut is an EFAULT of the system call that reads the mapping, never a SIGBUS:
only the kernel touches it.
"""

from __future__ import annotations

import errno
import mmap

from segstore._native import ffi, lib
from segstore.files import Files, Handle
from segstore.storage.transfer.methods import WINDOW
from segstore.storage.transfer.sinks import Sink

_NO_ROOM = frozenset({errno.ENOBUFS, errno.ENOMEM})


class Mapped:
    """What the methods share that send from a mapping."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self.files, self.sink = files, sink.fd
        self.window = ffi.gc(ffi.new("seg_window *"), lib.seg_unmap_window)
        self._source: Handle | None = None
        self._end = 0  # of what is mapped, in the file
        self.most = WINDOW  # bytes that go at a time

    def reach(self, source: Handle, position: int, count: int) -> int:
        """How many bytes from `position` on are mapped now, `count` at most and 1 at least. OSError."""
        if source is not self._source or position >= self._end:
            self.release()
            there = min(count, WINDOW)
            self.files.map_window(self.window, source, position, there)
            self._source, self._end = source, position + there
        return min(count, self._end - position)

    def has_passed(self, position: int) -> bool:
        """Whether nothing is mapped from here on."""
        return position >= self._end

    def take_less(self, error: OSError) -> bool:
        """Send less at a time, where the process may not lock so much memory; False where it is not that, or
        a page is too much.
        """
        if error.errno not in _NO_ROOM or self.most <= mmap.PAGESIZE:
            return False
        self.most //= 2
        return True

    def release(self) -> None:
        """Let go of the window, if there is one."""
        if self._source is not None:
            self._source, self._end = None, 0
            self.files.unmap_window(self.window)

    def close(self) -> None:
        """As `release`, also of what an interrupt has left."""
        self._source = None
        self.files.unmap_window(self.window)


class Mmap(Mapped):
    """Written from a mapping of the file."""

    def send(self, source: Handle, position: int, count: int) -> int:
        there = self.reach(source, position, count)
        return self.files.write_window(self.sink, self.window, source, position, there)
