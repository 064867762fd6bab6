"""Callbacks that call their producer, or raise exceptions that end a thread: nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

import segstore
from segstore import Producer, errors
from segstore.client.producer import FutureRecordMetadata
from segstore.errors import KafkaTimeoutError

CONFIG = {"transaction.state.log.num.partitions": 1}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("t")
        yield store


def begun(store: segstore.Store, **settings: Any) -> Producer:
    producer = Producer(store, transactional_id="x", **settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def in_time(call: Callable[[], object]) -> None:
    """Make the call in a thread, so that one which hangs is a failure."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


WAITING = ["init_transactions", "begin_transaction", "commit_transaction", "abort_transaction", "flush"]


@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
@pytest.mark.parametrize("call", WAITING)
def test_what_would_wait_for_itself_is_refused(store: segstore.Store, ending: str, call: str) -> None:
    told: list[BaseException] = []

    def back(_: object) -> None:
        try:
            getattr(producer, call)()
        except errors.InvalidArgumentError as error:
            told.append(error)

    with begun(store, linger_ms=60_000) as producer:
        producer.send("t", b"x").add_both(back)
        in_time(getattr(producer, ending))
    assert len(told) == 1
    assert call in str(told[0])


@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
def test_a_callback_closes_while_a_transaction_ends(store: segstore.Store, ending: str) -> None:
    producer = begun(store, linger_ms=60_000)
    producer.send("t", b"x").add_both(lambda _: producer.close())
    in_time(getattr(producer, ending))
    producer._sender.join(PATIENCE)
    log = store.partition("t")
    assert log.last_stable_offset == log.end_offset
    assert len(log.read(0, isolation_level="read_committed")) == (ending == "commit_transaction")
    with pytest.raises(errors.ClientClosedError):
        producer.begin_transaction()


def test_a_callback_closes_within_a_transaction_which_is_aborted(store: segstore.Store) -> None:
    producer = begun(store)
    in_time(lambda: producer.send("t", b"x").add_callback(lambda _: producer.close()).get(PATIENCE))
    producer._sender.join(PATIENCE)
    log = store.partition("t")
    assert (log.last_stable_offset, len(log.read(0, isolation_level="read_committed"))) == (2, 0)


def test_flush_in_a_callback_of_a_close_without_time(store: segstore.Store) -> None:
    told: list[BaseException] = []

    def back(_: object) -> None:
        with pytest.raises(errors.InvalidArgumentError) as caught:
            producer.flush()
        told.append(caught.value)

    producer = Producer(store, linger_ms=60_000)
    producer.send("t", b"x").add_errback(back)
    in_time(lambda: producer.close(timeout=0))
    assert len(told) == 1


def _exit() -> None:
    sys.exit(1)


def _cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("raises", [_exit, _cancelled], ids=["SystemExit", "CancelledError"])
def test_what_ends_a_thread_does_not_end_the_sender(
    store: segstore.Store, raises: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    with Producer(store, linger_ms=60_000) as producer:
        producer.send("t", b"a").add_callback(lambda _: raises())
        producer.send("t", b"b").add_callback(seen.append)
        in_time(producer.flush)
        in_time(producer.close)
    assert [it.offset for it in seen] == [1]
    assert "callback failed" in caplog.text


def test_a_producer_with_a_transaction_that_is_dropped_ends_and_aborts_it(store: segstore.Store) -> None:
    producer = begun(store)
    producer.send("t", b"x").get(PATIENCE)
    sender, ref = producer._sender, weakref.ref(producer)
    del producer
    until(lambda: gc.collect() >= 0 and ref() is None)
    sender.join(PATIENCE)
    assert not sender.is_alive()
    assert store.partition("t").last_stable_offset == 2


class _Held:
    """What an application's frame refers to."""


def _raise_in_this_frame(future: FutureRecordMetadata, _held: object) -> None:
    """Its frame refers to the future, and to what the test looks for."""
    error = future.exception
    assert error is not None
    raise error


def _raise_in_an_errback(future: FutureRecordMetadata, held: object) -> None:
    def errback(error: BaseException) -> None:
        assert future.failed()
        assert held
        raise error

    future.add_errback(errback)


@pytest.mark.parametrize("fails", [_raise_in_this_frame, _raise_in_an_errback])
@pytest.mark.parametrize("done", [True, False])
def test_a_future_of_a_failed_record_is_freed_with_all_that_it_refers_to(
    store: segstore.Store,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[FutureRecordMetadata, object], None],
    done: bool,
) -> None:
    """The garbage collector does not know futures: one in a reference cycle would stay for ever."""
    monkeypatch.setattr(logging.getLogger("segstore"), "disabled", True)  # pytest keeps what is logged
    held = _Held()
    ref = weakref.ref(held)
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        if not done and fails is _raise_in_an_errback:
            fails(future, held)
        producer._accumulator.abort(KafkaTimeoutError("refused"))
        in_time(producer.flush)
        if done or fails is _raise_in_this_frame:
            with suppress(KafkaTimeoutError):
                fails(future, held)
        del future, held
        until(lambda: gc.collect() >= 0 and ref() is None)
