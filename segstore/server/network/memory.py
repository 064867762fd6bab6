"""What requests take of memory while they come in: a shared buffer for what is read at once, and the account
of larger buffers (Kafka: SimpleMemoryPool, queued.max.request.bytes).

Threads: the loop's only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from segstore._native import ffi, unset

SCRATCH_BYTES = 1 << 16


def buffer(size: int) -> memoryview:
    """Return memory that is not touched yet: what was announced and did not come costs nothing."""
    return memoryview(ffi.buffer(unset("uint8_t[]", size)))


class Scratch:
    """The buffer that all connections of a server read into. A request that keeps views of it gets it for
    itself: see `leave`.
    """

    def __init__(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the present buffer to whoever has views of it."""
        self.for_c = unset("uint8_t[]", SCRATCH_BYTES)
        self.view = memoryview(ffi.buffer(self.for_c))


class RequestMemory:
    """Counts the bytes of buffers; as in Kafka the last one may go beyond `most`, so that any request that is
    allowed can be read. -1: there is no limit.
    """

    def __init__(self, most: int) -> None:
        self._left = self._most = most
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def taken(self) -> int:
        """Return the bytes that are taken now."""
        return self._most - self._left

    def take(self, size: int, when_free: Callable[[], object]) -> bool:
        """Take so many bytes, and return True; where nothing is left, have `when_free` called once there
        is, which may try again.
        """
        if self._most >= 0 and self._left <= 0:
            self._waiting.append(when_free)
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._left += size
        while self._waiting and self._left > 0:
            self._waiting.popleft()()
