"""Appends of clients, drawn from a seed: producers of all kinds by turns, requests over the wire,
applications; on a plain store, and on replicas that are written inline or by threads.

Each append is answered before the next one begins, so that no thread decides where a record lies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from replicated_stores import await_in_sync
from sent import batch, of_producer, of_values
from stores import START_MS, Clock
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.records import CODECS

_PRODUCE = structs("ProduceRequest")
Call = Callable[["Clients"], object]
PATIENT = {
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 3_600_000,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 2,
    "replica.lag.time.max.ms": 3_600_000,
    "transaction.state.log.num.partitions": 2,
}
"""No replica leaves the ISR on a machine that is busy."""
HOUR_MS = 3_600_000
PLACES = ("plain", "inline", "threads")


class Clients:
    """The clients of one store with the topic "t" of one partition."""

    def __init__(self, store: segstore.Store, wire: WireClient, stack: ExitStack) -> None:
        self.log: Any = store.partition("t")
        self.wire = wire
        self._store, self._stack = store, stack
        self._producers: dict[str, segstore.Producer] = {}

    def producer(self, name: str, **settings: Any) -> segstore.Producer:
        """Return the producer of a name, which is made at its first use."""
        if name not in self._producers:
            made = segstore.Producer(self._store, **settings)
            self._producers[name] = self._stack.enter_context(made)
            if "transactional_id" in settings:
                made.init_transactions()
        return self._producers[name]

    def do(self, call: Call) -> object:
        """Return what a call gives, or the error that it raises."""
        try:
            return call(self)
        except segstore.SegstoreError as error:
            return type(error).__name__, str(error)


@contextmanager
def clients(root: Path, place: str, config: dict[str, Any]) -> Iterator[Clients]:
    """Open a store in `root`, or in two directories below it, serve it, and close everything at the end."""
    clock = Clock(START_MS)
    with ExitStack() as stack:
        if place == "plain":
            store = stack.enter_context(segstore.open(root, config=_plain(PATIENT), clock=clock))
            store.create_topic("t", 1, config)
        else:
            paths = [root / "0", root / "1"]
            inline = place == "inline"
            opened = segstore.open_replicated(paths, config=PATIENT, clock=clock, inline=inline)
            store = stack.enter_context(opened)
            store.create_topic("t", assignments={0: [0, 1]}, config=config)  # type: ignore[call-arg]
            await_in_sync(store)
        server = stack.enter_context(segstore.serve(store, port=0))
        wire = stack.enter_context(WireClient(server.host, server.port))
        yield Clients(store, wire, stack)
        if place != "plain":
            await_in_sync(store)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a store without replicas has."""
    return {name: value for name, value in config.items() if name.endswith("partitions")}


def draw_config(rng: random.Random) -> dict[str, Any]:
    config = {
        "segment.bytes": rng.choice([1_500, 20_000]),
        "index.interval.bytes": rng.choice([0, 500]),
        "compression.type": rng.choice(["producer", "producer", "zstd"]),
        "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        "flush.messages": rng.choice([1, 10]),
    }
    return dict(rng.sample(sorted(config.items()), rng.randrange(len(config) + 1)))


# --- calls ---------------------------------------------------------------------------------------


def record_of(rng: random.Random) -> dict[str, Any]:
    """The arguments of a `send`."""
    return {
        "value": rng.randbytes(rng.choice([10, 100, 100, 600, 20_000])),
        "key": rng.choice([None, b"k"]),
        "headers": rng.choice([None, None, [("h", b"v"), ("é", b"")]]),
        "timestamp_ms": rng.choice([None, START_MS + rng.randrange(500)]),
    }


def draw_send(rng: random.Random) -> Call:
    """One record, and its answer: of a producer without an id, or of one of several with ids by turns."""
    number, record = rng.randrange(-1, 9), record_of(rng)
    settings: dict[str, Any] = {"linger_ms": 0, "enable_idempotence": number >= 0}
    if number < 0:
        settings["acks"] = 1

    def call(at: Clients) -> object:
        sent = at.producer(f"one {number}", **settings).send("t", **record).get()
        return sent.offset, sent.timestamp

    return call


def draw_many(rng: random.Random) -> Call:
    """Many records, which a flush sends as batches that are full."""
    codec = rng.choice([None, None, *CODECS[1:]])
    records = [record_of(rng) for _ in range(rng.choice([2, 8, 60]))]
    for number, record in enumerate(records):
        record["timestamp_ms"] = START_MS + number

    def call(at: Clients) -> object:
        producer = at.producer(
            f"many {codec}",
            linger_ms=HOUR_MS,
            delivery_timeout_ms=2 * HOUR_MS,
            batch_size=2_000,
            compression_type=codec,
        )
        futures = [producer.send("t", **record) for record in records]
        producer.flush()
        return [future.get().offset for future in futures]

    return call


def draw_transaction(rng: random.Random) -> Call:
    """A transaction of a few records."""
    records, commit, who = (
        [record_of(rng) for _ in range(rng.randrange(1, 4))],
        rng.random() < 0.7,
        rng.choice("xy"),
    )

    def call(at: Clients) -> object:
        producer = at.producer(who, transactional_id=who, linger_ms=0)
        producer.begin_transaction()
        offsets = [producer.send("t", **record).get().offset for record in records]
        (producer.commit_transaction if commit else producer.abort_transaction)()
        return offsets

    return call


def draw_request(rng: random.Random) -> Call:
    """A Produce request, mostly like the last one."""
    codec, seq = rng.choice([0, 0, 0, *range(len(CODECS))]), rng.randrange(4)
    data = bytes(
        rng.choice(
            [batch(codec), of_values([rng.randbytes(30)], codec), of_producer(seq, rng.choice([1, 3]), 900)]
        )
    )
    acks = rng.choice([-1, -1, 1])
    part = _PRODUCE.PartitionProduceData(index=0, records=data)
    topic = _PRODUCE.TopicProduceData(name="t", partition_data=[part])

    def call(at: Clients) -> object:
        body = at.wire.ask("Produce", 9, acks=acks, timeout_ms=60_000, topic_data=[topic])
        (answer,) = body.responses[0].partition_responses
        return answer.error_code, answer.base_offset, answer.log_append_time_ms, answer.error_message

    return call


def draw_append(rng: random.Random) -> Call:
    """An application's record."""
    record = record_of(rng)
    value, key, headers, stamp = (
        record["value"],
        record["key"],
        record["headers"] or (),
        record["timestamp_ms"],
    )
    ahead = rng.choice([None, None, 0, 1])

    def call(at: Clients) -> object:
        expected = None if ahead is None else at.log.log_end_offset + ahead
        return at.log.append(value, key, headers or (), stamp, expected_offset=expected)

    return call


def draw_batch(rng: random.Random) -> Call:
    """An application's columns."""
    values, codec = (
        [rng.randbytes(50) for _ in range(rng.choice([1, 5, 300]))],
        rng.choice([None, None, "lz4"]),
    )
    return lambda at: at.log.append_batch(values, compression=codec, batch_bytes=2_000)


DRAWS: list[Callable[[random.Random], Call]] = [
    *[draw_send] * 6,
    *[draw_many] * 2,
    *[draw_transaction] * 2,
    *[draw_request] * 5,
    *[draw_append] * 3,
    draw_batch,
]


def drawn(rng: random.Random) -> Call:
    return rng.choice(DRAWS)(rng)
