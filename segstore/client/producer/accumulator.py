"""Records that wait to be written: a queue of batches per partition, and which are due. Nothing on disk.

Threads: one lock for all of it, which the pool and the queues share. Every method takes it, unless it says
otherwise; nothing slow is done with it held, but a thread that waits for memory gives it up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from segstore.client.producer.batch import ProducerBatch, Waiting
from segstore.client.producer.buffer_pool import BufferPool
from segstore.client.producer.futures import FutureRecordMetadata, run_callback
from segstore.client.producer.latch import LONGEST_WAIT, Latch
from segstore.client.producer.queue import NO_BLOCK, PartitionQueue
from segstore.client.structs import TopicPartition
from segstore.errors import KafkaTimeoutError
from segstore.records import HEADER_SIZE

if TYPE_CHECKING:
    from segstore.client.producer.config import ProducerConfig

MOST_AT_ONCE = 1 << 20
"""Bytes of one partition's batches that are appended together: few enough to stay in a core's cache."""
MOST_SEALED = 32
"""Partitions whose batches are closed by one look for being due: those of the others fill on meanwhile."""
Ready = list[tuple[PartitionQueue, list[ProducerBatch]]]


class Accumulator:
    """`gate` is opened when there is something new for the sender, which sleeps before it."""

    def __init__(self, config: ProducerConfig) -> None:
        self.lock = threading.Lock()
        self._gate, self._asleep = threading.Lock(), False
        self._gate.acquire()
        self._batch_size = max(1, min(config.batch_size, config.buffer_memory, config.max_request_size))
        self._linger, self._max_block = config.linger_ms / 1000, config.max_block_ms / 1000
        self._room = self._batch_size - HEADER_SIZE
        self.pool = BufferPool(config.buffer_memory, self._batch_size, self.lock)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        # In order of their opening, so that the first is due first; the sealed ones in order of sealing.
        self._open: dict[PartitionQueue, None] = {}
        self._sealed: dict[PartitionQueue, None] = {}
        self._backing_off: dict[PartitionQueue, None] = {}
        self._incomplete: dict[ProducerBatch, None] = {}
        self.refusal: BaseException | None = None
        self._ended = False
        self._calling: list[int] = []  # threads that are running callbacks

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's queue, the same each time."""
        with self.lock:
            found = self.queues.get(topic_partition)
            if found is None:
                found = self.queues[topic_partition] = PartitionQueue(self.lock, topic_partition)
            return found

    # --- appending ----------------------------------------------------------------------

    def append(self, queue: PartitionQueue, record: FutureRecordMetadata, size: int) -> None:
        """Put a record of `size` bytes into the open batch, or a new one. BufferExhaustedError; `refusal`."""
        with self.lock:
            self._make_room(queue, size)
            record._holder = queue
            queue.rich = queue.rich or type(record._at) is tuple
            queue.stamped = queue.stamped or type(record._time) is int
            queue.append(record)

    def _make_room(self, queue: PartitionQueue, size: int) -> None:
        while True:
            if self.refusal is not None:
                raise self.refusal
            left = queue.left - size
            if left >= 0:
                queue.left = left
                return
            if queue.left != NO_BLOCK:
                self._seal(queue)
                self._wake()
            if self._open_batch(queue, size):
                return

    def _open_batch(self, queue: PartitionQueue, size: int) -> bool:
        """Whether the batch was opened for this record; False where another thread did meanwhile."""
        room = max(self._room, size)
        block = max(self._batch_size, room + HEADER_SIZE)
        if self.pool.waiting or self.pool.available < block:
            self._wake()  # what lingers is sent now
        self.pool.allocate(block, self._max_block)
        if queue.left != NO_BLOCK or self.refusal is not None:
            self.pool.free(block)
            return False
        queue.open(block, room, time.monotonic())
        queue.left = room - size
        self._open[queue] = None
        if not self._linger or len(self._open) == 1:
            self._wake()
        return True

    def close_batch(self, queue: PartitionQueue) -> None:
        """Send what is open, full or not."""
        with self.lock:
            if queue.left != NO_BLOCK:
                self._seal(queue)
                self._wake()

    def late(self, queue: PartitionQueue) -> None:
        """A record was appended whose batch was sealed at that moment: see that it is sent all the same, or
        fails where the sender has ended meanwhile.
        """
        with self.lock:
            if queue.left != NO_BLOCK or not queue.records:
                return
            self._seal(queue)
            self._wake()
            ended = self._ended
        if ended and self.refusal is not None:
            self.abort(self.refusal)

    def _seal(self, queue: PartitionQueue) -> None:
        self._open.pop(queue, None)
        block = queue.block
        batch = queue.seal(time.monotonic())
        if batch is not None:
            self._incomplete[batch] = None
            self._sealed[queue] = None
        elif block:
            queue.block, queue.left = 0, NO_BLOCK
            self.pool.free(block)

    # --- draining, by the sender --------------------------------------------------------

    def drain(self, now: float) -> tuple[Ready, float | None]:
        """Batches that are due, by partition, each partition's in order; when to look again, in monotonic
        seconds, None where nothing waits. Without any, the sender is to `sleep` until then.
        """
        with self.lock:
            at_once = self.pool.waiting or self.refusal is not None
            for queue in list(islice(self._open, MOST_SEALED)):
                if not at_once and queue.created + self._linger > now:
                    break
                self._seal(queue)
            self._end_backoffs(now)
            taken = [(queue, self._take(queue)) for queue in list(self._sealed)]
            ready = [pair for pair in taken if pair[1]]
            self._asleep = not ready
            return ready, self._next_look()

    def sleep(self, until: float | None) -> None:
        """Return when there is something new, or at `until` (monotonic seconds)."""
        seconds = LONGEST_WAIT if until is None else min(max(until - time.monotonic(), 0), LONGEST_WAIT)
        if self._gate.acquire(timeout=seconds):
            return
        with self.lock:
            if self._asleep:
                self._asleep = False
                return
        # It was opened at the last moment: close it behind us.
        self._gate.acquire()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._gate.release()

    def _end_backoffs(self, now: float) -> None:
        for queue in list(self._backing_off):
            if queue.retry_at <= now:
                del self._backing_off[queue]
                self._sealed[queue] = None

    def _take(self, queue: PartitionQueue) -> list[ProducerBatch]:
        taken: list[ProducerBatch] = []
        size = 0
        batches = queue.batches
        if queue in self._backing_off:
            del self._sealed[queue]
            return taken
        while batches and (not taken or size + batches[0].size <= MOST_AT_ONCE):
            batch = batches.popleft()
            size += batch.size
            taken.append(batch)
        if not batches:
            del self._sealed[queue]
        return taken

    def _next_look(self) -> float | None:
        if self._sealed:
            return 0.0
        looks = [queue.retry_at for queue in self._backing_off]
        if self._open:
            looks.append(next(iter(self._open)).created + self._linger)
        return min(looks, default=None)

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Take batches back that were drained, before all others of their partition; none is drained before
        `retry_at`.
        """
        with self.lock:
            queue.batches.extendleft(reversed(batches))
            queue.retry_at = retry_at
            self._sealed.pop(queue, None)
            self._backing_off[queue] = None

    def complete(self, batches: Sequence[ProducerBatch]) -> None:
        """The outcome of these is in place: run callbacks, then let all go on who wait (as Kafka's does)."""
        called: list[Waiting] = []
        with self.lock:
            for batch in batches:
                batch.forget_records()
                batch.done = True
                if batch.block:
                    self.pool.free(batch.block)
                if batch.callbacks:
                    called += batch.callbacks
                    batch.callbacks = None
        try:
            if called:
                self._call(called)
        finally:
            with self.lock:
                for batch in batches:
                    del self._incomplete[batch]
                    if batch.latch is not None:
                        batch.latch.open()

    def _call(self, called: list[Waiting]) -> None:
        me = threading.get_ident()
        self._calling.append(me)
        try:
            for future, callback, errback in called:
                if future.is_done:
                    run_callback(future, callback, errback)
                else:  # it was registered while its record missed the batch
                    future._when_done(callback, errback)
        finally:
            self._calling.remove(me)

    def in_callback(self) -> bool:
        """Whether this thread is running callbacks, of batches that others, and it, may wait for."""
        return threading.get_ident() in self._calling

    # --- all of it ----------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Have all that was appended sent now, and wait until it is done. KafkaTimeoutError."""
        end = None if timeout is None else time.monotonic() + timeout
        for batch in self._start_flush():
            latch = self._latch(batch)
            if latch is not None and not latch.wait(None if end is None else end - time.monotonic()):
                raise KafkaTimeoutError(f"not all records were sent within {timeout} s")

    def _latch(self, batch: ProducerBatch) -> Latch | None:
        with self.lock:
            if batch not in self._incomplete:
                return None
            if batch.latch is None:
                batch.latch = Latch()
            return batch.latch

    def _start_flush(self) -> list[ProducerBatch]:
        with self.lock:
            for queue in self.queues.values():
                if queue.records:
                    self._seal(queue)
            self._wake()
            return list(self._incomplete)

    def refuse(self, error: BaseException) -> None:
        """Take nothing more; those who wait for memory get `error` too."""
        with self.lock:
            self.refusal = error
            self.pool.close(error)
            self._wake()

    def leave(self, error: BaseException) -> None:
        """As `refuse`, when nobody can send any more. Takes no lock: the garbage collector may call it in a
        thread that holds it.
        """
        if self.refusal is None:
            self.refusal = error
            if self._asleep:
                self._asleep = False
                with contextlib.suppress(RuntimeError):  # another opened it at this moment
                    self._gate.release()

    def end(self) -> bool:
        """Whether the sender may end: nothing waits, and nothing will be taken any more."""
        with self.lock:
            if self.refusal is None:
                return False
            self._ended = self._idle()
            return self._ended

    def idle(self) -> bool:
        """Whether nothing waits."""
        with self.lock:
            return self._idle()

    def _idle(self) -> bool:
        return not (self._incomplete or self._open or any(q.records for q in self.queues.values()))

    def abort(self, error: BaseException) -> None:
        """What has not been written, and is not being written now, fails with `error`."""
        with self.lock:
            for queue in list(self.queues.values()):
                if queue.records:
                    self._seal(queue)
            failed = [batch for queue in self.queues.values() for batch in queue.batches]
            for queue in self.queues.values():
                queue.batches.clear()
            self._sealed.clear()
            self._backing_off.clear()
        for batch in failed:
            batch.error = error
        self.complete(failed)

    def abandon(self, error: BaseException) -> None:
        """In a forked child: nothing will ever be sent. Takes no lock, which another thread may have held."""
        self.refusal = error
        for queue in self.queues.values():
            queue.error, queue.done = error, True
        for batch in self._incomplete:
            batch.error, batch.done = error, True
