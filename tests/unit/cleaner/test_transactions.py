"""Compaction of what producers with an id wrote: transactions, their markers, sequences that go on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from background import caught_up
from compaction import (
    DAY,
    Unsynced,
    Writer,
    batches,
    clean,
    entries,
    latest,
    open_compacted,
    pairs,
    put,
    roll,
)
from faulty import MODES, FaultyFiles
from stores import START_MS, Clock

import segstore
from segstore.errors import OutOfOrderSequenceError
from segstore.records import CONTROL_FLAG, TRANSACTIONAL_FLAG
from segstore.records.header import DELETE_HORIZON_FLAG


@pytest.fixture
def clock() -> Clock:
    return Clock(START_MS)


def shapes(store: segstore.Store) -> list[tuple[int, str, int]]:
    """(base offset, what it is, records) of all batches."""
    found = []
    for batch in batches(store):
        kind = "marker" if batch["attributes"] & CONTROL_FLAG else "data"
        kind += "+" if batch["attributes"] & DELETE_HORIZON_FLAG else ""
        found.append((int(batch["base_offset"]), kind, int(batch["count"])))
    return found


def test_what_was_aborted_goes_and_its_marker_later(store_dir: Path, clock: Clock) -> None:
    with open_compacted(store_dir, clock) as store:
        log = store.partition("t")
        writer, other = Writer(log, 1, clock), Writer(log, 2, clock)
        writer.transaction(False, (b"a", b"1"), (b"b", b"1"))  # 0, 1, marker 2
        other.transaction(True, (b"a", b"2"))  # 3, marker 4
        writer.transaction(True, (b"c", b"1"))  # 5, marker 6
        roll(store)
        before = pairs(log, isolation_level="read_committed")
        clean(store)
        assert pairs(log, isolation_level="read_committed") == before == pairs(log)
        assert shapes(store) == [
            (2, "marker", 1), (3, "data", 1), (4, "marker", 1), (5, "data", 1), (6, "marker", 1),
        ]  # fmt: skip
        assert entries(store_dir) == [(1, 0, 2)]
        put(log, (b"x", b"1"))
        roll(store)
        clean(store)
        assert shapes(store)[0] == (2, "marker+", 1)
        assert entries(store_dir) == []
        clock.now += DAY
        put(log, (b"x", b"2"))
        roll(store)
        clean(store)
        assert [base for base, _, _ in shapes(store)] == [3, 4, 5, 6, 8]
        assert latest(log) == {b"a": b"2", b"c": b"1", b"x": b"2"}


def test_a_marker_stays_as_long_as_its_transaction(store_dir: Path, clock: Clock) -> None:
    with open_compacted(store_dir, clock, delete_retention_ms=0) as store:
        log = store.partition("t")
        writer = Writer(log, 1, clock)
        writer.transaction(True, (b"a", b"1"), (b"b", b"1"))  # 0, 1, marker 2
        for i in range(4):
            put(log, (b"x", b"%d" % i))
            roll(store)
            clean(store)
        assert (2, "marker", 1) in shapes(store)
        put(log, (b"a", b"2"))
        roll(store)
        clean(store)
        assert shapes(store)[:2] == [(1, "data", 1), (2, "marker", 1)]
        assert latest(log, isolation_level="read_committed")[b"b"] == b"1"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_power_cut_keeps_the_records_of_a_transaction_or_its_marker(
    tmp_path: Path, clock: Clock, rng: random.Random, commit: bool, mode: str
) -> None:
    """The marker was in the active segment: unsynced, it decided which durable records compaction removed."""
    files = FaultyFiles(tmp_path)
    store = open_compacted(tmp_path / "s", clock, files)
    log = store.partition("t")
    put(log, (b"a", b"old"))
    writer = Writer(log, 1, clock)
    writer.send((b"a", b"new"), flags=TRANSACTIONAL_FLAG)
    roll(store)
    caught_up(store)
    assert log.partition_for_write().recovery_point == 2
    writer.end(commit)
    assert clean(store).records_after < 2
    files.power_cut(mode, rng)
    store.engine.abandon()
    with segstore.open(tmp_path / "s") as store:
        found = latest(store.partition("t"), isolation_level="read_committed")
        assert found == {b"a": b"new" if commit else b"old"}
    assert segstore.check(tmp_path / "s") == []


def test_an_open_transaction_ends_what_is_cleaned(store_dir: Path, clock: Clock) -> None:
    with open_compacted(store_dir, clock) as store:
        log = store.partition("t")
        put(log, (b"a", b"1"))
        roll(store)
        writer = Writer(log, 1, clock)
        writer.send((b"a", b"2"), flags=TRANSACTIONAL_FLAG)
        roll(store)
        put(log, (b"a", b"3"))
        roll(store)
        assert clean(store).end_offset == 1
        assert len(pairs(log)) == 3
        writer.end(False)
        roll(store)
        assert clean(store).end_offset == 4
        assert pairs(log) == [(2, b"a", b"3")]
        # The producer's last batch stays, empty: it has the sequence.
        assert shapes(store)[:2] == [(1, "data", 0), (2, "data", 1)]


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_reader_that_knew_the_segment_before(store_dir: Path, clock: Clock, mode: str) -> None:
    """What it has not seen yet of the markers lies elsewhere in the file that compaction has made."""
    with open_compacted(store_dir, clock, segment_bytes=10_000) as store:
        log = store.partition("t")
        writer = Writer(log, 1, clock)
        for i in range(20):
            put(log, (b"x", b"%d" % i * 30))
        Writer(log, 2, clock).transaction(True, (b"c", b"1"))
        writer.send((b"a", b"1"), flags=TRANSACTIONAL_FLAG)
        with segstore.open(store_dir, mode="r") as other:
            reader = log if mode == "rw" else other.partition("t")
            assert len(pairs(reader, isolation_level="read_committed")) == 21
            writer.end(True)
            roll(store)
            clean(store)
            writer.transaction(False, (b"b", b"1"))
            put(log, (b"x", b"new"))
            found = latest(reader, isolation_level="read_committed")
            assert found == {b"a": b"1", b"c": b"1", b"x": b"new"}


@pytest.mark.parametrize("reopen", [False, True], ids=["", "reopened"])
def test_a_producer_goes_on_with_its_next_sequence(store_dir: Path, clock: Clock, reopen: bool) -> None:
    """Its last batch is superseded whole; snapshots are lost too, so that the log alone can tell."""
    with open_compacted(store_dir, clock) as store:
        writer = Writer(store.partition("t"), 1, clock)
        for i in range(3):
            writer.send((b"a", b"%d" % i), (b"b", b"%d" % i))
        put(store.partition("t"), (b"a", b"x"), (b"b", b"x"))
        roll(store)
        clean(store)
        assert shapes(store) == [(4, "data", 0), (6, "data", 2)]
        assert batches(store)[0]["last_offset"] == 5
        if not reopen:
            go_on(writer)
    if reopen:
        for path in (store_dir / "t-0").glob("*.snapshot"):
            path.unlink()
        with open_compacted(store_dir, clock) as store:
            writer.log = store.partition("t")
            go_on(writer)


def go_on(writer: Writer) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        writer.send((b"a", b"y"), sequence=7)
    assert writer.send((b"a", b"3"), (b"b", b"3"), sequence=4).duplicate
    assert writer.send((b"a", b"y")).first == 8
    assert latest(writer.log) == {b"a": b"y", b"b": b"x"}


def test_an_expired_producer_leaves_nothing(store_dir: Path, clock: Clock) -> None:
    with open_compacted(store_dir, clock) as store:
        log = store.partition("t")
        Writer(log, 1, clock).send((b"a", b"1"))
        put(log, (b"a", b"2"))
        roll(store)
        log.partition_for_write().expire_producers(0)
        clean(store)
        assert shapes(store) == [(1, "data", 1)]


def test_a_fenced_epoch_is_remembered(store_dir: Path, clock: Clock) -> None:
    """A marker that alone has the newest epoch stays as an empty batch."""
    with open_compacted(store_dir, clock, delete_retention_ms=0) as store:
        log = store.partition("t")
        Writer(log, 1, clock).send((b"a", b"1"))
        Writer(log, 1, clock, epoch=3).end(False)
        put(log, (b"a", b"2"))
        for i in range(3):
            put(log, (b"x", b"%d" % i))
            roll(store)
            clean(store)
        assert (1, "marker", 0) in shapes(store)


class Model:
    """What a reader of each level is to find, and what may still be in the log."""

    def __init__(self, rng: random.Random, log: segstore.PartitionLog, clock: Clock) -> None:
        self.rng, self.log = rng, log
        self.writers = [Writer(log, i, clock) for i in range(3)]
        self.open: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        self.held: dict[bytes, tuple[int, bytes | None]] = {}

    def step(self) -> None:
        writer = self.rng.choice(self.writers)
        if writer.id in self.open and self.rng.random() < 0.4:
            commit = self.rng.random() < 0.5
            writer.end(commit)
            some = self.open.pop(writer.id)
            if commit:
                self.take(some)
            return
        in_transaction = writer.id in self.open or self.rng.random() < 0.5
        n = self.rng.randrange(1, 4)
        keys = [b"k%d" % self.rng.randrange(8) for _ in range(n)]
        values = [None if self.rng.random() < 0.2 else self.rng.randbytes(6) for _ in keys]
        some = list(zip(keys, values, strict=True))
        first = writer.send(*some, flags=TRANSACTIONAL_FLAG if in_transaction else 0).first
        said = {key: (first + i, value) for i, (key, value) in enumerate(some)}
        if in_transaction:
            self.open.setdefault(writer.id, {}).update(said)
        else:
            self.take(said)

    def take(self, some: dict[bytes, tuple[int, bytes | None]]) -> None:
        """What is committed later may lie before what is there."""
        for key, (offset, value) in some.items():
            if offset > self.held.get(key, (-1, None))[0]:
                self.held[key] = offset, value

    def end_all(self) -> None:
        for producer_id in list(self.open):
            self.writers[producer_id].end(True)
            self.take(self.open.pop(producer_id))

    @property
    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, (_, value) in self.held.items() if value is not None}


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("number", range(25))
def test_transactions_against_a_model(tmp_path: Path, seed: int, number: int, clock: Clock) -> None:
    rng, path = random.Random(f"{seed} {number}"), tmp_path / "store"
    retention = rng.choice([0, 30, DAY])
    with open_compacted(path, clock, Unsynced(), segment_bytes=500, delete_retention_ms=retention) as store:
        model = Model(rng, store.partition("t"), clock)
        for _ in range(90):
            model.step()
            clock.now += rng.randrange(9)
            if rng.random() < 0.15:
                clean(store)
                assert segstore.check(path) == []
        model.end_all()
        roll(store)
        clean(store)
        assert latest(model.log, isolation_level="read_committed") == model.values
        assert latest(model.log) == model.values
        sequences = {w.id: w.sequence for w in model.writers}
    assert segstore.check(path) == []
    for snapshot in (path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    with open_compacted(path, clock, Unsynced()) as store:
        log = store.partition("t")
        assert latest(log, isolation_level="read_committed") == model.values
        for writer in model.writers:
            writer.log = log
            if sequences[writer.id]:
                with pytest.raises(OutOfOrderSequenceError):
                    writer.send((b"z", b""), sequence=sequences[writer.id] + 1)
                writer.send((b"z", b""))
    assert segstore.check(path) == []
