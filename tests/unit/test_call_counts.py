"""Promise: an append, a read and a poll of one record take few Python calls, whatever the machine is."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import segstore
from segstore import TopicPartition
from segstore.storage.meta.tailed_ends import TailedEnds


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        for _ in range(5):  # the first calls open files, and make what later ones reuse
            log.append(b"before")
            log.read(0, 1)
        yield log


def calls(
    function: Callable[..., object], *arguments: object, native: list[str] | None = None
) -> Counter[str]:
    """How often each Python function is called within one call of `function`, which counts too. `native` gets
    the names of the functions of C that are called.
    """
    counted: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, called: object) -> None:
        if native is not None and event == "c_call":
            name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", None)
            native.extend([name] if name.startswith("seg_") or isinstance(owner, TailedEnds) else [])
        if event == "call":
            counted[f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"] += 1

    gc.disable()  # a collection would run callbacks of others, such as hypothesis
    sys.setprofile(profile)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def assert_at_most(most: int, counted: Counter[str]) -> None:
    assert counted.total() <= most, "\n".join(f"{n} {name}" for name, n in counted.most_common())


OF_REPLICAS = ("segstore.replication", "segstore.storage.log.acks", "segstore.storage.log.replica")
"""Where the work of replicas is done; a plain store's log asks only whether it has any, which is no call."""


def _flushed(log: segstore.PartitionLog) -> None:
    log.append(b"value")
    log.flush()


def _polled(log: segstore.PartitionLog) -> None:
    with segstore.Consumer(log.store, "t", auto_offset_reset="earliest") as consumer:
        consumer.poll(1000)


def _produced(log: segstore.PartitionLog) -> None:
    with segstore.Producer(log.store, acks="all") as producer:
        producer.send("t", b"value").get(timeout=60)


OPERATIONS: dict[str, Callable[[segstore.PartitionLog], object]] = {
    "an append": lambda log: log.append(b"value"),
    "an append that takes the long way": lambda log: log.append(bytearray(b"value")),
    "an append of many": lambda log: log.append_batch([b"value"] * 10),
    "a read": lambda log: log.read(0),
    "a read of one": lambda log: log.read_one(0),
    "a flush": _flushed,
    "a poll": _polled,
    "a send with acks=all": _produced,
    "a sweep": lambda log: log.store.sweep(),
    "a deletion of records": lambda log: log.delete_records(1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_plain_store_pays_nothing_for_replicas(name: str, log: segstore.PartitionLog) -> None:
    counted = calls(OPERATIONS[name], log)
    assert counted.total() > 1
    assert [each for each in counted if each.startswith(OF_REPLICAS)] == []
    assert "segstore.storage.log.append:_acknowledged" not in counted


def test_an_append_of_one_record(log: segstore.PartitionLog) -> None:
    assert_at_most(12, calls(log.append, b"value"))
    assert log.read(5)[0].value == b"value"


HEADED = [("trace-id", b"0123456789abcdef"), ("é", None), ("", b""), ("é", None)]
ONE_CALL: dict[str, Callable[[segstore.PartitionLog], int]] = {
    "headers": lambda log: log.append(b"value", b"key", HEADED),
    "headers in a tuple": lambda log: log.append(b"value", None, tuple(HEADED)),
    "no headers, in a list": lambda log: log.append(b"value", b"key", []),
    "an expected offset": lambda log: log.append(b"value", expected_offset=5),
    "an expected offset, and headers": lambda log: log.append(b"value", b"key", HEADED, expected_offset=5),
}


@pytest.mark.parametrize("case", ONE_CALL)
def test_an_append_of_one_record_with(log: segstore.PartitionLog, case: str) -> None:
    native: list[str] = []
    assert_at_most(12, calls(ONE_CALL[case], log, native=native))
    assert native == ["seg_tail_append"]
    assert (log.end_offset, log.read(5)[0].value) == (6, b"value")


def test_an_append_that_finds_another_end(log: segstore.PartitionLog) -> None:
    """It takes the long way, and the next one is one call of C again."""
    with pytest.raises(segstore.errors.OffsetMismatchError):
        log.append(b"value", expected_offset=4)
    native: list[str] = []
    assert_at_most(13, calls(lambda: log.append(b"value", expected_offset=5), native=native))
    assert native == ["seg_tail_append"]


def test_an_append_that_takes_the_long_way(log: segstore.PartitionLog) -> None:
    """It also lends the native tail, to which the next one goes."""
    log.append_batch([b"value"] * 1000, batch_bytes=1000)
    assert_at_most(75, calls(log.append, b"value"))
    assert log.read(1005)[0].value == b"value"


def test_a_read_of_one_record(log: segstore.PartitionLog) -> None:
    assert_at_most(30, calls(log.read, 3, 1))


def test_a_read_of_many_records(log: segstore.PartitionLog) -> None:
    """All that C does is one call."""
    log.append_batch([b"%0100d" % i for i in range(10_000)])
    at = log.read(log.read(0, 1 << 18).next_offset, 1 << 18).next_offset  # these make the memory
    native: list[str] = []
    assert_at_most(29, calls(log.read, at, 1 << 18, native=native))
    assert native == ["seg_read_range"]


def test_a_read_of_one_record_alone(log: segstore.PartitionLog) -> None:
    log.read_one(3)
    assert_at_most(9, calls(log.read_one, 3))
    with segstore.open(log.store.path, "r") as reading:
        follower = reading.partition("t")
        follower.read_one(3)
        assert_at_most(12, calls(follower.read_one, 3))


def test_a_poll_of_one_record(log: segstore.PartitionLog) -> None:
    with segstore.Consumer(log.store, group_id=None) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        assert len(consumer.poll()[TopicPartition("t", 0)]) == 5
        for _ in range(2):
            log.append(b"value")
            polled: list[object] = []
            counted = calls(lambda polled: polled.append(consumer.poll()), polled)
            assert len(polled[0][TopicPartition("t", 0)]) == 1  # type: ignore[index]
        assert_at_most(50 + 1, counted)  # and the lambda's own call


def test_a_poll_that_finds_nothing(log: segstore.PartitionLog) -> None:
    with segstore.Consumer(log.store, group_id=None) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_end()
        consumer.poll()
        assert_at_most(25, calls(consumer.poll))


def test_a_record_that_comes_within_a_wait(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the return of the wait, whose call of C has made the record, to that of the poll: none."""
    with segstore.Consumer(log.store, group_id=None) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_end()
        consumer.poll()
        counted: Counter[str] = Counter()

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                counted[f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"] += 1

        wait = TailedEnds.wait

        def wait_for_one(self: TailedEnds, nudges: int, seconds: float) -> int:
            log.append(b"value")
            number = wait(self, nudges, seconds)
            sys.setprofile(profile)
            return number

        monkeypatch.setattr(TailedEnds, "wait", wait_for_one)
        try:
            polled = consumer.poll(timeout_ms=10_000)
        finally:
            sys.setprofile(None)
        assert [record.value for record in polled[TopicPartition("t", 0)]] == [b"value"]
        assert not counted


def test_the_next_wait_of_a_consumer_that_keeps_up(log: segstore.PartitionLog) -> None:
    """One call of C, which looks, waits and reads; and few calls of Python's before it."""
    with segstore.open(log.store.path, "r") as reading:
        for store in (log.store, reading):
            with segstore.Consumer(store, group_id=None) as consumer:  # type: ignore[arg-type]
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek_to_end()
                consumer.poll()
                writer = threading.Timer(0.05, log.append, [b"within a wait"])
                writer.start()
                assert consumer.poll(timeout_ms=10_000)
                writer.join()
                log.append(b"value")
                native: list[str] = []
                counted = calls(consumer.poll, 10_000, native=native)
                assert native == ["wait"]
                assert_at_most(9, counted)
                assert consumer.position(TopicPartition("t", 0)) == log.end_offset
