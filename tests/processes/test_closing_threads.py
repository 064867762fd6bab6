"""A store that is closed while another thread polls, sends, commits or closes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from closing import SMALL, Reader, committed, committed_of
from closing import store as store
from consumers import LONG_MS, earliest, fill
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.producer import Producer

pytestmark = pytest.mark.kind("interrupts")


@pytest.mark.parametrize("how", ["poll", "poll_arrow", "iterate"])
@pytest.mark.parametrize("kind", ["r", "rw", "group"])
def test_a_thread_that_waits_for_records_ends(store_dir: Path, kind: str, how: str) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    with store if kind == "r" else segstore.open(store_dir, mode="r"):  # the writer lives on beside a reader
        of = segstore.open(store_dir, mode="r") if kind == "r" else store
        settings = {"group_id": "g"} if kind == "group" else {}
        reader = Reader(earliest(of, "t", **settings), how)
        reader.start()
        assert reader.began.wait(PATIENCE)
        of.close()
        reader.join(PATIENCE)
        assert not reader.is_alive()
        assert len(reader.read) == 10
        assert reader.ended == "the end" or isinstance(reader.ended, errors.StoreClosedError)
        reader.consumer.close()
    if kind == "group":
        with segstore.open(store_dir, config=SMALL) as again:
            assert committed_of(again) == 10


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_thread_within_wait_ends(store_dir: Path, mode: str) -> None:
    segstore.open(store_dir).close()
    store, waited = segstore.open(store_dir, mode), threading.Event()

    def wait() -> None:
        seen = store.publications
        waited.set()
        try:
            store.wait(seen, LONG_MS)
        except errors.StoreClosedError:
            return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waited.wait(PATIENCE)
    store.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_another_thread_may_be_at_work_on_is_not_committed(store_dir: Path) -> None:
    """The group reads it again: what was given is not what was seen to."""
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    given, release = threading.Event(), threading.Event()
    consumer = earliest(store, "t", group_id="g")

    def work() -> None:
        until(lambda: consumer.poll(100))
        given.set()
        assert release.wait(PATIENCE)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert given.wait(PATIENCE)
    store.close()
    release.set()
    thread.join(PATIENCE)
    with segstore.open(store_dir, config=SMALL) as again:
        assert committed_of(again) is None


def test_a_consumer_that_does_not_come_back_is_not_waited_for(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = segstore.open(store_dir, config=SMALL)
    fill(store)
    within, release = threading.Event(), threading.Event()

    def stuck(data: bytes) -> bytes:
        within.set()
        assert release.wait(PATIENCE)
        return data

    consumer = earliest(store, "t", group_id="g", value_deserializer=stuck)
    reader = Reader(consumer, "poll")
    reader.start()
    assert within.wait(PATIENCE)
    store.close(timeout=0.05)
    assert "was in use when its store was closed" in caplog.text
    consumer.close()
    with segstore.open(store_dir, config=SMALL):
        pass
    release.set()
    reader.join(PATIENCE)
    assert isinstance(reader.ended, errors.StoreClosedError)
    consumer.close()


def test_threads_that_send_or_wait_meanwhile_are_told(store: segstore.Store) -> None:
    producer, ended = Producer(store, buffer_memory=70_000, linger_ms=60_000), []
    sent: list[Any] = []

    def send() -> None:
        try:
            while True:
                sent.append(producer.send("t", b"x" * 1000))
        except errors.SegstoreError as error:
            ended.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(sent) > 100)
    store.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(error) for error in ended] == [errors.StoreClosedError] * 3
    assert all(future.is_done for future in sent)
    late = [future.exception for future in sent if not future.succeeded()]
    assert all(isinstance(error, errors.StoreClosedError) for error in late)


def test_a_commit_in_another_thread_is_done_or_told(store_dir: Path) -> None:
    """Whichever comes first, the transaction is committed whole or not at all."""
    outcomes = []
    for _ in range(10):
        store = segstore.open(store_dir, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        before = len(committed(store))
        producer = Producer(store, transactional_id="id")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x")
        ended: list[object] = []
        began = threading.Event()

        def commit(producer: Producer = producer, began: Any = began, ended: Any = ended) -> None:
            began.set()
            try:
                ended.append(producer.commit_transaction())
            except errors.SegstoreError as error:
                ended.append(error)

        thread = threading.Thread(target=commit, daemon=True)
        thread.start()
        assert began.wait(PATIENCE)
        store.close()
        thread.join(PATIENCE)
        assert len(ended) == 1
        with segstore.open(store_dir, config=SMALL) as again:
            outcomes.append((ended == [None], len(committed(again)) - before))
    assert set(outcomes) <= {(True, 1), (False, 0)}


def test_two_threads_that_close_both_return_when_it_is_closed(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    future = Producer(store, linger_ms=60_000).send("t", b"x")
    seen: list[bool] = []

    def close() -> None:
        store.close()
        seen.append(store.engine.closed)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == [True] * 4
    assert future.get(0).offset == 0
