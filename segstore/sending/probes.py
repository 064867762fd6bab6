"""Which calls of transfers this system has, and lets this process use. Nothing on disk. Threads: any."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from segstore._native import lib

_PROBES: dict[str, tuple[str, Callable[[], int]]] = {
    "sendfile": ("sendfile", lambda: lib.seg_sendfile(-1, -1, 0, 1)),
    "splice": ("splice", lambda: lib.seg_splice(-1, 0, -1, 1, 0)),
    "copy_file_range": ("copy_file_range", lambda: lib.seg_append_range(-1, -1, 0, 1)),
    "zerocopy": ("SO_ZEROCOPY of a TCP socket", lib.seg_zerocopy_probe),
    "io_uring": ("io_uring with its send_zc", lib.seg_ring_probe),
}
"""By method. A descriptor of -1 is an EBADF where there is such a call."""


def why_not(method: str) -> str | None:
    """None where it is there, else what is not, and what the system says."""
    what, call = _PROBES.get(method, ("", lambda: 0))
    result = call()
    return None if result in (0, -errno.EBADF) else f"{what}: {os.strerror(-result)}"
