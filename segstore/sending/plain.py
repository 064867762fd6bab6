"""Sends straight from a file, through a pipe or a buffer; looks at sinks and waits for them.

On disk: reads only. Threads: any; a pipe is one thread's at a time. Errors: see `segstore.sending`.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib
from segstore.sending.results import Source, checked, sent

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIPE_BYTES = 1 << 20  # what a pipe may have without privileges (/proc/sys/fs/pipe-max-size)


class SinkInfo(NamedTuple):
    """What a descriptor is (`seg_sink` in cdef.h)."""

    kind: int
    appends: bool
    options: int


class Plain:
    """Sinks are descriptors; positions and counts in bytes."""

    def find_stretch(self, source: Source, out: Any, *where: Any) -> bool:
        """`seg_find_stretch` (cdef.h), `where` from its `index` to its `max_bytes`: whether it has found."""
        return bool(lib.seg_find_stretch(source.fd, *where, out))

    def look_at(self, sink: int) -> SinkInfo:
        """What a sink is. OSError (EBADF)."""
        out = ffi.new("seg_sink *")
        sent(lib.seg_look_at(sink, out))
        return SinkInfo(out.kind, bool(out.appends), out.options)

    def wait_for(self, sink: int, events: int, timeout_ms: int | None = None) -> int:
        """poll(2): what of `events` came (errors and hang-ups always do), 0 after the timeout."""
        waiting = select.poll()
        waiting.register(sink, events)
        came = waiting.poll(timeout_ms)
        return came[0][1] if came else 0

    def sendfile(self, sink: int, source: Source, position: int, count: int) -> int:
        """sendfile(2): bytes sent, 0 at the end of the file."""
        return sent(lib.seg_sendfile(sink, source.fd, position, count), source)

    def write(self, sink: int, data: Buffer) -> int:
        """write(2)."""
        with ffi.from_buffer("uint8_t[]", data) as view:
            done = lib.seg_write(sink, view, len(view))
        return sent(done)

    def append_range(self, sink: int, source: Source, position: int, count: int) -> int:
        """copy_file_range(2) to where the file `sink` stands: bytes copied, 0 at the end of the source."""
        return sent(lib.seg_append_range(sink, source.fd, position, count), source)

    # --- splice ---------------------------------------------------------------------------

    def make_pipe(self, pipe: Any) -> None:
        """Make a pipe of PIPE_BYTES, or of what it gets, in `descriptors()`: the end that is read is first.
        OSError (EMFILE).
        """
        checked(lib.seg_open_pipe(pipe), None)
        lib.seg_pipe_bytes(pipe[1], PIPE_BYTES)

    def close_pipe(self, pipe: Any) -> None:
        """Close both ends, whatever is in it."""
        lib.seg_close(pipe)

    def splice(self, pipe: int, source: Source, position: int, count: int) -> int:
        """splice(2) from a file into a pipe: bytes, 0 at the end of the file."""
        return sent(lib.seg_splice(source.fd, position, pipe, count, 0), source)

    def splice_on(self, pipe: int, sink: int, count: int, more: bool) -> int:
        """splice(2) from a pipe, which has `count` bytes, to a sink; `more`: others follow at once."""
        return sent(lib.seg_splice(pipe, -1, sink, count, more))
