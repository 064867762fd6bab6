"""A store that is closed by a callback of one of its clients, and clients that fail while they are closed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from closing import SMALL, Reader
from closing import store as store
from consumers import earliest, fill
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.consumer import Consumer
from segstore.client.producer import Producer

pytestmark = pytest.mark.kind("interrupts")


@pytest.mark.parametrize("how", ["callback", "errback", "interceptor"])
def test_a_producers_callback_that_closes_the_store_is_refused(store: segstore.Store, how: str) -> None:
    told: list[BaseException] = []
    done = threading.Event()

    def close(*_: object) -> None:
        try:
            store.close()
        except BaseException as error:
            told.append(error)
        done.set()

    class Interceptor:
        def on_acknowledgement(self, *_: object) -> None:
            close()

    interceptors = [Interceptor()] if how == "interceptor" else []
    producer = Producer(store, linger_ms=20, interceptors=interceptors)
    future = producer.send("t", b"x")
    if how == "callback":
        future.add_callback(close)
    elif how == "errback":
        future.add_errback(close)
        producer._sender.abort(errors.ClientClosedError("a test's"))
    assert done.wait(PATIENCE)
    (error,) = told
    assert isinstance(error, errors.InvalidArgumentError)
    assert "callback" in str(error)
    assert producer.send("t", b"goes on") is not None


class Closes:
    """A rebalance listener that closes the store at the first event of a kind."""

    def __init__(self, store: segstore.Store, at: str) -> None:
        self.store, self.at, self.told = store, at, []  # type: ignore[var-annotated]

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._event("revoked")

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._event("assigned")

    def _event(self, kind: str) -> None:
        self.told.append(kind)
        if kind == self.at:
            self.store.close()


@pytest.mark.parametrize("at", ["assigned", "revoked"])
@pytest.mark.parametrize("group", [None, "g"])
def test_a_listener_may_close_the_store(store_dir: Path, at: str, group: str | None) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    consumer = Consumer(store, group_id=group, auto_offset_reset="earliest")
    listener = Closes(store, at)
    consumer.subscribe(["t"], listener=listener)
    if at == "assigned":
        until(lambda: consumer._guard.closed or (consumer.poll(100) and None))
    else:
        until(lambda: consumer.poll(100))
        store.close()
    assert store.engine.closed
    assert listener.told == ["assigned", "revoked"][: 1 + (at == "revoked")]
    with pytest.raises(errors.StoreClosedError):
        consumer.poll()
    consumer.close()
    segstore.open(store_dir, config=SMALL).close()


def test_a_listener_that_closes_while_another_thread_does_keeps_nobody_waiting(store_dir: Path) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    within = threading.Event()

    class Listener:
        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_assigned(self, assigned: Any) -> None:
            within.set()
            until(lambda: consumer._guard.ender is not None)  # another thread waits for this one
            store.close()

    consumer = Consumer(store, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Listener())
    reader = Reader(consumer, "poll")
    reader.start()
    assert within.wait(PATIENCE)
    store.close(timeout=PATIENCE)
    reader.join(PATIENCE)
    assert not reader.is_alive()


def test_what_a_listener_sends_while_the_store_is_closed_is_written(store_dir: Path) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    store.create_topic("out")
    producer, futures = Producer(store, linger_ms=60_000), []

    class Listener:
        def on_partitions_assigned(self, assigned: Any) -> None: ...

        def on_partitions_revoked(self, revoked: Any) -> None:
            futures.append(producer.send("out", b"last words"))

    consumer = Consumer(store, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Listener())
    until(lambda: consumer.poll(100))
    store.close()
    assert futures[0].get(0).offset == 0


def test_what_consumers_raise_is_raised_and_all_is_closed(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store, partitions=2)

    class Listener:
        def on_partitions_assigned(self, assigned: Any) -> None: ...

        def on_partitions_revoked(self, revoked: Any) -> None:
            raise ZeroDivisionError("a listener's")

    for group in ("g", "h"):
        consumer = Consumer(store, group_id=group, auto_offset_reset="earliest")
        consumer.subscribe(["t"], listener=Listener())
        until(lambda consumer=consumer: consumer.poll(100))
        store._kept = [*getattr(store, "_kept", ()), consumer]  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError, match="a listener's"):
        store.close()
    assert "could not be closed in order: a listener's" in caplog.text
    segstore.open(store_dir, config=SMALL).close()


def test_a_member_that_is_fenced_does_not_keep_the_store_from_closing(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    old, new = (earliest(store, "t", group_id="g", group_instance_id="i") for _ in range(2))
    for each in (old, new):
        until(lambda each=each: each.poll(100))
    store.close()
    refused = "automatic commit of group g failed, records will be read again: group_instance_id 'i'"
    assert refused in caplog.text


def test_a_client_made_while_the_store_is_closed_is_refused(store_dir: Path) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    told: list[type[BaseException]] = []

    class Listener:
        def on_partitions_assigned(self, assigned: Any) -> None: ...

        def on_partitions_revoked(self, revoked: Any) -> None:
            for make in (Producer, Consumer):
                try:
                    make(store)
                except errors.SegstoreError as error:
                    told.append(type(error))

    consumer = Consumer(store, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Listener())
    until(lambda: consumer.poll(100))
    store.close()
    assert told == [errors.StoreClosedError] * 2


@pytest.mark.parametrize("where", ["deserializer", "on_consume"])
def test_the_applications_part_of_a_poll_may_close_the_store(store_dir: Path, where: str) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)

    class Interceptor:
        def on_consume(self, polled: Any) -> Any:
            store.close()
            return polled

    def deserialize(data: bytes) -> bytes:
        store.close()
        return data

    settings: dict[str, Any] = {"value_deserializer": deserialize}
    if where == "on_consume":
        settings = {"interceptors": [Interceptor()]}
    consumer = earliest(store, "t", group_id="g", **settings)
    until(lambda: consumer._guard.closed or (consumer.poll(100) and None))
    assert store.engine.closed
    consumer.close()
    segstore.open(store_dir, config=SMALL).close()
