"""What `send` returns: outcomes, callbacks, waiting; `flush` and lingering."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from stores import stored
from turned import turned
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.producer import Producer


def test_callbacks_run_whenever_they_are_added(store: segstore.Store) -> None:
    told: list[Any] = []
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        future.add_callback(told.append).add_errback(told.append)
        future.add_callback(lambda *args, **kwargs: told.append((args, kwargs)), 1, two=2)
        future.add_both(told.append)
        assert not future.is_done
        assert future.value is None
        producer.flush()
        metadata = future.get(0)
        future.add_callback(told.append)
    assert told == [metadata, ((1, metadata), {"two": 2}), metadata, metadata]


def test_a_callback_that_fails_harms_nobody(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        future.add_callback(lambda metadata: 1 / 0).add_callback(told.append)
        producer.send("t", b"y").add_callback(told.append)
    assert [metadata.offset for metadata in told] == [0, 1]
    assert "callback" in caplog.text


def test_a_callback_may_send(store: segstore.Store) -> None:
    with Producer(store) as producer:
        again: list[Any] = []
        producer.send("t", b"x").add_callback(lambda _: again.append(producer.send("t", b"y"))).get(PATIENCE)
        until(lambda: again)
        assert again[0].get(PATIENCE).offset == 1


def test_flush_in_a_callback_is_refused(store: segstore.Store) -> None:
    caught: list[BaseException] = []

    def flush(_: Any) -> None:
        try:
            producer.flush()
        except errors.InvalidArgumentError as error:
            caught.append(error)

    with Producer(store, linger_ms=60_000) as producer:
        producer.send("t", b"x").add_callback(flush)
    assert len(caught) == 1


def test_get_gives_up_after_its_time(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(errors.KafkaTimeoutError):
            future.get(0.01)
        assert isinstance(errors.KafkaTimeoutError(), TimeoutError)


def test_many_threads_wait_for_one_record(store: segstore.Store) -> None:
    got: list[int] = []
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        waiting = [threading.Thread(target=lambda: got.append(future.get(PATIENCE).offset)) for _ in range(8)]
        for thread in waiting:
            thread.start()
        producer.flush()
        for thread in waiting:
            thread.join()
    assert got == [0] * 8


def test_flush_returns_when_all_is_done(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000, batch_size=200) as producer:
        for _ in range(3):
            futures = [producer.send("four", b"x" * 30) for _ in range(100)]
            producer.flush()
            assert all(future.is_done for future in futures)
    assert len(stored(store, "four")) == 300


def test_linger_gathers_and_then_sends(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = turned(monkeypatch)
    with Producer(store, linger_ms=60_000) as producer:
        futures = [producer.send("t", b"x") for _ in range(10)]
        assert not futures[0].is_done
        clock.ahead += 61
        with producer._accumulator.lock:
            producer._accumulator.gate.wake()
        futures[-1].get(PATIENCE)
        assert store.partition("t").read(0).batches["count"].tolist() == [10]


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        ("1", errors.InvalidTypeError),
        (b"1", errors.InvalidTypeError),
        ([], errors.InvalidTypeError),
        (True, errors.InvalidTypeError),
        (1j, errors.InvalidTypeError),
        (-1, errors.InvalidArgumentError),
        (float("nan"), errors.InvalidArgumentError),
        (10**400, errors.InvalidArgumentError),
    ],
    ids=repr,
)
def test_a_time_to_wait_that_is_none(store: segstore.Store, timeout: Any, error: type[Exception]) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        for _ in range(2):  # before it is done, and after
            with pytest.raises(error, match=r"timeout.* must be .*seconds|timeout.* must be None") as caught:
                future.get(timeout)
            assert isinstance(caught.value, errors.SegstoreError)
            producer.flush()
        assert future.get(PATIENCE).offset == 0


@pytest.mark.parametrize("add", ["add_callback", "add_errback", "add_both"])
@pytest.mark.parametrize("given", [None, b"f", "f", 5, ""], ids=repr)
def test_a_callback_that_can_not_be_called(store: segstore.Store, add: str, given: Any) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        for _ in range(2):
            with pytest.raises(errors.InvalidTypeError, match=f"f={given!r} must be a callable, not"):
                getattr(future, add)(given)
            producer.flush()
        assert future.get(PATIENCE).offset == 0
