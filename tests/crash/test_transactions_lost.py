"""Where a power cut, or damage, took a part of a transaction from one partition, no reader of another
partition has to wait.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import FaultyFiles
from stores import all_committed, killed, logs

import segstore
from segstore import Producer, errors
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator

CONFIG = {"transaction.state.log.num.partitions": 1}
STATE = "__transaction_state"


def opened(path: Path) -> segstore.Store:
    return segstore.open(path, config=CONFIG)


def transaction(producer: Producer, end: str, *sent: tuple[str, bytes]) -> None:
    producer.begin_transaction()
    for topic, value in sent:
        producer.send(topic, value)
    producer.flush()
    if end:
        getattr(producer, end)()


def kept_up_to(tmp_path: Path, ends: list[str]) -> Path:
    """A store whose `__transaction_state` ends where it did when the first transaction was under way, and all
    else is of later: what was synced.
    """
    store = opened(tmp_path / "live")
    store.create_topic("t")
    store.create_topic("u")
    producer = Producer(store, transactional_id="x")
    producer.init_transactions()
    transaction(producer, "", ("t", b"a"), ("u", b"b"))
    size = logs(tmp_path / "live", f"{STATE}-0")[0].stat().st_size
    for end in ends:
        if end == "next":
            transaction(producer, "commit_transaction", ("t", b"c"))
        elif end == "open":
            transaction(producer, "", ("t", b"d"))
        else:
            getattr(producer, end)()
    path = killed(tmp_path / "live", tmp_path / "cut")
    producer.close()
    store.close()
    with logs(path, f"{STATE}-0")[0].open("r+b") as file:
        file.truncate(size)
    (path / ".segstore" / "ends").unlink()
    return path


CUT = {
    "nothing": ([], [], []),
    "an abort": (["abort_transaction"], [], []),
    "an abort and a commit": (["abort_transaction", "next"], [b"c"], []),
    "and an abort, and what is open": (
        ["abort_transaction", "next", "open", "abort_transaction"],
        [b"c"],
        [],
    ),
    "an abort, a commit, what is open": (["abort_transaction", "next", "open"], [b"c"], []),
}


@pytest.mark.parametrize(("ends", "of_t", "of_u"), CUT.values(), ids=CUT)
def test_a_power_cut_takes_the_end_of_the_state(
    tmp_path: Path, ends: list[str], of_t: list[bytes], of_u: list[bytes]
) -> None:
    path = kept_up_to(tmp_path, ends)
    with opened(path) as store:
        assert (all_committed(store, "t"), all_committed(store, "u")) == (of_t, of_u)
        with Producer(store, transactional_id="x") as producer:
            producer.init_transactions()
            transaction(producer, "commit_transaction", ("t", b"z"), ("u", b"z"))
        assert (all_committed(store, "t"), all_committed(store, "u")) == ([*of_t, b"z"], [*of_u, b"z"])
    assert list(segstore.check(path)) == []


def test_the_state_was_deleted_while_a_transaction_was_open(tmp_path: Path) -> None:
    store = opened(tmp_path / "live")
    store.create_topic("t")
    producer = Producer(store, transactional_id="x")
    producer.init_transactions()
    transaction(producer, "", ("t", b"a"))
    store._delete_topic(STATE)
    path = killed(tmp_path / "live", tmp_path / "killed")
    producer.close()
    store.close()
    with opened(path) as store, Producer(store, transactional_id="y") as producer:
        producer.init_transactions()  # the first who asks for transactions
        assert all_committed(store, "t") == []
    assert list(segstore.check(path)) == []


def _full(*_: object) -> None:
    raise errors.StorageError(errno.ENOSPC, "No space left on device")


def decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose process died after a commit was decided, and before a marker was written."""
    with opened(tmp_path / "live") as store:
        store.create_topic("t")
        store.create_topic("u")
        with Producer(store, transactional_id="x", max_block_ms=0) as producer:
            producer.init_transactions()
            coordinator = shared(store, TransactionCoordinator)
            with monkeypatch.context() as patch:
                patch.setattr(coordinator._transitions._ending, "write_markers", _full)
                transaction(producer, "commit_transaction", ("t", b"a"), ("u", b"b"))
                return killed(tmp_path / "live", tmp_path / "damaged")


def test_a_damaged_partition_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage to files beside a log keeps no partition from being opened; a link in its place does."""
    path = decided(tmp_path, monkeypatch)
    away = (path / "u-0").rename(tmp_path / "away")
    (path / "u-0").symlink_to(away)
    with opened(path) as store:
        assert all_committed(store, "t") == [b"a"]
        with pytest.raises(errors.StorageError, match="symbolic link"):
            store.partition("u")
        _refused(lambda: Producer(store, transactional_id="x", max_block_ms=0).init_transactions())
    (path / "u-0").unlink()
    away.rename(path / "u-0")
    with opened(path) as store:
        assert (all_committed(store, "t"), all_committed(store, "u")) == ([b"a"], [b"b"])
    assert list(segstore.check(path)) == []


def test_damaged_epochs_of_a_partition_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made anew, and the commit that was decided is completed there as everywhere."""
    path = decided(tmp_path, monkeypatch)
    (path / "u-0" / "leader-epoch-checkpoint").write_bytes(b"junk")
    with opened(path) as store:
        assert (all_committed(store, "t"), all_committed(store, "u")) == ([b"a"], [b"b"])
        with Producer(store, transactional_id="x", max_block_ms=0) as producer:
            producer.init_transactions()
    assert list(segstore.check(path)) == []


def _refused(call: Callable[[], None]) -> None:
    with pytest.raises(errors.KafkaTimeoutError, match="still being ended"):
        call()


@pytest.mark.parametrize("left", [bytes(34), bytes(68), b"\0\0" + bytes(24) + b"\xff" * 8])
def test_a_power_cut_leaves_no_entry_of_the_aborted_but_its_length(tmp_path: Path, left: bytes) -> None:
    """A file is as long as it was, and what was written to it is not there: zeros are an entry, too."""
    path = tmp_path / "store"
    store = opened(path)
    store.create_topic("t")
    producer = Producer(store, transactional_id="x")
    producer.init_transactions()
    transaction(producer, "abort_transaction", ("t", b"a"))
    cut = killed(path, tmp_path / "cut")
    producer.close()
    store.close()
    index = cut / "t-0" / "00000000000000000000.txnindex"
    right = index.read_bytes()
    index.write_bytes(left)
    (cut / ".segstore" / "ends").unlink()  # it says what was synced
    opened(cut).close()
    assert index.read_bytes() == right
    assert list(segstore.check(cut)) == []


@pytest.mark.parametrize("path", ["__transaction_state-0", "b-0"])
def test_a_commit_whose_sync_failed_is_whole_after_a_power_cut(
    tmp_path: Path, rng: random.Random, path: str
) -> None:
    """Of the decision, or of one partition's marker: what was not synced is not built upon."""
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files, config=CONFIG)
    for topic in "ab":
        store.create_topic(topic, config={"flush.messages": 1})
    producer = Producer(store, transactional_id="x", max_block_ms=300)
    producer.init_transactions()
    producer.begin_transaction()
    for topic in "ab":
        producer.send(topic, b"x")
    producer.flush()
    files.names, files.fault = frozenset({"sync"}), fail_sync_of(path)
    files.arm(1, times=1 << 30)
    decided = False
    with contextlib.suppress(segstore.SegstoreError):
        producer.commit_transaction()
        decided = True
    producer.close(0)
    with contextlib.suppress(segstore.SegstoreError):
        store.flush()
    files.power_cut("none", rng)
    store.engine.abandon()
    with segstore.open(tmp_path / "s", config=CONFIG) as store:
        shared(store, TransactionCoordinator)
        assert all_committed(store, "a") == all_committed(store, "b") == [b"x"] * decided


def fail_sync_of(path: str) -> Callable[[str, tuple[Any, ...]], None]:
    def fail(name: str, args: tuple[Any, ...]) -> None:
        if f"/{path}/" in args[0].path and args[0].path.endswith(".log"):
            raise OSError(errno.EIO, "injected")

    return fail
