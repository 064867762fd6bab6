"""Tasks that wait for memory in a producer's buffer pool, first come, first served. Nothing on disk.

Threads: the event loop's only, which never waits in the pool itself. It is the only one that takes memory, so
that what it finds free stays free until it takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from segstore.client.producer import Producer
from segstore.errors import BufferExhaustedError, KafkaTimeoutError


class _Waiter:
    __slots__ = ("need", "turn")

    def __init__(self, need: int, turn: asyncio.Future[None]) -> None:
        self.need, self.turn = need, turn


class Room:
    """The pool of `producer` as tasks see it; sizes in bytes."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self._pool = producer, producer._accumulator.pool
        self._waiters: deque[_Waiter] = deque()

    def has(self, need: int) -> bool:
        """Whether a record of `need` bytes finds room at once, and nobody came before."""
        return not self._waiters and self._fits(need)

    def _fits(self, need: int) -> bool:
        # A block is as large as a batch at least; what is larger than the pool is refused when it is sent.
        pool = self._pool
        return pool.available >= min(max(need, pool.block_size), pool.total)

    async def wait(self, need: int) -> None:
        """Return when there is room; send at once then, and let others `look`. BufferExhaustedError."""
        loop = asyncio.get_running_loop()
        me = _Waiter(need, loop.create_future())
        self._waiters.append(me)
        timer = loop.call_later(self._producer.config.max_block_ms / 1000, self._give_up, me)
        try:
            self.look()
            await me.turn
        except BaseException:
            self._waiters.remove(me)
            self.look()
            raise
        finally:
            timer.cancel()
        self._waiters.popleft()

    def look(self) -> None:
        """Let the first go on if there is room, and see that what lingers is sent if there is none."""
        if not self._waiters or self._waiters[0].turn.done():
            return
        if self._fits(self._waiters[0].need):
            self._waiters[0].turn.set_result(None)
        else:
            with contextlib.suppress(KafkaTimeoutError):  # it is only begun
                self._producer.flush(timeout=0)

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.turn.done():
            return
        with self._producer._accumulator.lock:
            self._pool.exhausted += 1
        waiter.turn.set_exception(
            BufferExhaustedError(
                f"no {waiter.need:,} bytes of buffer_memory={self._pool.total:,} became free within "
                f"max_block_ms={self._producer.config.max_block_ms:.0f}"
            )
        )
