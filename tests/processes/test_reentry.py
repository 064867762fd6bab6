"""Calls that interrupt another call of their own thread, as from a signal handler or a finalizer: each is
done, or refused with a named error; none hangs, and the interrupted call has the same result as without them.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from entered_calls import entered
from entered_calls import log as log
from paused_tails import let_tails_open
from places import environment

import segstore
from segstore.errors import InvalidArgumentError, ReentrantCallError

pytestmark = pytest.mark.kind("interrupts")

POINTS = os.environ.get("SEGSTORE_REENTRY", "3")
"""Of each outer call, at how many of its places another call comes in; 0: at all of them."""


def judged(mode: str, store_dir: Path, rng: random.Random, *more: str) -> None:
    """Run `reentering`, which ends with status 0 where all is right."""
    points = "1" if mode == "close" and POINTS == "3" else POINTS  # each is a store of its own
    command = [sys.executable, "-m", "reentering", mode, str(store_dir)]
    command += [str(rng.random()), points, *more]
    run = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=3600, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "outers",
    [
        "append,batch,flush,read",
        "send,send_and_get,send_and_flush",
        "poll,commit,sweep,stats,create,delete",
    ],
)
def test_a_call_within_a_call(outers: str, store_dir: Path, rng: random.Random) -> None:
    judged("calls", store_dir, rng, outers)


def test_a_call_within_what_the_store_s_threads_do(store_dir: Path, rng: random.Random) -> None:
    judged("threads", store_dir, rng)


def test_closing_a_store_within_its_calls(tmp_path: Path, rng: random.Random) -> None:
    judged("close", tmp_path / "stores", rng)


def test_an_append_within_an_append_is_refused_and_the_outer_one_is_in_the_log_once(
    log: segstore.PartitionLog,
) -> None:
    """Before: it hung, or the outer one raised IndexError although its record was in the log."""
    with entered(log.source.writer, "write", lambda: log.append(b"inner")) as raised:  # type: ignore[union-attr]
        assert log.append(b"outer") == 0
    assert isinstance(raised[0], ReentrantCallError)
    assert "append" in str(raised[0])
    assert "under way in the same thread" in str(raised[0])
    assert log.append(b"next") == 1
    assert [r.value for r in log.read(0)] == [b"outer", b"next"]


def test_an_append_where_its_record_could_not_be_shown_is_refused_before_it_is_written(
    log: segstore.PartitionLog,
) -> None:
    source = log.source
    with entered(source.visible.publisher, "publish", lambda: log.append(b"inner")) as raised:  # type: ignore[union-attr]
        source.visible.publish()  # type: ignore[union-attr]
    assert isinstance(raised[0], ReentrantCallError)
    assert log.append(b"x") == 0
    assert [r.value for r in log.read(0)] == [b"x"]


def test_an_append_within_the_encoding_of_another_leaves_that_its_own_record(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: both used one thread's arguments of C, and the outer record got the inner's bytes."""
    single = importlib.import_module("segstore.records.encode")

    plain, left = single._set, [b"inner" * 3]

    def _set(column: Any, data: Any, name: str) -> Any:
        kept = plain(column, data, name)
        if left:
            log.append(left.pop())
        return kept

    monkeypatch.setattr(single, "_set", _set)
    assert log.append(b"outer", key=b"k") == 1
    assert [(r.key, r.value) for r in log.read(0)] == [(None, b"inner" * 3), (b"k", b"outer")]


def test_a_read_within_a_read_leaves_that_its_own_records(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: both used one thread's results of C; the outer one said that a good file is damaged."""
    decode = importlib.import_module("segstore.records.decode")

    values = [b"%d" % n * 50 for n in range(50)]
    log.append_batch(values, batch_bytes=200)
    plain, inner, left = decode.held, [], [1]

    def held(*args: Any) -> Any:
        if left:
            left.clear()
            inner.append([r.value for r in log.read(20, 300)])
        return plain(*args)

    monkeypatch.setattr(decode, "held", held)
    assert [r.value for r in log.read(0)] == values
    assert inner[0]
    assert inner[0] == values[20 : 20 + len(inner[0])]


def test_what_takes_several_locks_is_refused_before_the_first(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_tails_open(monkeypatch, False)  # no lock is held, and no handler runs, within C
    store = log.store
    calls: list[Callable[[], object]] = [
        *(store.sweep, store.flush, log.flush, store.close, lambda: store.create_topic("u")),
        *(lambda: store.delete_topic("t"), lambda: store.alter_topic("t", {"flush.ms": 5})),
        *(lambda: store.add_partitions("t", 3), lambda: log.delete_records(1)),
    ]
    for n, call in enumerate(calls):
        with entered(log.source.writer, "write", call) as raised:  # type: ignore[union-attr]
            assert log.append(b"%d" % n) == n
        assert n == 2 or isinstance(raised[0], ReentrantCallError), calls[n]
    assert list(store.topics()) == ["t"]
    assert store.topics()["t"].config == {}


def test_a_finalizer_that_appends_within_an_append(log: segstore.PartitionLog) -> None:
    """The garbage collector runs it at any place. Before: IndexError for a record that is in the log."""
    said: list[str] = []

    class Telemetry:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                values.append(b"telemetry %d" % len(said))
                log.append(values[-1])
                said.append("done")
            except ReentrantCallError:
                values.pop()
                said.append("refused")

    values: list[bytes] = []
    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for n in range(300):
            Telemetry()
            value = b"%d" % n
            offset = log.append(value)
            assert log.read(offset, 0)[0].value == value
            values.append(value)
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert said
    assert sorted(r.value for r in log.read(0, 1 << 30)) == sorted(values)


# --- clients --------------------------------------------------------------------------------------


def test_a_reader_of_another_store_is_closed_within_an_append(
    log: segstore.PartitionLog, tmp_path: Path
) -> None:
    with segstore.open(tmp_path / "other") as other:
        other.create_topic("t")
    reader = segstore.open(tmp_path / "other", "r")
    with entered(log.source.writer, "write", reader.close) as raised:  # type: ignore[union-attr]
        assert log.append(b"outer") == 0
    assert (raised, reader.engine.closed) == ([], True)


@pytest.mark.parametrize("durable", [False, True])
def test_an_append_to_another_store_is_done_or_refused_by_name(
    log: segstore.PartitionLog, tmp_path: Path, durable: bool
) -> None:
    with segstore.open(tmp_path / "other") as other:
        other.create_topic("t", config={"flush.messages": 1} if durable else {})
        there = other.partition("t")
        with entered(log.source.writer, "write", lambda: there.append(b"inner")) as raised:  # type: ignore[union-attr]
            assert log.append(b"outer") == 0
        assert [r.value for r in there.read(0)] == ([] if durable else [b"inner"])
        assert [type(error) for error in raised] == ([ReentrantCallError] if durable else [])
        assert there.append(b"next") == (0 if durable else 1)


@pytest.mark.parametrize("by_python", [False, True])
def test_a_durable_append_within_a_call_waits_for_no_other_call(
    log: segstore.PartitionLog, tmp_path: Path, by_python: bool
) -> None:
    """C appends and syncs, and needs nobody for it. Where Python syncs, which may need what the outer call
    holds, nothing is written.
    """
    with segstore.open(tmp_path / "other") as other:
        other.create_topic("t", config={"flush.messages": 1})
        there = other.partition("t")
        for n in range(2):
            assert there.append(b"%d" % n) == n
        commit = there.partition_for_write().flusher._commit
        commit.closed = by_python
        with entered(log.source.writer, "write", lambda: there.append(b"inner")) as raised:  # type: ignore[union-attr]
            assert log.append(b"outer") == 0
        commit.closed = 0
        assert [type(error) for error in raised] == ([ReentrantCallError] if by_python else [])
        assert there.end_offset == commit.synced == (2 if by_python else 3)


def test_a_reader_is_not_closed_where_a_call_of_its_own_has_its_lock(log: segstore.PartitionLog) -> None:
    with segstore.open(log.store.path, "r") as reader:
        follower: Any = reader.partition("t").source
        with entered(follower, "_refresh", reader.close) as raised:
            follower.refresh()
        assert isinstance(raised[0], ReentrantCallError)
        assert reader.partition("t").end_offset == 0


def test_a_consumer_s_method_within_a_poll_is_refused(log: segstore.PartitionLog) -> None:
    """Before: KeyError in the outer call."""
    log.append_batch([b"%d" % n for n in range(10)])
    consumer = segstore.Consumer(log.store, auto_offset_reset="earliest")
    tp = segstore.TopicPartition("t", 0)
    consumer.assign([tp])
    with entered(consumer._fetcher, "_drop", lambda: consumer.poll(0)) as raised:
        assert [r.value for r in consumer.poll(0)[tp]] == [b"%d" % n for n in range(10)]
    assert isinstance(raised[0], ReentrantCallError)
    if sys.version_info >= (3, 11):
        assert "Consumer.poll() is under way" in str(raised[0])
    consumer.seek(tp, 3)
    assert consumer.poll(0)[tp][0].offset == 3
    consumer.close()


def test_waiting_in_the_sender_s_own_thread_is_refused(log: segstore.PartitionLog) -> None:
    """A callback, or a finalizer there, would wait for itself."""
    producer = segstore.Producer(log.store)
    said: list[BaseException] = []
    done = threading.Event()

    def callback(_: Any) -> None:
        for call in (producer.flush, lambda: producer.send("t", b"second").get(timeout=60)):
            try:
                call()
            except segstore.SegstoreError as error:
                said.append(error)
        done.set()

    producer.send("t", b"first").add_callback(callback)
    assert done.wait(120)
    producer.close()
    assert [type(error) for error in said] == [InvalidArgumentError, ReentrantCallError]
    assert len(log.read(0)) + len(log.store.partition("t", 1).read(0)) == 2


def test_waiting_for_the_sender_in_the_midst_of_an_append_is_refused(log: segstore.PartitionLog) -> None:
    """The sender may need the lock that the append holds. Before: both waited for each other."""
    with segstore.Producer(log.store, linger_ms=0) as producer:
        for call in (
            producer.flush,
            producer.close,
            lambda: producer.send("t", b"x", partition=0).get(),
        ):
            with entered(log.source.writer, "write", call) as raised:  # type: ignore[union-attr]
                log.append(b"outer")
            assert not raised or isinstance(raised[0], ReentrantCallError)


def test_a_producer_s_send_within_an_append_is_queued(log: segstore.PartitionLog) -> None:
    with segstore.Producer(log.store) as producer:
        sent: list[Any] = []
        with entered(
            log.source.writer,  # type: ignore[union-attr]
            "write",
            lambda: sent.append(producer.send("t", b"last words", partition=0)),
        ) as raised:
            log.append(b"outer")
        assert raised == []
        assert log.read(sent[0].get(timeout=120).offset)[0].value == b"last words"


# --- the harness sees -----------------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["locks", "arguments"])
def test_the_harness_finds_what_is_planted(planted: str, tmp_path: Path) -> None:
    faults = {
        "locks": "from segstore.mutex import Mutex\nMutex.__enter__ = lambda self: self.acquire()",
        "arguments": (
            "import importlib\nsingle = importlib.import_module('segstore.records.encode')\n"
            "class Same(list):\n"
            "    def pop(self): return self[0]\n"
            "    def append(self, one): pass\n"
            "single._unused = Same([single._Arguments()])"
        ),
    }
    code = (
        f"{faults[planted]}\nimport sys\nimport paused_tails\nimport reentering\n"
        "paused = paused_tails.paused_tails()\n"
        "paused.__enter__()\n"  # an append by C has neither locks nor arguments
        f"sys.argv[1:] = ['calls', {str(tmp_path / 's')!r}, '1', '150', 'append']\n"
        "reentering.OPS = ('append',)\nreentering.main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode != 0, run.stdout


class _Asking(str):
    """A name that asks for a log when it is compared: so does a handler that comes in between."""

    store: segstore.Store
    asked: list[segstore.PartitionLog]

    def __eq__(self, other: object) -> bool:
        partition = len(self.asked)
        if partition < 50:
            self.asked.append(self.store.partition("other", partition))
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def test_a_topic_is_deleted_while_others_are_asked_for(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("other", 50)
        store.create_topic("t", 2)
        logs = [store.partition("t", n) for n in range(2)]
        name = _Asking("t")
        name.store, name.asked = store, []
        store._forget(name)
        assert len(name.asked) > 0
        assert all(store.partition("t", n) is not logs[n] for n in range(2))
        assert all(store.partition("other", n) is log for n, log in enumerate(name.asked))
