"""The producer on disks that are full, slow or broken: what is retried, in which order, what is bounded."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles, HookedFiles
from stores import values
from turned import turned
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.producer import Producer, delivery
from segstore.storage.reported_failures import ReportedFailures


def full(path: str = "") -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", path)


@contextmanager
def failing(store_dir: Path, fault: Any = None, names: tuple[str, ...] = ("pwrite",)) -> Iterator[Any]:
    """A store of topics "a" and "b" of one partition each, whose files fail once armed."""
    files = FailingFiles(names, fault or full(), 0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("a")
        store.create_topic("b")
        yield store, files
        files.arm(0)


# --- retries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EMFILE", "EINTR"])
@pytest.mark.parametrize("times", [1, 5])
def test_what_passes_is_tried_again(store_dir: Path, code: str, times: int) -> None:
    with (
        failing(store_dir, OSError(getattr(errno, code), code)) as (store, files),
        Producer(store, retry_backoff_ms=1) as producer,
    ):
        files.arm(1, times)
        assert producer.send("a", b"x").get(PATIENCE).offset == 0
        assert files.hits == times
        metrics = producer.metrics()
        assert metrics["producer-metrics"]["record-retry-total"] == times
        assert metrics["producer-topic-metrics.a"]["record-retry-total"] == times
        assert values(store.partition("a")) == [b"x"]


def test_order_is_kept_and_nothing_lost_or_doubled_under_retries(store_dir: Path, rng: random.Random) -> None:
    def sometimes(name: str, args: tuple[Any, ...]) -> None:
        if rng.random() < 0.4:
            raise full()

    with failing(store_dir, sometimes) as (store, files):
        with Producer(store, retry_backoff_ms=1, batch_size=300, linger_ms=0.2) as producer:
            files.arm(1, 1 << 30)
            futures = [producer.send("ab"[i % 2], b"%d" % i) for i in range(3_000)]
            producer.flush(PATIENCE)
            assert files.hits > 0
        files.arm(0)
        for i, topic in enumerate("ab"):
            assert values(store.partition(topic)) == [b"%d" % n for n in range(i, 3_000, 2)]
        assert [future.get(0).offset for future in futures] == [i // 2 for i in range(3_000)]


def test_a_split_batch_goes_on_where_the_disk_stopped_it(store_dir: Path) -> None:
    with failing(store_dir) as (store, files):
        store.alter_topic("a", {"max.message.bytes": 400})
        with Producer(store, linger_ms=60_000, retry_backoff_ms=1) as producer:
            good = [producer.send("a", b"%d" % i) for i in range(5)]
            bad = producer.send("a", b"x" * 500)
            late = producer.send("a", b"late")
            files.arm(3, 2)  # the third record that is written alone
            producer.flush(PATIENCE)
        assert isinstance(bad.exception, errors.RecordTooLargeError)
        assert [future.get(0).offset for future in [*good, late]] == [0, 1, 2, 3, 4, 5]
        assert values(store.partition("a")) == [b"0", b"1", b"2", b"3", b"4", b"late"]


GIVEN_UP: dict[str, tuple[dict[str, Any], OSError, type[Exception], int]] = {
    "no retries": ({"retries": 0}, full(), errors.StorageError, 1),
    "three retries": ({"retries": 3}, full(), errors.StorageError, 4),
    "what does not pass": ({}, OSError(errno.EROFS, "Read-only file system"), errors.StorageError, 1),
    "the time is over": ({"delivery_timeout_ms": 60_000}, full(), errors.KafkaTimeoutError, 3),
    "backing off beyond the time": (
        {"delivery_timeout_ms": 20_000, "retry_backoff_ms": 3_600_000},
        full(),
        errors.KafkaTimeoutError,
        1,
    ),
}


@pytest.mark.parametrize(("settings", "fault", "error", "tries"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_what_is_given_up(
    store_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict,
    fault: OSError,
    error: type[Exception],
    tries: int,
) -> None:
    """Each try takes 25 seconds."""
    settings, clock = {"retry_backoff_ms": 1, **settings}, turned(monkeypatch)

    def fail(name: str, args: tuple[Any, ...]) -> None:
        clock.ahead += 25
        raise OSError(fault.errno, fault.strerror)

    with failing(store_dir, fail) as (store, files), Producer(store, **settings) as producer:
        files.arm(1, 1 << 30)
        future = producer.send("a", b"x")
        with pytest.raises(error):
            future.get(PATIENCE)
        assert files.hits == tries
        files.arm(0)
        assert producer.send("a", b"y").get(PATIENCE).offset == 0
        producer.flush()
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 1
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == 32 << 20


def test_a_fenced_partition_fails_at_once(store_dir: Path) -> None:
    files = FailingFiles({"sync"}, OSError(errno.EIO, "I/O error"), 0)
    store = segstore.open(store_dir, files=files)
    store.create_topic("a", config={"flush.messages": 1})
    with Producer(store, retry_backoff_ms=1) as producer:
        producer.send("a", b"x").get(PATIENCE)
        files.arm()
        for _ in range(2):
            with pytest.raises(errors.StorageError):
                producer.send("a", b"y").get(PATIENCE)
    with pytest.raises(errors.StorageError):
        store.flush()
    store.close()
    with segstore.open(store_dir) as store:
        assert values(store.partition("a"))[0] == b"x"


def test_acks_0_is_never_tried_again(store_dir: Path) -> None:
    with failing(store_dir) as (store, files), Producer(store, acks=0, retry_backoff_ms=1) as producer:
        files.arm(1)
        assert producer.send("a", b"lost").get(PATIENCE).offset == -1
        producer.flush()
        producer.send("a", b"kept")
        producer.flush()
        assert values(store.partition("a")) == [b"kept"]
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 1


def test_a_stalled_partition_does_not_stall_the_others(store_dir: Path) -> None:
    def only_a(name: str, args: tuple[Any, ...]) -> None:
        if args[0].fd in stalled:
            raise full()

    stalled: set[int] = set()
    with failing(store_dir, only_a) as (store, files):
        with Producer(store, retry_backoff_ms=5) as producer:
            producer.send("a", b"first").get(PATIENCE)
            stalled.add(store.partition("a").source.segments.active.handle.fd)
            files.arm(1, 1 << 30)
            waiting = [producer.send("a", b"%d" % i) for i in range(50)]
            for i in range(50):
                assert producer.send("b", b"%d" % i).get(PATIENCE).offset == i
            assert not any(future.is_done for future in waiting)
            stalled.clear()
            producer.flush(PATIENCE)
        assert values(store.partition("a")) == [b"first", *(b"%d" % i for i in range(50))]


# --- memory ---------------------------------------------------------------------------------------


class HeldFiles(HookedFiles):
    """Each write waits for `gate`, once it has called `written`."""

    def __init__(self) -> None:
        self.gate, self.at_it = threading.Event(), threading.Event()
        self.gate.set()
        self.written: Callable[[], object] = lambda: None

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "pwrite":
            self.at_it.set()
            self.written()
            assert self.gate.wait(PATIENCE)


@contextmanager
def held(store_dir: Path) -> Iterator[Any]:
    files = HeldFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", partitions=4)
        try:
            yield store, files
        finally:
            files.gate.set()


@pytest.mark.parametrize("threads", [1, 4])
def test_memory_is_bounded_where_the_disk_is_slower(store_dir: Path, threads: int) -> None:
    """It writes nothing before the memory is full."""
    memory, block = 20_000, 1_000
    least, sent = [memory], threading.Event()
    with (
        held(store_dir) as (store, files),
        Producer(store, batch_size=block, buffer_memory=memory) as producer,
    ):
        pool = producer._accumulator.pool

        def full_() -> None:
            until(lambda: pool.waiting or sent.is_set())
            least.append(pool.available)

        def send() -> None:
            for i in range(2_000):
                producer.send("t", b"x" * 90, partition=i // 10 % 4)
                waiting = sum(len(q.records) for q in producer._accumulator.queues.values())
                assert waiting <= memory // 90 + threads

        files.written = full_
        running = [threading.Thread(target=send) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        sent.set()
        producer.flush()
        metrics = producer.metrics()["producer-metrics"]
        assert 0 <= min(least) < block
        assert pool.available == memory
        assert pool.made <= memory // block
        assert pool.reused > 5 * pool.made
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"] == memory
        assert metrics["bufferpool-wait-time-ns-total"] > 0
    with segstore.open(store_dir) as store:
        assert sum(store.partition("t", p).end_offset for p in range(4)) == threads * 2_000


def test_send_gives_up_when_the_memory_stays_full(store_dir: Path) -> None:
    with (
        held(store_dir) as (store, files),
        Producer(store, batch_size=500, buffer_memory=2_000, max_block_ms=30) as producer,
    ):
        files.gate.clear()
        futures: list[Any] = []

        def fill() -> None:
            while True:
                futures.append(producer.send("t", b"x" * 90, partition=0))

        with pytest.raises(errors.BufferExhaustedError, match=r"buffer_memory=2,000.*max_block_ms=30"):
            fill()
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 1
        assert 4 <= len(futures) <= 16
        files.gate.set()
        producer.flush(PATIENCE)
        futures.append(producer.send("t", b"x", partition=0))
        assert [future.get(PATIENCE).offset for future in futures] == list(range(len(futures)))


def test_records_that_linger_are_sent_when_memory_is_wanted(store_dir: Path) -> None:
    with (
        held(store_dir) as (store, _),
        Producer(store, batch_size=500, buffer_memory=1_000, linger_ms=60_000) as producer,
    ):
        futures = [producer.send("t", b"x", partition=p) for p in (0, 1, 2, 3)]
        assert futures[0].get(PATIENCE).offset == 0


def test_those_who_wait_for_memory_are_told_of_the_close(store_dir: Path) -> None:
    caught: list[BaseException] = []
    with held(store_dir) as (store, files):
        producer = Producer(store, batch_size=500, buffer_memory=500)
        files.gate.clear()

        def send() -> None:
            try:
                while True:
                    producer.send("t", b"x" * 300)
            except errors.ClientClosedError as error:
                caught.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: producer._accumulator.pool.waiting)
        closing = threading.Thread(target=producer.close)
        closing.start()
        thread.join(PATIENCE)
        files.gate.set()
        closing.join(PATIENCE)
        assert len(caught) == 1


def test_a_record_larger_than_a_batch_takes_what_it_needs(store_dir: Path) -> None:
    with held(store_dir) as (store, _), Producer(store, batch_size=100, buffer_memory=10_000) as producer:
        futures = [producer.send("t", b"x" * size, partition=0) for size in (10, 5_000, 10, 9_000, 10)]
        assert [future.get(PATIENCE).offset for future in futures] == list(range(5))
        producer.flush()
        assert producer._accumulator.pool.available == 10_000


def test_a_stuck_disk_leaves_records_to_the_delivery_timeout(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = turned(monkeypatch)
    with held(store_dir) as (store, files), Producer(store, delivery_timeout_ms=60_000) as producer:
        files.gate.clear()
        files.at_it.clear()
        first = producer.send("t", b"x", partition=0)
        assert files.at_it.wait(PATIENCE)
        second = producer.send("t", b"y", partition=0)
        clock.ahead += 61
        files.gate.set()
        assert first.get(PATIENCE).offset == 0
        with pytest.raises(errors.KafkaTimeoutError, match="delivery_timeout_ms=60000"):
            second.get(PATIENCE)


# --- what is told ---------------------------------------------------------------------------------


class Faults:
    """What the disk says to the writes of one topic, by turns: an errno, or 0 for going well."""

    def __init__(self, topic: str) -> None:
        self.topic, self.code, self.hits = f"{topic}-0", 0, 0

    def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        if self.code and self.topic in args[0].path:
            self.hits += 1
            raise OSError(self.code, os.strerror(self.code), args[0].path)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return what the producer has logged; the store logs a full disk, too."""
    kept = [record for record in caplog.records if record.filename == "delivery.py"]
    return [(record.levelname, record.getMessage()) for record in kept]


def test_a_full_disk_is_told_once_at_once_and_again_when_the_cause_changes(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fault = Faults("a")
    with failing(store_dir, fault) as (store, files), Producer(store, retry_backoff_ms=1) as producer:
        files.arm(1, 1 << 30)
        caplog.clear()
        for code in (errno.ENOSPC, errno.EIO, errno.ENOSPC):
            fault.hits, fault.code = 0, code
            future = producer.send("a", b"x")
            until(lambda: fault.hits > 20)
        fault.code = 0
        assert future.get(PATIENCE).offset == 2
        producer.send("b", b"x").get(PATIENCE)
        log = os.path.join(store_dir, "a-0", "00000000000000000000.log")
        lines = said(caplog)
    tp = "TopicPartition(topic='a', partition=0)"
    head = f"records for {tp} can't be written now, and are tried again for delivery_timeout_ms=120000.0: "
    enospc, eio = (f"[Errno {code}] {os.strerror(code)}: {log!r}" for code in (errno.ENOSPC, errno.EIO))
    assert lines == [
        *(("WARNING", head + cause) for cause in (enospc, eio, enospc)),
        ("INFO", f"records for {tp} are written again"),
    ]


@pytest.mark.parametrize("linger_ms", [0, 100])
def test_a_delivery_that_timed_out_tells_the_last_error_and_has_it_as_cause(
    store_dir: Path, linger_ms: int
) -> None:
    fault = Faults("a")
    with failing(store_dir, fault) as (store, files):
        files.arm(1, 1 << 30)
        fault.code = errno.ENOSPC
        with Producer(
            store, retry_backoff_ms=1, linger_ms=linger_ms, delivery_timeout_ms=300, batch_size=100
        ) as producer:
            futures = [producer.send("a", b"x" * 60) for _ in range(5)]
            for future in futures:
                with pytest.raises(errors.KafkaTimeoutError) as caught:
                    future.get(PATIENCE)
                cause = caught.value.__cause__
                assert isinstance(cause, errors.StorageError)
                assert cause.errno == errno.ENOSPC
                assert str(caught.value).endswith(f"; the last error: {cause}")
                assert "No space left on device" in str(caught.value)
            fault.code = 0
            assert producer.send("a", b"y").get(PATIENCE).offset == 0


@pytest.mark.parametrize("held_back_s", [0, 3_600])
def test_a_batch_that_timed_out_behind_another_is_tried_once_without_it(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, held_back_s: float
) -> None:
    """The disk has room for the small record alone, and both run out of time at one look."""
    monkeypatch.setattr(delivery, "_HELD_BACK", held_back_s)
    clock, sent, sizes = turned(monkeypatch), threading.Event(), []

    def too_large(name: str, args: tuple[Any, ...]) -> None:
        if not args[0].path.endswith(".log"):
            return
        sizes.append(len(args[1]))
        if sizes[-1] > 10_000:
            assert sent.wait(PATIENCE)
            clock.ahead += 60
            raise full()

    with failing(store_dir, too_large) as (store, files):
        with Producer(store, delivery_timeout_ms=60_000) as producer:
            files.arm(1, 1 << 30)
            large, small = producer.send("a", b"y" * 90_000), producer.send("a", b"z" * 100)
            sent.set()
            with pytest.raises(errors.KafkaTimeoutError, match="No space left"):
                large.get(PATIENCE)
            if held_back_s:
                assert small.get(PATIENCE).offset == 0
            else:
                with pytest.raises(errors.KafkaTimeoutError, match="No space left"):
                    small.get(PATIENCE)
        assert len([size for size in sizes if size < 10_000]) == (1 if held_back_s else 0)


def test_a_full_disk_is_told_once_where_nobody_hears_of_records(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fault = Faults("a")
    with failing(store_dir, fault) as (store, files), Producer(store, acks=0, linger_ms=0) as producer:
        files.arm(1, 1 << 30)
        caplog.clear()
        fault.code = errno.ENOSPC
        for _ in range(5):
            producer.send("a", b"x").get(PATIENCE)
        fault.code = 0
        producer.send("a", b"x").get(PATIENCE)
        lines = said(caplog)
    assert [(level, text.partition(":")[0]) for level, text in lines] == [
        ("WARNING", "acks=0"),
        ("INFO", "records for TopicPartition(topic='a', partition=0) are written again"),
    ]
    assert "No space left on device" in lines[0][1]


def test_an_error_of_before_is_no_reason_for_a_later_batch() -> None:
    told = ReportedFailures()
    assert told.is_new("a", full())
    assert not told.is_new("a", full("elsewhere"))
    assert told.is_new("a", errors.StorageError(errno.ENOSPC, "another class"))
    assert str(told.since("a", 0.0)) == "[Errno 28] another class"
    assert told.since("a", time.monotonic() + 1) is None
    assert told.over("a")
    assert not told.over("a")
    assert (told.since("a", 0.0), bool(told)) == (None, False)
