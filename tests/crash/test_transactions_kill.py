"""A transaction that a kill interrupted is ended by the next open: all of it is visible, or nothing."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FailingFiles
from stores import committed_values, killed, killed_at_each_call
from waiting import until

import segstore
from segstore import OffsetAndMetadata, Producer, TopicPartition, errors
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.metadata import TransactionState
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.storage.log.append import append_record
from segstore.storage.store import store as storage

pytestmark = pytest.mark.kind("kills")

CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]


def transaction(store: segstore.Store, name: bytes, end: str = "commit") -> Producer:
    """One record in each place, and an offset; the producer is not closed, but may be dropped. The records
    linger until all are there, so that it is the same calls each time.
    """
    producer = Producer(store, transactional_id="x", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    for topic, partition in PLACES:
        producer.send(topic, name, partition=partition)
    offset = int(name)
    producer.send_offsets_to_transaction({PLACES[0]: OffsetAndMetadata(offset)}, "g")
    producer.flush()
    if end == "commit":
        producer.commit_transaction()
    elif end == "abort":
        producer.abort_transaction()
    return producer


def assert_whole(path: Path) -> int:
    """How many transactions are seen: the same everywhere, and nobody waits for one that is open."""
    with segstore.open(path, config=CONFIG) as store:
        for place in PLACES:
            log = store.partition(*place)
            assert log.last_stable_offset == log.end_offset
        seen = [committed_values(store.partition(*place)) for place in PLACES]
        assert seen[0] == seen[1] == seen[2]
        assert seen[0] == [b"%d" % i for i in range(1, len(seen[0]) + 1)]
        kept = shared(store, GroupOffsets)
        assert kept.fetch("g") == {PLACES[0]: OffsetAndMetadata(len(seen[0]))}
        assert kept.pending("g") == set()
        transaction(store, b"%d" % (len(seen[0]) + 1))
        assert {committed_values(store.partition(*place))[-1] for place in PLACES} == {
            b"%d" % (len(seen[0]) + 1)
        }
    assert list(segstore.check(path)) == []
    return len(seen[0])


def prepared(path: Path) -> Path:
    """A store with one committed transaction."""
    with segstore.open(path, config=CONFIG) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
        transaction(store, b"1")
    return path


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_killed_at_each_call_of_a_transaction(tmp_path: Path, end: str) -> None:
    def run(files: segstore.files.Files, path: Path) -> None:
        store = segstore.open(path, config=CONFIG, files=files)
        transaction(store, b"2", end)

    found = [assert_whole(path) for _, path in killed_at_each_call(prepared(tmp_path / "s"), tmp_path, run)]
    assert len(found) > 20
    assert found == sorted(found)
    assert set(found) == ({1, 2} if end == "commit" else {1})


LEFT: dict[str, Callable[[segstore.Store], object]] = {
    "open": lambda store: transaction(store, b"2", "nothing"),
    "prepared": lambda store: prepare(store),
}


def prepare(store: segstore.Store) -> Producer:
    """Kill between the decision and the markers: they are never written."""
    coordinator = shared(store, TransactionCoordinator)
    coordinator._transitions._ending.write_markers = lambda *_: _raise()
    coordinator._transitions._upkeep.failed = lambda *_: None
    producer = Producer(store, transactional_id="x", max_block_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    for topic, partition in PLACES:
        producer.send(topic, b"2", partition=partition)
    producer.send_offsets_to_transaction({PLACES[0]: OffsetAndMetadata(2)}, "g")
    producer.commit_transaction()
    assert coordinator.transactions()["x"].state is TransactionState.PREPARE_COMMIT
    return producer


def _raise() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def left(tmp_path: Path, how: str) -> Path:
    """What a kill leaves when a transaction is in that state."""
    with segstore.open(prepared(tmp_path / "live"), config=CONFIG) as store:
        producer = LEFT[how](store)
        found = killed(tmp_path / "live", tmp_path / "killed")
        del producer  # whose transaction is aborted now
    return found


@pytest.mark.parametrize("how", LEFT)
def test_killed_at_each_call_of_the_open_that_ends_it(tmp_path: Path, how: str) -> None:
    def run(files: segstore.files.Files, path: Path) -> None:
        segstore.open(path, config=CONFIG, files=files)

    state = left(tmp_path, how)
    storage.open(state, config=CONFIG).close()  # recovered, so that what is left to do is the end
    found = [assert_whole(path) for _, path in killed_at_each_call(state, tmp_path, run)]
    assert set(found) == {2 if how == "prepared" else 1}
    assert len(found) > 10


@pytest.mark.parametrize("how", LEFT)
@pytest.mark.parametrize("calls", [{"pwrite"}, {"open"}], ids=["writing", "opening"])
def test_an_open_that_can_not_end_it_tries_again(tmp_path: Path, how: str, calls: set[str]) -> None:
    """The disk is full from the moment on at which all is recovered."""
    state = left(tmp_path, how)
    files = FailingFiles(calls, OSError(errno.ENOSPC, "No space left on device"), 0)
    opened = storage.open

    def full(*args: object, **kwargs: object) -> segstore.Store:
        store = opened(*args, **kwargs)
        files.arm(1, 3)
        return store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "open", full)
        patch.setattr("segstore.coordinator.open.RETRY", 0.01)
        store = segstore.open(state, config=CONFIG, files=files)
        logs = [store.partition(*place) for place in PLACES]
        until(lambda: all(log.last_stable_offset == log.end_offset for log in logs))
        store.close()
    assert assert_whole(state) == (2 if how == "prepared" else 1)


def test_who_left_it_open_is_fenced(tmp_path: Path) -> None:
    with segstore.open(left(tmp_path, "open"), config=CONFIG) as store:
        known = shared(store, TransactionCoordinator).transactions()["x"]
        assert known.state is TransactionState.COMPLETE_ABORT
        old, now = (
            Template(TRANSACTIONAL_FLAG, known.producer_id, known.producer_epoch - 1, 1),
            store.context.clock(),
        )
        with pytest.raises(errors.InvalidProducerEpochError):
            append_record(store.partition("a"), b"zombie", None, (), now, None, old)


def test_what_nobody_knows_of_is_aborted(tmp_path: Path) -> None:
    live = prepared(tmp_path / "live")
    with segstore.open(live, config=CONFIG) as store:
        stray = Template(TRANSACTIONAL_FLAG, 77, 4, 0)
        append_record(store.partition("a"), b"stray", None, (), store.context.clock(), None, stray)
        path = killed(live, tmp_path / "killed")
    assert assert_whole(path) == 1


def test_an_open_without_open_transactions_makes_no_coordinator(tmp_path: Path) -> None:
    from segstore.coordinator.shared import existing

    with segstore.open(prepared(tmp_path / "s"), config=CONFIG) as store:
        assert existing(store, TransactionCoordinator) is None


def test_a_brokers_open_transactions_are_left_alone(tmp_path: Path, golden: Path) -> None:
    """Its `__transaction_state` has no settings of ours."""
    live = prepared(tmp_path / "live")
    with segstore.open(live, config=CONFIG) as store:
        stray = Template(TRANSACTIONAL_FLAG, 77, 4, 0)
        append_record(store.partition("a"), b"stray", None, (), store.context.clock(), None, stray)
    shutil.rmtree(live / ".segstore")
    for _ in range(2):
        with segstore.open(live, config=CONFIG) as store:
            assert not store.topics()["__transaction_state"].ours
            log = store.partition("a")
            assert log.last_stable_offset < log.end_offset
    with segstore.open(live, config=CONFIG) as store, Producer(store, transactional_id="mine") as producer:
        # Who uses transactions here makes the topic ours; the broker's partitions stay as they are.
        producer.init_transactions()
        assert store.topics()["__transaction_state"].ours
        log = store.partition("a")
        assert log.last_stable_offset < log.end_offset
