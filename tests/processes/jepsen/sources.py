"""Threads of the writing process that produce, and that change topics while others read them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from histories import End, Send
from waiting import PATIENCE

from segstore import Producer

from .telling import AUTO, MOST_PARTITIONS, PLAIN

if TYPE_CHECKING:
    from .writer import Writer


class Source:
    """A producer's thread: its names are unique over all runs."""

    def __init__(self, writer: Writer, name: str) -> None:
        self.writer, self.name = writer, f"{writer.run}:{name}"
        self.rng = random.Random(f"{writer.seed} {self.name}")
        self.sequence = 0

    def _pause(self) -> None:
        """So that members read what came, and wait for more."""
        if not self.writer.calm:
            time.sleep(self.rng.choice((0, 0.02, 0.1)))

    def send(self, producer: Producer, topic: str, count: int, txn: str = "", suffix: str = "") -> None:
        """So many records, and what came of each of them."""
        sent = []
        for _ in range(count):
            part = topic, self.rng.choice(list(self.writer.store.topics()[topic].partition_ids))
            value = f"{self.name}-{self.sequence}{suffix}"
            if txn:  # it is known when a kill comes behind the write
                self.writer.tell(Send(self.name, part, self.sequence, value, -1, txn))
            future = producer.send(topic, value.encode(), partition=part[1])
            sent.append((part, self.sequence, value, future))
            self.sequence += 1
        producer.flush()
        for part, sequence, value, future in sent:
            offset = -1 if future.exception is not None else future.get(timeout=PATIENCE).offset
            self.writer.tell(Send(self.name, part, sequence, value, offset, txn))

    def produce(self, idempotent: bool) -> None:
        """Records of no transaction."""
        size = self.rng.choice((200, 16384))
        with Producer(
            self.writer.store, linger_ms=1, batch_size=size, enable_idempotence=idempotent
        ) as producer:
            while self.sequence < self.writer.sends:
                self.send(producer, self.rng.choice(("t", "t", "short")), 5)
                self._pause()

    def transact(self, transactional_id: str) -> None:
        """Transactions over several partitions. Another source with the same id fences this one, at times."""
        while self.sequence < self.writer.sends:
            with (
                Producer(self.writer.store, transactional_id=transactional_id, linger_ms=1) as producer,
                self.writer.fenced(),
            ):
                producer.init_transactions()
                for _ in range(self.rng.randrange(2, 12)):
                    self._transaction(producer, "t")
                    self._pause()

    def feed(self) -> None:
        """What the exactly-once loop forwards."""
        with Producer(self.writer.store, transactional_id="feed", linger_ms=1) as producer:
            producer.init_transactions()
            while self.sequence < self.writer.sends // 2:
                self._transaction(producer, "a")
                self._pause()

    def _transaction(self, producer: Producer, topic: str) -> None:
        txn = f"{self.name}-{self.sequence}"
        producer.begin_transaction()
        self.send(producer, topic, 8, txn, f"/0#{txn}" if topic == "a" else "")
        if self.rng.random() < 0.3:
            producer.abort_transaction()
            self.writer.tell(End(txn, "aborted"))
        else:
            self.writer.tell(End(txn, "asked"))
            producer.commit_transaction()
            self.writer.tell(End(txn, "committed"))


class Changes:
    """The thread that adds partitions, deletes records and sweeps."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.rng = writer, random.Random(f"{writer.seed} changes")

    def run(self) -> None:
        while self.writer.sources:
            self.rng.choice((self._add_partitions, self._delete, self._delete_short, self._sweep))()
            time.sleep(0.1)

    def _add_partitions(self) -> None:
        topic = self.rng.choice(("t", "short", "a"))
        there = self.writer.store.topics()[topic].partitions
        if there < MOST_PARTITIONS and self.rng.random() < 0.3:
            self.writer.store.add_partitions(topic, there + 1)

    def _delete(self) -> None:
        """What both groups have committed."""
        part = "t", self.rng.choice(list(self.writer.store.topics()["t"].partition_ids))
        offset = min(self.writer.committed(group).get(part, 0) for group in (PLAIN, AUTO))
        self.writer.store.partition(*part).delete_records(offset // 2)

    def _delete_short(self) -> None:
        """What nobody may have read."""
        log = self.writer.store.partition("short", self.rng.randrange(2))
        log.delete_records(self.rng.randint(log.start_offset, log.high_watermark))

    def _sweep(self) -> None:
        self.writer.store.sweep()
