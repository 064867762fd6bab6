"""The end of a producer: it is closed, garbage collected, fenced, forked, or left without a store."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import in_child, values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.producer import Producer


def test_a_closed_producer_refuses(store: segstore.Store) -> None:
    producer = Producer(store)
    producer.send("t", b"x")
    assert producer.bootstrap_connected()
    producer.close()
    producer.close()
    assert not producer.bootstrap_connected()
    for use in (lambda: producer.send("t", b"x"), lambda: producer.partitions_for("t")):
        with pytest.raises(errors.ClientClosedError, match="closed"):
            use()
    producer.flush()
    assert values(store.partition("t")) == [b"x"]


def test_close_sends_what_lingers(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
    assert future.get(0).offset == 0


def test_close_in_a_callback(store: segstore.Store) -> None:
    producer = Producer(store, linger_ms=20)
    producer.send("t", b"x").add_callback(lambda _: producer.close())
    producer._sender.join(PATIENCE)
    assert not producer._sender.is_alive()


def test_close_gives_up_after_its_time(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, OSError(28, "No space left on device"), 0, 1 << 30)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        producer = Producer(store)
        files.arm(1, 1 << 30)
        future = producer.send("t", b"x")
        producer.close(timeout=0.05)
        with pytest.raises(errors.ClientClosedError):
            future.get(PATIENCE)
        producer._sender.join(PATIENCE)
        assert not producer._sender.is_alive()
        files.arm(0)
        assert values(store.partition("t")) == []


def test_a_producer_that_is_dropped_sends_what_it_has(store: segstore.Store) -> None:
    producer = Producer(store, linger_ms=60_000)
    sender, future = producer._sender, producer.send("t", b"x")
    del producer
    gc.collect()
    sender.join(PATIENCE)
    assert not sender.is_alive()
    assert future.get(0).offset == 0


def test_a_store_that_is_closed_first(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    producer = Producer(store, linger_ms=60_000)
    future = producer.send("t", b"x")
    store.close()
    producer.close()
    assert future.get(0).offset == 0
    with pytest.raises(errors.StoreClosedError, match="closed"):
        producer.send("t", b"late")


@pytest.mark.parametrize("mode", ["r", "closed", "no store"])
def test_stores_that_nothing_can_be_sent_to(store_dir: Path, mode: str) -> None:
    segstore.open(store_dir).close()
    store: Any = segstore.open(store_dir, mode="r") if mode == "r" else segstore.open(store_dir)
    error: type[Exception] = errors.ReadOnlyError
    if mode != "r":
        store.close()
        error = errors.StoreClosedError
    if mode == "no store":
        store, error = str(store_dir), errors.InvalidTypeError
    with pytest.raises(error):
        Producer(store)
    if mode == "r":
        store.close()


@pytest.mark.kind("kills")
def test_a_forked_child_is_refused(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"parent")

        def child(tell: Any) -> None:
            for use in (
                lambda: producer.send("t", b"child"),
                lambda: future.get(PATIENCE),
                lambda: producer.flush(),
            ):
                try:
                    use()
                except errors.ForkedError:
                    tell("refused")
            producer.close()

        assert in_child(child) == (0, ["refused"] * 3)
    assert values(store.partition("t")) == [b"parent"]
