"""One reader lives through many writers in other processes: each works at random, then closes or is killed.

What the reader has seen stays as it was, it misses no record, and it needs no more descriptors, mappings and
threads in the end than in the beginning.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import record

import segstore
from segstore import Consumer, OffsetOutOfRangeError, TopicPartition, UnknownTopicOrPartitionError
from segstore.errors import StoreClosedError

pytestmark = pytest.mark.kind("kills")

WRITERS, STEPS = 16, 25
PLAIN, COMPACTED, FLEETING = "plain", "compacted", "fleeting"
CONFIG = {
    PLAIN: {"segment.bytes": 4_000, "retention.bytes": 12_000, "file.delete.delay.ms": 0},
    COMPACTED: {
        "segment.bytes": 4_000, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01,
        "file.delete.delay.ms": 0,
    },
    FLEETING: {"segment.bytes": 4_000},
}  # fmt: skip


class Writer:
    """One life of the store's writer, in a forked child."""

    def __init__(self, path: Path, number: int, seed: str, tell: int) -> None:
        self.path, self.number, self.rng, self._tell = path, number, random.Random(seed), tell

    def run(self) -> None:
        with segstore.open(self.path) as self.store:
            for topic, config in CONFIG.items():
                if topic not in self.store.topics():
                    self.store.create_topic(topic, config=config)
            for step in range(STEPS):
                self.rng.choice(
                    (self.append, self.append, self.append, self.sweep, self.cut, self.anew, self.alter)
                )(step)
                os.write(self._tell, b".")

    def append(self, step: int) -> None:
        for topic in CONFIG:
            values = [
                b"%d.%d.%d " % (self.number, step, i) + b"x" * 200 for i in range(self.rng.randrange(1, 9))
            ]
            keys = [b"%d" % self.rng.randrange(5) for _ in values]
            self.store.partition(topic).append_batch(values, keys=keys)

    def sweep(self, step: int) -> None:
        self.store.sweep()

    def cut(self, step: int) -> None:
        log = self.store.partition(PLAIN)
        if log.end_offset > log.start_offset:
            log.delete_records(self.rng.randrange(log.start_offset, log.end_offset))

    def anew(self, step: int) -> None:
        self.store.delete_topic(FLEETING)
        self.store.create_topic(FLEETING, config=CONFIG[FLEETING])

    def alter(self, step: int) -> None:
        self.store.alter_topic(PLAIN, {"retention.bytes": self.rng.choice((8_000, 12_000, 20_000))})


class Reader:
    """It has its store, logs and consumer from the first round to the last."""

    def __init__(self, path: Path) -> None:
        self.store = segstore.open(path, "r")
        self.logs = {topic: self.store.partition(topic) for topic in (PLAIN, COMPACTED)}
        self.consumer = Consumer(self.store, auto_offset_reset="earliest")
        self.consumer.assign([TopicPartition(topic, 0) for topic in self.logs])
        self.given: dict[tuple[str, int], tuple[bytes | None, bytes | None]] = {}
        self.ends = dict.fromkeys(self.logs, 0)

    def look(self) -> None:
        self._poll()
        for topic, log in self.logs.items():
            end = log.end_offset
            assert end >= self.ends[topic], f"{topic}: the end went back from {self.ends[topic]} to {end}"
            self.ends[topic] = end
            for offset, said in contents(log):
                assert self.given.setdefault((topic, offset), said) == said, (topic, offset)
        self._look_at_the_fleeting()

    def _poll(self) -> None:
        before = {tp: self.consumer.position(tp) for tp in self.consumer.assignment()}
        for tp, records in self.consumer.poll().items():
            offsets = [each.offset for each in records]
            assert offsets == sorted(set(offsets))
            assert offsets[0] >= before[tp]
            for each in records:
                said = (each.key, each.value)
                assert self.given.setdefault((tp.topic, each.offset), said) == said

    def _look_at_the_fleeting(self) -> None:
        try:
            found = list(contents(self.store.partition(FLEETING)))
        except (StoreClosedError, UnknownTopicOrPartitionError):
            return  # it was deleted just then
        assert [offset for offset, _ in found] == list(range(len(found)))

    def gone(self) -> list[str]:
        """Files of this store that it has open or mapped although their names are gone. An index that
        recovery made anew beside a log that stays is replaced under its name, and may stay mapped as it was.
        """
        there = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        there += [line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines()]
        ours = ["/" + each.strip("/") for each in there if str(self.store.path) in f"/{each}"]
        names = [each.removesuffix(" (deleted)") for each in ours if each.endswith(" (deleted)")]
        return [each for each in names if not Path(each).exists()]

    def close(self) -> None:
        self.consumer.close()
        self.store.close()


def contents(log: segstore.PartitionLog) -> Iterator[tuple[int, Any]]:
    """Everything that is there; where retention passes by, it goes on behind it."""
    at = log.start_offset
    while at < log.end_offset:
        try:
            records = log.read(at)
        except OffsetOutOfRangeError:
            at = log.start_offset
            continue
        yield from ((each.offset, (each.key, each.value)) for each in records)
        at = max(records.next_offset, at + 1)


def live(path: Path, number: int, rng: random.Random, reader: Reader | None) -> None:
    """One writer's life, the reader beside it: it ends by itself, or is killed after some of its steps."""
    steps = rng.choice((None, rng.randrange(1, STEPS)))
    reading, writing = os.pipe()
    seed = f"{rng.random()}"
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(reading)
            Writer(path, number, seed, writing).run()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    done = 0
    while (steps is None or done < steps) and (came := os.read(reading, 100)):
        done += len(came)
        if reader is not None:
            reader.look()
    if steps is not None:
        os.kill(pid, signal.SIGKILL)
        record("processes killed")
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), f"the writer ended with {status}"
    if reader is not None:
        reader.look()


def test_a_reader_outlives_its_writers(store_dir: Path, rng: random.Random) -> None:
    live(store_dir, 0, random.Random("whole"), None)
    with segstore.open(store_dir) as store:
        for topic, config in CONFIG.items():
            if topic not in store.topics():
                store.create_topic(topic, config=config)
    reader = Reader(store_dir)
    try:
        live(store_dir, 1, rng, reader)
        threads = threading.active_count()
        for number in range(2, WRITERS):
            live(store_dir, number, rng, reader)
        reader.look()
        assert reader.gone() == []
        assert threading.active_count() <= threads
        with segstore.open(store_dir):
            pass
        reader.look()
        reader._poll()
        last = {topic: dict(contents(log)) for topic, log in reader.logs.items()}
        for topic, found in last.items():
            for offset, said in found.items():
                assert reader.given[topic, offset] == said
    finally:
        reader.close()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_records_that_were_read_outlive_all(store_dir: Path, how: str) -> None:
    """Values are made on access: they are still those when the segment, the topic and the writer are gone."""

    def work() -> None:
        store = segstore.open(store_dir)
        store.create_topic(PLAIN, config=CONFIG[PLAIN])
        store.partition(PLAIN).append_batch([b"%d" % i * 100 for i in range(200)])
        store.close()

    work()
    with segstore.open(store_dir, "r") as reader:
        records = reader.partition(PLAIN).read(0, 1 << 30)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                store = segstore.open(store_dir)
                store.delete_topic(PLAIN)
                store.create_topic(PLAIN)
                store.partition(PLAIN).append_batch([b"other"] * 200)
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == (signal.SIGKILL if how == "killed" else 0)
        assert list(records.values) == [b"%d" % i * 100 for i in range(200)]
        assert list(reader.partition(PLAIN).read(0).values)[:1] == [b"other"]
