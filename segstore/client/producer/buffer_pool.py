"""The bound on records that wait: `buffer_memory` bytes, mostly in blocks of `batch_size`. Nothing on disk.

A block stands for the bytes of a batch's records, which stay the application's own objects until they are
encoded; what they take as Python objects comes on top.
Threads: all methods are called with the producer's lock held, but for `wait_until` and `wake`. Who comes
first is served first.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from segstore.errors import BufferExhaustedError

_AGAIN = 1.0
"""Seconds. Who waits asks so often in any case: interrupts can take a `wake` away."""

Waiter = SimpleQueue[None]
"""A thread that waits for memory: it gets an item when there may be some."""


class Owner:
    """What has memory: `block` bytes."""

    __slots__ = ("block",)

    def __init__(self) -> None:
        self.block = 0


class BufferPool:
    """Kafka's BufferPool. `made` counts blocks of `block_size` that were taken from `total`, `reused` those
    that had been used before; other sizes are taken from what is left and are not kept.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total, self.block_size = total, block_size
        self._unpooled, self._free = total, 0
        self.made = self.reused = self.exhausted = 0
        self.waited_seconds = 0.0
        # Weak: who is taken out of `wait_until` by two interrupts, of which the second one keeps the first's
        # `finally` from its work, is not waited for.
        self._waiters: deque[weakref.ref[Waiter]] = deque()

    @property
    def available(self) -> int:
        """Bytes that are not in use."""
        return self._unpooled + self._free * self.block_size

    @property
    def waiting(self) -> int:
        """Threads that wait for memory."""
        return sum(entry() is not None for entry in list(self._waiters))

    def allocate(self, size: int, waiter: Waiter | None = None, owner: Owner | None = None) -> bool:
        """Take `size` bytes, if they are free and nobody waits who came before `waiter`. They are `owner`'s,
        whose `block` says so, in one step: no interrupt comes between taking and owning.
        """
        while self._waiters and self._waiters[0]() is None:
            self._waiters.popleft()
        first = self._waiters[0]() if self._waiters else waiter
        if first is not waiter or self.available < size:
            return False
        self._take(size, owner or Owner())
        return True

    def _take(self, size: int, owner: Owner) -> None:
        # In each of the two branches nothing is called, and nothing jumps.
        if size == self.block_size and self._free:
            owner.block = size
            self._free -= 1
            self.reused += 1
            return
        # Blocks that nobody uses are given up for what is larger, or for other sizes.
        while self._unpooled < size:
            self._free -= 1
            self._unpooled += self.block_size
        owner.block = size
        self._unpooled -= size
        if size == self.block_size:
            self.made += 1

    def give_back(self, owner: Owner) -> None:
        """Free what `owner` has: as `free`, in one step."""
        size = owner.block
        if size == self.block_size:
            owner.block = 0
            self._free += 1
        else:
            owner.block = 0
            self._unpooled += size
        self.wake()

    # --- who waits, without the lock -----------------------------------------------------------

    def wait_until(self, allocated: Callable[[Waiter], bool], size: int, max_block: float) -> None:
        """Return when `allocated` says so, which takes the lock and calls `allocate` for `size` bytes. It is
        asked again when memory has become free, up to `max_block` seconds. BufferExhaustedError.
        """
        me: Waiter = SimpleQueue()
        entry, began = weakref.ref(me), time.monotonic()
        try:
            self._waiters.append(entry)
            while not allocated(me):
                left = began + max_block - time.monotonic()
                if left <= 0:
                    raise self._exhausted(size, max_block)
                with contextlib.suppress(Empty):
                    me.get(timeout=min(left, _AGAIN))
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
            self.waited_seconds += time.monotonic() - began
            self.wake()  # the next in line may have room already

    def _exhausted(self, size: int, max_block: float) -> BufferExhaustedError:
        self.exhausted += 1
        return BufferExhaustedError(
            f"no {size:,} bytes of buffer_memory={self.total:,} became free within "
            f"max_block_ms={max_block * 1000:.0f}"
        )

    def wake(self) -> None:
        """Have those who wait ask again. For any thread, also without the lock."""
        for entry in list(self._waiters):
            waiter = entry()
            if waiter is not None:
                waiter.put(None)

    def free(self, size: int) -> None:
        """Give `size` bytes back."""
        if size == self.block_size:
            self._free += 1
        else:
            self._unpooled += size
        self.wake()
