"""What closing a store does to its clients: any order of closing works, and unwritten records are
reported.
"""

from __future__ import annotations

import gc
import itertools
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append, earliest, fill, tp
from faults import FailingFiles
from interrupts import interrupted
from stores import in_child, values
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.consumer import Consumer, base
from segstore.client.consumer import ending as consumer_ending
from segstore.client.producer import Producer
from segstore.client.producer import ending as producer_ending
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.quotas import quotas
from segstore.coordinator.shared import shared
from segstore.filetree.tree import file_tree
from segstore.spark.checkpointing import Checkpoints
from segstore.storage.store import clients as clients_module
from segstore.storage.store import store as store_module
from segstore.storage.store.clients import Clients, Turn

pytestmark = pytest.mark.kind("interrupts")

SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
FULL = OSError(28, "No space left on device")


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=SMALL) as store:
        store.create_topic("t")
        yield store


def committed(store: segstore.Store, **options: Any) -> list[bytes | None]:
    return values(store.partition("t"), isolation_level="read_committed", **options)


# --- what producers hold ---------------------------------------------------------------------------


def test_what_a_producer_holds_is_written_when_the_block_ends(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = Producer(store)
        futures = [producer.send("t", b"%d" % i) for i in range(10_000)]
    assert [future.get(0).offset for future in futures] == [*range(10_000)]
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"%d" % i for i in range(10_000)]


def test_producers_that_were_dropped_at_once_are_written(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        futures = [segstore.Producer(store).send("t", b"x", key=b"k") for _ in range(1001)]
    assert sorted(future.get(0).offset for future in futures) == [*range(1001)]
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 1001


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_producer_that_was_dropped_before_the_store_is_closed(store_dir: Path, linger_ms: int) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = Producer(store, linger_ms=linger_ms)
        future = producer.send("t", b"x")
        del producer
    assert future.get(0).offset == 0


def test_a_store_keeps_no_client_that_is_dropped(store: segstore.Store) -> None:
    fill(store, "u")
    producer, consumer = Producer(store), earliest(store, "u", group_id="g")
    sender = producer._sender
    del producer, consumer
    sender.join(PATIENCE)
    del sender
    # The sender's thread has its last steps to make when `join` returns.
    until(lambda: gc.collect() >= 0 and not store._clients._attached)


def test_all_that_lingers_is_sent_at_once_although_one_producer_is_stuck(store_dir: Path) -> None:
    """The one that is stuck must not take the time of the others."""
    files = FailingFiles({"pwrite"}, lambda name, args: refuse_stuck(args), 0, 1 << 30)

    def refuse_stuck(args: tuple[Any, ...]) -> None:
        if "stuck-0" in args[0].path:
            raise FULL

    store = segstore.open(store_dir, files=files)
    for topic in ("stuck", "t"):
        store.create_topic(topic)
    files.arm(1, 1 << 30)
    stuck, lingers = Producer(store, linger_ms=60_000), Producer(store, linger_ms=60_000)
    stuck.send("stuck", b"x")
    future = lingers.send("t", b"y")
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        store.close(timeout=0.5)
    assert caught.value.partitions == {("stuck", 0): 1}
    assert future.get(0).offset == 0


def test_what_fails_while_another_producer_is_waited_for_is_counted(store: segstore.Store) -> None:
    store.create_topic("gone")
    first, second = Producer(store, linger_ms=60_000), Producer(store, linger_ms=60_000)
    future, gone = first.send("t", b"x"), second.send("gone", b"y")
    store.delete_topic("gone")
    # The first is waited for until the second has failed.
    future.add_callback(lambda _: until(lambda: gone.is_done))
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        store.close()
    assert caught.value.partitions == {("gone", 0): 1}
    assert future.get(0).offset == 0


# --- what can't be written is told -------------------------------------------------------------------


def unwritable(store_dir: Path) -> tuple[segstore.Store, list[Any]]:
    """A store over a full disk, and futures of two records for t-0 and one for u-1."""
    files = FailingFiles({"pwrite"}, FULL, 0, 1 << 30)
    store = segstore.open(store_dir, files=files)
    store.create_topic("t")
    store.create_topic("u", partitions=2)
    producer = Producer(store, linger_ms=0, retry_backoff_ms=1)
    files.arm(1, 1 << 30)
    sent = [producer.send(*record) for record in (("t", b"1"), ("t", b"2"), ("u", b"3", None, None, 1))]
    # Each was refused twice: what is told of the first time is told.
    until(lambda: [batch.attempts > 1 for batch in _records(producer)] == [True] * 3)
    return store, sent


def _records(producer: Producer) -> list[Any]:
    """The batch of each record that has no outcome yet."""
    return [batch for batch in list(producer._accumulator.incomplete.batches) for _ in range(batch.n)]


def judge_told(store_dir: Path, sent: list[Any], caplog: pytest.LogCaptureFixture, lost: int = 3) -> None:
    for future in sent:
        with pytest.raises(errors.StoreClosedError, match="before the record was written"):
            future.get(0)
    told = [record for record in caplog.records if f"before {lost} records were written" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    with segstore.open(store_dir) as store:  # its lock was let go
        assert [values(store.partition(*at)) for at in (("t", 0), ("u", 1))] == [[], []]


@pytest.mark.parametrize("how", ["close", "with"])
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_what_is_not_written_is_raised(
    store_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    timeout: float,
) -> None:
    store, sent = unwritable(store_dir)
    monkeypatch.setattr("segstore.storage.store.store.CLOSE_TIMEOUT", timeout)
    leave = partial(store.__exit__, None, None, None) if how == "with" else partial(store.close, timeout)
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        leave()
    error = caught.value
    assert (error.records, error.partitions) == (3, {("t", 0): 2, ("u", 1): 1})
    assert isinstance(error.__cause__, errors.StorageError)
    assert error.__cause__.errno == 28
    for said in ("3 records", "2 for t-0", "1 for u-1", "No space left on device", str(store_dir)):
        assert said in str(error)
    judge_told(store_dir, sent, caplog)
    store.close()  # is harmless
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.partitions) == (str(error), error.partitions)


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_that_leaves_the_block_is_not_replaced(
    store_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    store, sent = unwritable(store_dir)
    monkeypatch.setattr("segstore.storage.store.store.CLOSE_TIMEOUT", 0.05)
    with pytest.raises(kind, match="mine"), store:
        raise kind("mine")
    judge_told(store_dir, sent, caplog)


def test_ctrl_c_while_the_store_waits_is_raised_and_the_number_is_logged(
    store_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = unwritable(store_dir)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segstore.client.producer.incomplete_batches.Incomplete.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    judge_told(store_dir, sent, caplog)


def test_a_producer_that_gives_up_says_how_many(store_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = unwritable(store_dir)
    (ending,) = store._clients._live(Turn.WRITER)
    ending.close(0.01)
    assert "closed before 3 records were written" in caplog.text
    with pytest.raises(errors.StorageError):  # the disk is full
        store.close(0)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (-1, errors.InvalidArgumentError),
        (float("nan"), errors.InvalidArgumentError),
        ("1", errors.InvalidTypeError),
        (True, errors.InvalidTypeError),
    ],
)
def test_a_timeout_that_is_none_is_refused(
    store: segstore.Store, timeout: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="timeout"):
        store.close(timeout)
    store.partition("t").append(b"it is open still")


@pytest.mark.parametrize("timeout", [0, 1, 0.5, float("inf"), None])
def test_timeouts(store_dir: Path, timeout: float | None) -> None:
    store = segstore.open(store_dir)
    store.close(timeout=timeout)
    store.close(timeout=timeout)


# --- any order of ends -----------------------------------------------------------------------------

CLIENTS = ("producer", "transactional", "consumer", "member")


class Application:
    """A store, two producers and two consumers; each round sends four records that count, and one that is
    in a transaction which nobody commits.
    """

    def __init__(self, path: Path) -> None:
        self.store = store = segstore.open(path, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        self.before = len(committed(store))
        append(store, 1)
        self.all: dict[str, Any] = {"store": store}
        self.all["consumer"] = consumer = earliest(store, "t")
        self.all["member"] = member = earliest(store, "t", group_id="g", enable_auto_commit=True)
        until(consumer.poll)
        until(member.poll)
        self.read = member.position(tp())
        self.all["producer"] = producer = Producer(store, linger_ms=60_000)
        self.sent = [producer.send("t", b"%d" % i) for i in range(2)]
        self.all["transactional"] = transactional = Producer(store, transactional_id="id", linger_ms=60_000)
        transactional.init_transactions()
        for commit in (True, False):
            transactional.begin_transaction()
            transactional.send("t", b"in a transaction: %d" % commit)
            if commit:
                transactional.commit_transaction()

    def judge(self, path: Path) -> None:
        assert [future.succeeded() for future in self.sent] == [True, True]
        with segstore.open(path, config=SMALL) as store:
            assert len(committed(store)) == self.before + 4
            log = store.partition("t")
            assert log.last_stable_offset == log.end_offset
            with Consumer(store, group_id="g") as look:
                assert look.committed(tp()) == self.read


@pytest.mark.parametrize("first", ["store", *CLIENTS])
def test_any_order_of_closing(store_dir: Path, first: str) -> None:
    """All orders of the five; each is closed twice."""
    rest = [name for name in ("store", *CLIENTS) if name != first]
    for order in itertools.permutations(rest):
        application = Application(store_dir)
        for name in (first, *order):
            application.all[name].close()
            application.all[name].close()
        application.judge(store_dir)


@pytest.mark.parametrize("of_member", ["before", "after", "never", "dropped"])
def test_before_after_or_never(store_dir: Path, of_member: str) -> None:
    """Each client is closed before the store, after it, or never; those that are dropped are gone before."""
    for when in itertools.product(["before", "after", "never"], repeat=3):
        application = Application(store_dir)
        closed = dict(zip(CLIENTS, (*when, of_member), strict=True))
        for name in CLIENTS:
            if closed[name] == "before":
                application.all[name].close()
        if of_member == "dropped":
            del application.all["member"]
            application.read = application.store and committed_of(application.store)
        with application.store:
            pass
        for name in CLIENTS:
            if closed[name] == "after":
                application.all[name].close()
        application.judge(store_dir)


def committed_of(store: segstore.Store) -> int | None:
    with Consumer(store, group_id="g") as look:
        return look.committed(tp())


@pytest.mark.parametrize("order", [*itertools.permutations(("store", "one", "other"))], ids="-".join)
def test_readers_of_a_store_that_is_opened_to_read(store_dir: Path, order: tuple[str, ...]) -> None:
    with segstore.open(store_dir) as store:
        fill(store)
    store = segstore.open(store_dir, mode="r")
    parts: dict[str, Any] = {"store": store, "one": earliest(store, "t"), "other": Consumer(store)}
    assert until(parts["one"].poll)
    for name in order:
        parts[name].close()
        parts[name].close()
    for name in ("one", "other"):
        with pytest.raises((errors.StoreClosedError, errors.ClientClosedError)):
            parts[name].poll()


def test_a_static_member_keeps_its_place(store: segstore.Store, store_dir: Path) -> None:
    fill(store, "u", partitions=2)
    member = earliest(store, "u", group_id="g", group_instance_id="i")
    until(member.poll)
    store.close()
    member.close()
    with segstore.open(store_dir, config=SMALL) as again:
        members = shared(again, GroupCoordinator).members("g")
        assert [each.group_instance_id for each in members] == ["i"]


# --- another thread is at work -------------------------------------------------------------------------


class Reader(threading.Thread):
    """Polls until an error of ours, or the end of an iteration, ends it; `began` once it has read all."""

    def __init__(self, consumer: Consumer, how: str) -> None:
        super().__init__(daemon=True)
        self.consumer, self.how, self.began = consumer, how, threading.Event()
        self.read: list[Any] = []
        self.ended: object = None

    def run(self) -> None:
        try:
            if self.how == "iterate":
                for record in self.consumer:
                    self.note([record])
                self.ended = "the end"
            while self.how != "iterate":
                if self.how == "poll":
                    for records in self.consumer.poll(LONG_MS).values():
                        self.note(records)
                else:
                    self.note(self.consumer.poll_arrow(LONG_MS)["offset"].to_pylist())
        except errors.SegstoreError as error:
            self.ended = error

    def note(self, records: list[Any]) -> None:
        self.read += records
        if len(self.read) >= 10:
            self.began.set()


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


# --- closing from within ---------------------------------------------------------------------------------


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


# --- forks, and what nobody has any more ------------------------------------------------------------------


def test_in_a_forked_child_all_ends_are_harmless(store: segstore.Store) -> None:
    fill(store, "u")
    producer = Producer(store, linger_ms=60_000)
    consumer, member = earliest(store, "u"), earliest(store, "u", group_id="g")
    until(member.poll)
    until(consumer.poll)
    future = producer.send("t", b"the parent's")

    def child(tell: Callable[[str], None]) -> None:
        for each in (member, store, consumer, producer, store, member):
            each.close()
        with pytest.raises(errors.StoreClosedError):
            store.topics()
        tell("closed")

    assert in_child(child) == (0, ["closed"])
    assert member.poll(0) == {}
    producer.flush()
    assert future.get(0).offset == 0


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_child_may_close_what_another_thread_of_its_parent_was_in(store_dir: Path, mode: str) -> None:
    writer = segstore.open(store_dir, config=SMALL)
    fill(writer)
    store = writer if mode == "rw" else segstore.open(store_dir, mode="r")
    reader = Reader(earliest(store, "t", **({"group_id": "g"} if mode == "rw" else {})), "poll")
    reader.start()
    assert reader.began.wait(PATIENCE)

    def child(tell: Callable[[str], None]) -> None:
        store.close()
        if mode == "rw":
            reader.consumer.close()
        tell("closed")

    assert in_child(child) == (0, ["closed"])
    store.close()
    reader.join(PATIENCE)
    writer.close()


def test_all_of_it_is_garbage(store_dir: Path) -> None:
    """The producer's records are written, and the directory is let go, though nobody has closed anything."""
    for cyclic in (False, True):
        store = segstore.open(store_dir, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        producer, consumer = Producer(store, linger_ms=60_000), earliest(store, "t", group_id="g")
        future, sender = producer.send("t", b"x"), producer._sender
        consumer.poll()
        if cyclic:
            ring: list[Any] = [store, producer, consumer]
            ring.append(ring)
            del ring
        gone = [weakref.ref(store), weakref.ref(store.engine)]
        del store, producer, consumer
        gc.collect()
        sender.join(PATIENCE)
        assert not sender.is_alive()
        del sender
        until(lambda gone=gone: gc.collect() >= 0 and not any(ref() for ref in gone))
        assert future.get(0).offset == int(cyclic)
    with segstore.open(store_dir, config=SMALL) as store:
        assert store.partition("t").end_offset == 2


def test_the_registry_knows_the_protocol_only() -> None:
    clients = Clients("somewhere")
    assert clients.once(lambda: (clients.once(lambda: 1), 2)) == (None, 2)
    clients.close(0, True)
    assert clients.unwritten() is None


# --- Ctrl-C, and parts of other kinds -----------------------------------------------------------------------


def test_ctrl_c_anywhere_in_a_close_lets_go_of_the_directory(store_dir: Path) -> None:
    """What was acknowledged is there, and all can be closed again."""
    modules = (store_module, clients_module, producer_ending, consumer_ending, base)
    nth, more, expected = 0, True, list[bytes]()
    while more:
        nth += 1
        store = segstore.open(store_dir, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        producer, consumer = Producer(store), earliest(store, "t", group_id="g")
        expected.append(b"%d" % nth)
        producer.send("t", expected[-1]).get(PATIENCE)
        until(lambda consumer=consumer: consumer.poll(100))
        more = interrupted(nth, modules, store.close)
        for each in (store, producer, consumer):
            each.close()
        segstore.open(store_dir, config=SMALL).close()
    with segstore.open(store_dir, config=SMALL) as store:
        assert values(store.partition("t")) == expected
    assert nth > 40


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


@pytest.mark.parametrize("first", ["store", "part"])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_other_parts_are_closed_in_any_order(store_dir: Path, mode: str, first: str) -> None:
    with segstore.open(store_dir, config=SMALL) as store:
        fill(store)
        file_tree(store, "files")
    store = segstore.open(store_dir, mode, config=SMALL if mode == "rw" else None)
    parts: list[Any] = [Groups(store), quotas(store)]
    parts += [Checkpoints(store, "files")] if mode == "rw" else []
    for each in [store, *parts] if first == "store" else [*parts, store]:
        each.close()
        each.close()
