"""Logs of many kinds, by which a short way of reading is compared with the long way. On disk: topic "t" of a
store, which is closed. Threads: one.
"""

from __future__ import annotations

import random
from pathlib import Path

from compaction import Writer, clean, open_compacted, roll
from stores import Clock

import segstore


def some(rng: random.Random, n: int, most: int) -> list[bytes | None]:
    return [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(most)) for _ in range(n)]


def headers(rng: random.Random, n: int) -> list[list[tuple[str, bytes | None]]]:
    kinds: list[list[tuple[str, bytes | None]]] = [[], [], [], [("h", b"x")], [("é", None), ("", b"")]]
    return [rng.choice(kinds) for _ in range(n)]


def mixed(path: Path, rng: random.Random, **config: object) -> None:
    """Batches of all sizes and codecs, with and without keys, values and headers, in several segments."""
    settings = {"segment.bytes": 60_000, "index.interval.bytes": rng.choice([1, 500, 4096])}
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config=settings | config)
        log = store.partition("t")
        for _ in range(40):
            n = rng.randrange(1, 120)
            codec = rng.choice(["none", "none", "none", "zstd", "gzip"])
            room = rng.choice([1, 700, 4096, 65536])
            values, keys = some(rng, n, rng.choice([2, 60, 400])), some(rng, n, 30)
            log.append_batch(values, keys, headers=headers(rng, n), compression=codec, batch_bytes=room)


def by_append_time(path: Path, rng: random.Random) -> None:
    mixed(path, rng, **{"message.timestamp.type": "LogAppendTime"})


def from_later_on(path: Path, rng: random.Random) -> None:
    mixed(path, rng)
    with segstore.open(path) as store:
        log = store.partition("t")
        log.delete_records(log.end_offset // 3)


def compacted(path: Path, rng: random.Random) -> None:
    """Gaps within batches and between them, batches without their last offsets, and empty ones."""
    with open_compacted(path, index_interval_bytes=100) as store:
        log = store.partition("t")
        for _ in range(3):
            for _ in range(30):
                n = rng.randrange(1, 12)
                keys = [b"k%d" % rng.randrange(60) for _ in range(n)]
                log.append_batch(some(rng, n, 40), keys=keys)
            roll(store)
            clean(store)
        log.append_batch([b"last"], keys=[b"k"])


def transactions(path: Path, rng: random.Random) -> None:
    clock = Clock(step=1)
    with segstore.open(path, clock=clock) as store:
        store.create_topic("t", config={"segment.bytes": 2000, "index.interval.bytes": 100})
        writer = Writer(store.partition("t"), 7, clock)
        for _ in range(30):
            writer.transaction(rng.random() < 0.7, *((b"k", b"v" * rng.randrange(50)) for _ in range(3)))
        writer.send((b"k", b"open"), flags=0x10)


LOGS = {each.__name__: each for each in (mixed, by_append_time, from_later_on, compacted, transactions)}
