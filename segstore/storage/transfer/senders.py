"""Senders, one for each method: they move bytes of a file to a sink, a step at a time.

On disk files are only read. Threads: a sender belongs to one transfer. `send` is called for `count` bytes
from `position` on, again and again from where the call before ended: a sender may have taken more from the
file than the sink took, which it then still has. `send` returns the bytes that the sink took, 0 where the
file ends, and raises as `Files` does. `close` releases all that the sender has, in any state.
"""

from __future__ import annotations

import errno
import mmap
import time
from collections.abc import Callable
from typing import Protocol

from segstore._native import descriptors, ffi, lib
from segstore.files import Files, Handle
from segstore.storage.transfer import sinks
from segstore.storage.transfer.sinks import PIPE, WINDOW, Sink

# --- mapped ------------------------------------------------------------------------------------

# A window of a file is mapped while its bytes are sent, by write(2) or what builds on it. The bytes of a
# log below its visible end never change; a file that somebody has cut gives an EFAULT of the system call
# that reads the mapping, never a SIGBUS: only the kernel touches the mapping.

_NO_ROOM = frozenset({errno.ENOBUFS, errno.ENOMEM})


class Mapped:
    """What the methods share that send from a mapping."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self.files, self.sink = files, sink.fd
        self.window = ffi.gc(ffi.new("seg_window *"), lib.seg_unmap_window)
        self._source: Handle | None = None
        self._end = 0  # of the window, as a position in the file
        self.most = WINDOW  # bytes that are sent at a time

    def reach(self, source: Handle, position: int, count: int) -> int:
        """How many bytes from `position` on are mapped now, `count` at most and 1 at least. Raises
        OSError.
        """
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
        """Send less at a time from now on, where the process may not lock so much memory; False where the
        error is another, or one page is too much.
        """
        if error.errno not in _NO_ROOM or self.most <= mmap.PAGESIZE:
            return False
        self.most //= 2
        return True

    def release(self) -> None:
        """Unmap the window, if there is one."""
        if self._source is not None:
            self._source, self._end = None, 0
            self.files.unmap_window(self.window)

    def close(self) -> None:
        """As `release`, also for a window that an interrupt has left."""
        self._source = None
        self.files.unmap_window(self.window)


class Mmap(Mapped):
    """Writes from a mapping of the file."""

    def send(self, source: Handle, position: int, count: int) -> int:
        there = self.reach(source, position, count)
        return self.files.write_window(self.sink, self.window, source, position, there)


# --- zero copy ---------------------------------------------------------------------------------

# MSG_ZEROCOPY: the network card reads from the page cache, the kernel copies nothing; to TCP only.
#
# Nobody else may read the socket's error queue meanwhile. A window is unmapped once the socket has said, by
# its error queue, that the kernel needs it no more: when the peer has acknowledged the bytes. After an
# error or an interrupt it is unmapped at once, which harms nothing: the kernel holds the pages, and a log's
# bytes don't change; notices that come later stay in the queue.

_LAST_LOOKS, _PAUSE = 100, 0.01
"""How often, and after how many seconds each, a dead connection is asked for notices that may come yet."""


class ZeroCopy(Mapped):
    """Sets SO_ZEROCOPY of the caller's socket, and restores it at the end."""

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._pending = 0  # sends without a notice so far
        self._was_set = files.set_zerocopy(self.sink, True)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self.most)
            try:
                sent = self.files.send_zerocopy(self.sink, self.window, source, position, there)
                break
            except OSError as error:
                if not self._make_room(error):
                    raise
        self._pending += 1
        if sent == count or self.has_passed(position + sent):
            self._settle()
        return sent

    def _make_room(self, error: OSError) -> bool:
        """Whether to try again: pending sends took the room, or one was too large."""
        if isinstance(error, BlockingIOError):
            self._look()  # a socket that has notices is never waited for
            return False
        if error.errno == errno.ENOBUFS and self._pending:
            self._settle()
            return True
        return self.take_less(error)

    def _settle(self) -> None:
        """Wait until the kernel needs nothing of what was sent."""
        looks = 0
        while self._pending > 0 and looks < _LAST_LOOKS:
            if self._look():
                continue
            if self.files.wait_for(self.sink, 0) and not self._look():
                # The connection itself has an error, which stays: its last notices are on their way.
                looks += 1
                time.sleep(_PAUSE)
        self._pending = 0

    def _look(self) -> int:
        sends = self.files.read_notices(self.sink).sends
        self._pending -= sends
        return sends

    def close(self) -> None:
        try:
            if self._pending > 0:
                self._look()
            if not self._was_set:
                self.files.set_zerocopy(self.sink, False)
        except OSError:
            pass  # the sink was closed meanwhile: the first error is raised
        finally:
            super().close()


# --- by ring -----------------------------------------------------------------------------------

# io_uring's send_zc: the network card reads from the page cache; to TCP only. A window is unmapped once the
# ring has said that the kernel needs it no more; after an error or an interrupt, once the request under way
# is cancelled.


class ByRing(Mapped):
    """Sends one request at a time, of a whole window."""

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._ring = ffi.gc(ffi.new("seg_ring *"), lib.seg_ring_close)
        files.open_ring(self._ring)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self.most)
            try:
                return self.files.send_by_ring(self._ring, self.sink, self.window, source, position, there)
            except OSError as error:
                if not self.take_less(error):
                    raise

    def close(self) -> None:
        self.files.close_ring(self._ring)
        super().close()


# --- senders ------------------------------------------------------------

_raw = ffi.new_allocator(should_clear_after_alloc=False)


class Sender(Protocol):
    """A sender: see the module."""

    def send(self, source: Handle, position: int, count: int) -> int: ...

    def close(self) -> None: ...


class Straight:
    """Sends from the page cache to the sink by one system call: sendfile, copy_file_range, splice into a
    pipe.
    """

    def __init__(self, step: Callable[[int, Handle, int, int], int], sink: Sink) -> None:
        self._step, self._sink = step, sink.fd

    def send(self, source: Handle, position: int, count: int) -> int:
        return self._step(self._sink, source, position, count)

    def close(self) -> None:
        pass


class Splice:
    """Sends from the file into a pipe of its own, and from there to the sink."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self._files, self._sink = files, sink.fd
        self._held = 0  # bytes in the pipe: those from the next position on
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


class Read:
    """Reads into a buffer and writes from there."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self._files, self._sink = files, sink.fd
        self._buffer = memoryview(b"")
        self._left = self._buffer  # bytes that were read and not yet written

    def send(self, source: Handle, position: int, count: int) -> int:
        if not self._left:
            self._left = self._room(min(count, sinks.BUFFER))
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


def _splice(files: Files, sink: Sink) -> Sender:
    return Straight(files.splice, sink) if sink.kind == PIPE else Splice(files, sink)


SENDERS: dict[str, Callable[[Files, Sink], Sender]] = {
    sinks.SENDFILE: lambda files, sink: Straight(files.sendfile, sink),
    sinks.SPLICE: _splice,
    sinks.MMAP: Mmap,
    sinks.READ: Read,
    sinks.COPY_FILE_RANGE: lambda files, sink: Straight(files.append_range, sink),
    sinks.ZEROCOPY: ZeroCopy,
    sinks.IO_URING: ByRing,
}
