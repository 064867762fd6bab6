"""`Schedule`: which partitions have an open batch, sealed ones, or some that are tried again later; what of
that is due. Nothing on disk.

Threads: with the producer's lock held.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile

from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.queue import PartitionQueue

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
