"""Records that wait to be written: a queue of batches per partition, and which are due. Nothing on disk.

Threads: one lock for all of it, which the parts share. Every method takes it, unless it says otherwise;
nothing slow is done with it held, and no thread waits for memory with it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from segstore.client.producer.batch import NO_BLOCK, PartitionQueue, ProducerBatch
from segstore.client.producer.buffer_pool import BufferPool, Waiter
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.incomplete_batches import Incomplete
from segstore.client.producer.lock import ProducerLock
from segstore.coordinator.structs import TopicPartition
from segstore.errors import copy_of
from segstore.mutex import check_apart
from segstore.records import HEADER_SIZE

if TYPE_CHECKING:
    from segstore.client.producer.config import ProducerConfig


# --- schedule ----------------------------------------------------------------------------------

# `Schedule`: which partitions have an open batch, sealed ones, or some that are tried again later; what of
# that is due. Nothing on disk.
#
# Threads: with the producer's lock held.

MOST_AT_ONCE = 1 << 20
"""Bytes of one partition's batches that are appended together: few enough to stay in a core's cache."""
MOST_SEALED = 32
"""Partitions whose batches are closed by one look for being due: those of the others fill on meanwhile."""
Ready = list[tuple[PartitionQueue, list[ProducerBatch]]]


class Schedule:
    """`linger` in seconds. `open` is in order of opening, so that the first is due first; `sealed` in that of
    sealing.
    """

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self.open: dict[PartitionQueue, None] = {}
        self.sealed: dict[PartitionQueue, None] = {}
        self.backing_off: dict[PartitionQueue, None] = {}

    def overdue(self, now: float, at_once: bool) -> list[PartitionQueue]:
        """Those whose open batches are to be sealed now: who lingers long enough, or some of all."""
        some = islice(self.open, MOST_SEALED)
        return list(some if at_once else takewhile(lambda queue: queue.created + self._linger <= now, some))

    def take(self, now: float) -> Ready:
        """Sealed batches, by partition, each partition's in order."""
        for queue in list(self.backing_off):
            if queue.retry_at <= now:
                del self.backing_off[queue]
                self.sealed[queue] = None
        taken = [(queue, self._take(queue)) for queue in list(self.sealed)]
        return [pair for pair in taken if pair[1]]

    def _take(self, queue: PartitionQueue) -> list[ProducerBatch]:
        taken: list[ProducerBatch] = []
        size = 0
        batches = queue.batches
        if queue in self.backing_off:
            del self.sealed[queue]
            return taken
        while batches and (not taken or size + batches[0].size <= MOST_AT_ONCE):
            batch = batches.popleft()
            size += batch.size
            taken.append(batch)
        if not batches:
            del self.sealed[queue]
        return taken

    def next_look(self) -> float | None:
        """When something is due next, monotonic seconds; None: nothing waits."""
        if self.sealed:
            return 0.0
        looks = [queue.retry_at for queue in self.backing_off]
        if self.open:
            looks.append(next(iter(self.open)).created + self._linger)
        return min(looks, default=None)

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """As `Accumulator.put_back`."""
        queue.batches.extendleft(reversed(batches))
        queue.retry_at = retry_at
        self.sealed.pop(queue, None)
        self.backing_off[queue] = None

    def clear(self) -> None:
        """No sealed batch is left."""
        self.sealed.clear()
        self.backing_off.clear()


# --- gate --------------------------------------------------------------------------------------

# `Gate`: where the sender sleeps until there is something new. Nothing on disk.
#
# Threads: the sender sleeps; any wakes it, with the producer's lock held, but for `wake_from_anywhere`.

LONGEST_WAIT = threading.TIMEOUT_MAX


class Gate:
    """`asleep`: set with the producer's `lock` held by who is going to `sleep` then."""

    def __init__(self, lock: ProducerLock) -> None:
        self._lock, self._gate = lock, threading.Lock()
        self._gate.acquire()
        self.asleep = False

    def sleep(self, until: float | None) -> None:
        """Return when there is something new, or at `until` (monotonic seconds). Takes the lock."""
        seconds = LONGEST_WAIT if until is None else min(max(until - time.monotonic(), 0), LONGEST_WAIT)
        if self._gate.acquire(timeout=seconds):
            return
        with self._lock:
            if self.asleep:
                self.asleep = False
                return
        # It was opened at the last moment: close it behind us.
        self._gate.acquire()

    def wake(self) -> None:
        """There is something new."""
        if self.asleep:
            self.asleep = False
            self._gate.release()

    def wake_from_anywhere(self) -> None:
        """As `wake`, without the lock: this thread may hold it in another frame."""
        with contextlib.suppress(RuntimeError):  # another opened it at this moment
            self.wake()


# --- accumulator ------------------------------------------------------------


class Accumulator:
    """`gate` is opened when there is something new for the sender, which sleeps before it. `incomplete` knows
    the batches that were sealed, until their outcome is known.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.lock = ProducerLock()
        self.gate = Gate(self.lock)
        self._batch_size = max(1, min(config.batch_size, config.buffer_memory, config.max_request_size))
        self._linger, self._max_block = config.linger_ms / 1000, config.max_block_ms / 1000
        self._room = self._batch_size - HEADER_SIZE
        self.pool = BufferPool(config.buffer_memory, self._batch_size)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._schedule = Schedule(self._linger)
        self.incomplete = Incomplete(self.lock, self.pool)
        self.refusal: BaseException | None = None
        self._ended = False

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
        if not self._put(queue, record, size):
            check_apart("send()")
            self.pool.wait_until(partial(self._put, queue, record, size), self._block(size), self._max_block)

    def _put(
        self, queue: PartitionQueue, record: FutureRecordMetadata, size: int, waiter: Waiter | None = None
    ) -> bool:
        """`append`, if there is memory for a batch that it needs; False: there is none."""
        with self.lock:
            if not self._make_room(queue, size, waiter):
                return False
            record._holder = queue
            queue.rich = queue.rich or type(record._at) is tuple
            queue.stamped = queue.stamped or type(record._time) is int
            queue.append(record)
            return True

    def _make_room(self, queue: PartitionQueue, size: int, waiter: Waiter | None) -> bool:
        if self.refusal is not None:
            raise copy_of(self.refusal)
        left = queue.left - size
        if left >= 0:
            queue.left = left
            return True
        if queue.block:
            self._seal(queue)
            self.gate.wake()
        return self._open_batch(queue, size, waiter)

    def _block(self, size: int) -> int:
        """Bytes of memory that a new batch takes for a first record of `size`."""
        return max(self._batch_size, size + HEADER_SIZE)

    def _open_batch(self, queue: PartitionQueue, size: int, waiter: Waiter | None) -> bool:
        room, queue.created = max(self._room, size), time.monotonic()
        # First: where an interrupt comes behind `allocate`, the sender finds the block, and gives it back.
        self._schedule.open[queue] = None
        if not self.pool.allocate(self._block(size), waiter, queue):
            self._schedule.open.pop(queue, None)
            self.gate.wake()  # what lingers is sent now
            return False
        queue.room, queue.left = room, room - size
        if not self._linger or len(self._schedule.open) == 1:
            self.gate.wake()
        return True

    def close_batch(self, queue: PartitionQueue) -> None:
        """Send what is open, full or not."""
        with self.lock:
            if queue.block:
                self._seal(queue)
                self.gate.wake()

    def late(self, queue: PartitionQueue) -> None:
        """A record was appended whose batch was sealed at that moment: see that it is sent all the same, or
        fails where the sender has ended meanwhile.
        """
        with self.lock:
            if queue.left != NO_BLOCK or not queue.records:
                return
            self._seal(queue)
            self.gate.wake()
            ended = self._ended
        if ended and self.refusal is not None:
            self.abort(self.refusal)

    def _seal(self, queue: PartitionQueue) -> None:
        if queue.seal(time.monotonic(), self.incomplete.batches, self._schedule.sealed) is None:
            self.pool.give_back(queue)
        self._schedule.open.pop(queue, None)

    def _seal_all(self) -> None:
        for queue in list(self.queues.values()):
            if queue.records or queue.block:
                self._seal(queue)

    # --- draining, by the sender --------------------------------------------------------

    def drain(self, now: float) -> tuple[Ready, float | None]:
        """Batches that are due, by partition, each partition's in order; when to look again, in monotonic
        seconds, None where nothing waits. Without any, the sender is to sleep at the gate until then.
        """
        with self.lock:
            at_once = bool(self.pool.waiting) or self.refusal is not None
            for queue in self._schedule.overdue(now, at_once):
                self._seal(queue)
            ready = self._schedule.take(now)
            self.gate.asleep = not ready
            return ready, self._schedule.next_look()

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Take batches back that were drained, before all others of their partition; none is drained before
        `retry_at`.
        """
        with self.lock:
            self._schedule.put_back(queue, batches, retry_at)

    # --- all of it ----------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Have all that was appended sent now, and wait until it is done. KafkaTimeoutError."""
        self.incomplete.wait(self.hand_over(), timeout)

    def hand_over(self) -> list[ProducerBatch]:
        """Have all that was appended sent now: the batches whose outcome is not known yet."""
        with self.lock:
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def hurry(self) -> None:
        """Hand all that waits to the sender now, what is to be tried again later too."""
        with self.lock:
            for queue in self._schedule.backing_off:
                queue.retry_at = 0.0
        self.hand_over()

    def idle(self) -> bool:
        """Whether nothing waits."""
        with self.lock:
            return self._idle()

    def _idle(self) -> bool:
        waiting = self.incomplete.batches or self._schedule.open
        return not (waiting or any(queue.records for queue in self.queues.values()))

    # --- the end ------------------------------------------------------------------------

    def refuse(self, error: BaseException) -> list[ProducerBatch]:
        """Take nothing more; those who wait for memory get `error` too. What was taken, as `hand_over`."""
        with self.lock:
            self.refusal = error
            self.pool.wake()
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def leave(self, error: BaseException) -> None:
        """As `refuse`, when nobody can send any more. Takes no lock: the garbage collector may call it in a
        thread that holds it.
        """
        if self.refusal is None:
            self.refusal = error
            self.gate.wake_from_anywhere()

    def end(self) -> bool:
        """Whether the sender may end: nothing waits, and nothing will be taken any more."""
        with self.lock:
            if self.refusal is None:
                return False
            self._ended = self._idle()
            return self._ended

    def abort(self, error: BaseException) -> None:
        """What has not been written, and is not being written now, fails with `error`."""
        failed: list[ProducerBatch] = []
        try:
            with self.lock:
                self._seal_all()
                for queue in self.queues.values():
                    failed += queue.batches
                    queue.batches.clear()
                self._schedule.clear()
        finally:
            for batch in failed:
                batch.error = error
            self.incomplete.complete(failed)

    def abandon(self, error: BaseException) -> None:
        """In a forked child: nothing will ever be sent. Takes no lock, which another thread may have held."""
        self.refusal = error
        for queue in self.queues.values():
            queue.error, queue.done = error, True
        for batch in self.incomplete.batches:
            batch.error, batch.done = error, True
