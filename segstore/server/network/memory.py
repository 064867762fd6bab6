"""Memory for incoming requests: the read buffer that all connections use, and the limit for the buffers of
large requests (Kafka: SimpleMemoryPool, queued.max.request.bytes).

Threads: the loop's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from segstore._native import ffi, unset

SCRATCH_BYTES = 1 << 16


def buffer(size: int) -> memoryview:
    """Return uninitialised memory. A page of it takes no physical memory until bytes are written to the
    page.
    """
    return memoryview(ffi.buffer(unset("uint8_t[]", size)))


class Scratch:
    """The buffer that all connections of a server read into. If a request keeps views of it, the connection
    calls `leave`, which puts a new buffer in its place.
    """

    def __init__(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Make a new buffer. Views of the earlier buffer stay valid."""
        self.for_c = unset("uint8_t[]", SCRATCH_BYTES)
        self.view = memoryview(ffi.buffer(self.for_c))


class RequestMemory:
    """Limits the total bytes of request buffers to `most`; -1 means no limit.

    As in Kafka, a request gets its whole buffer if at least one byte is free, so one buffer may make the
    total larger than `most`.
    """

    def __init__(self, most: int) -> None:
        self._left = self._most = most
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def taken(self) -> int:
        """The total size of the buffers of incomplete or unanswered requests, in bytes."""
        return self._most - self._left

    def take(self, size: int, when_free: Callable[[], object]) -> bool:
        """Count `size` bytes as taken, and return True. If no byte is free, return False, and call
        `when_free` later, when bytes are free.
        """
        if self._most >= 0 and self._left <= 0:
            self._waiting.append(when_free)
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """Count `size` bytes as free, and call the `when_free` functions that wait, as long as bytes are
        free.
        """
        self._left += size
        while self._waiting and self._left > 0:
            self._waiting.popleft()()
