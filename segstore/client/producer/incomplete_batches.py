"""`Incomplete`: batches whose outcome is not known yet, and the threads that wait for them (Kafka:
IncompleteBatches).

Threads: any. It takes the producer's lock; callbacks run without it, in the thread that knows the outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from segstore.client.producer.batch import ProducerBatch, Waiting
from segstore.client.producer.buffer_pool import BufferPool
from segstore.client.producer.future import run_callback
from segstore.client.producer.lock import ProducerLock
from segstore.errors import KafkaTimeoutError
from segstore.threads import Latch


class Incomplete:
    """`batches` are in the order of their sealing; the thread that seals one adds it, with the lock held."""

    def __init__(self, lock: ProducerLock, pool: BufferPool) -> None:
        self._lock, self._pool = lock, pool
        self.batches: dict[ProducerBatch, None] = {}
        self._calling: list[int] = []  # threads that are running callbacks

    def complete(self, batches: Sequence[ProducerBatch]) -> None:
        """Run the callbacks, then wake the threads that wait (in Kafka's order): the outcome of these batches
        is in place.
        """
        called: list[Waiting] = []
        with self._lock:
            for batch in batches:
                if batch.unplaced is not None:
                    batch.place()
                batch.forget_records()
                if batch.block:
                    self._pool.free(batch.block)
                batch.done = True  # whoever sees it, without the lock, finds the memory free
                if batch.callbacks:
                    called += batch.callbacks
                    batch.callbacks = None
            if not called:
                self._over(batches)
                return
        try:
            self._call(called)
        finally:
            with self._lock:
                self._over(batches)

    def _over(self, batches: Sequence[ProducerBatch]) -> None:
        """Forget these batches, and wake the threads that wait for them; the caller holds the lock."""
        for batch in batches:
            del self.batches[batch]
            if batch.latch is not None:
                batch.latch.open()

    def _call(self, called: list[Waiting]) -> None:
        me = threading.get_ident()
        self._calling.append(me)
        try:
            for future, callback, errback in called:
                if future.is_done:
                    run_callback(future, callback, errback)
                else:  # its record missed this batch, and gets into a later one
                    future._when_done(callback, errback)
        finally:
            self._calling.remove(me)

    def in_callback(self) -> bool:
        """Return whether this thread is running callbacks, of batches that it and others may wait for."""
        return threading.get_ident() in self._calling

    def wait(self, batches: Iterable[ProducerBatch], timeout: float | None) -> None:
        """Wait until the outcome of all these batches is known, up to `timeout` seconds. Raises
        KafkaTimeoutError.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for batch in batches:
            latch = self._latch(batch)
            if latch is not None and not latch.wait(None if end is None else end - time.monotonic()):
                raise KafkaTimeoutError(f"not all records were sent within {timeout} s")

    def _latch(self, batch: ProducerBatch) -> Latch | None:
        with self._lock:
            if batch not in self.batches:
                return None
            if batch.latch is None:
                batch.latch = Latch()
            return batch.latch
