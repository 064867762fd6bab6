"""Promise: a record that is alone in its queue is appended by the sender in C, without any Python, with the
outcome that the long way would have given it; everything else takes the long way.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from waiting import PATIENCE, until

import segstore
from segstore import Producer
from segstore.client.producer.batch import NativeRecord, ProducerBatch
from segstore.client.producer.sender import Sender

HEADERS: list[Any] = [("h", b"v")]


def warm(producer: Producer, topic: str = "t") -> None:
    """Send until C appends by itself: the first records lend the log's tail."""
    futures = []

    def taken() -> bool:
        futures.append(producer.send(topic, b"before"))
        futures[-1].get(PATIENCE)
        return type(futures[-1]._holder) is NativeRecord

    until(taken)


def drawn(rng: random.Random, ms: int) -> tuple[Any, ...]:
    """Return value, key, headers, partition and time of a record; most take the short way."""
    value = rng.choice([None, b"", rng.randbytes(rng.randrange(300)), b"x" * 20_000])
    key = rng.choice([None, b"", b"key", rng.randbytes(9)])
    return value, key, rng.choice([None, None, None, HEADERS]), None, ms


def sent(path: Path, records: list[tuple[Any, ...]], **settings: Any) -> tuple[bytes, list[Any], Any, int]:
    """Return what is in the log, the outcomes, what was measured, and how many records took the short way."""
    with segstore.open(path) as store:
        store.create_topic("t")
        with Producer(store, linger_ms=0, **settings) as producer:
            futures = []
            for record in records:
                futures.append(producer.send("t", *record))
                futures[-1].get(PATIENCE)
            measured = producer.metrics()
        assert measured is not None
        found = {
            name: value
            for group, values in measured.items()
            for name, value in values.items()
            if name.endswith(("-total", "-size-avg", "-size-max"))
            and not name.startswith(("bufferpool", "buffer-"))
        }
        (file,) = Path(store.path, "t-0").glob("*.log")
        singles = sum(type(future._holder) is NativeRecord for future in futures)
        return file.read_bytes(), [future.get(0) for future in futures], found, singles


@pytest.mark.parametrize("idempotent", [True, False])
def test_both_ways_give_the_same(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    now = int(time.time() * 1000)
    records = [drawn(rng, now + number) for number in range(300)]
    *short, singles = sent(tmp_path / "short", records, enable_idempotence=idempotent)
    monkeypatch.setattr(Sender, "_post_singles", lambda _: None)
    *long, none = sent(tmp_path / "long", records, enable_idempotence=idempotent)
    assert short == long
    assert singles > 100
    assert none == 0
    for way in ("short", "long"):
        assert segstore.check(tmp_path / way) == []


def test_the_sender_calls_no_python(store: segstore.Store) -> None:
    called: Counter[str] = Counter()
    counting, most = False, 20

    def profile(frame: FrameType, event: str, _: object) -> None:
        if counting and event == "call" and threading.current_thread() is sender:
            called[frame.f_code.co_name] += 1

    threading.setprofile(profile)
    try:
        with Producer(store, linger_ms=0) as producer:
            sender = producer._sender
            warm(producer)
            counting = True
            futures = []
            for _ in range(most):
                futures.append(producer.send("t", b"v", key=b"k"))
                until(lambda: futures[-1].is_done)
            counting = False
    finally:
        threading.setprofile(None)
    assert called == Counter()
    assert {type(future._holder) for future in futures} == {NativeRecord}


def test_the_garbage_collector_does_not_know_what_has_become_of_it(store: segstore.Store) -> None:
    with Producer(store, linger_ms=0) as producer:
        warm(producer)
        future = producer.send("t", b"v")
        future.get(PATIENCE)
        assert type(future._holder) is NativeRecord
        assert not gc.is_tracked(future._holder)


def test_singles_and_many_keep_their_order(store: segstore.Store, rng: random.Random) -> None:
    """Sequences go on from the one way to the other."""
    with Producer(store, linger_ms=0) as producer:
        futures, kinds = [], set()
        for number in range(2_000):
            futures.append(producer.send("t", b"%d" % number))
            if rng.random() < 0.3:
                futures[-1].get(PATIENCE)
        offsets = [future.get(PATIENCE).offset for future in futures]
        kinds = {type(future._holder) for future in futures}
    assert offsets == list(range(2_000))
    assert kinds == {NativeRecord, ProducerBatch}
    read = store.partition("t").read(0, 1 << 20).values.tolist()
    assert read == [b"%d" % number for number in range(2_000)]


def test_a_record_that_the_log_stamps(store: segstore.Store) -> None:
    store.create_topic("u", config={"message.timestamp.type": "LogAppendTime"})
    with Producer(store, linger_ms=0) as producer:
        warm(producer, "u")
        future = producer.send("u", b"v", timestamp_ms=5)
        found = future.get(PATIENCE)
        assert type(future._holder) is NativeRecord
    (record,) = store.partition("u").read(found.offset)
    assert (record.value, record.timestamp) == (b"v", found.timestamp)
    assert abs(found.timestamp - time.time() * 1000) < 1000 * PATIENCE


def test_a_callback_is_called_whenever_it_comes(store: segstore.Store) -> None:
    with Producer(store, linger_ms=20) as producer:
        warm(producer)
        told: list[int] = []
        early = producer.send("t", b"early").add_callback(lambda found: told.append(found.offset))
        early.get(PATIENCE)
        late = producer.send("t", b"late")
        late.get(PATIENCE)
        assert type(late._holder) is NativeRecord
        late.add_callback(lambda found: told.append(found.offset))
        until(lambda: len(told) == 2)
        assert told == [early.get(0).offset, late.get(0).offset]


def test_a_record_that_lingers(store: segstore.Store) -> None:
    with Producer(store, linger_ms=30) as producer:
        warm(producer)
        began = time.monotonic()
        future = producer.send("t", b"v")
        future.get(PATIENCE)
        assert type(future._holder) is NativeRecord
        assert time.monotonic() - began >= 0.03


LEFT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "compression of the producer": ({"compression_type": "zstd"}, {}),
    "compression of the topic": ({}, {"compression.type": "gzip"}),
    "acks=0": ({"acks": 0, "enable_idempotence": False}, {}),
    "flush.messages": ({}, {"flush.messages": 1}),
    "flush.ms": ({}, {"flush.ms": 1000}),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_to_the_long_way(store: segstore.Store, case: str) -> None:
    settings, config = LEFT[case]
    store.create_topic("u", config=config)
    with Producer(store, linger_ms=0, **settings) as producer:
        futures = []
        for number in range(5):
            futures.append(producer.send("u", b"%d" % number))
            futures[-1].get(PATIENCE)
        producer.flush()
        assert {type(future._holder) for future in futures} == {ProducerBatch}
    assert store.partition("u").read(0).values.tolist() == [b"%d" % number for number in range(5)]


def test_a_write_that_fails_is_tried_by_the_long_way(store: segstore.Store) -> None:
    log = store.partition("t")
    with Producer(store, linger_ms=0) as producer:
        warm(producer)
        end = log.end_offset
        tail = log.partition_for_write().tail.native
        assert tail is not None
        tail.c.fd = -1
        future = producer.send("t", b"not by C")
        assert future.get(PATIENCE).offset == end
        assert type(future._holder) is ProducerBatch
        warm(producer)
    values = log.read(end).values.tolist()
    assert values[0] == b"not by C"
    assert set(values[1:]) == {b"before"}


def test_a_topic_made_anew_gets_what_comes_later(store: segstore.Store) -> None:
    with Producer(store, linger_ms=0) as producer:
        for _ in range(2):
            warm(producer)
            store.delete_topic("t")
            store.create_topic("t")
            assert producer.send("t", b"new").get(PATIENCE).offset == 0
        warm(producer)
    assert store.partition("t").read(0).values.tolist()[0] == b"new"


def test_a_change_of_the_topic_is_heard(store: segstore.Store) -> None:
    with Producer(store, linger_ms=0) as producer:
        warm(producer)
        store.alter_topic("t", {"max.message.bytes": 200})
        with pytest.raises(segstore.RecordTooLargeError):
            producer.send("t", b"x" * 300).get(PATIENCE)
        warm(producer)


CLOSES: dict[str, Callable[[segstore.Store, Producer], object]] = {
    "the producer": lambda _, producer: producer.close(),
    "the store": lambda store, _: store.close(),
}


@pytest.mark.parametrize("case", CLOSES)
def test_a_sender_that_sleeps_in_c_ends(store: segstore.Store, case: str) -> None:
    producer = Producer(store, linger_ms=0)
    warm(producer)
    until(lambda: producer._accumulator.gate.asleep)
    CLOSES[case](store, producer)
    until(lambda: not producer._sender.is_alive())
