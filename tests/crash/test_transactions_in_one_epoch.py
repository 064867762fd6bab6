"""Transactions of a producer that keeps its epoch (KIP-98) are told apart, whatever a power cut or a restart
leaves of them: none ends as the one before it did.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty import FaultyFiles

import segstore
from segstore import TopicPartition
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from segstore.errors import StorageError
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.storage.log.append import append_record

CONFIG = {"transaction.state.log.num.partitions": 1}
STATE = "__transaction_state"
Me = tuple[int, int]


def transactions(store: segstore.Store) -> TransactionCoordinator:
    return shared(store, TransactionCoordinator)


def begin(store: segstore.Store, me: Me, sequence: int, *topics: str) -> None:
    transactions(store).add_partitions("x", me, [TopicPartition(topic, 0) for topic in topics])
    for topic in topics:
        write(store, topic, me, sequence)


def write(store: segstore.Store, topic: str, me: Me, sequence: int) -> None:
    template = Template(TRANSACTIONAL_FLAG, *me, sequence)
    now = store.context.clock()  # an older record would have the background roll, and sync, the log
    append_record(store.partition(topic), b"%d" % sequence, None, (), now, None, template)


def end(store: segstore.Store, me: Me, outcome: str) -> None:
    transactions(store).end_in_epoch("x", me, outcome == "commit")


def flush(store: segstore.Store, *topics: str) -> None:
    for topic in topics:
        store.partition(topic).flush()


def committed(store: segstore.Store, topic: str) -> list[bytes | None]:
    log = store.partition(topic)
    return list(log.read(log.start_offset, isolation_level="read_committed").values)


def init(store: segstore.Store, expected: Me | None = None) -> Me:
    return transactions(store).init_producer_id("x", 60_000, expected, remote=True)


@contextmanager
def cut_off(tmp_path: Path, rng: random.Random) -> Iterator[segstore.Store]:
    """A store of the topics t and u, whose power is cut at the end of the block."""
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files, config=CONFIG)
    for topic in "tu":
        store.create_topic(topic)
    yield store
    files.power_cut("none", rng)
    store.engine.abandon()


@contextmanager
def opened(tmp_path: Path) -> Iterator[segstore.Store]:
    with segstore.open(tmp_path / "s", config=CONFIG) as store:
        transactions(store)
        yield store


def state_of(store: segstore.Store) -> TransactionState:
    return transactions(store).transactions()["x"].state


def decide(store: segstore.Store, run: Callable[[], None]) -> None:
    """Decide an end that writes no markers yet, and make the decision durable."""

    def fail(_: MarkerWriter, transactional_id: str, decided: TransactionMetadata) -> None:
        raise StorageError("no marker is written now")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MarkerWriter, "write_markers", fail)
        run()
        flush(store, STATE)
    assert state_of(store).prepared


@pytest.mark.parametrize(("first", "second"), [("commit", "abort"), ("abort", "commit")])
def test_a_marker_is_lost_and_the_next_is_being_ended(
    tmp_path: Path, rng: random.Random, first: str, second: str
) -> None:
    with cut_off(tmp_path, rng) as store:
        me = init(store)
        begin(store, me, 0, "t", "u")
        flush(store, "u")
        end(store, me, first)
        begin(store, me, 1, "t", "u")
        flush(store, "t")
        decide(store, lambda: end(store, me, second))
    with opened(tmp_path) as store:
        assert committed(store, "u") == ([b"0"] if first == "commit" else [])
        assert committed(store, "t") == ([b"0"] if first == "commit" else [b"1"])
        assert state_of(store).idle


@pytest.mark.parametrize("first", ["commit", "abort"])
def test_a_marker_is_lost_and_the_next_is_being_aborted_in_the_next_epoch(
    tmp_path: Path, rng: random.Random, first: str
) -> None:
    with cut_off(tmp_path, rng) as store:
        me = init(store)
        begin(store, me, 0, "t", "u")
        flush(store, "u")
        end(store, me, first)
        begin(store, me, 1, "t", "u")
        flush(store, "t")
        late = store.context.clock() + 100_000
        decide(store, lambda: transactions(store)._abandoned.abort_timed_out(late))
    with opened(tmp_path) as store:
        kept = [b"0"] if first == "commit" else []
        assert [committed(store, topic) for topic in "tu"] == [kept, kept]


@pytest.mark.parametrize("first", ["commit", "abort"])
def test_a_decision_is_left_and_only_the_next_is_open(tmp_path: Path, rng: random.Random, first: str) -> None:
    """Its markers are there; that the end is complete, and the begin of the next, are lost."""
    with cut_off(tmp_path, rng) as store:
        me = init(store)
        begin(store, me, 0, "t", "u")
        decide(store, lambda: end(store, me, first))
        transactions(store).complete("x")
        begin(store, me, 1, "t", "u")
        flush(store, "t", "u")
    with opened(tmp_path) as store:
        kept = [b"0"] if first == "commit" else []
        assert [committed(store, topic) for topic in "tu"] == [kept, kept]
        assert state_of(store).idle


def test_all_of_a_transaction_is_lost_and_the_next_begins_there(tmp_path: Path, rng: random.Random) -> None:
    """Its decision is left, which is not that of the next one, over whose begin the store is opened anew."""
    with cut_off(tmp_path, rng) as store:
        flush(store, "t", "u")
        me = init(store)
        begin(store, me, 0, "t", "u")
        end(store, me, "commit")
        flush(store, STATE)
    with opened(tmp_path) as store:
        begin(store, me, 1, "t", "u")
    with opened(tmp_path) as store:
        assert [committed(store, topic) for topic in "tu"] == [[], []]
        assert state_of(store) is TransactionState.ONGOING
        end(store, me, "abort")
        assert [committed(store, topic) for topic in "tu"] == [[], []]


@pytest.mark.parametrize("sequence", [0, 1], ids=["sequences begin anew", "sequences go on"])
def test_a_topic_is_made_anew_and_the_next_begins_there(tmp_path: Path, sequence: int) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t")
        me = init(store)
        begin(store, me, 0, "t")
        end(store, me, "commit")
        store.delete_topic("t")
        store.create_topic("t")
        begin(store, me, sequence, "t")
    with opened(tmp_path) as store:
        assert committed(store, "t") == []
        assert state_of(store) is TransactionState.ONGOING
        end(store, me, "abort")
        assert committed(store, "t") == []


def test_the_marker_of_an_epoch_before_is_lost(tmp_path: Path, rng: random.Random) -> None:
    """A transaction that a takeover aborted does not end as a later one of the next producer."""
    with cut_off(tmp_path, rng) as store:
        begin(store, init(store), 0, "t", "u")
        flush(store, "u")
        me = init(store)
        begin(store, me, 0, "t")
        end(store, me, "commit")
        begin(store, me, 1, "t")
        begin(store, me, 0, "u")
        flush(store, STATE, "t")
    with opened(tmp_path) as store:
        if state_of(store) is TransactionState.ONGOING:
            end(store, me, "commit")
        assert committed(store, "u") == []


def test_a_decision_fits_in_as_much_as_its_transaction(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        names = [f"t{number}" for number in range(40)]
        for name in names:
            store.create_topic(name)
        me = init(store)
        begin(store, me, 0, *names)
        store.alter_topic(STATE, {"max.message.bytes": 600})
        end(store, me, "commit")
        assert [committed(store, name) for name in names] == [[b"0"]] * len(names)


def test_a_decision_that_does_not_tell_begins_is_not_the_one_before(
    tmp_path: Path, rng: random.Random
) -> None:
    names = [f"t{number}" for number in range(40)]
    with cut_off(tmp_path, rng) as store:
        for name in names:
            store.create_topic(name)
        me = init(store)
        begin(store, me, 0, "t", "u")
        end(store, me, "abort")
        begin(store, me, 1, "t", "u")
        begin(store, me, 0, *names)
        flush(store, "t", "u")
        store.alter_topic(STATE, {"max.message.bytes": 600})
        decide(store, lambda: end(store, me, "commit"))
    with opened(tmp_path) as store:
        assert [committed(store, topic) for topic in "tu"] == [[b"1"], [b"1"]]


def test_the_begin_of_a_transaction_is_deleted(tmp_path: Path, rng: random.Random) -> None:
    with cut_off(tmp_path, rng) as store:
        me = init(store)
        begin(store, me, 0, "t", "u")
        write(store, "u", me, 1)
        write(store, "u", me, 2)
        store.partition("u").delete_records(1)
        flush(store, "u")
        end(store, me, "commit")
        flush(store, STATE, "t")
    with opened(tmp_path) as store:
        assert committed(store, "u") == [b"1", b"2"]
        begin(store, me, 3, "u")
        end(store, me, "commit")
        assert committed(store, "u") == [b"1", b"2", b"3"]
