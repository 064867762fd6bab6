"""Senders, one for each method: they move bytes of a file to a sink, a step at a time.

Files on disk are only read. Threads: a sender belongs to one transfer. The transfer calls `send` repeatedly,
for `count` bytes from `position` on; each call begins at the position that the last call has reached. If a
sender has read more bytes from the file than the sink took, the sender keeps the remaining bytes for the next
call. `send` returns the number of bytes that the sink took, 0 at the end of the file, and raises the errors
of `Files`. `close` releases the sender's resources, in any state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from segstore._native import descriptors, ffi, lib
from segstore.files import Files, Handle
from segstore.storage.transfer.sinks import Sink

BUFFER = 1 << 20
"""Bytes that `ReadWriteSender` reads at a time."""
_raw = ffi.new_allocator(should_clear_after_alloc=False)


class TransferSender(Protocol):
    """Moves bytes of a file to one sink; the module describes `send` and `close`."""

    def send(self, source: Handle, position: int, count: int) -> int: ...

    def close(self) -> None: ...


class Straight:
    """Sends from the page cache to the sink by one system call: sendfile, copy_file_range, or splice into a
    pipe.
    """

    def __init__(self, step: Callable[[int, Handle, int, int], int], sink: Sink) -> None:
        self._step, self._sink = step, sink.fd

    def send(self, source: Handle, position: int, count: int) -> int:
        return self._step(self._sink, source, position, count)

    def close(self) -> None:
        pass


class Splice:
    """Sends from the file into the sender's own pipe, and from that pipe to the sink."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self._files, self._sink = files, sink.fd
        self._held = 0  # the number of bytes that were read into the pipe, but are not sent yet
        self._pipe = descriptors()
        files.make_pipe(self._pipe)

    def send(self, source: Handle, position: int, count: int) -> int:
        if not self._held:
            self._held = self._files.splice(self._pipe[1], source, position, count)
            if not self._held:
                return 0
        sent = self._files.splice_on(self._pipe[0], self._sink, self._held, self._held < count)
        self._held -= sent
        return sent

    def close(self) -> None:
        self._files.close_pipe(self._pipe)


class ReadWriteSender:
    """Reads bytes of the file into a buffer, and writes them to the sink."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self._files, self._sink = files, sink.fd
        self._buffer = memoryview(b"")
        self._left = self._buffer  # `_left` has the bytes that were read, but are not written yet

    def send(self, source: Handle, position: int, count: int) -> int:
        if not self._left:
            self._left = self._room(min(count, BUFFER))
            self._left = self._left[: self._files.pread_into(source, self._left, position)]
            if not self._left:
                return 0
        sent = self._files.write(self._sink, self._left)
        self._left = self._left[sent:]
        return sent

    def _room(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = memoryview(ffi.buffer(_raw("uint8_t[]", count)))
        return self._buffer[:count]

    def close(self) -> None:
        pass


# --- mapped ------------------------------------------------------------------------------------

# A window of a file is mapped while its bytes are sent by write(2), or by a method of `bench.zero_copy`. The
# bytes of a log below its visible end never change. If a user cuts the file, the system call that reads the
# mapping fails with EFAULT. No SIGBUS comes, because only the kernel reads the mapping.

WINDOW = 4 << 20
"""Bytes that are mapped at a time."""


class Mapped:
    """The base class of senders that send from a memory mapping of the file."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self.files, self.sink = files, sink.fd
        self.window = ffi.gc(ffi.new("seg_window *"), lib.seg_unmap_window)
        self._source: Handle | None = None
        self.end = 0  # `end` is the position in the file at which the window ends

    def reach(self, source: Handle, position: int, count: int) -> int:
        """Map the file at `position`; return the number of bytes that are mapped from `position` on, at least
        1 and at most `count`. Raises OSError.
        """
        if source is not self._source or position >= self.end:
            self.release()
            there = min(count, WINDOW)
            self.files.map_window(self.window, source, position, there)
            self._source, self.end = source, position + there
        return min(count, self.end - position)

    def release(self) -> None:
        """Unmap the window, if there is one."""
        if self._source is not None:
            self._source, self.end = None, 0
            self.files.unmap_window(self.window)

    def close(self) -> None:
        """Unmap the window, also if an interrupt has stopped `release`."""
        self._source = None
        self.files.unmap_window(self.window)


class Mmap(Mapped):
    """Writes bytes from a memory mapping of the file to the sink."""

    def send(self, source: Handle, position: int, count: int) -> int:
        there = self.reach(source, position, count)
        return self.files.write_window(self.sink, self.window, source, position, there)
