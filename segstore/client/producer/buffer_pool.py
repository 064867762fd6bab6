"""The bound on records that wait: `buffer_memory` bytes, mostly in blocks of `batch_size`. Nothing on disk.

A block stands for the bytes of a batch's records, which stay the application's own objects until they are
encoded; what they take as Python objects comes on top.
Threads: all methods are called with the lock of `freed` held. Who comes first is served first.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from segstore.client.producer.lock import ProducerLock
from segstore.errors import BufferExhaustedError, copy_of
from segstore.mutex import check_apart


class BufferPool:
    """Kafka's BufferPool. `made` counts blocks of `block_size` that were taken from `total`, `reused` those
    that had been used before; other sizes are taken from what is left and are not kept.
    """

    def __init__(self, total: int, block_size: int, lock: ProducerLock) -> None:
        self.total, self.block_size = total, block_size
        self._lock, self.freed = lock, threading.Condition(lock)
        self._unpooled, self._free = total, 0
        self.made = self.reused = self.exhausted = 0
        self.waited_seconds = 0.0
        self._waiters: deque[object] = deque()
        self._closed: BaseException | None = None

    @property
    def available(self) -> int:
        """Bytes that are not in use."""
        return self._unpooled + self._free * self.block_size

    @property
    def waiting(self) -> int:
        """Threads that wait for memory."""
        return len(self._waiters)

    def allocate(self, size: int, max_block: float) -> None:
        """Take `size` bytes; waits up to `max_block` seconds, without the lock. BufferExhaustedError."""
        if self._waiters or self.available < size:
            self._wait(size, max_block)
        if size == self.block_size and self._free:
            self._free -= 1
            self.reused += 1
            return
        # Blocks that nobody uses are given up for what is larger, or for other sizes.
        while self._unpooled < size:
            self._free -= 1
            self._unpooled += self.block_size
        self._unpooled -= size
        if size == self.block_size:
            self.made += 1

    def _wait(self, size: int, max_block: float) -> None:
        check_apart("send()", but=self._lock)
        me, began = object(), time.monotonic()
        self._waiters.append(me)
        try:
            ready = self.freed.wait_for(lambda: self._may_pass(me, size), timeout=max_block)
        finally:
            self._waiters.remove(me)
            self.waited_seconds += time.monotonic() - began
            # The next in line may have room already.
            self.freed.notify_all()
        if self._closed is not None:
            raise copy_of(self._closed)
        if not ready:
            self.exhausted += 1
            raise BufferExhaustedError(
                f"no {size:,} bytes of buffer_memory={self.total:,} became free within "
                f"max_block_ms={max_block * 1000:.0f}"
            )

    def _may_pass(self, waiter: object, size: int) -> bool:
        return self._closed is not None or (self._waiters[0] is waiter and self.available >= size)

    def close(self, error: BaseException) -> None:
        """Those who wait, or would have to, get `error`."""
        self._closed = error
        self.freed.notify_all()

    def free(self, size: int) -> None:
        """Give `size` bytes back."""
        if size == self.block_size:
            self._free += 1
        else:
            self._unpooled += size
        if self._waiters:
            self.freed.notify_all()
