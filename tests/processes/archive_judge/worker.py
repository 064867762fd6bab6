"""`python -m archive_judge.worker DEFECT WORK SEED ...`: a process of a round, which runs until it is killed.

write STORE              appends, ends transactions, commits offsets, compacts, deletes, makes topics anew
archive STORE URI TOLD   archives the store, and notes in TOLD what it was told; dies at a call of the
                         archive's objects that the seed draws, if any
restore URI TARGET       restores; dies at such a call, too
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from faulty_objects import AFTER, BEFORE, FaultyObjects

import segstore
from segstore.archiving import archive as archive_module
from segstore.archiving import restore as restore_module
from segstore.errors import ArchiveFencedError

from . import defects
from .told import GROUP, MADE_ANEW, PARTITIONS, TOPICS, ToldFile, ends_of

KILLED, CALLS = 0.4, 60
"""How often a process dies at one of its calls, and at most at which."""
REFUSED = 0.2


class Writer:
    def __init__(self, store: segstore.Store, rng: random.Random) -> None:
        self.store, self.rng, self.life, self.number = store, rng, rng.randrange(1 << 40), 0
        for name, config in TOPICS.items():
            if name not in store.topics():
                store.create_topic(name, PARTITIONS, config)
        self.pairs = segstore.Producer(store, transactional_id="pairs")
        self.pairs.init_transactions()
        self.steps: list[tuple[int, Callable[[], object]]] = [
            *((20, self.plain), (10, self.pair), (10, self.keyed), (5, self.short), (2, self.commit)),
            *((1, self.sweep), (1, self.again)),
        ]

    def run(self) -> None:
        weights = [weight for weight, _ in self.steps]
        while True:
            self.rng.choices(self.steps, weights)[0][1]()
            if self.rng.random() < 0.1:
                time.sleep(self.rng.random() * 0.02)

    def value(self) -> bytes:
        self.number += 1
        return b"%d-%d %s" % (self.life, self.number, b"x" * self.rng.randrange(200))

    def log(self, topic: str) -> Any:
        return self.store.partition(topic, self.rng.randrange(PARTITIONS))

    def plain(self) -> None:
        self.log("plain").append_batch([self.value() for _ in range(self.rng.randrange(1, 20))])

    def keyed(self) -> None:
        self.log("compacted").append(self.value(), key=b"%d" % self.rng.randrange(8))

    def short(self) -> None:
        self.log("short").append(self.value())

    def pair(self) -> None:
        """A transaction with one value in both partitions."""
        value = self.value()
        self.pairs.begin_transaction()
        for number in range(PARTITIONS):
            self.pairs.send("pairs", value, partition=number)
        if self.rng.random() < 0.5:
            self.pairs.flush()
            time.sleep(self.rng.random() * 0.02)
        end = self.pairs.commit_transaction if self.rng.random() < 0.8 else self.pairs.abort_transaction
        end()

    def commit(self) -> None:
        with segstore.Consumer(self.store, group_id=GROUP, enable_auto_commit=False) as consumer:
            part = segstore.TopicPartition("plain", 0)
            consumer.assign([part])
            consumer.commit({part: segstore.OffsetAndMetadata(self.store.partition("plain", 0).end_offset)})

    def sweep(self) -> None:
        self.store.sweep()

    def again(self) -> None:
        if MADE_ANEW in self.store.topics():
            self.store.delete_topic(MADE_ANEW)
        self.store.create_topic(MADE_ANEW)
        self.store.partition(MADE_ANEW).append(self.value())


def write(rng: random.Random, path: str) -> None:
    with segstore.open(path, config={"offsets.topic.num.partitions": 2}) as store:
        Writer(store, rng).run()


def struck(rng: random.Random) -> type[FaultyObjects]:
    """Return a class of objects at one of whose calls the process dies, or of which some are refused."""
    dies, at, when = rng.random() < KILLED, rng.randrange(CALLS), rng.choice((BEFORE, AFTER))
    refused, first = rng.random() < REFUSED, rng.randrange(CALLS)

    class Struck(FaultyObjects):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            if dies:
                self.kill_at(at, when)
            if refused:
                self.refuse(first, 3)

    return Struck


def archive(rng: random.Random, path: str, uri: str, told: str) -> None:
    archive_module.RemoteFiles = struck(rng)  # type: ignore[misc]
    file = ToldFile(Path(told))
    with segstore.open(path, "r") as store, suppress(ArchiveFencedError):
        interval = rng.choice((5, 20, 100, 500))
        with segstore.archive(
            path, uri, interval_ms=interval, grace_ms=rng.choice((0, 200, 600_000))
        ) as running:
            while True:
                ends = ends_of(store)
                if rng.random() < 0.5:
                    if running.wait_archived(2_000):
                        file.add(ends)
                else:
                    lags = running.lag()
                    known = {key: lags[key[0], key[2]].records for key in ends if (key[0], key[2]) in lags}
                    file.add({key: ends[key] - lag for key, lag in known.items() if lag >= 0})
                    time.sleep(rng.random() * 0.05)


def restore(rng: random.Random, uri: str, target: str) -> None:
    restore_module.RemoteFiles = struck(rng)  # type: ignore[misc]
    segstore.restore(uri, target)


if __name__ == "__main__":
    faulthandler.enable()
    defects.plant(sys.argv[1])
    work: dict[str, Callable[..., None]] = {"write": write, "archive": archive, "restore": restore}
    work[sys.argv[2]](random.Random(sys.argv[3]), *sys.argv[4:])
