"""A window of a file that is mapped while its bytes are sent.

On disk: reads only. Threads: a window is one transfer's. The bytes of a log below its visible end never
change; a file that somebody has cut is an EFAULT of the system call that reads the mapping, never a SIGBUS:
only the kernel touches it.
"""

from __future__ import annotations

from segstore._native import ffi
from segstore.files import Files, Handle
from segstore.storage.transfer.methods import WINDOW
from segstore.storage.transfer.sinks import Sink


class Mapped:
    """What the methods share that send from a mapping."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self.files, self.sink = files, sink.fd
        self.window = ffi.new("seg_window *")
        self._source: Handle | None = None
        self._end = 0  # of what is mapped, in the file

    def reach(self, source: Handle, position: int, count: int) -> int:
        """How many bytes from `position` on are mapped now, `count` at most and 1 at least. OSError."""
        if source is not self._source or position >= self._end:
            self.release()
            there = min(count, WINDOW)
            self.files.map_window(self.window, source, position, there)
            self._source, self._end = source, position + there
        return min(count, self._end - position)

    def release(self) -> None:
        """Let go of the window, if there is one."""
        if self._source is not None:
            self._source, self._end = None, 0
            self.files.unmap_window(self.window)

    def close(self) -> None:
        """As `release`, also of what an interrupt has left."""
        self._source = None
        self.files.unmap_window(self.window)
