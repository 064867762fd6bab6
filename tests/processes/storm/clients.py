"""Clients under a storm: producers, transactions, groups, asyncio, staging."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import segstore
from segstore.storage.staging import Stager
from segstore.storage.staging.seal import adopt

from .striking import Striker, opened

CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
STAGED = 8  # records of each message to the inbox


class Clients:
    """Each step makes its clients, and ends them; the store goes on."""

    def __init__(self, directory: Path, striker: Striker) -> None:
        self.path, self.striker, self.rng = directory / "store", striker, striker.rng
        self.number = 0
        self.store = self._open()
        for topic in ("plain", "a", "b", "staged"):
            self.store.create_topic(topic, config={"segment.bytes": 200_000})
        self.steps: dict[str, tuple[int, Callable[[], None]]] = {
            "produce": (5, self.produce),
            "transact": (5, self.transact),
            "consume": (4, self.consume),
            "asyncio": (2, self.run_asyncio),
            "stage": (3, self.stage),
            "reopen": (1, self.reopen),
        }

    def _open(self) -> segstore.Store:
        return segstore.open(self.path, config=CONFIG)

    def step(self) -> None:
        """One client's life, struck, and what must be true behind it."""
        weights = [weight for weight, _ in self.steps.values()]
        (name,) = self.rng.choices(list(self.steps), weights)
        self.steps[name][1]()

    def _values(self, n: int) -> list[bytes]:
        self.number += 1
        return [b"%d.%d" % (self.number, i) for i in range(n)]

    def _committed(self, topic: str, start: int) -> list[bytes | None]:
        log = self.store.partition(topic)
        found: list[bytes | None] = []
        while start < log.last_stable_offset:
            records = log.read(start, isolation_level="read_committed")
            found += [record.value for record in records]
            start = records.next_offset
        return found

    # --- producers --------------------------------------------------------------------------

    def produce(self) -> None:
        """What was acknowledged is there once, and what was not told to have failed."""
        strike, before = self.striker.strike, self.store.partition("plain").end_offset
        producer = segstore.Producer(self.store, linger_ms=self.rng.choice([0, 1]), batch_size=500)
        sent = []
        for value in self._values(20):
            strike("send", lambda value=value: sent.append((value, producer.send("plain", value))))
        strike("get", lambda: sent and self.rng.choice(sent)[1].get(timeout=60))
        strike("producer flush", producer.flush)
        strike("producer close", producer.close)
        producer.close()
        found = self._committed("plain", before)
        for value, future in sent:
            assert future.is_done, value
            assert future.failed() or found.count(value) == 1, (value, found)
        assert len(set(found)) == len(found), found

    def transact(self) -> None:
        """Both partitions have all of a transaction, or neither has anything of it."""
        strike, store = self.striker.strike, self.store
        before = {topic: store.partition(topic).end_offset for topic in "ab"}
        done: list[bool] = []
        values = self._values(6)
        producer = segstore.Producer(store, transactional_id="t")
        strike("init_transactions", producer.init_transactions)

        def run() -> None:
            producer.begin_transaction()
            for value in values:
                producer.send("ab"[len(value) % 2], value)
                producer.send("b", value)
                producer.send("a", value)
            producer.commit_transaction()
            done.append(True)

        with contextlib.suppress(segstore.SegstoreError):  # it is not in a state for that any more
            producer.init_transactions()
            strike("transaction", run)
        strike("producer close", producer.close)
        producer.close()
        segstore_producer = segstore.Producer(store, transactional_id="t")
        segstore_producer.init_transactions()  # ends what was left open
        segstore_producer.close()
        found = {topic: self._committed(topic, before[topic]) for topic in "ab"}
        for topic in "ab":
            log = store.partition(topic)
            assert log.last_stable_offset == log.end_offset
            assert set(found[topic]) in (set(), set(values)), found
        assert set(found["a"]) == set(found["b"]), found
        assert not done or found["a"], found

    # --- consumers --------------------------------------------------------------------------

    def consume(self) -> None:
        """A member that is struck locks nobody out: the next one goes on behind what was committed."""
        strike, store = self.striker.strike, self.store
        store.partition("plain").append_batch(self._values(5))
        group, log = f"g{self.number % 3}", store.partition("plain")
        one = segstore.TopicPartition("plain", 0)
        # Timeouts as they are by default: nobody is to wait until a session has ended.
        settings = {"group_id": group, "auto_offset_reset": "earliest"}
        consumer = segstore.Consumer(store, "plain", **settings)
        for _ in range(3):
            strike("poll", lambda: consumer.poll(timeout_ms=20))
            strike("commit", consumer.commit)
        strike("consumer close", consumer.close)
        consumer.close()
        with segstore.Consumer(store, "plain", **settings) as other:
            while not other.assignment():
                other.poll(timeout_ms=100)
            at = other.position(one)
            assert at <= log.end_offset
            records = [record for polled in other.poll(timeout_ms=1000).values() for record in polled]
            assert at == log.end_offset or records[0].offset == at, (at, log.end_offset)
            other.seek_to_end(one)
            other.commit()

    def run_asyncio(self) -> None:
        """Without a handler of asyncio's own: the loop ends wherever it is."""
        store, values = self.store, self._values(10)
        before = store.partition("plain").end_offset

        async def main() -> None:
            async with segstore.AsyncProducer(store) as producer:
                for value in values:
                    await producer.send("plain", value)
                await producer.flush()
            async with segstore.AsyncConsumer(store, "plain") as consumer:
                await consumer.poll(timeout_ms=20)

        def run() -> None:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(main())
                ended.append(True)
            finally:
                loop.close()

        ended: list[bool] = []
        self.striker.strike("asyncio", run)
        # The producer of a loop that was left before sends what it holds later.
        found = [value for value in self._committed("plain", before) if value in values]
        assert not ended or found == values, found
        assert len(set(found)) == len(found), found

    # --- staging ----------------------------------------------------------------------------

    def stage(self) -> None:
        """Staged records are appended once, all of them or none."""
        store, values = self.store, self._values(STAGED)
        log, before = store.partition("staged"), store.partition("staged").end_offset
        messages = []

        def run() -> None:
            with Stager(self.path) as stager:
                stager.append_batch("staged", 0, values)
                messages.append(stager.finish())

        if self.striker.strike("stage", run):
            ended = self.striker.strike("adopt", lambda: adopt(store, f"id-{self.number}", messages))
            store.writer().inbox._lock.acquire()  # what goes on behind an interrupt has ended then
            store.writer().inbox._lock.release()
            # What was sealed before an interrupt came, the store may adopt at any later look.
            came = [value for value in self._committed("staged", before) if value in values]
            assert came == values or (not ended and not came), (ended, came)
        log.append(b"behind")
        if log.end_offset > 1000:
            log.delete_records(log.end_offset)

    def reopen(self) -> None:
        ends = {topic: self.store.partition(topic).end_offset for topic in ("plain", "a", "b", "staged")}
        self.striker.strike("close", self.store.close)
        self.store.close()
        self.store = opened(self.striker, self._open)
        for topic, end in ends.items():
            log = self.store.partition(topic)
            # Producers of loops that were left before send what they hold until the store is closed, and what
            # was sealed behind an interrupt is adopted: whole, and once.
            late = self._committed(topic, end)
            assert log.end_offset >= end, (topic, end, log.end_offset)
            assert len(set(late)) == len(late), (topic, end, late)
            assert topic == "plain" or len(late) % STAGED == 0, (topic, end, late)
            assert topic in ("plain", "staged") or not late, (topic, end, late)
            log.delete_records(log.last_stable_offset)

    def end(self) -> None:
        self.reopen()
        self.store.close()
        found = segstore.check(self.path)
        assert found == [], found
