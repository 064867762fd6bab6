"""The part of `Files` that moves bytes of a file to a sink (a socket, pipe or file), a system call each.

On disk: reads only. Threads: any; a window, pipe or ring is one thread's at a time.
Errors are the system's: one about the source carries its path, one about the sink carries none. Where the
sink takes less than was asked for, the count says so; BlockingIOError where it takes nothing for now;
InterruptedError after a signal, whose handler has run by the time that the caller tries again.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from segstore._native import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIPE_BYTES = 1 << 20  # what a pipe may have without privileges (/proc/sys/fs/pipe-max-size)
_OF_SOURCE = frozenset({errno.EIO, errno.EFAULT})


class Source(Protocol):
    """A file that is open: `segstore.files.Handle`."""

    fd: int
    path: str


class SinkInfo(NamedTuple):
    """What a descriptor is (`seg_sink` in cdef.h)."""

    kind: int
    appends: bool
    sigpipe: bool
    options: int
    device: int


class Sending:
    """Sinks are descriptors; positions and counts in bytes."""

    def find_stretch(self, source: Source, find: Any, start: int, offset: int, most: int, out: Any) -> bool:
        """`seg_find_stretch` (cdef.h): whether `out` has whole batches to send."""
        return bool(lib.seg_find_stretch(source.fd, find, start, offset, most, out))

    def look_at(self, sink: int) -> SinkInfo:
        """What a sink is. OSError (EBADF)."""
        out = ffi.new("seg_sink *")
        _sent(lib.seg_look_at(sink, out))
        return SinkInfo(out.kind, bool(out.appends), bool(out.sigpipe), out.options, out.device)

    def why_not(self, method: str) -> str | None:
        """None where this system has what a method of transfers needs, else what it says."""
        call = _PROBES.get(method)
        result = call() if call is not None else -errno.EBADF
        return None if result >= 0 or result == -errno.EBADF else os.strerror(-result)

    def wait_for(self, sink: int, events: int, timeout_ms: int | None = None) -> int:
        """poll(2): what of `events` came (errors and hang-ups always do), 0 after the timeout."""
        waiting = select.poll()
        waiting.register(sink, events)
        came = waiting.poll(timeout_ms)
        return came[0][1] if came else 0

    def sendfile(self, sink: int, source: Source, position: int, count: int) -> int:
        """sendfile(2): bytes sent, 0 at the end of the file."""
        sent = lib.seg_sendfile(sink, source.fd, position, count)
        return int(sent) if sent >= 0 else _sent(sent, source)

    def write(self, sink: int, data: Buffer) -> int:
        """write(2)."""
        view = ffi.from_buffer("uint8_t[]", data)
        return _sent(lib.seg_write(sink, view, len(view)))

    def append_range(self, sink: int, source: Source, position: int, count: int) -> int:
        """copy_file_range(2) to where the file `sink` stands: bytes copied, 0 at the end of the source."""
        return _sent(lib.seg_append_range(sink, source.fd, position, count), source)

    # --- splice ---------------------------------------------------------------------------

    def make_pipe(self) -> tuple[int, int]:
        """A pipe (read end, write end) of PIPE_BYTES, or of what it gets. OSError (EMFILE)."""
        pipe = os.pipe2(os.O_CLOEXEC)
        lib.seg_pipe_bytes(pipe[1], PIPE_BYTES)
        return pipe

    def close_pipe(self, pipe: tuple[int, int]) -> None:
        """Close both ends, whatever is in it."""
        os.close(pipe[0])
        os.close(pipe[1])

    def splice(self, pipe: int, source: Source, position: int, count: int) -> int:
        """splice(2) from a file into a pipe: bytes, 0 at the end of the file."""
        return _sent(lib.seg_splice(source.fd, position, pipe, count, 0), source)

    def splice_on(self, pipe: int, sink: int, count: int, more: bool) -> int:
        """splice(2) from a pipe, which has `count` bytes, to a sink; `more`: others follow at once."""
        return _sent(lib.seg_splice(pipe, -1, sink, count, more))

    # --- mapped files -----------------------------------------------------------------------

    def map_window(self, window: Any, source: Source, position: int, count: int) -> None:
        """Map a part of a file into an empty `seg_window`. OSError as mmap(2)."""
        _checked(lib.seg_map_window(window, source.fd, position, count), source)

    def unmap_window(self, window: Any) -> None:
        """Let go of what a `seg_window` has. OSError as munmap(2)."""
        _checked(lib.seg_unmap_window(window), None)

    def write_window(self, sink: int, window: Any, source: Source, position: int, count: int) -> int:
        """write(2) from a window. OSError (EFAULT) of the source where it has become shorter."""
        return _sent(lib.seg_write_window(sink, window, position, count), source)


_PROBES: dict[str, Callable[[], int]] = {
    "sendfile": lambda: lib.seg_sendfile(-1, -1, 0, 1),
    "splice": lambda: lib.seg_splice(-1, 0, -1, 1, 0),
    "copy_file_range": lambda: lib.seg_append_range(-1, -1, 0, 1),
    "zerocopy": lambda: -errno.ENOSYS,
    "io_uring": lambda: -errno.ENOSYS,
}
"""Calls that a descriptor of -1 makes fail with EBADF where the system has them and lets us."""


def _sent(result: int, source: Source | None = None) -> int:
    if result < 0:
        of_source = source is not None and -result in _OF_SOURCE
        _checked(result, source if of_source else None)
    return int(result)


def _checked(result: int, source: Source | None) -> int:
    if result < 0:
        text = os.strerror(-result)
        raise OSError(-result, text, source.path) if source is not None else OSError(-result, text)
    return int(result)
