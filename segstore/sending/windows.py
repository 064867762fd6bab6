"""Sends from a mapped part of a file: write(2), MSG_ZEROCOPY, io_uring. On disk: reads only.

Threads: a window or ring is one thread's at a time. Errors: see `segstore.sending`; EFAULT, of the source,
where what was mapped can't be read: the file has been cut, or the disk failed.
"""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from segstore._native import ffi, lib
from segstore.sending.plain import Plain
from segstore.sending.results import Source, checked, sent


class Notices(NamedTuple):
    """What was read from a socket's error queue (`seg_noticed` in cdef.h)."""

    sends: int
    copied: int
    calls: int


class Windows(Plain):
    """Windows are `seg_window *`, rings `seg_ring *`, of cdef.h."""

    def map_window(self, window: Any, source: Source, position: int, count: int) -> None:
        """Map a part of a file into an empty window. OSError as mmap(2)."""
        checked(lib.seg_map_window(window, source.fd, position, count), source)

    def unmap_window(self, window: Any) -> None:
        """Let go of what a window has, if it has anything. OSError as munmap(2)."""
        checked(lib.seg_unmap_window(window), None)

    def write_window(self, sink: int, window: Any, source: Source, position: int, count: int) -> int:
        """write(2) from a window: bytes."""
        return sent(lib.seg_write_window(sink, window, position, count), source, errno.EFAULT)

    # --- MSG_ZEROCOPY -----------------------------------------------------------------------

    def set_zerocopy(self, sink: int, on: bool) -> bool:
        """Set SO_ZEROCOPY of a socket: whether it was set before. OSError as setsockopt(2)."""
        return bool(sent(lib.seg_zerocopy(sink, on)))

    def send_zerocopy(self, sink: int, window: Any, source: Source, position: int, count: int) -> int:
        """send(2) with MSG_ZEROCOPY from a window, which stays until `read_notices` has told of it: bytes.

        OSError: ENOBUFS where too many sends have not been told of, or too much memory is locked.
        """
        return sent(lib.seg_send_zerocopy(sink, window, position, count), source, errno.EFAULT)

    def read_notices(self, sink: int) -> Notices:
        """What has come of notices, without waiting; POLLERR tells that there are some. OSError."""
        out = ffi.new("seg_noticed *")
        sent(lib.seg_notices(sink, out))
        return Notices(out.sends, out.copied, out.calls)

    # --- io_uring ---------------------------------------------------------------------------

    def open_ring(self, ring: Any) -> None:
        """Make a ring. OSError (ENOSYS, EPERM, ENOMEM)."""
        checked(lib.seg_ring_open(ring), None)

    def close_ring(self, ring: Any) -> None:
        """Let go of a ring, if it is open, and of what is under way in it."""
        lib.seg_ring_close(ring)

    def send_by_ring(
        self, ring: Any, sink: int, window: Any, source: Source, position: int, count: int
    ) -> int:
        """send_zc from a window, which the kernel needs no more then: bytes.

        InterruptedError, at least every 100 ms: the same call is to be made again, to go on with that one.
        """
        return sent(lib.seg_ring_send(ring, sink, window, position, count), source, errno.EFAULT)
