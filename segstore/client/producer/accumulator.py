"""`Accumulator`: stores the records that wait to be written, in a queue of batches for each partition, and
decides which batches are due.

Threads: any. The parts of a producer share one lock. Every method takes the lock, unless the method's
docstring says that it does not. Nothing slow is done while the lock is held, and a thread that waits for
memory does not hold the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from segstore._native._producer import Sleep
from segstore.client.producer.batch import PartitionQueue, ProducerBatch
from segstore.client.producer.buffer_pool import BufferPool, Waiter
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.incomplete_batches import Incomplete
from segstore.client.producer.lock import ProducerLock
from segstore.coordinator.structs import TopicPartition
from segstore.errors import copy_of
from segstore.mutex import check_apart
from segstore.records import HEADER_SIZE
from segstore.threads import others_are_gone

if TYPE_CHECKING:
    from segstore._native._producer import Post, Sending
    from segstore.client.producer.config import ProducerConfig


# --- schedule ----------------------------------------------------------------------------------

# `Schedule`: the partitions with an open batch, with sealed batches, or with batches that wait for a retry,
# and the times when these batches are due. Threads: every caller holds the producer's lock.

MOST_TAKEN = 8 << 20
"""The largest number of bytes of one partition's batches that the sender takes at once."""
MOST_SEALED = 32
"""The largest number of open batches that the sender seals at once. While the sender writes these batches,
more records are added to the other open batches.
"""
Ready = list[tuple[PartitionQueue, list[ProducerBatch]]]


class Schedule:
    """The schedule of a producer's batches. `linger` is in seconds. `open` has the queues with an open batch,
    in the order in which the batches were opened, so that the first queue is due first. `sealed` has the
    queues with sealed batches, in the order in which the batches were sealed. The C code adds queues to
    `open` without the lock, so each read of `open` must be a single step.
    """

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self.open: dict[PartitionQueue, None] = {}
        self.sealed: dict[PartitionQueue, None] = {}
        self.backing_off: dict[PartitionQueue, None] = {}

    def overdue(self, now: float, at_once: bool) -> list[PartitionQueue]:
        """Return at most MOST_SEALED queues whose open batches must be sealed now; the oldest batch comes
        first. A batch must be sealed after `linger` seconds, or at once if `at_once`.
        """
        due: list[PartitionQueue] = []
        for queue in list(islice(self.open, MOST_SEALED)):
            if not at_once and queue.created + self._linger > now:
                break
            due.append(queue)
        return due

    def take(self, now: float) -> Ready:
        """Remove and return the sealed batches by partition. The batches of a partition are in order."""
        for queue in list(self.backing_off):
            if queue.retry_at <= now:
                del self.backing_off[queue]
                self.sealed[queue] = None
        ready: Ready = []
        for queue in list(self.sealed):
            batches, size = queue.batches, 0
            taken: list[ProducerBatch] = []
            if queue not in self.backing_off:
                while batches and (not taken or size + batches[0].size <= MOST_TAKEN):
                    batch = batches.popleft()
                    size += batch.size
                    taken.append(batch)
                if taken:
                    ready.append((queue, taken))
                if batches:
                    continue
            del self.sealed[queue]
        return ready

    def next_look(self) -> float:
        """Return the time, in monotonic seconds, when the next batch is due. There must be a waiting
        batch.
        """
        if self.sealed:
            return 0.0
        looks = [queue.retry_at for queue in self.backing_off]
        if self.open:
            first = list(islice(self.open, 1))
            looks.append(first[0].created + self._linger)
        return min(looks)

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Put batches back at the head of their queue, after `take` has returned them. `take` skips the queue
        until `retry_at`.
        """
        queue.batches.extendleft(reversed(batches))
        queue.retry_at = retry_at
        self.sealed.pop(queue, None)
        self.backing_off[queue] = None

    def clear(self) -> None:
        """Drop all sealed batches from the schedule."""
        self.sealed.clear()
        self.backing_off.clear()


# --- gate --------------------------------------------------------------------------------------

# `Gate`: makes the sender sleep until the sender has work. Threads: only the sender sleeps; any thread may
# wake the sender.

LONGEST_WAIT = threading.TIMEOUT_MAX


class Gate(Sleep):
    """The sleep of the sender. Before the sender calls `sleep`, it takes the producer's lock and sets
    `asleep`.
    """

    def __init__(self, lock: ProducerLock) -> None:
        self._lock, self.gate = lock, threading.Lock()
        self.gate.acquire()

    def sleep(self, until: float | None) -> None:
        """Sleep until another thread calls `wake`, or until the time `until` (monotonic seconds). Takes the
        lock.
        """
        seconds = -1 if until is None else min(max(until - time.monotonic(), 0), LONGEST_WAIT)
        if self.gate.acquire(timeout=seconds):
            return
        with self._lock:
            if self.asleep:
                self.asleep = False
                return
        # A `wake` came just after the time-out and has released `gate`: acquire it again.
        self.gate.acquire()


# --- accumulator ------------------------------------------------------------


class Accumulator:
    """The waiting records of one producer. `gate` wakes the sleeping sender when there is work. `incomplete`
    has the sealed batches whose outcome is not known yet.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.lock = ProducerLock()
        self.gate = Gate(self.lock)
        batch_size = max(1, min(config.batch_size, config.buffer_memory, config.max_request_size))
        self._linger, self._max_block = config.linger_ms / 1000, config.max_block_ms / 1000
        self._room = batch_size - HEADER_SIZE
        self.pool = BufferPool(config.buffer_memory, batch_size)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._schedule = Schedule(self._linger)
        # `_full` has the queues in which the C code has filled a batch.
        self._full: list[PartitionQueue] = []
        self.incomplete = Incomplete(self.lock, self.pool)
        self._refused: list[BaseException] = []
        # `_aborted` has the aborted batches whose futures do not have the error yet.
        self._aborted: list[ProducerBatch] = []
        self._abortion: BaseException | None = None
        # The sender calls these functions when `incomplete` is empty.
        self._after: list[Callable[[], None]] = []
        self._ended = False

    @property
    def refusal(self) -> BaseException | None:
        """Return the error with which new records are refused, or None if new records are accepted."""
        return self._refused[0] if self._refused else None

    @refusal.setter
    def refusal(self, error: BaseException) -> None:
        self._refused[:] = (error,)

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue. Every call returns the same object."""
        with self.lock:
            queue = self.queues.get(topic_partition)
            if queue is None:
                queue = self.queues[topic_partition] = PartitionQueue(self.lock, topic_partition)
            return queue

    def lend(self, sending: Sending) -> None:
        """Pass to the C code of `send` the objects with which it appends records and begins batches."""
        sending.pool, sending.full, sending.room = self.pool, self._full, self._room
        sending.gate, sending.open, sending.refused = self.gate, self._schedule.open, self._refused
        sending.at_once, sending.time = not self._linger, time

    def lend_sender(self, post: Post) -> None:
        """Pass to the C code of the sender the objects with which it appends single records and sleeps."""
        schedule = self._schedule
        post.lock, post.pool, post.gate, post.time = self.lock, self.pool, self.gate, time
        post.full, post.open, post.refused = self._full, schedule.open, self._refused
        post.sealed, post.backing_off, post.linger = schedule.sealed, schedule.backing_off, self._linger

    # --- appending ----------------------------------------------------------------------

    def append(self, queue: PartitionQueue, record: FutureRecordMetadata, size: int) -> None:
        """Put a record of `size` bytes into the open batch. If there is no open batch with room for it, wait
        for memory, and put the record into a new batch. Raises BufferExhaustedError, and `self.refusal` if it
        is set.
        """
        if not self.put(queue, record, size):
            check_apart("send()")
            block = max(self._room, size) + HEADER_SIZE
            self.pool.wait_until(partial(self.put, queue, record, size), block, self._max_block)

    def put(
        self, queue: PartitionQueue, record: FutureRecordMetadata, size: int, waiter: Waiter | None = None
    ) -> bool:
        """Put a record into the open batch, or into a new batch if no open batch has room for it. Return
        False if there is no memory for a new batch. Raises `self.refusal` if it is set.
        """
        with self.lock:
            if self._refused:
                raise copy_of(self._refused[0])
            left = queue.left - size
            try:
                if left >= 0:
                    queue.left = left
                elif not self._open_batch(queue, size, waiter):
                    return False
                record._holder = queue
                queue.rich = queue.rich or record._key is not None or type(record._value) is tuple
                queue.records.append(record)
                return True
            finally:
                # The sender is woken after all other work, because a woken sender competes with this thread
                # for the GIL.
                if left < 0 and (not self._linger or len(self._schedule.open) == 1):
                    self.gate.wake()

    def _open_batch(self, queue: PartitionQueue, size: int, waiter: Waiter | None) -> bool:
        """Seal the open batch, if there is one. Then open a new batch for a record of `size` bytes. Return
        False if there is no memory for the new batch.
        """
        queue.held = True
        while queue.block:
            self._seal(queue)
            self.gate.wake()
            # `_seal` has set `held` to False. True keeps the C code from opening a batch.
            queue.held = True
        room, queue.created = size if size > self._room else self._room, time.monotonic()
        # The queue is added before `allocate` is called. If an interrupt comes between, the sender finds the
        # queue and its allocated block in `open`, and frees the block.
        self._schedule.open[queue] = None
        if not self.pool.allocate(room + HEADER_SIZE, waiter, queue):
            self._schedule.open.pop(queue, None)
            queue.held = False
            # The sender is woken, because memory becomes free when it sends the lingering batches.
            self.gate.wake()
            return False
        queue.room, queue.left, queue.held = room, room - size, False
        return True

    def close_batch(self, queue: PartitionQueue) -> None:
        """Seal the open batch even if it is not full, so that the sender sends it."""
        with self.lock:
            if queue.block:
                self._seal(queue)
                self.gate.wake()

    def _seal(self, queue: PartitionQueue) -> None:
        queue.held = True
        queue.seal(True, self.incomplete.batches, self._schedule.sealed)
        if queue.block:
            # The open batch has no record, so `seal` made no batch of it.
            self.pool.give_back(queue)
        self._schedule.open.pop(queue, None)
        queue.held = False

    def _seal_all(self) -> None:
        for queue in list(self.queues.values()):
            if queue.records or queue.block:
                self._seal(queue)

    # --- draining, by the sender --------------------------------------------------------

    def drain(self, now: float) -> tuple[Ready, float | None]:
        """Return (due batches by partition, time of the next call). The batches of a partition are in order.
        The time is in monotonic seconds, or None if no batch waits. If no batch is due, the sender must call
        `gate.sleep` with the returned time.
        """
        with self.lock:
            schedule = self._schedule
            if self._full:
                full = self._full[:]
                del self._full[: len(full)]
                for queue in full:
                    if queue.seal(False, self.incomplete.batches, schedule.sealed):
                        self._full.append(queue)
                    if queue in schedule.open:
                        # The queue's open batch is newer than those of all other queues, so the queue moves
                        # to the end.
                        del schedule.open[queue]
                        schedule.open[queue] = None
            if schedule.open:
                at_once = bool(self._refused) or bool(self.pool.waiters and self.pool.waiting)
                for queue in schedule.overdue(now, at_once):
                    self._seal(queue)
            ready = schedule.take(now) if schedule.sealed or schedule.backing_off else []
            self.gate.asleep = not ready
            # Just before `asleep` was set, the C code may have filled a batch, or a thread may have added a
            # function to `_after`: neither wakes a sender that is not asleep.
            if self._full or self._has_work():
                return ready, 0.0
            look = schedule.next_look() if schedule.sealed or schedule.backing_off or schedule.open else None
            return ready, look

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Put batches back at the head of `queue`, after `drain` has returned them. `drain` skips the queue
        until `retry_at` (monotonic seconds).
        """
        with self.lock:
            self._schedule.put_back(queue, batches, retry_at)

    def work(self) -> None:
        """Call the functions that `after_all` has stored, if all outcomes are known. Takes no lock."""
        while self._has_work():
            self._after.pop(0)()

    def _has_work(self) -> bool:
        return bool(self._after) and not self.incomplete.batches

    # --- all records --------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Make all appended records due now, and wait for the outcomes of these records. Raises
        KafkaTimeoutError.
        """
        self.incomplete.wait(self.hand_over(), timeout)

    def hand_over(self) -> list[ProducerBatch]:
        """Make all appended records due now. Return the batches whose outcome is not known yet."""
        if self._aborted:
            self._fail_aborted()
        with self.lock:
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def after_all(self, work: Callable[[], None]) -> None:
        """Make all appended records due now. When all outcomes are known, the sender calls `work` (Kafka: the
        requests of TransactionManager). If the sender has stopped, this thread calls `work`.
        """
        if self._aborted:
            self._fail_aborted()
        with self.lock:
            self._seal_all()
            has_sender = not (self._ended or others_are_gone())
            if has_sender:
                self._after.append(work)
            self.gate.wake()
        if not has_sender:
            work()

    def hurry(self) -> None:
        """Make all records due now, including those in batches that wait for a retry."""
        with self.lock:
            for queue in self._schedule.backing_off:
                queue.retry_at = 0.0
        self.hand_over()

    def idle(self) -> bool:
        """Return whether no record waits."""
        with self.lock:
            return self._idle()

    def _idle(self) -> bool:
        waiting = self.incomplete.batches or self._schedule.open
        return not (waiting or any(queue.records for queue in self.queues.values()))

    # --- closing ------------------------------------------------------------------------

    def refuse(self, error: BaseException) -> list[ProducerBatch]:
        """Refuse new records with `error`, including records that wait for memory. Make all appended records
        due now. Return the batches whose outcome is not known yet.
        """
        with self.lock:
            self.refusal = error
            self.pool.wake()
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def leave(self, error: BaseException) -> None:
        """Refuse new records because the producer was dropped without `close`. Takes no lock, because the
        garbage collector may call this in a thread that holds the lock.
        """
        if self.refusal is None:
            self.refusal = error
            self.gate.wake()

    def end(self) -> bool:
        """Return whether the sender may stop: new records are refused, no record waits, and `after_all` has
        stored no function.
        """
        with self.lock:
            if self.refusal is None:
                return False
            self._ended = self._idle() and not self._after
            return self._ended

    def abort(self, error: BaseException) -> None:
        """Fail, with `error`, all records except those of batches that the sender is sending."""
        self._abortion = error
        try:
            self._take_all()
            self._fail_aborted()
        except BaseException:
            # If a second interrupt prevents this call, the next `hand_over` makes it.
            self._fail_aborted()
            raise

    def _take_all(self) -> None:
        with self.lock:
            self._seal_all()
            for queue in self.queues.values():
                # No interrupt comes between these two statements, because they call no Python function. So a
                # batch is always in exactly one of the two lists.
                self._aborted += queue.batches
                queue.batches *= 0
            self._schedule.clear()

    def _fail_aborted(self) -> None:
        failed = self._aborted[:]
        for batch in failed:
            batch.error = self._abortion
        self.incomplete.complete(failed)
        with self.lock:
            self._aborted = [batch for batch in self._aborted if batch in self.incomplete.batches]
            # The sender is woken, because a function in `_after` may be due now.
            self.gate.wake()

    def abandon(self, error: BaseException) -> None:
        """Called in a forked child: fail all records. Takes no lock, because another thread may have held it
        at the time of the fork.
        """
        self.refusal = error
        for queue in self.queues.values():
            queue.error, queue.done = error, True
        for batch in self.incomplete.batches:
            batch.error, batch.done = error, True
