"""The system calls that move bytes of a file to a sink (a socket, pipe or file): directly, through a pipe or
a buffer, or from a window (a mapped part of the file). Other calls inspect sinks, and wait for them.

On disk: reads only. Threads: any; only one thread at a time may use a pipe or window. Errors: see
`segstore.sending`. EFAULT counts as an error of the source: mapped bytes can't be read if the file was
truncated, or the disk failed. The headers of `_native/contract/` declare the C functions and structs.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib
from segstore.idle_files import with_descriptors
from segstore.sending.results import SentFile, checked, sent

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NULL = ffi.NULL
# The limit of a pipe for a process without privileges, by default (/proc/sys/fs/pipe-max-size).
PIPE_BYTES = 1 << 20


class SinkInfo(NamedTuple):
    """The properties of a sink's descriptor (`seg_sink` in contract/transfer.h)."""

    kind: int
    appends: bool
    options: int


_PROBES: dict[str, tuple[str, Callable[[], int]]] = {
    "sendfile": ("sendfile", lambda: lib.seg_sendfile(-1, -1, 0, 1)),
    "splice": ("splice", lambda: lib.seg_splice(-1, 0, -1, 1, 0)),
    "copy_file_range": ("copy_file_range", lambda: lib.seg_append_range(-1, -1, 0, 1)),
}
"""{transfer method: (its system call, a function that makes the call with the descriptor -1)}. If the system
has the call, the function returns -EBADF.
"""


class SendfileCalls:
    """The C functions that send bytes of files to sinks. A sink is a descriptor. Positions and counts are in
    bytes. A window is a `seg_window *` of transfer.h.
    """

    def why_not(self, method: str) -> str | None:
        """Return None if a transfer method works on this system and in this process. If it does not, return a
        text with the system call and the call's error.
        """
        what, call = _PROBES.get(method, ("", lambda: 0))
        result = call()
        return None if result in (0, -errno.EBADF) else f"{what}: {os.strerror(-result)}"

    def find_stretch(
        self, source: SentFile, out: Any, segment: Any, start: int, offset: int, max_bytes: int
    ) -> bool:
        """Find the batches for a read in a `seg_segment *` (`seg_find_stretch`, segment.h). Return whether
        there are any. `out`, a `seg_found *`, gets the positions at which the batches begin and end.
        """
        return bool(lib.seg_find_stretch(source.fd, segment, start, offset, max_bytes, out))

    def attributes(self, source: SentFile, position: int, end: int) -> int:
        """Return the attributes of all batches from `position` to `end`, combined by bitwise or, with SEG_OLD
        if a batch has magic 0 or 1 (`seg_attributes`, batch.h). Raises OSError.
        """
        result: int = lib.seg_attributes(source.fd, position, end)
        return checked(result, source)

    def exchange_fetch(self, sock: int, source: SentFile, exchange: Any, segment: Any, *ends: int) -> bool:
        """Receive a request in C. If the request is like the last fetch, answer it (`seg_exchange_fetch`,
        exchange.h). Return whether it was answered: `exchange` then has the number of sent bytes. `ends` are
        the log start offset and the last stable offset.
        """
        return int(lib.seg_exchange_fetch(sock, exchange, source.fd, segment, *ends)) > 0

    def exchange_give(
        self, sock: int, source: SentFile, exchange: Any, position: int, stop: int, ends: Any, number: int
    ) -> bool:
        """Answer a fetch request in C with the batches from `position` to `stop` (`seg_exchange_give`,
        exchange.h). Return whether it was answered: `exchange` then has the number of sent bytes. `ends`
        points to the high watermark, the last stable offset and the log start offset; `number` is the
        correlation id.
        """
        return int(lib.seg_exchange_give(sock, exchange, source.fd, position, stop, ends, number)) > 0

    def send_stretch(self, sink: int, source: SentFile, segment: Any, offset: int, max_bytes: int) -> int:
        """Send batches of a `seg_sendable *`. Return the result of `seg_send_stretch` (transfer.h). If
        sendfile(2) fails, raises its OSError; nothing was sent then.
        """
        result: int = lib.seg_send_stretch(sink, source.fd, segment, offset, max_bytes, _NULL)
        return result if result > 0 or result <= lib.SEG_SLOW else sent(result, source)

    def look_at(self, sink: int) -> SinkInfo:
        """Return the kind and the flags of a sink. Raises OSError (EBADF)."""
        out = ffi.new("seg_sink *")
        sent(lib.seg_look_at(sink, out))
        return SinkInfo(out.kind, bool(out.appends), out.options)

    def wait_for(self, sink: int, events: int, timeout_ms: int | None = None) -> int:
        """Wait by poll(2) until one of `events`, an error or a hang-up comes. Return the events that came, or
        0 after the time-out.
        """
        waiting = select.poll()
        waiting.register(sink, events)
        came = waiting.poll(timeout_ms)
        return came[0][1] if came else 0

    def sendfile(self, sink: int, source: SentFile, position: int, count: int) -> int:
        """Call sendfile(2). Return the number of bytes that were sent, or 0 at the end of the file."""
        return sent(lib.seg_sendfile(sink, source.fd, position, count), source)

    def write(self, sink: int, data: Buffer) -> int:
        """Call write(2). Return the number of bytes that were written."""
        with ffi.from_buffer("uint8_t[]", data) as view:
            done = lib.seg_write(sink, view, len(view))
        return sent(done)

    def append_range(self, sink: int, source: SentFile, position: int, count: int) -> int:
        """Call copy_file_range(2), which writes at the file position of `sink`. Return the number of bytes
        that were copied, or 0 at the end of the source.
        """
        return sent(lib.seg_append_range(sink, source.fd, position, count), source)

    # --- splice ---------------------------------------------------------------------------

    def make_pipe(self, pipe: Any) -> None:
        """Make a pipe for PIPE_BYTES, or fewer if the system does not allow so many. `pipe` gets the
        descriptors, first that of the read end. Raises OSError (EMFILE).
        """
        with_descriptors(lambda: checked(lib.seg_open_pipe(pipe), None))
        lib.seg_pipe_bytes(pipe[1], PIPE_BYTES)

    def close_pipe(self, pipe: Any) -> None:
        """Close both ends of a pipe. The bytes in the pipe are lost."""
        lib.seg_close(pipe)

    def splice(self, pipe: int, source: SentFile, position: int, count: int) -> int:
        """Call splice(2) from a file into a pipe. Return the number of bytes, or 0 at the end of the file."""
        return sent(lib.seg_splice(source.fd, position, pipe, count, 0), source)

    def splice_on(self, pipe: int, sink: int, count: int, more: bool) -> int:
        """Call splice(2) from a pipe, which has `count` bytes, to a sink. Return the number of bytes that
        were moved. `more`: whether further bytes will follow at once.
        """
        return sent(lib.seg_splice(pipe, -1, sink, count, more))

    # --- windows --------------------------------------------------------------------------

    def map_window(self, window: Any, source: SentFile, position: int, count: int) -> None:
        """Map a part of a file into an empty window. Raises the OSError of mmap(2)."""
        checked(lib.seg_map_window(window, source.fd, position, count), source)

    def unmap_window(self, window: Any) -> None:
        """Unmap the window's part of a file. An empty window stays empty. Raises the OSError of munmap(2)."""
        checked(lib.seg_unmap_window(window), None)

    def write_window(self, sink: int, window: Any, source: SentFile, position: int, count: int) -> int:
        """Call write(2) from a window. Return the number of bytes that were written."""
        return sent(lib.seg_write_window(sink, window, position, count), source, errno.EFAULT)
