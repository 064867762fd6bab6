"""The effect of byte rates on producers and consumers: who waits, who does not, and what the metrics say.

Clocks stand still until they are set; a client that waits reads its clock every MOST_WAIT_MS.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import append, earliest, fill, offsets, tp
from stores import Clock, values
from waiting import PATIENCE, until

import segstore
from segstore.client.producer import Producer
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE, quotas
from segstore.errors import BufferExhaustedError, ClientClosedError, KafkaTimeoutError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_dir: Path, clock: Clock) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", partitions=2)
        yield store


def limited(store: segstore.Store, rate: int = 100, **settings: Any) -> Producer:
    """A producer "p" that may send so many bytes a second, and has sent 10 s too many; the first record of
    partition 0 is none of its own.
    """
    quotas(store).alter("p", {PRODUCER_BYTE_RATE: rate})
    producer = Producer(store, client_id="p", **settings)
    store.partition("t").append(b"")
    overdraw(store, 10)
    return producer


def overdraw(store: segstore.Store, seconds: int, name: str = "p", rate: str = PRODUCER_BYTE_RATE) -> None:
    """Let `name` owe what it may send in so many seconds."""
    throttle = quotas(store).throttle(rate, name)
    assert throttle.bound is not None
    while (wait := throttle.wait_ms()) < seconds * 1_000:
        throttle.charge(throttle.bound * (seconds * 1_000 - wait) // 1_000 or 1)


def held_back(producer: Producer) -> bool:
    """Whether the sender has drained something and put it back."""
    accumulator = producer._accumulator
    with accumulator.lock:
        return bool(accumulator._schedule.backing_off)


# --- producers --------------------------------------------------------------------------------


def test_a_producer_over_its_rate_waits_and_no_other_does(store: segstore.Store, clock: Clock) -> None:
    with limited(store) as producer, Producer(store, client_id="q") as other:
        waiting = [producer.send("t", b"%d" % i, partition=0) for i in range(10)]
        until(lambda: held_back(producer))
        for i in range(20):
            assert other.send("t", b"x", partition=1).get(PATIENCE).offset == i
        clock.now += 9_999
        assert not any(future.is_done for future in waiting)
        clock.now += 1
        assert waiting[0].get(PATIENCE).offset == 1
        clock.now += 10_000  # for those that were sent too late to go with it
        assert [future.get(PATIENCE).offset for future in waiting] == list(range(1, 11))
    assert values(store.partition("t"))[1:] == [b"%d" % i for i in range(10)]


def test_producers_of_one_id_share_its_rate(store: segstore.Store, clock: Clock) -> None:
    with limited(store) as producer, Producer(store, client_id="p") as second:
        future = second.send("t", b"x", partition=1)
        until(lambda: held_back(second))
        clock.now += 10_000
        assert future.get(PATIENCE).offset == 0
        assert not held_back(producer)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "its own is taken back": ("p", {PRODUCER_BYTE_RATE: None}),
    "it is raised": ("p", {PRODUCER_BYTE_RATE: 1 << 60}),
}


@pytest.mark.parametrize(("client", "rates"), CHANGES.values(), ids=CHANGES)
def test_a_producer_that_waits_feels_a_change(
    store: segstore.Store, clock: Clock, client: str, rates: dict
) -> None:
    with limited(store) as producer:
        future = producer.send("t", b"x", partition=1)
        until(lambda: held_back(producer))
        quotas(store).alter(client, rates)
        clock.now += 1
        assert future.get(PATIENCE).offset == 0


def test_what_waits_holds_its_memory_so_that_send_feels_it(store: segstore.Store, clock: Clock) -> None:
    with limited(store, batch_size=500, buffer_memory=2_000, max_block_ms=20) as producer:
        futures: list[Any] = []

        def fill_up() -> None:
            while True:
                futures.append(producer.send("t", b"x" * 90, partition=0))

        with pytest.raises(BufferExhaustedError):
            fill_up()
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] < 500
        assert not any(future.is_done for future in futures)
        clock.step = 10_000
        assert [future.get(PATIENCE).offset for future in futures] == list(range(1, len(futures) + 1))


def test_a_debt_is_one_request_at_most(store: segstore.Store, clock: Clock) -> None:
    """Of what has gathered no more is sent at once than 10 s are good for (or one batch)."""
    quotas(store).alter("p", {PRODUCER_BYTE_RATE: 100})
    settings = {"client_id": "p", "batch_size": 400, "linger_ms": 60_000, "delivery_timeout_ms": 600_000}
    with Producer(store, **settings) as producer:
        overdraw(store, 1)
        futures = [producer.send("t", b"x" * 100, partition=0) for _ in range(30)]
        until(lambda: held_back(producer))
        log, steps = store.partition("t"), 0
        while not all(future.is_done for future in futures):
            end = log.end_offset
            clock.now += quotas(store).throttle(PRODUCER_BYTE_RATE, "p").wait_ms()
            until(lambda end=end: log.end_offset > end)
            until(lambda: all(future.is_done for future in futures[: log.end_offset]))
            assert quotas(store).throttle(PRODUCER_BYTE_RATE, "p").wait_ms() <= 10_000
            steps += 1
            producer._accumulator.hand_over()
        assert steps >= 3
    assert log.end_offset == 30


def test_what_waits_too_long_fails_by_its_delivery_timeout(store: segstore.Store) -> None:
    with limited(store, delivery_timeout_ms=50) as producer:
        with pytest.raises(KafkaTimeoutError, match="delivery_timeout_ms=50"):
            producer.send("t", b"x", partition=0).get(PATIENCE)
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == 32 << 20


def test_a_close_with_a_timeout_does_not_wait_for_the_rate(store: segstore.Store) -> None:
    producer = limited(store)
    future = producer.send("t", b"x", partition=0)
    until(lambda: held_back(producer))
    producer.close(timeout=0)
    with pytest.raises(ClientClosedError):
        future.get(PATIENCE)
    until(lambda: not producer._sender.is_alive())


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producers_metrics_show_the_throttle_time(store: segstore.Store, clock: Clock, acks: int) -> None:
    with Producer(store, client_id="p", acks=acks) as producer:
        names = "produce-throttle-time-avg", "produce-throttle-time-max"
        producer.send("t", b"x", partition=0).get(PATIENCE)
        measured = producer.metrics()["producer-metrics"]
        assert [measured[name] for name in names] == [0, 0]
        quotas(store).alter(DEFAULT, {PRODUCER_BYTE_RATE: 100})
        producer.send("t", b"x" * 40, partition=0).get(PATIENCE)
        producer.send("t", b"x" * 2_100, partition=0).get(PATIENCE)
        producer.flush()
        measured = producer.metrics()["producer-metrics"]
        wait = quotas(store).throttle(PRODUCER_BYTE_RATE, "p").wait_ms()
        assert 10_000 < wait < 15_000
        assert [measured[name] for name in names] == [wait / 2, wait]
        of_broker = quotas(store).metrics()["Produce.p"]
        assert of_broker["throttle-time"] == wait / 2
        assert of_broker["byte-rate"] == sum(store.partition("t").read(1).batches["size"]) / 10


def test_records_one_by_one_are_charged_too(store: segstore.Store) -> None:
    """A batch that had to be split."""
    quotas(store).alter("p", {PRODUCER_BYTE_RATE: 100})
    store.alter_topic("t", {"max.message.bytes": 500})
    with Producer(store, client_id="p", linger_ms=60_000) as producer:
        for size in (400, 600, 400, 400, 400):
            producer.send("t", b"x" * size, partition=0)
        producer.flush()
        stored = int(store.partition("t").read(0).batches["size"].sum())
        assert quotas(store).throttle(PRODUCER_BYTE_RATE, "p").wait_ms() == (stored - 1_100) * 10


# --- consumers --------------------------------------------------------------------------------


def test_a_consumer_over_its_rate_gets_nothing_and_returns(store: segstore.Store, clock: Clock) -> None:
    for partition in (0, 1):
        append(store, 10, partition=partition)
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: 100})
    slow, other = earliest(store, "t", client_id="c"), earliest(store, "t", client_id="d")
    overdraw(store, 10, "c", CONSUMER_BYTE_RATE)
    for timeout in (0, 150):
        assert slow.poll(timeout) == {}
    assert slow.poll_arrow().num_rows == 0
    assert len(other.poll()) == 2
    clock.now += 9_999
    assert slow.poll() == {}
    clock.now += 1
    (first,) = slow.poll()  # which is as much as there is credit for
    assert slow.poll(10) == {}
    clock.now += 10_000
    (second,) = slow.poll()
    assert {first, second} == {tp(0), tp(1)}


def test_a_poll_goes_on_when_the_rate_allows(store: segstore.Store, clock: Clock) -> None:
    append(store, 3)
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: 100})
    consumer = earliest(store, "t", client_id="c")
    overdraw(store, 10, "c", CONSUMER_BYTE_RATE)
    looked = threading.Event()
    got: list[Any] = []
    original = consumer._fetcher.wait_ms
    consumer._fetcher.wait_ms = lambda: (original(), looked.set())[0]  # type: ignore[method-assign]
    waiting = threading.Thread(target=lambda: got.append(consumer.poll(PATIENCE * 1_000)))
    waiting.start()
    assert looked.wait(PATIENCE)
    clock.now += 10_000
    waiting.join(PATIENCE)
    assert [offsets(polled[tp()]) for polled in got] == [[0, 1, 2]]


def test_what_was_fetched_is_given_whatever_the_rate(store: segstore.Store) -> None:
    """As in Kafka, where fetches wait and not what they brought."""
    append(store, 4)
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: 1})
    with earliest(store, "t", client_id="c", max_poll_records=1) as consumer:
        got = [offsets(consumer.poll()[tp()]) for _ in range(4)]
        assert got == [[0], [1], [2], [3]]
        append(store, 1)
        assert consumer.poll() == {}
        stored = int(store.partition("t").read(0, max_bytes=1).batches["size"].sum())
        measured = consumer.metrics()["consumer-fetch-manager-metrics"]
        wait = (stored - 11) * 1_000
        assert measured["fetch-throttle-time-avg"] == measured["fetch-throttle-time-max"] == wait
        assert quotas(store).metrics()["Fetch.c"]["byte-rate"] == stored / 10


def test_a_fetch_is_no_larger_than_the_windows(store: segstore.Store) -> None:
    log = store.partition("t")
    log.append_batch([b"x" * 90] * 100, batch_bytes=200)
    batch = int(log.read(0, max_bytes=1).batches["size"][0])
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: batch})
    with earliest(store, "t", client_id="c") as consumer:
        consumer.poll()
        consumer.poll()
        assert quotas(store).throttle(CONSUMER_BYTE_RATE, "c").wait_ms() == (20 - 11) * 1_000


def test_fetch_min_bytes_is_not_paid_twice(store: segstore.Store) -> None:
    append(store, 4)
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: 1})
    settings = {"client_id": "c", "fetch_min_bytes": 1_000, "fetch_max_wait_ms": 30}
    with earliest(store, "t", **settings) as consumer:
        for _ in range(3):
            assert consumer.poll() == {}
        assert quotas(store).throttle(CONSUMER_BYTE_RATE, "c").wait_ms() == 0
        assert len(consumer.poll(PATIENCE * 1_000)[tp()]) == 4
        stored = int(store.partition("t").read(0).batches["size"].sum())
        assert quotas(store).throttle(CONSUMER_BYTE_RATE, "c").wait_ms() == (stored - 11) * 1_000


def test_a_consumer_in_a_process_that_reads_has_limits_too(store: segstore.Store) -> None:
    append(store, 4)
    quotas(store).alter("c", {CONSUMER_BYTE_RATE: 1})
    with segstore.open(store.path, mode="r") as reader:
        first, second = earliest(reader, "t", client_id="c"), earliest(reader, "t", client_id="c")
        assert len(first.poll()[tp()]) == 4
        assert second.poll() == {}
        quotas(store).alter("c", {CONSUMER_BYTE_RATE: None})
        earliest(reader, "t", client_id="d")
        assert len(second.poll()[tp()]) == 4


def test_metrics_of_a_consumer_without_a_limit(store: segstore.Store) -> None:
    fill(store, "u")
    with earliest(store, "u") as consumer:
        consumer.poll()
        measured = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert (measured["fetch-throttle-time-avg"], measured["fetch-throttle-time-max"]) == (0, 0)
