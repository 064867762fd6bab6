"""How a consumer waits: what wakes it, what it does when it is woken, and that it does nothing before."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, earliest, replace_waits, tp
from groups import offsets
from waiting import PATIENCE, until
from waiting_consumers import at_the_end
from waiting_consumers import sides as sides

import segstore
from segstore import threads
from segstore.client.consumer.fetcher import Fetcher
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.store import reader


@pytest.fixture
def singles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of records that were read within a wait."""
    taken: list[int] = []
    wait = TailedEnds.wait

    def counted(self: TailedEnds, nudges: int, seconds: float) -> int:
        number = wait(self, nudges, seconds)
        if self.came is not None:
            taken.append(self.came[1])
        return number

    monkeypatch.setattr(TailedEnds, "wait", counted)
    return taken


# --- what wakes -----------------------------------------------------------------------------------

IDLE = """
import sys, segstore
path, mode, group = sys.argv[1:]
with segstore.open(path, mode=mode) as store, segstore.Consumer(
    store, group_id=group or None, enable_auto_commit=False
) as consumer:
    if mode == "rw":
        store.create_topic("t", partitions=4)
    if group:
        consumer.subscribe(["t"])
    else:
        consumer.assign([segstore.TopicPartition("t", each) for each in range(4)])
    while len(consumer.assignment()) < 4 or consumer.poll(timeout_ms=100):
        consumer.poll()
    print("ready", flush=True)
    consumer.poll(timeout_ms=300_000)
"""


SETTLED, WATCHED = 4, 10  # seconds


@pytest.mark.kind("strace")
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
@pytest.mark.judge("strace")
@pytest.mark.parametrize(
    ("mode", "group"), [("r", ""), ("rw", ""), ("rw", "g")], ids=["another process", "this one", "a group"]
)
def test_an_idle_consumer_makes_no_system_call(
    store_dir: Path, tmp_path: Path, mode: str, group: str
) -> None:
    """Of a process that only reads all threads are watched, else the consumer's. A member of a group commits
    by hand here: auto commit wakes it once in each interval. Heartbeats have a thread of their own.
    """
    writer = None
    if mode == "r":
        writer = segstore.open(store_dir)
        writer.create_topic("t", partitions=4)
    command = [sys.executable, "-c", IDLE, str(store_dir), mode, group]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(SETTLED)  # after a second a reader in another process looks for a live writer
        trace = tmp_path / "trace"
        watch = ["strace", "-ttt", *(["-f"] if mode == "r" else []), "-p", str(child.pid), "-o", str(trace)]
        with subprocess.Popen(watch, stderr=subprocess.DEVNULL) as watching:
            time.sleep(WATCHED)
            watching.terminate()
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)
        if writer is not None:
            writer.close()
    calls = re.findall(r"^(?:\d+ +)?(\d+\.\d+) (\w+)\(", trace.read_text(), re.MULTILINE)
    first = min(float(at) for at, _ in calls)  # what the attaching has interrupted begins anew
    assert [name for at, name in calls if float(at) > first + 1] == []


def test_other_partitions_do_not_wake_it(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, store = sides
    consumer, waits = earliest(store), []
    consumer.assign([tp(0)])
    consumer.poll()
    monkeypatch.setattr(reader, "_BLIND_SECONDS", PATIENCE)
    monkeypatch.setattr(threads, "FIRST_SLEEP", PATIENCE)
    wait = TailedEnds.wait
    monkeypatch.setattr(TailedEnds, "wait", lambda *args: (waits.append(args), wait(*args))[1])
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(consumer.poll(LONG_MS)))
    thread.start()
    until(lambda: waits)
    for _ in range(500):
        writer.partition("t", 1).append(b"foreign")
    writer.partition("t", 0).append(b"own")
    thread.join(PATIENCE)
    assert [record.value for record in got[0][tp(0)]] == [b"own"]
    assert len(waits) < 10  # a publication whose thread loses its core halfway looks like a nudge
    consumer.close()


def test_a_nudge_wakes_it(sides: Any) -> None:
    writer, store = sides
    with at_the_end(store) as consumer:
        following, deadline = consumer._following, time.monotonic() + LONG_MS / 1000
        following.begin()
        writer.nudge()
        assert following.wait(deadline, LONG_MS) == []
        following.begin()
        writer.create_topic("u")  # other news come with a nudge
        assert following.wait(deadline, LONG_MS) == []
        assert time.monotonic() < deadline


# --- what came ------------------------------------------------------------------------------------

Append = Callable[[segstore.PartitionLog], object]


CAME: dict[str, tuple[bool, Append]] = {
    "a value": (True, lambda log: log.append(b"value")),
    "a key": (True, lambda log: log.append(b"value", b"key")),
    "nothing": (True, lambda log: log.append(None)),
    "empty": (True, lambda log: log.append(b"", b"")),
    "a stamp": (True, lambda log: log.append(b"value", timestamp=1)),
    "4,000 bytes": (True, lambda log: log.append(b"x" * 4000)),
    "5,000 bytes": (False, lambda log: log.append(b"x" * 5000)),
    "headers": (False, lambda log: log.append(b"value", headers=[("a", b"b")])),
    "two records": (False, lambda log: log.append_batch([b"a", b"b"])),
    "two batches": (False, lambda log: log.append_batch([b"a" * 100, b"b"], batch_bytes=1)),
    "compressed": (False, lambda log: log.append_batch([b"a" * 100], compression="zstd")),
}


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", CAME)
def test_what_came_is_what_is_read_later(
    sides: Any, singles: list[int], monkeypatch: pytest.MonkeyPatch, name: str, level: str
) -> None:
    writer, store = sides
    short, append = CAME[name]
    log = writer.partition("t", 0)
    with at_the_end(store, isolation_level=level) as consumer, at_the_end(store) as other:
        for _ in range(3):
            came = came_within_a_wait(consumer, monkeypatch, lambda: append(log))
            assert singles == ([came[0].offset] if short else [])
            later: list[Any] = []
            while len(later) < len(came):
                later += other.poll().get(tp(0), [])
            assert later == came
            assert consumer.position(tp(0)) == later[-1].offset + 1 == log.end_offset
            singles.clear()


def came_within_a_wait(
    consumer: segstore.Consumer, monkeypatch: pytest.MonkeyPatch, append: Callable[[], object]
) -> list[Any]:
    """Call `append` when the consumer is about to wait; return the records that its poll gives."""
    with monkeypatch.context() as patched:
        replace_waits(patched, lambda _store, _ms: append(), then=True)
        (records,) = consumer.poll(LONG_MS).values()
    return records


def test_append_time_and_a_roll(sides: Any, singles: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    writer, store = sides
    config = {"message.timestamp.type": "LogAppendTime", "segment.bytes": 1000}
    writer.create_topic("rolls", config=config)
    log = writer.partition("rolls")
    with earliest(store, "rolls") as consumer:
        consumer.poll()
        got = []
        for at in range(40):
            value = b"%d" % at
            got += came_within_a_wait(consumer, monkeypatch, partial(log.append, value, timestamp=1))
        assert [(record.value, record.timestamp_type) for record in got] == [
            (b"%d" % at, 1) for at in range(40)
        ]
        assert 20 < len(singles) < 40  # the first of each segment takes the long way
        assert {record.timestamp for record in got}.isdisjoint({1})
        metrics = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert metrics["records-consumed-total"] == 40
        assert metrics["rolls-0.records-lead"] == 40


def test_aborted_records_are_not_returned(sides: Any) -> None:
    writer, store = sides
    with (
        segstore.Producer(writer, transactional_id="x", linger_ms=0) as producer,
        at_the_end(store, isolation_level="read_committed") as consumer,
    ):
        producer.init_transactions()
        for way in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send("t", way.__name__.encode(), partition=0).get(PATIENCE)
            assert consumer.poll(20) == {}
            way()
        (records,) = consumer.poll(LONG_MS).values()
        assert [record.value for record in records] == [b"commit_transaction"]


# --- the next wait --------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each look for records may return."""
    counted: list[int] = []
    records = Fetcher.records

    def look(self: Fetcher, most: int) -> Any:
        counted.append(most)
        return records(self, most)

    monkeypatch.setattr(Fetcher, "records", look)
    return counted


def keeps_up(consumer: segstore.Consumer, writer: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a record come within a wait, after which the next poll need not look."""
    log = writer.partition("t", 0)
    (came,) = came_within_a_wait(consumer, monkeypatch, lambda: log.append(b"within a wait"))
    assert came.value == b"within a wait"


def test_a_consumer_that_keeps_up_does_not_look(
    sides: Any, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, store = sides
    with at_the_end(store) as consumer:
        keeps_up(consumer, writer, monkeypatch)
        looks.clear()
        for turn in range(20):
            writer.partition("t", turn % 2).append(b"%d" % turn)
            (records,) = consumer.poll().values()
            assert [record.value for record in records] == [b"%d" % turn]
        assert looks == []
        consumer.poll()
        assert [consumer.position(tp(each)) for each in range(2)] == [11, 10]
        consumer.poll()
        assert len(looks) == 1  # since another method was called


def test_a_consumer_that_finds_a_record_each_time_soon_does_not_look(sides: Any, looks: list[int]) -> None:
    """Without any wait: one look finds the first record, and after it C finds the others."""
    writer, store = sides
    with at_the_end(store) as consumer:
        looks.clear()
        for turn in range(20):
            writer.partition("t", turn % 2).append(b"%d" % turn)
            (records,) = consumer.poll().values()
            assert [record.value for record in records] == [b"%d" % turn]
        assert len(looks) <= 2
        looks.clear()
        writer.partition("t", 0).append_batch([b"a", b"b"])  # which C leaves to a look
        (records,) = consumer.poll().values()
        assert [record.value for record in records] == [b"a", b"b"]
        assert len(looks) == 1
        assert [consumer.position(tp(each)) for each in range(2)] == [12, 10]


def test_a_poll_that_gave_nothing_has_nothing_to_give_back(
    sides: Any, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `AsyncConsumer` does where a poll was cancelled."""
    writer, store = sides
    with at_the_end(store) as consumer:
        keeps_up(consumer, writer, monkeypatch)
        looks.clear()
        assert consumer.poll(20) == {}
        assert looks == []
        consumer._give_back()
        assert consumer.poll(20) == {}
        writer.partition("t", 0).append(b"x")
        consumer.poll(LONG_MS)
        consumer._give_back()
        (records,) = consumer.poll(LONG_MS).values()
        assert [record.value for record in records] == [b"x"]


Call = Callable[[segstore.Consumer], object]


CALLED: dict[str, tuple[Call, list[bytes]]] = {
    "position": (lambda consumer: consumer.position(tp(0)), [b"new", b"other"]),
    "seek": (lambda consumer: consumer.seek(tp(0), 0), [b"within a wait", b"new", b"other"]),
    "to the beginning": (lambda consumer: consumer.seek_to_beginning(), [b"within a wait", b"new", b"other"]),
    "to the end": (lambda consumer: consumer.seek_to_end(tp(1)), [b"new"]),
    "pause": (lambda consumer: consumer.pause(tp(0)), [b"other"]),
    "pause and resume": (lambda c: (c.pause(tp(0)), c.resume(tp(0))), [b"new", b"other"]),
    "assign fewer": (lambda consumer: consumer.assign([tp(1)]), [b"other"]),
    "unsubscribe": (lambda consumer: consumer.unsubscribe(), []),
}


@pytest.mark.parametrize("before", [False, True], ids=["after the records", "before them"])
@pytest.mark.parametrize("name", CALLED)
def test_a_call_between_two_polls_is_heard(
    sides: Any, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    writer, store = sides
    call, wanted = CALLED[name]
    with at_the_end(store) as consumer:
        keeps_up(consumer, writer, monkeypatch)
        if before:
            call(consumer)
            if name == "to the end":
                consumer.position(tp(1))
                wanted = [b"new", b"other"]
        writer.partition("t", 0).append(b"new")
        writer.partition("t", 1).append(b"other")
        if not before:
            call(consumer)
        got: list[Any] = []
        while polled := consumer.poll(20):
            got += [record.value for records in polled.values() for record in records]
        assert sorted(got) == sorted(wanted)


def test_a_busy_partition_does_not_starve_another(sides: Any, singles: list[int]) -> None:
    """The first partition has a new record at every poll; a record of the second one takes its turn."""
    writer, store = sides
    busy, other = writer.partition("t", 0), writer.partition("t", 1)
    with at_the_end(store) as consumer:
        busy.append(b"0")
        assert tp(0) in consumer.poll(LONG_MS)
        other.append(b"waits")
        came = set()
        for _ in range(4):
            busy.append(b"next")
            came |= consumer.poll(LONG_MS).keys()
        assert tp(1) in came
        assert singles


def test_a_listener_is_told_at_once_of_a_topic_that_came(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, store = sides
    with earliest(store) as consumer:
        consumer.subscribe(pattern="t|u")
        consumer.poll(20)
        keeps_up(consumer, writer, monkeypatch)
        writer.create_topic("u")
        writer.partition("u").append(b"new")
        (records,) = consumer.poll(LONG_MS).values()
        assert [record.value for record in records] == [b"new"]


def test_what_retention_removes_is_left_out(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, store = sides
    log = writer.partition("t", 0)
    with at_the_end(store) as consumer:
        keeps_up(consumer, writer, monkeypatch)
        log.append(b"removed")
        log.delete_records(log.end_offset)
        log.append(b"kept")
        (records,) = consumer.poll(LONG_MS).values()
        assert [record.value for record in records] == [b"kept"]


def test_a_member_that_keeps_up_is_at_work(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator takes a member for failed that does not poll."""
    with segstore.open(store_dir) as writer:
        writer.create_topic("t", partitions=2)
        with earliest(writer, "t", group_id="g", enable_auto_commit=False) as consumer:
            until(lambda: consumer.poll(20) or consumer.assignment())
            keeps_up(consumer, writer, monkeypatch)
            pulse = consumer._coordination._membership.pulse  # type: ignore[attr-defined]
            pulse.polled = 0.0
            writer.partition("t", 0).append(b"x")
            assert consumer.poll(LONG_MS)
            assert pulse.polled > 0


def test_a_member_that_keeps_up_commits_by_itself(store_dir: Path, singles: list[int]) -> None:
    """Records that come one by one, and sooner than the interval, must not put off the next commit."""
    with segstore.open(store_dir) as writer:
        writer.create_topic("t")
        log, committed = writer.partition("t"), offsets(writer)
        with earliest(writer, "t", group_id="g", auto_commit_interval_ms=50) as consumer:
            log.append(b"first")
            until(lambda: consumer.poll(20))
            read = 1
            while not committed.fetch("g").get(tp(0)):
                log.append(b"next")
                assert consumer.poll(LONG_MS)
                read += 1
                assert read < 1_000_000
            first = committed.fetch("g")[tp(0)]
            while committed.fetch("g")[tp(0)] == first:
                log.append(b"next")
                assert consumer.poll(LONG_MS)
                read += 1
                assert read < 2_000_000
            assert len(singles) > 2


def test_partitions_that_are_assigned_anew_are_followed(sides: Any, singles: list[int]) -> None:
    writer, store = sides
    with at_the_end(store) as consumer:
        for n in range(2):
            consumer.assign([tp(n)])
            for _ in range(3):
                writer.partition("t", n).append(b"x")
                assert list(consumer.poll(LONG_MS)) == [tp(n)]
        assert len(singles) >= 2


def test_a_table_counts_its_records_once(sides: Any) -> None:
    writer, store = sides
    with at_the_end(store) as consumer, ThreadPoolExecutor(1) as other:
        other.submit(lambda: (time.sleep(0.05), writer.partition("t", 0).append(b"x")))
        assert consumer.poll_arrow(LONG_MS).num_rows == 1
        metrics = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert metrics["records-consumed-total"] == 1


def test_a_store_made_anew_ends_a_wait(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is for a file that has lost its name, in which nothing is published any more."""
    monkeypatch.setattr(reader, "_BLIND_SECONDS", 0.05)
    with segstore.open(store_dir) as writer:
        writer.create_topic("t", partitions=2)
        store = segstore.open(store_dir, mode="r")
        consumer = at_the_end(store)
        consumer._following.begin()
    shutil.rmtree(store_dir)
    with segstore.open(store_dir) as writer:
        writer.create_topic("t", partitions=2)
        began = time.monotonic()
        consumer._following.sleep(began + LONG_MS / 1000, LONG_MS)
        assert time.monotonic() - began < LONG_MS / 2000
        with pytest.raises(segstore.StoreClosedError, match="deleted"):
            consumer.poll(LONG_MS)
        consumer.close()
        store.close()
