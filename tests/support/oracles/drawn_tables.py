"""Stores with a topic of every kind of record, drawn from a seed, that grow step by step.

Batches of all codecs; null, empty, long and binary keys and values; headers with names that come twice;
times that rise, fall, stand still or are none; producers with ids; transactions that are committed, aborted
or open; gaps of compaction, retention and deleted records; segments of brokers of all ages below them
(`hand_written`). A drawn table knows which of its records were aborted.

On disk: topic "t" of one store, plain or replicated. Threads: one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from hand_written import segment_of
from replicated_stores import await_in_sync
from stores import START_MS, Clock, write_segment

import segstore

TOPIC = "t"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NAMES = ("", "h", "trace-id", "é", "日本", "x" * 200)
PLAIN = {
    "log.cleaner.threads": 0,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
REPLICATED = {
    "broker.session.timeout.ms": 3_600_000,
    "log.cleaner.threads": 0,
    "offsets.topic.num.partitions": 2,
    "replica.lag.time.max.ms": 3_600_000,
    "transaction.state.log.num.partitions": 2,
}
Headers = list[tuple[str, "bytes | None"]]


def draw_config(rng: random.Random) -> dict[str, Any]:
    """Draw the settings of a topic with small segments, of which sweeps leave little."""
    return {
        "cleanup.policy": rng.choice(("delete", "delete", "compact", "compact,delete")),
        "compression.type": rng.choice(("producer", "producer", "producer", *CODECS[1:])),
        "delete.retention.ms": rng.choice((0, 5_000)),
        "file.delete.delay.ms": 0,
        "index.interval.bytes": rng.choice((0, 100, 4096)),
        "message.timestamp.type": rng.choice(("CreateTime",) * 4 + ("LogAppendTime",)),
        "min.cleanable.dirty.ratio": 0,
        "retention.bytes": rng.choice((-1, -1, 6_000)),
        "retention.ms": rng.choice((-1, -1, -1, 60_000)),
        "segment.bytes": rng.choice((1_000, 4_000, 60_000)),
    }


def draw_bytes(rng: random.Random) -> bytes | None:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice((None, b"", b"\0", b"\xff\xfe"))
    if kind < 0.33:
        return rng.randbytes(600)
    return rng.randbytes(rng.randrange(40)) if kind < 0.6 else b"value %d" % rng.randrange(100)


def draw_key(rng: random.Random) -> bytes:
    return rng.choice((b"", b"\0\xff", b"long" * 30)) if rng.random() < 0.1 else b"k%d" % rng.randrange(12)


def draw_headers(rng: random.Random) -> Headers:
    if rng.random() < 0.6:
        return []
    pairs = [(rng.choice(NAMES), rng.choice((None, b"", b"v", rng.randbytes(9)))) for _ in range(3)]
    return pairs[: rng.choice((1, 2, 3))] + rng.choice(([], pairs[:1]))


class DrawnTable:
    """A store with topic "t"; `step` appends to it, or changes it. `store` is open for writing until `close`,
    which ends its `with` block too.
    """

    def __init__(self, path: Path, rng: random.Random, replicated: bool = False) -> None:
        self.path, self.rng, self.replicated = path, rng, replicated
        path.mkdir()
        self.paths = [path / "0", path / "1"] if replicated else [path]
        self.clock = Clock(START_MS)
        self.aborted: set[tuple[int, int]] = set()
        """Partitions and offsets of records in transactions that were aborted."""
        self._open: dict[str, set[tuple[int, int]]] = {}
        self._producers: dict[str, segstore.Producer] = {}
        self.count = rng.choice((1, 1, 2, 3, 4))
        self.config = draw_config(rng)
        if not replicated:
            self._write_by_hand()
        self._open_store()
        if TOPIC in self.store.topics():
            self.store.alter_topic(TOPIC, self.config)
        elif replicated:
            each = {number: rng.choice(([0, 1], [1, 0])) for number in range(self.count)}
            self.store.create_topic(TOPIC, assignments=each, config=self.config)
        else:
            self.store.create_topic(TOPIC, self.count, self.config)

    def __enter__(self) -> DrawnTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _write_by_hand(self) -> None:
        """Let some partitions begin with segments of a broker; if one does, all directories are there."""
        if self.rng.random() < 0.5:
            return
        for number in range(self.count):
            base = self.rng.choice((0, 0, 5, 1 << 33))
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                data, end = segment_of(self.rng, base)
                write_segment(self.path / f"{TOPIC}-{number}", base, data)
                base = end
            (self.path / f"{TOPIC}-{number}").mkdir(parents=True, exist_ok=True)

    def _open_store(self) -> None:
        self.store: Any
        if self.replicated:
            self.store = segstore.open_replicated(
                self.paths, config=REPLICATED, clock=self.clock, inline=True
            )
            await_in_sync(self.store)
        else:
            self.store = segstore.open(self.path, clock=self.clock, config=PLAIN)

    def close(self) -> None:
        """Close the store, which aborts the transactions that are open."""
        self.store.close()
        self._producers.clear()
        for records in self._open.values():
            self.aborted |= records
        self._open.clear()

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do something; a refusal is fine, too."""
        with suppress(segstore.SegstoreError):
            self.rng.choice(_STEPS)(self)

    def _log(self) -> segstore.PartitionLog:
        log: segstore.PartitionLog = self.store.partition(TOPIC, self.rng.randrange(self.count))
        return log

    def _key(self) -> bytes | None:
        """Return a key, which compaction wants."""
        compacted = "compact" in self.config["cleanup.policy"]
        return None if not compacted and self.rng.random() < 0.25 else draw_key(self.rng)

    def _time(self) -> int:
        return self.rng.choice((-1, 0, 1, self.clock.now, self.clock.now, self.clock.now - 1000)) + (
            self.rng.choice((0, 0, self.rng.randrange(3_000)))
        )

    def append(self) -> None:
        rng, stamp = self.rng, self._time()
        self._log().append(
            draw_bytes(rng), self._key(), draw_headers(rng), rng.choice((None, max(stamp, -1)))
        )

    def append_batch(self) -> None:
        """Columns with times of one kind: as they come, rising, falling, or equal."""
        rng, n = self.rng, self.rng.choice((1, 2, 8, 30, 120))
        times = [max(self._time(), -1) for _ in range(n)]
        times = rng.choice((times, sorted(times), sorted(times)[::-1], times[:1] * n))
        self._log().append_batch(
            [draw_bytes(rng) for _ in range(n)],
            [self._key() for _ in range(n)],
            times,
            rng.choice((None, [draw_headers(rng) for _ in range(n)])),
            rng.choice((None, *CODECS)),
            rng.choice((1, 300, 800, 65536)),
        )

    def produce(self) -> None:
        """Records of a producer with an id, without a transaction."""
        producer, number = self._producer("idempotent"), self.rng.randrange(self.count)
        self._send(producer, number, self.rng.choice((1, 3, 10)))

    def transact(self) -> None:
        """Go on with a transaction, or begin one; then end it, or leave it open."""
        name = self.rng.choice(("x", "y", "z"))
        producer = self._producer(name, transactional_id=name)
        if name not in self._open:
            producer.begin_transaction()
            self._open[name] = set()
        for _ in range(self.rng.choice((1, 1, 2))):
            number = self.rng.randrange(self.count)
            self._open[name] |= self._send(producer, number, self.rng.choice((1, 2, 5)))
        if (fate := self.rng.random()) < 0.4:
            producer.commit_transaction()
            del self._open[name]
        elif fate < 0.8:
            producer.abort_transaction()
            self.aborted |= self._open.pop(name)

    def _producer(self, name: str, **settings: Any) -> segstore.Producer:
        if name not in self._producers:
            made = segstore.Producer(
                self.store, compression_type=self.rng.choice((None, *CODECS[1:])), **settings
            )
            if settings:
                made.init_transactions()
            self._producers[name] = made
        return self._producers[name]

    def _send(self, producer: segstore.Producer, number: int, n: int) -> set[tuple[int, int]]:
        rng = self.rng
        sent = [
            producer.send(
                TOPIC, draw_bytes(rng), key=self._key(), headers=draw_headers(rng), partition=number
            )
            for _ in range(n)
        ]
        producer.flush()
        return {(number, future.get().offset) for future in sent}

    def wait(self) -> None:
        self.clock.now += self.rng.choice((1, 50, 20_000))

    def sweep(self) -> None:
        """Compact, and delete what is too old or too much."""
        self.store.sweep()

    def delete_records(self) -> None:
        log, share = self._log(), self.rng.random()
        if self.rng.random() < 0.3:
            log.delete_records(log.start_offset + int(share * (log.end_offset - log.start_offset)))

    def alter(self) -> None:
        other = draw_config(self.rng)
        names = self.rng.sample(("segment.bytes", "compression.type", "message.timestamp.type"), 2)
        self.config = self.config | {name: other[name] for name in names}
        self.store.alter_topic(TOPIC, self.config)

    def reopen(self) -> None:
        if not self.replicated:
            self.close()
            self._open_store()


Step = Callable[[DrawnTable], None]
_STEPS: list[Step] = [
    *[DrawnTable.append] * 6,
    *[DrawnTable.append_batch] * 8,
    *[DrawnTable.produce] * 2,
    *[DrawnTable.transact] * 5,
    *[DrawnTable.wait] * 2,
    *[DrawnTable.sweep] * 2,
    DrawnTable.delete_records,
    DrawnTable.alter,
    DrawnTable.reopen,
]
