"""One sender for each method: moves bytes of a file to a sink, a step at a time.

On disk: reads only. Threads: a sender is one transfer's.
`send` is asked for `count` bytes from `position` on, again and again from where it came to: it may have
taken more from the file than the sink took from it, which it then still has. It gives the bytes that the sink
took, 0 where the file ends, and raises as `Files` does. `close` lets go of all that it has, in any state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from segstore._native import descriptors, ffi
from segstore.files import Files, Handle
from segstore.storage.transfer import methods
from segstore.storage.transfer.by_ring import ByRing
from segstore.storage.transfer.mapped import Mmap
from segstore.storage.transfer.sinks import PIPE, Sink
from segstore.storage.transfer.zero_copy import ZeroCopy

_raw = ffi.new_allocator(should_clear_after_alloc=False)


class Sender(Protocol):
    """See above."""

    def send(self, source: Handle, position: int, count: int) -> int: ...

    def close(self) -> None: ...


class Straight:
    """From the page cache to the sink by one system call: sendfile, copy_file_range, splice into a pipe."""

    def __init__(self, step: Callable[[int, Handle, int, int], int], sink: Sink) -> None:
        self._step, self._sink = step, sink.fd

    def send(self, source: Handle, position: int, count: int) -> int:
        return self._step(self._sink, source, position, count)

    def close(self) -> None:
        pass


class Splice:
    """From the file into a pipe of its own, and from there to the sink."""

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
    """Read into a buffer and written from there."""

    def __init__(self, files: Files, sink: Sink) -> None:
        self._files, self._sink = files, sink.fd
        self._buffer = memoryview(b"")
        self._left = self._buffer  # what was read and not yet written

    def send(self, source: Handle, position: int, count: int) -> int:
        if not self._left:
            self._left = self._room(min(count, methods.BUFFER))
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
    methods.SENDFILE: lambda files, sink: Straight(files.sendfile, sink),
    methods.SPLICE: _splice,
    methods.MMAP: Mmap,
    methods.READ: Read,
    methods.COPY_FILE_RANGE: lambda files, sink: Straight(files.append_range, sink),
    methods.ZEROCOPY: ZeroCopy,
    methods.IO_URING: ByRing,
}
