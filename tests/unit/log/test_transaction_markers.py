"""storage.log.transaction_markers and records.control: transactions that end in several partitions."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FailingFiles
from native_batches import assign
from producers import assert_live, assert_said, committed, send, state_of
from stores import START_MS, Clock, in_child, records, values

import segstore
from segstore.errors import InvalidArgumentError, InvalidProducerEpochError, StorageError, StoreClosedError
from segstore.index.txn_index import AbortedTxn, parse
from segstore.records import CONTROL_FLAG, scan
from segstore.records.control import ABORT, COMMIT, Marker, end_marker, parse_control
from segstore.storage.log.transaction_markers import (
    OpenTransaction,
    end_transaction,
    max_producer_id,
    open_transactions,
    producer_epoch,
)

GOLDEN_LOG = Path("clean") / "flights-txn-0" / "00000000000000000000.log"


def test_markers_are_a_brokers_to_the_byte(golden: Path) -> None:
    data = (golden / GOLDEN_LOG).read_bytes()
    batches = scan(data)[0]
    control = batches[batches["attributes"] & CONTROL_FLAG != 0]
    kinds = {COMMIT: 0, ABORT: 0}
    for batch in control:
        raw = data[batch["position"] :][: batch["size"]]
        kind = raw[61 + 8]
        marker = Marker(int(batch["producer_id"]), int(batch["producer_epoch"]), kind, 0)
        made = end_marker(marker, int(batch["base_timestamp"]))
        assign(made, int(batch["base_offset"]), int(batch["leader_epoch"]))
        assert bytes(made.data) == raw
        kinds[kind] += 1
    assert all(kinds.values())


def test_every_byte_of_a_marker_has_its_place() -> None:
    made = end_marker(Marker(0x0102030405060708, 0x1112, COMMIT, 0x21222324), START_MS)
    body = bytes(made.data)[21:]
    assert body.hex() == (
        "0030 00000000 0000018bcfe56800 0000018bcfe56800 0102030405060708 1112 ffffffff 00000001"
        "20 00 00 00 08 00000001 0c 000021222324 00"
    ).replace(" ", "")
    assert parse_control(b"\0\0\0\1", b"\0\0\x21\x22\x23\x24", file="", position=0, offset=0) == (
        COMMIT,
        0x21222324,
    )


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, clock=Clock(step=1)) as store:
        store.create_topic("t", 3)
        yield store
        for p in range(3):
            assert_live(store.partition("t", p), store_dir / f"t-{p}")
    for p in range(3):
        assert_said(store_dir / f"t-{p}")


def three(store: segstore.Store) -> list[segstore.PartitionLog]:
    return [store.partition("t", p) for p in range(3)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_everywhere(store: segstore.Store, commit: bool) -> None:
    a, b, c = three(store)
    b.append(b"plain")
    send(a, 7, 0, 3, txn=True)
    send(b, 7, 0, 2, txn=True)
    assert [log.last_stable_offset for log in (a, b, c)] == [0, 1, 0]
    assert (committed(a), committed(b)) == ([], [0])
    assert end_transaction([b, a], 7, 0, 5, commit) == [3, 3]
    assert [log.last_stable_offset for log in (a, b, c)] == [4, 4, 0]
    assert (committed(a), committed(b)) == (([0, 1, 2], [0, 1, 2]) if commit else ([], [0]))
    assert len(values(a)) == 3
    # A marker is no record: sequences go on as if it were not there.
    assert send(a, 7, 3, txn=True).first == 4
    assert end_transaction([a], 7, 0, 5, True) == [5]


def test_a_marker_says_what_it_was_given(store: segstore.Store, store_dir: Path) -> None:
    log = store.partition("t")
    send(log, 7, 0, epoch=3, txn=True)
    end_transaction([log], 7, 3, 99, False)
    entry = state_of(log).producers[7]
    assert (entry.producer_epoch, entry.coordinator_epoch) == (3, 99)
    assert store.partition("t").read(1).next_offset == 2
    (path,) = (store_dir / "t-0").glob("*.txnindex")
    assert parse(path.read_bytes()).tolist() == [(0, 7, 0, 1, 2)]


def test_open_transactions(store: segstore.Store) -> None:
    a, *_ = three(store)
    assert open_transactions(a) == []
    assert (max_producer_id(a), producer_epoch(a, 7)) == (-1, -1)
    a.append(b"plain")
    send(a, 9, 0, epoch=4, txn=True)
    send(a, 7, 0, txn=True)
    found = open_transactions(a)
    assert [txn[:3] for txn in found] == [(9, 4, 1), (7, 0, 2)]
    assert found[0] == OpenTransaction(9, 4, 1, a.read(1).timestamps[0], a.leader_epoch)
    assert (max_producer_id(a), producer_epoch(a, 9), producer_epoch(a, 8)) == (9, 4, -1)
    end_transaction([a], 9, 4, 0, True)
    assert [txn.producer_id for txn in open_transactions(a)] == [7]
    assert a.last_stable_offset == 2


def test_ending_twice_writes_once(store: segstore.Store) -> None:
    a, b, c = three(store)
    send(a, 7, 0, txn=True)
    send(b, 7, 0)
    assert end_transaction([a, b, c], 7, 0, 0, True) == [1, -1, 0]
    assert end_transaction([a, b, c], 7, 0, 0, True) == [-1, -1, -1]
    assert end_transaction([], 7, 0, 0, True) == []
    assert end_transaction([a, a], 7, 0, 0, False) == [-1, -1]
    send(a, 7, 1, txn=True)
    assert end_transaction([a, a], 7, 0, 0, False) == [3, 3]


def test_a_newer_epoch_shuts_out_the_older_one(store: segstore.Store) -> None:
    a, b, c = three(store)
    send(a, 7, 0, txn=True)
    send(b, 7, 0)
    assert end_transaction([a, b, c], 7, 1, 0, False) == [1, 1, 0]
    for log in (a, b, c):
        with pytest.raises(InvalidProducerEpochError):
            send(log, 7, 1, txn=True)
        with pytest.raises(InvalidProducerEpochError, match="epoch 0, but 1"):
            end_transaction([log], 7, 0, 0, True)
        assert send(log, 7, 0, epoch=1, txn=True).first == log.end_offset - 1
    # One that refuses keeps the marker from all.
    send(c, 8, 0, epoch=5)
    ends = [log.end_offset for log in (a, b, c)]
    with pytest.raises(InvalidProducerEpochError):
        end_transaction([a, b, c], 8, 4, 0, True)
    assert [log.end_offset for log in (a, b, c)] == ends


def test_bad_input(store: segstore.Store, store_dir: Path) -> None:
    log = store.partition("t")
    for pid, epoch in ((-1, 0), (1, -1)):
        with pytest.raises(InvalidArgumentError, match="both must be 0 or more"):
            end_transaction([log], pid, epoch, 0, True)
    with segstore.open(store_dir, "r") as reader, pytest.raises(segstore.ReadOnlyError):
        end_transaction([reader.partition("t")], 1, 0, 0, True)
    store.create_topic("gone")
    gone = store.partition("gone")
    send(gone, 7, 0, txn=True)
    send(log, 7, 0, txn=True)
    store.delete_topic("gone")
    with pytest.raises(StoreClosedError):
        end_transaction([log, gone], 7, 0, 0, True)
    assert open_transactions(log)


def test_transactions_that_overlap(store: segstore.Store, store_dir: Path) -> None:
    log = store.partition("t")
    send(log, 1, 0, 2, txn=True)
    send(log, 2, 0, 2, txn=True)
    log.append(b"plain")
    end_transaction([log], 2, 0, 0, False)
    assert log.last_stable_offset == 0
    send(log, 3, 0, txn=True)
    end_transaction([log], 1, 0, 0, False)
    assert log.last_stable_offset == 6
    end_transaction([log], 3, 0, 0, True)
    assert committed(log) == [4, 6]
    (path,) = (store_dir / "t-0").glob("*.txnindex")
    entries = [AbortedTxn(*fields[1:]) for fields in parse(path.read_bytes()).tolist()]
    assert entries == [AbortedTxn(2, 2, 5, 0), AbortedTxn(1, 0, 7, 6)]


def test_the_start_moves_into_an_open_transaction(store: segstore.Store) -> None:
    log = store.partition("t")
    send(log, 1, 0, 5, txn=True)
    log.delete_records(3)
    assert (log.start_offset, log.last_stable_offset) == (3, 3)
    log.delete_records(5)
    assert committed(log) == []
    end_transaction([log], 1, 0, 0, False)
    assert log.last_stable_offset == 6


def test_a_transaction_from_below_the_start_stays_open(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 150})
        log = store.partition("t")
        for seq in range(4):
            send(log, 1, seq, txn=True)
        log.delete_records(3)
    for _ in range(2):
        assert segstore.check(store_dir) == []
        with segstore.open(store_dir, "r") as reader:
            assert reader.partition("t").last_stable_offset == 3
        with segstore.open(store_dir, clock=Clock()) as store:
            log = store.partition("t")
            assert (log.start_offset, log.last_stable_offset) == (3, 3)
            assert [txn.first_offset for txn in open_transactions(log)] == [0]
    (store_dir / ".segstore" / "ends").unlink()
    with segstore.open(store_dir, "r") as reader:
        assert reader.partition("t").last_stable_offset == 3


def test_markers_are_durable_when_that_is_asked_for(store_dir: Path) -> None:
    files = FailingFiles(["sync"], OSError(errno.EIO, "no"), 0)
    with segstore.open(store_dir, files=files, clock=Clock()) as store:
        store.create_topic("t", 3, config={"flush.messages": 1})
        a, b, _ = three(store)
        for log in (a, b):
            send(log, 1, 0, txn=True)
        files.arm(1)
        with pytest.raises(StorageError):
            end_transaction([a, b], 1, 0, 0, True)
        # The one's sync failed: it is fenced. The other's is kept all the same.
        assert [log.partition_for_write().recovery_point for log in (a, b)] == [1, 2]
        assert [log.last_stable_offset for log in (a, b)] == [2, 2]


CONFIGS = {"roomy": {}, "rolling": {"segment.bytes": 230, "index.interval.bytes": 50}}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("commit", [True, False])
def test_what_fails_shows_nothing_anywhere(store_dir: Path, config: str, commit: bool) -> None:
    """Each call of the files fails in its turn."""
    # A roll's flush in the background opens files too, and fences the partition where that fails.
    calls = ["pwrite", "allocate", "rename", "size"] + ["open"] * (config == "roomy")
    files = FailingFiles(calls, OSError(errno.ENOSPC, "full"), 0)
    with segstore.open(store_dir, files=files, clock=Clock(step=1)) as store:
        store.create_topic("t", 3, config=CONFIGS[config])
        logs = three(store)
        failed = 0
        for nth in range(1, 26):
            pid = nth
            for log in logs:
                log.append(b"plain")
                send(log, pid, 0, txn=True)
            before = [(log.end_offset, log.last_stable_offset, state_of(log).dump()) for log in logs]
            segments = [log.partition_for_write().view.bases for log in logs]
            files.arm(nth)
            try:
                end_transaction(logs, pid, 0, 0, commit)
            except StorageError:
                failed += 1
                after = [(log.end_offset, log.last_stable_offset, state_of(log).dump()) for log in logs]
                assert after == before
                assert [log.partition_for_write().view.bases for log in logs] == segments
                assert all(log.partition_for_write().segments.fenced is None for log in logs)
                files.arm(0)
                end_transaction(logs, pid, 0, 0, commit)
            files.arm(0)
            for p, log in enumerate(logs):
                assert_live(log, store_dir / f"t-{p}")
        assert failed > (8 if config == "rolling" else 2)
        assert not any(open_transactions(log) for log in logs)
    for p in range(3):
        assert_said(store_dir / f"t-{p}")


def test_two_end_transactions_over_the_same_partitions(store: segstore.Store) -> None:
    logs = three(store)

    def run(pid: int) -> None:
        for seq in range(100):
            for log in logs:
                send(log, pid, seq, txn=True)
            end_transaction(logs if pid == 1 else logs[::-1], pid, 0, 0, seq % 2 == 0)

    threads = [threading.Thread(target=run, args=(pid,)) for pid in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(committed(log)) for log in logs] == [100] * 3


@pytest.mark.kind("kills")
def test_a_kill_between_two_markers_is_finished_by_asking_again(store_dir: Path) -> None:
    def write(tell: object) -> None:
        files = FailingFiles(["pwrite"], lambda *_: os.kill(os.getpid(), signal.SIGKILL), 0)
        store = segstore.open(store_dir, files=files)
        store.create_topic("t", 3)
        for log in three(store):
            send(log, 7, 0, 2, txn=True)
        files.arm(2)
        end_transaction(three(store), 7, 0, 0, True)

    assert in_child(write)[0] == signal.SIGKILL
    with segstore.open(store_dir) as store:
        logs = three(store)
        assert [len(open_transactions(log)) for log in logs] == [0, 1, 1]
        assert end_transaction(logs, 7, 0, 0, True) == [-1, 2, 2]
        assert [committed(log) for log in logs] == [[0, 1]] * 3
        assert [len(list(records(log))) for log in logs] == [2] * 3


def test_an_abort_that_was_taken_back_is_not_waited_for(store_dir: Path) -> None:
    """Its index of aborted transactions is gone again when the next flush comes."""
    files = FailingFiles({"pwrite", "pwritev"}, OSError(errno.EIO, "io"), nth=0)
    with segstore.open(store_dir, clock=Clock(step=1), files=files) as store:
        store.create_topic("t", 2)
        logs = [store.partition("t", n) for n in range(2)]
        for log in logs:
            send(log, 7, 0, 3, txn=True)
        files.arm(3)  # behind the first partition's marker and index
        with pytest.raises(StorageError):
            end_transaction(logs, 7, 0, 0, False)
        files.arm(0)
        assert not list(store_dir.glob("*/*.txnindex"))
        store.flush()
        assert end_transaction(logs, 7, 0, 0, False) == [3, 3]
