"""One partition's records that wait: the open ones, and a deque of sealed batches. Nothing on disk.

Threads: `append` by any thread without the lock (`list.append` is atomic); everything else with the
producer's lock held, but for `left`, see `Producer.send`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from segstore.client.producer.batch import ProducerBatch, Waiting
from segstore.client.producer.buffer_pool import Owner
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.lock import ProducerLock
from segstore.coordinator.structs import TopicPartition
from segstore.threads import Latch

NO_BLOCK = -1


class PartitionQueue(Owner):
    """`left`: bytes that the open batch still takes, NO_BLOCK where none is open.

    A record that was appended while its batch was being sealed lies in the list without a block until the
    next batch is opened, or sealed by whoever finds it there.
    """

    __slots__ = (
        *("append", "batches", "callbacks", "created", "done", "error", "latch", "left", "lock"),
        *("produced", "records", "retry_at", "rich", "room", "stamped", "topic_partition"),
    )

    def __init__(self, lock: ProducerLock, topic_partition: TopicPartition) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.records: list[FutureRecordMetadata] = []
        self.append = self.records.append
        self.batches: deque[ProducerBatch] = deque()
        self.left = NO_BLOCK
        super().__init__()  # `block`: bytes of the pool that the open batch holds
        self.room = 0  # bytes of records that it had room for
        self.created = 0.0  # when it was opened, monotonic seconds
        # Whether a record ever had more than a value, or a time of its own. Set before it is appended and
        # never taken back: no record lies in a batch that does not know.
        self.rich = self.stamped = False
        self.produced = 0  # bytes that were ever sealed
        self.retry_at = 0.0  # nothing is sent before, monotonic seconds
        self.latch: Latch | None = None
        self.callbacks: list[Waiting] | None = None
        # Set where the open records will never be sealed: in a forked child.
        self.done = False
        self.error: BaseException | None = None

    def error_of(self, at: Any) -> BaseException | None:
        """What failed for every open record."""
        return self.error

    def seal(
        self, now: float, incomplete: dict[ProducerBatch, None], sealed: dict[PartitionQueue, None]
    ) -> ProducerBatch | None:
        """Make a batch of the open records, at the deque's end, and tell the two; None where there are none.

        An interrupt leaves it undone, or done.
        """
        size, self.left = self.room - max(self.left, 0), NO_BLOCK
        # Only now: who appends after this sees that the batch is closed, and calls `late`.
        records = self.records
        taken = records[:]
        n = len(taken)
        if not n:
            return None
        values, times = [r._at for r in taken], [r._time for r in taken]
        batch = ProducerBatch(self.lock, self.topic_partition, values, times, self.rich, self.stamped)
        batch.created, batch.size = self.created if self.block else now, size
        # Up to the deque nothing is called: no interrupt comes in between.
        batch.block, self.block, self.room = self.block, 0, 0
        batch.latch, self.latch = self.latch, None
        batch.callbacks, self.callbacks = self.callbacks, None
        self.produced += size
        del records[:n]
        incomplete[batch] = sealed[self] = None
        batch.unplaced = taken
        self.batches += (batch,)
        try:
            batch.place()
        except BaseException:
            batch.place()  # and where that is interrupted too, when the outcome is known
            raise
        return batch
