"""Fetches by sockets: long polls that are woken by any thread, sendfile, clients that go away; and consumers
of librdkafka and kafka-python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from producers import send
from waiting import PATIENCE
from wire_client import WireClient

import segstore
from segstore._native import lib
from segstore.protocol.codec import structs
from segstore.server.handlers.fetch import Fetches
from segstore.server.network import outgoing
from segstore.server.network.outgoing import SHORT
from segstore.storage.log.transaction_markers import end_transaction

_Request, _Offsets = structs("FetchRequest"), structs("ListOffsetsRequest")
LONG_MS = 600_000


@pytest.fixture
def log(store: segstore.Store) -> segstore.PartitionLog:
    store.create_topic("t", partitions=3)
    return store.partition("t", 0)


def asked(*partitions: int, offset: int = 0, **fields: Any) -> dict[str, Any]:
    parts = [
        _Request.FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1 << 20)
        for n in partitions
    ]
    topics = [_Request.FetchTopic(topic="t", partitions=parts)]
    return {"topics": topics, "max_wait_ms": LONG_MS, "min_bytes": 1, **fields}


def until(server: segstore.Server, holds: Callable[[Fetches], bool]) -> None:
    """Wait until something holds of the fetches, as the loop's thread sees them."""
    end = time.monotonic() + PATIENCE
    told = threading.Event()

    def look() -> None:
        if holds(server.node.part(Fetches)):
            told.set()

    while not told.is_set():
        assert time.monotonic() < end
        server.node.loop.soon(look)
        told.wait(0.01)


def parked(count: int) -> Callable[[Fetches], bool]:
    return lambda fetches: len(fetches.purgatory) == count


def records(body: Any) -> list[bytes]:
    return [bytes(each.records) for topic in body.responses for each in topic.partitions]


def test_an_append_in_the_process_wakes_a_fetch(
    server: segstore.Server, wire: WireClient, log: segstore.PartitionLog
) -> None:
    """Long before its time is over."""
    sent = wire.send("Fetch", 12, **asked(0, 1))
    until(server, parked(1))
    log.append(b"x")
    first, second = records(wire.receive(sent))
    assert (len(first) > 0, second) == (True, b"")


def test_thousands_of_wakings_one_after_the_other(
    server: segstore.Server, wire: WireClient, log: segstore.PartitionLog
) -> None:
    """Appends in another thread, as each is fetched: none is missed, however the two meet."""
    total = 1000

    def append() -> None:
        for n in range(total):
            log.append(b"%d" % n)
            if n % 100 == 0:
                time.sleep(0)

    writer = threading.Thread(target=append)
    writer.start()
    at = 0
    while at < total:
        body = wire.ask("Fetch", 12, **asked(0, offset=at))
        at += len(log.read(at, len(records(body)[0])))
    writer.join(PATIENCE)
    assert at == total


def test_a_client_that_goes_away_leaves_nothing(server: segstore.Server, log: segstore.PartitionLog) -> None:
    for _ in range(3):
        with WireClient(server.host, server.port) as wire:
            wire.send("Fetch", 12, **asked(0, offset=log.end_offset))
            until(server, parked(1))
        log.append(b"x")
        until(server, parked(0))


def test_the_server_s_end_with_parked_fetches(store: segstore.Store, log: segstore.PartitionLog) -> None:
    with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
        wire.send("Fetch", 12, **asked(0, 1, 2))
        until(server, parked(1))
        server.close()
        assert wire.is_closed()


def test_one_sendfile_for_each_stretch_and_no_read(
    server: segstore.Server,
    wire: WireClient,
    store: segstore.Store,
    log: segstore.PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in range(3):
        store.partition("t", n).append_batch([b"x" * 1000] * 10)
    calls: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            function = getattr(lib, name)

            def call(*given: Any) -> Any:
                calls.append(name)
                return function(*given)

            return call

    monkeypatch.setattr(outgoing, "lib", Counting())
    reads: list[Any] = []
    monkeypatch.setattr(segstore.PartitionLog, "read", lambda *given, **more: reads.append(given))
    got = records(wire.ask("Fetch", 12, **asked(0, 1, 2)))
    assert [len(each) > SHORT for each in got] == [True] * 3
    assert (calls, reads) == (["seg_sendfile"] * 3, [])


# --- consumers ---------------------------------------------------------------------------------


@pytest.fixture
def filled(log: segstore.PartitionLog, store: segstore.Store) -> segstore.PartitionLog:
    """Partition 0: 100 records, one a second; then a transaction that is aborted, one that is committed, and
    one that is open.
    """
    for n in range(100):
        log.append(b"%d" % n, timestamp=1_000_000 + 1000 * n)
    for sequence, commit in ((0, False), (1, True)):
        send(log, 7, sequence, txn=True)
        end_transaction([log], 7, 0, 0, commit=commit)
    send(log, 8, 0, txn=True)
    return log


UNCOMMITTED = [b"%d" % n for n in range(100)] + [b"7/0", b"7/1", b"8/0"]
COMMITTED = [*UNCOMMITTED[:100], b"7/1"]
ISOLATION = {"read_uncommitted": UNCOMMITTED, "read_committed": COMMITTED}


def stripped(values: list[bytes]) -> list[bytes]:
    return [value.rstrip(b".") for value in values]


@pytest.fixture(params=["read_uncommitted", "read_committed"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def librdkafka(server: segstore.Server, level: str) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "g", "isolation.level": level}
    )
    yield consumer
    consumer.close()


def polled(consumer: confluent_kafka.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    end = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < end:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None
            found.append(message.value())
    return stripped(found)


def test_librdkafka_reads_seeks_and_finds_times(
    librdkafka: confluent_kafka.Consumer, filled: segstore.PartitionLog, level: str
) -> None:
    expected, part = ISOLATION[level], confluent_kafka.TopicPartition
    librdkafka.assign([part("t", 0, 0)])
    assert polled(librdkafka, len(expected)) == expected
    librdkafka.seek(part("t", 0, 60))
    assert polled(librdkafka, 3) == expected[60:63]
    [found] = librdkafka.offsets_for_times([part("t", 0, 1_042_500)], PATIENCE)
    assert found.offset == 43
    end = filled.last_stable_offset if level == "read_committed" else filled.high_watermark
    assert librdkafka.get_watermark_offsets(part("t", 0), PATIENCE) == (0, end)
    librdkafka.assign([part("t", 0, end)])
    filled.append(b"new")
    if level == "read_committed":
        end_transaction([filled], 8, 0, 0, commit=False)
    assert polled(librdkafka, 1) == [b"new"]


def test_kafka_python_reads_seeks_and_finds_times(
    server: segstore.Server, filled: segstore.PartitionLog, level: str
) -> None:
    """It keeps a fetch session."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, isolation_level=level, auto_offset_reset="earliest"
    )
    t0, expected = kafka.TopicPartition("t", 0), ISOLATION[level]

    def read(count: int) -> list[bytes]:
        found: list[bytes] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < end:
            found += [
                r.value for part in consumer.poll(200, max_records=count - len(found)).values() for r in part
            ]
        return stripped(found)

    consumer.assign([t0, kafka.TopicPartition("t", 1)])
    assert read(len(expected)) == expected
    consumer.seek(t0, 60)
    assert read(3) == expected[60:63]
    assert consumer.offsets_for_times({t0: 1_042_500})[t0].offset == 43
    assert (consumer.beginning_offsets([t0])[t0], consumer.end_offsets([t0])[t0]) == (
        0,
        filled.last_stable_offset if level == "read_committed" else filled.high_watermark,
    )
    until(server, lambda fetches: len(fetches.sessions) == 1)
    consumer.close()
