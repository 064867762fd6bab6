"""One partition's records that wait: the open ones, and a deque of sealed batches. Nothing on disk.

Threads: `append` by any thread without the lock (`list.append` is atomic); everything else with the
producer's lock held, but for `left`, see `Producer.send`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from segstore.client.producer.batch import ProducerBatch, Waiting
from segstore.client.producer.futures import FutureRecordMetadata
from segstore.client.producer.latch import Latch
from segstore.client.structs import TopicPartition

NO_BLOCK = -1


class PartitionQueue:
    """`left`: bytes that the open batch still takes, NO_BLOCK where none is open.

    A record that was appended while its batch was being sealed lies in the list without a block until the
    next batch is opened, or sealed by whoever finds it there.
    """

    __slots__ = (
        *("append", "batches", "block", "callbacks", "created", "done", "error", "latch", "left", "lock"),
        *("produced", "records", "retry_at", "rich", "room", "stamped", "topic_partition"),
    )

    def __init__(self, lock: threading.Lock, topic_partition: TopicPartition) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.records: list[FutureRecordMetadata] = []
        self.append = self.records.append
        self.batches: deque[ProducerBatch] = deque()
        self.left = NO_BLOCK
        self.block = 0  # bytes of the pool that the open batch holds
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

    def open(self, block: int, room: int, now: float) -> None:
        """Begin a batch that holds `block` bytes of the pool and takes `room` bytes of records."""
        self.block, self.room, self.left, self.created = block, room, room, now

    def seal(self, now: float) -> ProducerBatch | None:
        """Make a batch of the open records, at the deque's end; None where there are none."""
        records = self.records
        n = len(records)
        if not n:
            return None
        taken = records[:n]
        values, times = [r._at for r in taken], [r._time for r in taken]
        batch = ProducerBatch(self.lock, self.topic_partition, values, times, self.rich, self.stamped)
        batch.block, batch.created = self.block, self.created if self.block else now
        batch.size = self.room - max(self.left, 0)
        batch.latch, self.latch = self.latch, None
        batch.callbacks, self.callbacks = self.callbacks, None
        self.produced += batch.size
        self.block = self.room = 0
        self.left = NO_BLOCK
        for at, record in enumerate(taken):
            record._at, record._time = at, 0  # the less the garbage collector finds in a future the better
            record._holder = batch
        # Only now: a record that came meanwhile stays behind those.
        del records[:n]
        self.batches.append(batch)
        return batch
