"""Threads of the process that has the store, beside its consumers: producers, and changes of topics, of the
group's settings and of the clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from queue_events import Noted

from segstore import Producer
from segstore.coordinator.group_settings import group_settings
from segstore.errors import SegstoreError

from .plan import GROUP, MOST_PARTITIONS
from .told import now

if TYPE_CHECKING:
    from .owner import Owner

BATCH = (1, 1, 3, 10, 40)
STEP_MS = 600_000
"""Less than message.timestamp.after.max.ms: a step back may come between a record's time and its append."""


class SteppedClock:
    """The wall clock in ms, which jumps."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.step


class Source:
    """Sends records in batches of all sizes, in transactions too, of which some are aborted."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.owner, self.name = owner, f"{owner.life}:{name}"
        self.rng = random.Random(f"{owner.plan.seed} {self.name}")
        self.sent = 0

    def run(self) -> None:
        while not self.owner.is_over():
            if self.rng.random() < 0.3:
                self._transact()
            else:
                with Producer(self.owner.store, linger_ms=5) as producer:
                    for _ in range(self.rng.randrange(1, 12)):
                        self._send(producer)

    def _transact(self) -> None:
        with Producer(self.owner.store, transactional_id=self.name, linger_ms=5) as producer:
            producer.init_transactions()
            for _ in range(self.rng.randrange(1, 4)):
                producer.begin_transaction()
                for _ in range(self.rng.randrange(1, 4)):
                    self._send(producer)
                if self.rng.random() < 0.4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()

    def _send(self, producer: Producer) -> None:
        topic = self.rng.choice(self.owner.plan.topics)
        partition = self.rng.choice(list(self.owner.store.topics()[topic].partition_ids))
        for _ in range(self.rng.choice(BATCH)):
            self.sent += 1
            key = b"%d" % self.rng.randrange(20)
            producer.send(topic, f"{self.name}-{self.sent}".encode(), key=key, partition=partition)
        producer.flush()
        time.sleep(self.rng.choice((0.01, 0.03, 0.1)))


class Changes:
    """Does what the plan names, now and then."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.rng = owner, random.Random(f"{owner.plan.seed} changes {owner.life}")
        self.calls: dict[str, Callable[[], str]] = {
            "records deleted": self._delete,
            "swept": self._sweep,
            "partitions added": self._add_partitions,
            "clock stepped": self._step,
            "limit changed": self._limit,
        }

    def run(self) -> None:
        while self.owner.plan.beside and not self.owner.is_over():
            time.sleep(self.rng.uniform(0.05, 0.5))
            what = self.rng.choice(self.owner.plan.beside)
            try:
                self.owner.tell(Noted(f"{what}: {self.calls[what]()}", now()))
            except SegstoreError as error:
                self.owner.tell(Noted(f"{what}: {error!r}", now()))

    def _delete(self) -> str:
        topic = self.rng.choice(self.owner.plan.topics)
        number = self.rng.choice(list(self.owner.store.topics()[topic].partition_ids))
        log = self.owner.store.partition(topic, number)
        span = log.high_watermark - log.start_offset
        offset = log.start_offset + int(span * self.rng.choice((0.1, 0.3, 0.3, 0.9)))
        log.delete_records(offset)
        return f"{topic}-{number} below {offset}"

    def _sweep(self) -> str:
        return str(len(self.owner.store.sweep()))

    def _add_partitions(self) -> str:
        topic = self.rng.choice(self.owner.plan.topics)
        there = self.owner.store.topics()[topic].partitions
        if there < MOST_PARTITIONS:
            self.owner.store.add_partitions(topic, there + 1)
        return f"{topic} has {there}"

    def _step(self) -> str:
        self.owner.clock.step += self.rng.choice((-2, -1, 1, 2)) * STEP_MS
        return str(self.owner.clock.step)

    def _limit(self) -> str:
        limit = self.rng.choice(self.owner.plan.limits)
        group_settings(self.owner.store).alter(GROUP, {"share.delivery.count.limit": limit})
        return str(limit)
