"""Batches of producers with an id: which are written, which are duplicates, and which are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import CountingFiles
from producers import assert_live, assert_said, send, state_of, told
from stores import START_MS, Clock, values

import segstore
from segstore.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    SegstoreError,
)
from segstore.records import Columns, Template
from segstore.storage.log import transaction_markers
from segstore.storage.log.append import Appended, append_batches, append_record

LAST = (1 << 31) - 1
Log = segstore.PartitionLog


@pytest.fixture
def log(store_dir: Path) -> Iterator[Log]:
    with segstore.open(store_dir, clock=Clock(step=1)) as store:
        store.create_topic("t")
        log = store.partition("t")
        yield log
        assert_live(log, store_dir / "t-0")
    assert_said(store_dir / "t-0")


# Each case: what went before, then a call and its outcome, the first offset or the error.
WRITTEN: dict[str, tuple[list[dict], dict, int]] = {
    "a producer's first": ([], {"seq": 0, "n": 5}, 0),
    "a first that begins anywhere": ([], {"seq": 77}, 0),
    "the next": ([{"seq": 0, "n": 5}], {"seq": 5}, 5),
    "from zero after the last sequence": ([{"seq": LAST - 1, "n": 2}], {"seq": 0}, 2),
    "over the last sequence": (
        [{"seq": 7, "n": 3}, {"seq": 10}, {"pid": 2, "seq": LAST - 3, "n": 10}],
        {"pid": 2, "seq": 6},
        14,
    ),
    "a new epoch": ([{"seq": 0, "n": 5}], {"seq": 0, "epoch": 1}, 5),
    "epochs that are left out": ([{"seq": 0}], {"seq": 0, "epoch": 32767}, 1),
    "another producer's": ([{"seq": 0, "n": 5}], {"pid": 2, "seq": 0}, 5),
    "within a transaction": ([{"seq": 0, "txn": True}], {"seq": 1, "txn": True}, 1),
    "a coordinator's own": ([{"seq": 0}], {"seq": 0, "sequenced": False}, 1),
    "without sequences": ([{"seq": 0}], {"seq": -1}, 1),
    "from zero after one without": ([{"seq": 5}, {"seq": -1}], {"seq": 0}, 2),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(log: Log, name: str) -> None:
    before, call, first = WRITTEN[name]
    for one in before:
        send(log, **{"pid": 1} | one)
    done = send(log, **{"pid": 1} | call)
    assert (done.first, done.duplicate, done.append_time) == (first, False, -1)
    assert log.end_offset == first + call.get("n", 1)


RUN = [{"seq": i * 10, "n": 10} for i in range(7)]
REPEATED: dict[str, tuple[list[dict], dict, int]] = {
    "the last": ([{"seq": 0, "n": 5}], {"seq": 0, "n": 5}, 0),
    "the last but four": (RUN, {"seq": 20, "n": 10}, 20),
    "two in one call": ([{"seq": 0, "n": 5, "cuts": (2,)}], {"seq": 0, "n": 5, "cuts": (2,)}, 0),
    "the second of one call": ([{"seq": 0, "n": 5, "cuts": (2,)}], {"seq": 2, "n": 3}, 2),
    "two of two calls": ([{"seq": 0, "n": 2}, {"seq": 2, "n": 3}], {"seq": 0, "n": 5, "cuts": (2,)}, 0),
    "over the last sequence": ([{"seq": LAST - 3, "n": 10}], {"seq": LAST - 3, "n": 10}, 0),
    "before the last sequence": ([{"seq": LAST, "n": 1}, {"seq": 0}], {"seq": LAST}, 0),
    "behind another's": ([{"seq": 0}, {"pid": 2, "seq": 0, "n": 9}], {"seq": 0}, 0),
    "in a transaction": ([{"seq": 0, "txn": True}], {"seq": 0, "txn": True}, 0),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_there_is_not_written_again(log: Log, name: str) -> None:
    before, call, first = REPEATED[name]
    for one in before:
        send(log, **{"pid": 1} | one)
    end = log.end_offset
    for _ in range(2):
        done = send(log, **{"pid": 1} | call)
        assert (done.first, done.duplicate) == (first, True)
    assert log.end_offset == end


REFUSED: dict[str, tuple[list[dict], dict, type[SegstoreError], str]] = {
    "a gap": (
        [{"seq": 0, "n": 5}],
        {"seq": 6},
        OutOfOrderSequenceError,
        "6 to 6 do not follow the last one, 4",
    ),
    "a new epoch in its middle": (
        [{"seq": 0}],
        {"seq": 1, "epoch": 1},
        OutOfOrderSequenceError,
        "a new epoch begins with 0",
    ),
    "an old epoch": (
        [{"seq": 0, "epoch": 3}],
        {"seq": 1, "epoch": 2},
        InvalidProducerEpochError,
        "epoch 2, but 3 is known",
    ),
    "an old epoch's repeated": (
        [{"seq": 0}, {"seq": 0, "epoch": 1}],
        {"seq": 0},
        InvalidProducerEpochError,
        "epoch 0, but 1",
    ),
    "older than is known": (
        RUN,
        {"seq": 10, "n": 10},
        DuplicateSequenceError,
        "10 to 19 were written before.* from 20 on",
    ),
    "older, and some that are known": (
        RUN,
        {"seq": 10, "n": 20, "cuts": (10,)},
        OutOfOrderSequenceError,
        "10 to 29",
    ),
    "half of it is there": (
        [{"seq": 0, "n": 5}],
        {"seq": 0, "n": 9, "cuts": (5,)},
        OutOfOrderSequenceError,
        "0 to 8",
    ),
    "cut in other places": (
        [{"seq": 0, "n": 5}],
        {"seq": 0, "n": 5, "cuts": (2,)},
        OutOfOrderSequenceError,
        "0 to 4",
    ),
    "two calls with another's between": (
        [{"seq": 0}, {"pid": 2, "seq": 0}, {"seq": 1}],
        {"seq": 0, "n": 2, "cuts": (1,)},
        DuplicateSequenceError,
        "one by one",
    ),
    "outside of its open transaction": (
        [{"seq": 0, "txn": True}],
        {"seq": 1},
        InvalidTxnStateError,
        "transaction open here since offset 0",
    ),
    "a transaction of no producer": (
        [],
        {"pid": -1, "epoch": -1, "seq": -1, "txn": True},
        InvalidArgumentError,
        "producer_id",
    ),
    "no epoch": ([], {"seq": 0, "epoch": -1}, InvalidArgumentError, "producer_epoch=-1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(log: Log, name: str) -> None:
    before, call, error, message = REFUSED[name]
    for one in before:
        send(log, **{"pid": 1} | one)
    end, known = log.end_offset, state_of(log).dump()
    for _ in range(2):
        with pytest.raises(error, match=message):
            send(log, **{"pid": 1} | call)
    assert (log.end_offset, state_of(log).dump()) == (end, known)
    log.append(b"goes on")
    send(log, 9, 0)


def test_control_batches_come_from_markers_only(log: Log) -> None:
    with pytest.raises(InvalidArgumentError, match="end_transaction"):
        append_record(log, b"v", b"k", (), -1, template=Template(0x30, 1, 0, 0))
    assert log.end_offset == 0


def test_no_records_are_nothing(log: Log) -> None:
    send(log, 1, 0, 3)
    for seq in (0, 3, 9):
        assert send(log, 1, seq, 0) == (3, -1, 0, False)


def test_one_record_is_judged_as_many_are(log: Log) -> None:
    def one(seq: int) -> Appended:
        return append_record(log, b"v", None, (), START_MS, template=Template(0, 1, 0, seq))

    assert one(0) == one(0)._replace(duplicate=False)
    assert one(1).first == 1
    with pytest.raises(OutOfOrderSequenceError):
        one(3)


def test_a_batch_that_is_split_is_known_again(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={"max.message.bytes": 400})
        log = store.partition("t")
        assert send(log, 1, LAST - 9, 30).first == 0
        state = state_of(log)
        assert len(state.producers[1].batches) > 1
        assert send(log, 1, LAST - 9, 30) == (0, -1, log.size, True)
        assert send(log, 1, 20).first == 30
        # More batches than are kept: a producer is told that they were written, not where.
        send(log, 2, 0, 200)
        with pytest.raises(DuplicateSequenceError):
            send(log, 2, 0, 100)
        assert_live(log, store_dir / "t-0")
    assert_said(store_dir / "t-0")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_repeat_too(store_dir: Path, codec: str) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        log = store.partition("t")
        for duplicate in (False, True):
            assert send(log, 1, 0, 50, cuts=(20,), compression=codec)[::3] == (0, duplicate)
        assert log.end_offset == 50


def test_append_time_of_what_was_there(store_dir: Path) -> None:
    clock = Clock(step=1000)
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        log = store.partition("t")
        done = send(log, 1, 0, 5)
        assert done.append_time == log.read(0).timestamps[0] > START_MS
        assert send(log, 1, 0, 5) == done._replace(duplicate=True)
        assert_live(log, store_dir / "t-0")
    assert_said(store_dir / "t-0")


def test_what_was_there_is_durable_when_that_is_asked_for(store_dir: Path) -> None:
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"flush.messages": 1})
        log = store.partition("t")
        send(log, 1, 0)
        assert log.partition_for_write().recovery_point == 1
        files.clear()
        assert send(log, 1, 0).duplicate
        assert files.count("sync", "pwrite") == 0


@pytest.mark.parametrize("kill", [False, True])
def test_the_last_batch_is_known_after_reopening(tmp_path: Path, store_dir: Path, kill: bool) -> None:
    import shutil

    live = tmp_path / "live"
    with segstore.open(live, clock=Clock()) as store:
        store.create_topic("t")
        for seq in (0, 10, 20):
            send(store.partition("t"), 1, seq, 10)
        if kill:
            shutil.copytree(live, store_dir)
    if not kill:
        shutil.copytree(live, store_dir)
    with segstore.open(store_dir, clock=Clock()) as store:
        log = store.partition("t")
        assert send(log, 1, 20, 10)[::3] == (20, True)
        with pytest.raises(OutOfOrderSequenceError):
            send(log, 1, 31)
        # A snapshot has a producer's last batch, as Kafka's; a log that is replayed has the last five.
        if kill:
            assert send(log, 1, 10, 10)[::3] == (10, True)
        else:
            with pytest.raises(DuplicateSequenceError):
                send(log, 1, 10, 10)
        assert send(log, 1, 30).first == 30


def test_threads_that_send_the_same_batches_write_each_once(log: Log) -> None:
    outcomes: list[tuple[int, Appended]] = []
    barrier = threading.Barrier(6)

    def retry(pid: int) -> None:
        for seq in range(40):
            barrier.wait()
            try:
                outcomes.append((pid, send(log, pid, seq * 3, 3, cuts=(1,))))
            except BaseException:
                barrier.abort()  # else the others would wait for this one
                raise

    threads = [threading.Thread(target=retry, args=(pid,)) for pid in (1, 2, 3) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.end_offset == 40 * 3 * 3
    firsts = [done.first for _, done in outcomes if not done.duplicate]
    assert len(firsts) == len(set(firsts)) == 120
    assert sorted(firsts * 2) == sorted(done.first for _, done in outcomes)


def test_producers_expire_but_not_those_that_write_old_records(store_dir: Path) -> None:
    clock = Clock()
    config = {"producer.id.expiration.ms": 5000}
    with segstore.open(store_dir, clock=clock, config=config) as store:
        store.create_topic("t")
        log = store.partition("t")
        old = Columns([b"x"], timestamp=1000)
        append_batches(log, old, template=Template(0, 1, 0, 0))
        send(log, 2, 0, txn=True)
        send(log, 3, 0)
        known = state_of(log).producers
        store.engine.expire_producers()
        assert known.keys() == {1, 2, 3}
        clock.now += 4999
        store.engine.expire_producers()
        assert known.keys() == {1, 2, 3}
        send(log, 3, 1)
        clock.now += 1
        store.engine.expire_producers()
        assert known.keys() == {2, 3}  # a transaction is open
        assert transaction_markers.max_producer_id(log) == 3
        assert send(log, 1, 99).first == 4  # it is as one that was never known
        clock.now += 10_000
    with segstore.open(store_dir, clock=clock, config=config) as store:
        assert state_of(store.partition("t")).producers.keys() == {2}


def test_check_knows_a_producer_that_expired_and_got_a_marker(store_dir: Path) -> None:
    """What it wrote before is in the log, and not in the snapshot."""
    clock = Clock()
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t")
        log = store.partition("t")
        send(log, 1, 0)
        assert log.partition_for_write().expire_producers(0) == 1
        assert transaction_markers.end_transaction([log], 1, 0, 3, commit=False) == [1]
        assert state_of(log).producers[1].batches == ()
    assert segstore.check(store_dir) == []


def test_deleted_batches_are_still_known(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 200})
        log = store.partition("t")
        for seq in range(10):
            send(log, 1, seq)
        log.append_batch([b"plain"] * 30, batch_bytes=100)
        log.delete_records(20)
        assert log.partition_for_write().view.bases[0] > 9
        assert send(log, 1, 9)[::3] == (9, True)
    with segstore.open(store_dir, clock=Clock()) as store:
        log = store.partition("t")
        with pytest.raises(OutOfOrderSequenceError):
            send(log, 1, 11)
        assert send(log, 1, 9)[::3] == (9, True)
        assert send(log, 1, 10).first == 40


def test_a_plain_append_does_nothing_for_producers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    producers = log.partition_for_write().producers
    for name in ("judge", "save", "take", "recall"):
        monkeypatch.setattr(producers, name, lambda *_: pytest.fail("called"))
    log.append(b"x")
    log.append_batch([b"x"] * 100, batch_bytes=100)
    append_batches(log, Columns([b"x"] * 9), (3, 6))
    assert log.end_offset == 110


def test_records_are_read_as_any(log: Log, store_dir: Path) -> None:
    send(log, 1, 0, 3)
    assert values(log) == [b"1/0".ljust(20, b"."), b"1/1".ljust(20, b"."), b"1/2".ljust(20, b".")]
    assert told(store_dir / "t-0").state.producers[1].last_sequence == 2
