"""A consume-transform-produce loop that is killed twenty times: each record comes out once with transactions,
at least once without them.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import segstore
from segstore import Consumer, OffsetAndMetadata, Producer, TopicPartition

pytestmark = pytest.mark.kind("kills")

CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PARTITIONS, RECORDS, KILLS, SPARE = 2, 2400, 20, 10
COMMITTED = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
Told = Callable[[], object]
Work = Callable[[Path, Told, int], None]


def fill(path: Path) -> None:
    """The input: of each four transactions the last is aborted."""
    with segstore.open(path, config=CONFIG) as store:
        store.create_topic("in", partitions=PARTITIONS)
        store.create_topic("out", partitions=PARTITIONS)
        with Producer(store, transactional_id="source") as producer:
            producer.init_transactions()
            for first in range(0, RECORDS, 40):
                for commit in (False, True) if first % 160 == 120 else (True,):
                    producer.begin_transaction()
                    for i in range(first, first + 40):
                        value = b"%d" % i if commit else b"aborted"
                        producer.send("in", value, partition=i % PARTITIONS)
                    producer.commit_transaction() if commit else producer.abort_transaction()


def transform(value: bytes) -> bytes:
    return b"<%s>" % value


def positions(consumer: Consumer) -> dict[TopicPartition, OffsetAndMetadata]:
    return {tp: OffsetAndMetadata(consumer.position(tp)) for tp in consumer.assignment()}


def exactly_once(path: Path, told: Told, seed: int) -> None:
    """The loop; it ends when all of the input was read."""
    rng = random.Random(seed)
    with (
        segstore.open(path, config=CONFIG) as store,
        Producer(store, transactional_id="loop") as producer,
        Consumer(
            store, "in", group_id="g", enable_auto_commit=False, max_poll_records=7, **COMMITTED
        ) as consumer,
    ):
        producer.init_transactions()
        while rest(store, consumer):
            polled = consumer.poll(timeout_ms=50)
            if not polled:
                continue
            before = {tp: records[0].offset for tp, records in polled.items()}
            producer.begin_transaction()
            for tp, records in polled.items():
                for record in records:
                    producer.send("out", transform(record.value), partition=tp.partition)
            producer.send_offsets_to_transaction(positions(consumer), consumer.group_metadata())
            if rng.random() < 0.1:
                producer.abort_transaction()
                for tp, offset in before.items():
                    consumer.seek(tp, offset)
            else:
                producer.commit_transaction()
            told()


def at_least_once(path: Path, told: Told, seed: int) -> None:
    """Without transactions: what was sent is flushed, then the offsets are committed."""
    with (
        segstore.open(path, config=CONFIG) as store,
        Producer(store) as producer,
        Consumer(
            store, "in", group_id="g", enable_auto_commit=False, max_poll_records=7, **COMMITTED
        ) as consumer,
    ):
        while rest(store, consumer):
            for tp, records in consumer.poll(timeout_ms=50).items():
                for record in records:
                    producer.send("out", transform(record.value), partition=tp.partition)
            producer.flush()
            told()
            consumer.commit()


def rest(store: segstore.Store, consumer: Consumer) -> bool:
    assigned = consumer.assignment()
    return len(assigned) < PARTITIONS or any(
        consumer.position(tp) < store.partition(*tp).end_offset for tp in assigned
    )


def run(work: Work, path: Path, seed: int, rounds: int | None = None, pause: float = 0.0) -> int:
    """In a child that is killed `pause` seconds after so many rounds, or runs to its end: its status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status, done = 1, itertools.count(1)

        def told() -> None:
            """A child that is killed late has gone on for a few rounds only: the input must last."""
            os.write(writing, b".")
            if rounds is not None and next(done) == rounds + SPARE:
                signal.pause()

        try:
            work(path, told, seed)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    left = rounds
    while (left is None or left > 0) and os.read(reading, 1):
        left = None if left is None else left - 1
    if rounds is not None:
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
    os.close(reading)
    return os.waitpid(pid, 0)[1]


def output(path: Path) -> list[list[bytes | None]]:
    found = []
    with segstore.open(path, mode="r") as store:
        for partition in range(PARTITIONS):
            log, values, at = store.partition("out", partition), [], 0
            while at < log.last_stable_offset:
                records = log.read(at, isolation_level="read_committed")
                values += [record.value for record in records]
                at = records.next_offset
            found.append(values)
    return found


MODEL = [[transform(b"%d" % i) for i in range(p, RECORDS, PARTITIONS)] for p in range(PARTITIONS)]


@pytest.mark.parametrize("work", [exactly_once, at_least_once])
def test_a_loop_that_is_killed_again_and_again(store_dir: Path, rng: random.Random, work: Work) -> None:
    fill(store_dir)
    ends = [run(work, store_dir, i, rng.randrange(4), rng.random() / 250) for i in range(KILLS)]
    assert run(work, store_dir, KILLS) == 0
    found = output(store_dir)
    if work is exactly_once:
        assert ends == [signal.SIGKILL] * KILLS
        assert found == MODEL
    else:
        for values, expected in zip(found, MODEL, strict=True):
            assert list(dict.fromkeys(values)) == expected
