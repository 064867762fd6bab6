"""Promise: what `send` does in one call of C is what Python would have done: same bytes, same outcomes; and a
full batch is sent at once, whoever began it.
"""

from __future__ import annotations

import gc
import math
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from waiting import PATIENCE

import segstore
from segstore import Producer, TopicPartition
from segstore._native._producer import Sending
from segstore.client.producer import batch
from segstore.client.producer.accumulator import Accumulator, Schedule
from segstore.client.producer.batch import PartitionQueue
from segstore.client.producer.config import ProducerConfig

NOW = 1_700_000_000_000
HEADERS: list[Any] = [
    *(None, [], (), [("h", b"v")], (("é", None), ("", b"")), [("h", b"v" * 900)]),
    *([["h", b"a list"]], [("h", bytearray(b"no bytes"))]),
]


def drawn(rng: random.Random) -> tuple[Any, ...]:
    """Return value, key, headers, partition and time of a record; most take the short way."""
    value = rng.choice([None, b"", rng.randbytes(rng.randrange(300)), rng.randbytes(100), b"x" * 2_000])
    key = rng.choice([None, None, b"", b"key", rng.randbytes(9)])
    headers = rng.choice(HEADERS) if rng.random() < 0.3 else None
    return value, key, headers, rng.choice([None] * 9 + [0]), rng.choice([None] * 9 + [NOW - 5])


def sent(path: Path, records: list[tuple[Any, ...]], long: bool) -> tuple[bytes, list[Any]]:
    """Return what is in the log, and the outcomes."""
    with segstore.open(path, clock=lambda: NOW) as store:
        store.create_topic("t")
        with Producer(store, batch_size=1_000, linger_ms=60_000) as producer:
            if long:
                producer._send = producer._intake.take
            futures = [producer.send("t", *record) for record in records]
        (file,) = Path(store.path, "t-0").glob("*.log")
        return file.read_bytes(), [future.get(0) for future in futures]


def test_both_ways_write_the_same_bytes(tmp_path: Path, rng: random.Random) -> None:
    records = [drawn(rng) for _ in range(2_000)]
    assert sent(tmp_path / "short", records, False) == sent(tmp_path / "long", records, True)


@pytest.mark.parametrize("headers", [None, [("h", b"v")]])
@pytest.mark.parametrize("key", [None, b"key"])
def test_a_send_is_one_call(store: segstore.Store, key: bytes | None, headers: Any) -> None:
    """Also where it begins a batch, in an empty queue or behind a full batch."""
    counted: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counted.append(frame.f_code.co_name)

    with Producer(store, batch_size=1_000, linger_ms=60_000) as producer:
        producer.send("t", b"finds the partition", key).get  # noqa: B018 - it is not waited for
        producer.flush()
        sys.setprofile(profile)
        futures = [producer.send("t", b"x" * 100, key, headers) for _ in range(50)]
        sys.setprofile(None)
        producer.flush()
    assert set(counted) <= {"send", "<listcomp>"}
    assert counted.count("send") == 50
    assert [future.get(0).offset for future in futures] == list(range(1, 51))


def test_full_batches_do_not_linger(store: segstore.Store) -> None:
    with Producer(store, batch_size=300, linger_ms=60_000) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(20)]
        assert [future.get(PATIENCE).offset for future in futures[:18]] == list(range(18))
        assert not futures[-1].is_done


def lent() -> tuple[Accumulator, PartitionQueue, Sending]:
    """Return an accumulator, its only queue, and what C sends to that with."""
    accumulator = Accumulator(ProducerConfig.parse({"batch_size": 200, "linger_ms": 60_000}))
    queue, sending = accumulator.queue(TopicPartition("t", 0)), Sending()
    accumulator.lend(sending)
    sending.sticky, sending.by_key, sending.now = {"t": queue}, {}, None
    queue.alone, queue.cut_until = True, math.inf
    return accumulator, queue, sending


def test_a_batch_that_is_filled_while_the_sender_looks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender was not asleep, so that nobody woke it."""
    accumulator, queue, sending = lent()

    def send(*_: object) -> list[Any]:
        sending.send("t", b"x" * 100, None, None, None, None)
        return []

    send()
    monkeypatch.setattr(Schedule, "overdue", send)
    assert accumulator.drain(0.0) == ([], 0.0)
    ((found, (batch,)),), _ = accumulator.drain(0.0)
    assert (found, batch.values) == (queue, (b"x" * 100,))


@pytest.mark.parametrize(("value", "headers"), [(b"x" * 100, None), (None, None), (b"x" * 100, [("h", b"")])])
def test_the_collector_looks_at_values_that_may_lead_to_others(value: bytes | None, headers: Any) -> None:
    accumulator, _, sending = lent()
    sending.send("t", value, None, headers, None, None)
    accumulator.hand_over()
    ((_, (batch,)),), _ = accumulator.drain(0.0)
    assert len(batch.values) == 1
    assert gc.is_tracked(batch.values) == (headers is not None)


def test_a_batch_that_is_filled_while_others_are_sealed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """C had told of the queue already, and tells of it once."""
    accumulator, _, sending = lent()
    made: list[bytes] = []

    def send(value: bytes) -> None:
        sending.send("t", value, None, None, None, None)

    class Meanwhile(batch.ProducerBatch):
        __slots__ = ()

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if len(made) < 3:
                made.append(b"%d" % len(made) * 100)
                send(made[-1])

    for value in (first := [b"a" * 100, b"b" * 100]):
        send(value)
    monkeypatch.setattr(batch, "ProducerBatch", Meanwhile)
    found: list[bytes] = []
    look: float | None = 0.0
    while look == 0.0:
        ready, look = accumulator.drain(0.0)
        found += [value for _, batches in ready for each in batches for value in each.values]
    assert found == [*first, *made[:-1]]
    assert len(made) == 3
