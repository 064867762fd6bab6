"""`Accumulator`: the records that wait to be written, in a queue of batches per partition, and which
batches are due.

Threads: one lock for all of it, the producer's, which its parts share. Every method takes the lock, unless
its docstring says otherwise. Nothing slow is done under the lock, and no thread waits for memory with it.
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

# `Schedule`: which partitions have an open batch, sealed batches, or batches that wait for a retry, and which
# of them are due. Threads: with the producer's lock held.

MOST_TAKEN = 8 << 20
"""The bytes of one partition's batches that the sender takes together."""
MOST_SEALED = 32
"""The partitions whose open batches one look may seal; the batches of the others fill on meanwhile."""
Ready = list[tuple[PartitionQueue, list[ProducerBatch]]]


class Schedule:
    """`linger` is in seconds. `open` is in the order of opening, so that the first is due first; `sealed`
    in the order of sealing. C puts queues into `open` without the lock, so each look at it is one step.
    """

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self.open: dict[PartitionQueue, None] = {}
        self.sealed: dict[PartitionQueue, None] = {}
        self.backing_off: dict[PartitionQueue, None] = {}

    def overdue(self, now: float, at_once: bool) -> list[PartitionQueue]:
        """Return the partitions whose open batches are to be sealed now: those that lingered long enough,
        or with `at_once` some of all.
        """
        due: list[PartitionQueue] = []
        for queue in list(islice(self.open, MOST_SEALED)):
            if not at_once and queue.created + self._linger > now:
                break
            due.append(queue)
        return due

    def take(self, now: float) -> Ready:
        """Return sealed batches by partition, each partition's in order."""
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
        """Return when something is due next, in monotonic seconds; some batch waits."""
        if self.sealed:
            return 0.0
        looks = [queue.retry_at for queue in self.backing_off]
        if self.open:
            first = list(islice(self.open, 1))
            looks.append(first[0].created + self._linger)
        return min(looks)

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Take batches back, see `Accumulator.put_back`."""
        queue.batches.extendleft(reversed(batches))
        queue.retry_at = retry_at
        self.sealed.pop(queue, None)
        self.backing_off[queue] = None

    def clear(self) -> None:
        """Forget all sealed batches."""
        self.sealed.clear()
        self.backing_off.clear()


# --- gate --------------------------------------------------------------------------------------

# `Gate`: where the sender sleeps until there is something to do. Threads: the sender sleeps; any thread wakes
# it.

LONGEST_WAIT = threading.TIMEOUT_MAX


class Gate(Sleep):
    """`asleep` is set by the sender, with the producer's lock held, before it calls `sleep`."""

    def __init__(self, lock: ProducerLock) -> None:
        self._lock, self.gate = lock, threading.Lock()
        self.gate.acquire()

    def sleep(self, until: float | None) -> None:
        """Return when the gate is opened, or at `until` (monotonic seconds). Takes the lock."""
        seconds = -1 if until is None else min(max(until - time.monotonic(), 0), LONGEST_WAIT)
        if self.gate.acquire(timeout=seconds):
            return
        with self._lock:
            if self.asleep:
                self.asleep = False
                return
        # The gate was opened at the last moment: close it again.
        self.gate.acquire()


# --- accumulator ------------------------------------------------------------


class Accumulator:
    """`gate` is opened when there is work for the sender, which sleeps before it. `incomplete` has the
    sealed batches until their outcome is known.
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
        self._full: list[PartitionQueue] = []  # queues that C has begun batches in
        self.incomplete = Incomplete(self.lock, self.pool)
        self._refused: list[BaseException] = []
        self._aborted: list[ProducerBatch] = []  # until their outcome is known
        self._abortion: BaseException | None = None
        self._after: list[Callable[[], None]] = []  # work that the sender does when no sealed batch is left
        self._ended = False

    @property
    def refusal(self) -> BaseException | None:
        """Return why no more records are taken; None where they are."""
        return self._refused[0] if self._refused else None

    @refusal.setter
    def refusal(self, error: BaseException) -> None:
        self._refused[:] = (error,)

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue, which is always the same object."""
        with self.lock:
            found = self.queues.get(topic_partition)
            if found is None:
                found = self.queues[topic_partition] = PartitionQueue(self.lock, topic_partition)
            return found

    def lend(self, sending: Sending) -> None:
        """Let C append records and begin batches."""
        sending.pool, sending.full, sending.room = self.pool, self._full, self._room
        sending.gate, sending.open, sending.refused = self.gate, self._schedule.open, self._refused
        sending.at_once, sending.time = not self._linger, time

    def lend_sender(self, post: Post) -> None:
        """Let C append single records, and sleep."""
        schedule = self._schedule
        post.lock, post.pool, post.gate, post.time = self.lock, self.pool, self.gate, time
        post.full, post.open, post.refused = self._full, schedule.open, self._refused
        post.sealed, post.backing_off, post.linger = schedule.sealed, schedule.backing_off, self._linger

    # --- appending ----------------------------------------------------------------------

    def append(self, queue: PartitionQueue, record: FutureRecordMetadata, size: int) -> None:
        """Put a record of `size` bytes into the open batch, or a new one. Raises BufferExhaustedError, and
        `refusal`.
        """
        if not self.put(queue, record, size):
            check_apart("send()")
            block = max(self._room, size) + HEADER_SIZE
            self.pool.wait_until(partial(self.put, queue, record, size), block, self._max_block)

    def put(
        self, queue: PartitionQueue, record: FutureRecordMetadata, size: int, waiter: Waiter | None = None
    ) -> bool:
        """Append as `append` does; return False where a new batch is needed and there is no memory for it.
        Raises `refusal`.
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
                # Last: the sender waits for the interpreter from the moment that it wakes.
                if left < 0 and (not self._linger or len(self._schedule.open) == 1):
                    self.gate.wake()

    def _open_batch(self, queue: PartitionQueue, size: int, waiter: Waiter | None) -> bool:
        """Open a batch for a first record of `size`, in place of the one that is open."""
        queue.held = True
        while queue.block:
            self._seal(queue)
            self.gate.wake()
            queue.held = True  # C may have opened a batch meanwhile
        room, queue.created = size if size > self._room else self._room, time.monotonic()
        # First: where an interrupt comes after `allocate`, the sender finds the block, and gives it back.
        self._schedule.open[queue] = None
        if not self.pool.allocate(room + HEADER_SIZE, waiter, queue):
            self._schedule.open.pop(queue, None)
            queue.held = False
            self.gate.wake()  # what lingers is sent now
            return False
        queue.room, queue.left, queue.held = room, room - size, False
        return True

    def close_batch(self, queue: PartitionQueue) -> None:
        """Have the open batch sent, full or not."""
        with self.lock:
            if queue.block:
                self._seal(queue)
                self.gate.wake()

    def _seal(self, queue: PartitionQueue) -> None:
        queue.held = True
        queue.seal(True, self.incomplete.batches, self._schedule.sealed)
        if queue.block:  # without a record
            self.pool.give_back(queue)
        self._schedule.open.pop(queue, None)
        queue.held = False

    def _seal_all(self) -> None:
        for queue in list(self.queues.values()):
            if queue.records or queue.block:
                self._seal(queue)

    # --- draining, by the sender --------------------------------------------------------

    def drain(self, now: float) -> tuple[Ready, float | None]:
        """Return the batches that are due, by partition, each partition's in order; and when to look again,
        in monotonic seconds, None where nothing waits. If no batch is due, the sender shall sleep at the
        gate until then.
        """
        with self.lock:
            schedule = self._schedule
            if self._full:
                full = self._full[:]
                del self._full[: len(full)]
                for queue in full:
                    if queue.seal(False, self.incomplete.batches, schedule.sealed):
                        self._full.append(queue)
                    if queue in schedule.open:  # its open batch is younger than those of before
                        del schedule.open[queue]
                        schedule.open[queue] = None
            if schedule.open:
                at_once = bool(self._refused) or bool(self.pool.waiters and self.pool.waiting)
                for queue in schedule.overdue(now, at_once):
                    self._seal(queue)
            ready = schedule.take(now) if schedule.sealed or schedule.backing_off else []
            self.gate.asleep = not ready
            # C has just cut, and found the sender awake, or the queue told of already; or work came so.
            if self._full or self._has_work():
                return ready, 0.0
            look = schedule.next_look() if schedule.sealed or schedule.backing_off or schedule.open else None
            return ready, look

    def put_back(self, queue: PartitionQueue, batches: Sequence[ProducerBatch], retry_at: float) -> None:
        """Take drained batches back, before all others of their partition; none of them is drained before
        `retry_at`.
        """
        with self.lock:
            self._schedule.put_back(queue, batches, retry_at)

    def work(self) -> None:
        """Do the work of `after_all` whose time has come. Takes no lock."""
        while self._has_work():
            self._after.pop(0)()

    def _has_work(self) -> bool:
        return bool(self._after) and not self.incomplete.batches

    # --- all of it ----------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Have all that was appended sent now, and wait for its outcome. Raises KafkaTimeoutError."""
        self.incomplete.wait(self.hand_over(), timeout)

    def hand_over(self) -> list[ProducerBatch]:
        """Have all that was appended sent now; return the batches whose outcome is not known yet."""
        if self._aborted:
            self._fail_aborted()
        with self.lock:
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def after_all(self, work: Callable[[], None]) -> None:
        """Have all that was appended sent now, and the sender do `work` when it knows the outcome (Kafka: the
        requests of TransactionManager). If the sender has ended, this thread does it.
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
        """Give all that waits to the sender now, also what waits for a retry."""
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

    # --- the end ------------------------------------------------------------------------

    def refuse(self, error: BaseException) -> list[ProducerBatch]:
        """Take no more records; threads that wait for memory get `error` too. Return the batches, as
        `hand_over` does.
        """
        with self.lock:
            self.refusal = error
            self.pool.wake()
            self._seal_all()
            self.gate.wake()
            return list(self.incomplete.batches)

    def leave(self, error: BaseException) -> None:
        """Refuse records when no sender will send any more. Takes no lock: the garbage collector may call
        this in a thread that holds it.
        """
        if self.refusal is None:
            self.refusal = error
            self.gate.wake()

    def end(self) -> bool:
        """Return whether the sender may end: no record waits, and none will be taken."""
        with self.lock:
            if self.refusal is None:
                return False
            self._ended = self._idle() and not self._after
            return self._ended

    def abort(self, error: BaseException) -> None:
        """Fail with `error` what has not been written and is not being written now."""
        self._abortion = error
        try:
            self._take_all()
            self._fail_aborted()
        except BaseException:
            self._fail_aborted()  # and where that is interrupted too, by `hand_over`
            raise

    def _take_all(self) -> None:
        with self.lock:
            self._seal_all()
            for queue in self.queues.values():
                # No function is called here, so that no interrupt leaves a batch in both lists, or in none.
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
            self.gate.wake()  # there may be work

    def abandon(self, error: BaseException) -> None:
        """Send nothing ever again, in a forked child. This takes no lock, which another thread may have held
        at the fork.
        """
        self.refusal = error
        for queue in self.queues.values():
            queue.error, queue.done = error, True
        for batch in self.incomplete.batches:
            batch.error, batch.done = error, True
