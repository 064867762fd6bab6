"""`BufferPool`: limits the bytes of waiting records to `buffer_memory`. Most of this memory is used in blocks
of `batch_size` bytes.

A block is only a count: it stands for the bytes of a batch's records. The records' keys and values stay the
application's own objects until they are encoded. The overhead of Python objects is not counted.

Threads: all methods are called with the producer's lock held, except `wait_until` and `wake`. Waiting threads
get memory in the order in which they began to wait.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from segstore._native._producer import Memory, Records
from segstore.errors import BufferExhaustedError
from segstore.threads import take

_AGAIN = 1.0
"""Seconds after which a waiting thread tries again without a `wake`, because an interrupt can lose a
`wake`.
"""

Waiter = SimpleQueue[None]
"""The queue of a thread that waits for memory. An item is put into it when there may be free memory."""


class Owner:
    """An object that occupies `block` bytes of the pool."""

    __slots__ = ("block",)

    def __init__(self) -> None:
        self.block = 0


class BufferPool(Memory):
    """Kafka's BufferPool. `made` counts new blocks of `block_size` bytes, and `reused` counts blocks that had
    been used before. Memory of other sizes is taken from the unpooled bytes, and returns to the unpooled
    bytes. If no thread waits, the C code of `send` (`_native/queue.c`) takes a free block without a call of
    `allocate`.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total, self.block_size = total, block_size
        self._unpooled, self._free = total, 0
        self.made = self.reused = self.exhausted = 0
        self.waited_seconds = 0.0
        # The references are weak, because a second interrupt may keep a thread from the `finally` in
        # `wait_until`: the thread's entry stays in the list then, but its reference is dead.
        self.waiters: deque[weakref.ref[Waiter]] = deque()
        """The threads that wait for memory, in order. References may be dead."""

    @property
    def available(self) -> int:
        """Return the number of free bytes."""
        return self._unpooled + self._free * self.block_size

    @property
    def waiting(self) -> int:
        """Return the number of threads that wait for memory."""
        return sum(entry() is not None for entry in list(self.waiters))

    def allocate(self, size: int, waiter: Waiter | None = None, owner: Owner | Records | None = None) -> bool:
        """Take `size` bytes for `owner`, and return True. Return False if the pool has less free memory, or
        if another thread has waited longer than `waiter`. An interrupt can't come between taking the bytes
        and setting `owner.block`.
        """
        while self.waiters and self.waiters[0]() is None:
            self.waiters.popleft()
        first = self.waiters[0]() if self.waiters else waiter
        if first is not waiter or self._unpooled + self._free * self.block_size < size:
            return False
        if owner is None:
            owner = Owner()
        # No interrupt comes while the attributes are set: those statements call no function, and are in no
        # loop.
        if size == self.block_size and self._free:
            owner.block = size
            self._free -= 1
            self.reused += 1
            return True
        # Turn free blocks into unpooled bytes.
        while self._unpooled < size:
            self._free -= 1
            self._unpooled += self.block_size
        owner.block = size
        self._unpooled -= size
        if size == self.block_size:
            self.made += 1
        return True

    def give_back(self, owner: Owner | Records) -> None:
        """Free the memory of `owner`. No interrupt leaves it half freed."""
        size = owner.block
        if size == self.block_size:
            owner.block = 0
            self._free += 1
        else:
            owner.block = 0
            self._unpooled += size
        if self.waiters:
            self.wake()

    # --- waiting threads, without the lock -----------------------------------------------------

    def wait_until(self, allocated: Callable[[Waiter], bool], size: int, max_block: float) -> None:
        """Call `allocated` now, and again each time when memory becomes free, until `allocated` returns True.
        `allocated` takes the lock, and calls `allocate` for `size` bytes. Raises BufferExhaustedError after
        `max_block` seconds.
        """
        me: Waiter = SimpleQueue()
        entry, began = weakref.ref(me), time.monotonic()
        try:
            self.waiters.append(entry)
            while not allocated(me):
                left = began + max_block - time.monotonic()
                if left <= 0:
                    raise self._exhausted(size, max_block)
                with contextlib.suppress(Empty):
                    take(me, min(left, _AGAIN))
        finally:
            if entry in self.waiters:
                self.waiters.remove(entry)
            self.waited_seconds += time.monotonic() - began
            # The next thread is woken, because there may already be enough memory for it.
            self.wake()

    def _exhausted(self, size: int, max_block: float) -> BufferExhaustedError:
        self.exhausted += 1
        return BufferExhaustedError(
            f"no {size:,} bytes of buffer_memory={self.total:,} became free within "
            f"max_block_ms={max_block * 1000:.0f}"
        )

    def wake(self) -> None:
        """Wake all waiting threads, so that they try again. Any thread may call `wake`, with or without the
        lock.
        """
        for entry in list(self.waiters):
            waiter = entry()
            if waiter is not None:
                waiter.put(None)
