"""Promise: C's table of producers holds what a plain model says of the same batches, undone ones included."""

from __future__ import annotations

import random
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from producer_oracle import PlainProducers

from segstore.index.txn_index import AbortedTxn
from segstore.records.control import ABORT, COMMIT
from segstore.records.header import batch_type
from segstore.storage.producers.producer_state import ProducerState

DATA, TXN, CONTROL, MARKER = 0, 0x10, 0x20, 0x30
LAST = (1 << 31) - 1


class Torn(Exception):
    """A control batch that can't be read."""


def assert_same(table: ProducerState, plain: PlainProducers) -> None:
    """Entry by entry: pytest takes minutes to compare what both have as a whole."""
    for pid in table.producers.keys() | plain.producers.keys():
        both = [astuple(state.producers[pid]) for state in (table, plain) if pid in state.producers]
        assert len(both) == 2, pid
        assert both[0] == both[1], pid
    assert len(table.producers) == len(plain.producers)
    assert (table.ongoing == plain.ongoing) is True
    assert (table.map_end_offset, table.max_producer_id) == (plain.map_end_offset, plain.max_producer_id)
    assert table.first_unstable_offset == plain.first_unstable_offset
    assert (table.dump() == plain.dump()) is True


class Both:
    """The table and the model, to which the same is done."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.table, self.plain, self.clock = rng, ProducerState(), PlainProducers(), 1000
        # Few that come often, and many, for which the table grows.
        self.ids = [*range(6), *rng.sample(range(1 << 62), rng.choice([0, 3, 60])), (1 << 63) - 1]

    def batch(self, base: int, pid: int | None = None) -> dict[str, int]:
        rng = self.rng
        pid = rng.choice([-1, *self.ids]) if pid is None else pid
        known = self.plain.producers.get(pid)
        epoch = 0 if known is None else known.producer_epoch + rng.choice([0, 0, 0, 0, 1, -1])
        follows = 0 if known is None else (known.last_sequence + 1) & LAST
        kind = rng.choice([DATA, DATA, TXN, TXN, TXN, MARKER, MARKER, CONTROL])
        n = 1 if kind & CONTROL else rng.choice([1, 1, 3, 700])
        return {
            "base_offset": base,
            "last_offset": base + n - 1,
            "count": rng.choice([n, n, n, 0]),  # compaction takes records, and leaves offsets
            "producer_id": pid,
            "producer_epoch": epoch,
            "base_sequence": -1 if kind & CONTROL else rng.choice([follows, follows, 0, LAST - 1, -1]),
            "attributes": kind,
            "max_timestamp": rng.choice([-1, self.clock - 500, self.clock]),
        }

    def array(self, pid: int | None = None) -> np.ndarray:
        """Return batches that follow; some are known, of some offsets compaction has left none."""
        rng = self.rng
        base = self.plain.map_end_offset - rng.choice([0, 0, 0, 1, 5])
        found: list[dict[str, int]] = []
        for _ in range(rng.choice([0, 1, 1, 2, 5, 30])):
            found.append(self.batch(max(base, 0), pid))
            base = found[-1]["last_offset"] + rng.choice([1, 1, 1, 9])
        array = np.zeros(len(found), batch_type())
        for i, fields in enumerate(found):
            for name, value in fields.items():
                array[name][i] = value
        return array

    def update(self, pid: int | None = None) -> None:
        array, now = self.array(pid), self.rng.choice([-1, self.clock])
        controls = [self.rng.choice([ABORT, ABORT, COMMIT, COMMIT, 2, -1]) for _ in array]

        def read_control(i: int) -> tuple[int, int]:
            if controls[i] < 0:
                raise Torn
            return controls[i], i

        told: list[Any] = []
        for state in (self.table, self.plain):
            try:
                told.append(state.update(array, read_control, now))
            except Torn:
                told.append(Torn)
        assert told[0] == told[1]

    def undo(self) -> None:
        """Batches of one producer are taken in, and recalled, some of that twice."""
        pid = self.rng.choice(self.ids)
        saved, before = self.table.save(pid), self.plain.copy()
        self.update(pid)
        for _ in range(self.rng.choice([1, 2])):
            self.table.restore(saved)
        self.plain = before

    def expire(self) -> None:
        after = self.rng.choice([1, 400, 10_000])
        assert self.table.expire(self.clock, after) == self.plain.expire(self.clock, after)

    def reload(self) -> None:
        data, end = self.plain.dump(), self.plain.map_end_offset
        self.table, self.plain = ProducerState.load(data, end), PlainProducers.load(data, end)

    def step(self) -> None:
        self.clock += self.rng.choice([0, 1, 100])
        kinds = [self.update] * 12 + [self.undo] * 4 + [self.expire] * 2 + [self.reload]
        self.rng.choice(kinds)()
        assert_same(self.table, self.plain)


@pytest.mark.parametrize("run", range(8))
def test_the_table_holds_what_the_model_says(rng: random.Random, run: int) -> None:
    both = Both(rng)
    for _ in range(300):
        both.step()
    assert both.plain.max_producer_id >= 0


def test_an_empty_table_knows_nobody() -> None:
    state = ProducerState(5)
    assert_same(state, PlainProducers(5))
    assert 7 not in state.producers
    assert state.expire(1 << 62, 0) == 0
    state.restore(state.save(7))
    assert_same(state, PlainProducers(5))


def test_producers_are_found_when_others_are_gone(rng: random.Random) -> None:
    """Who is removed from the table leaves no hole, at which a search for another one would end."""
    for count in range(2, 200):
        state, ids = ProducerState(), [rng.randrange(1 << 63) for _ in range(count)]
        for at, pid in enumerate(ids):
            state.update(_data(at, pid), lambda _: pytest.fail("read"))
        rng.shuffle(ids)
        gone = ids[: count // 2]
        for pid in gone:
            state.restore(ProducerState().save(pid))
        assert list(state.producers) == sorted(ids[count // 2 :])
        assert not any(pid in state.producers for pid in gone)
        assert all(pid in state.producers for pid in ids[count // 2 :])


def test_of_transactions_that_end_in_another_order_the_oldest_counts() -> None:
    state = ProducerState()
    for at, pid in enumerate([5, 3, 9, 4]):
        state.update(_data(at, pid, TXN), lambda _: pytest.fail("read"))
    told = []
    for at, pid in enumerate([3, 5, 4, 9], 4):
        told += state.update(_data(at, pid, MARKER), lambda _: (ABORT, 0))
    assert told == [
        AbortedTxn(3, 1, 4, 0),
        AbortedTxn(5, 0, 5, 2),
        AbortedTxn(4, 3, 6, 2),
        AbortedTxn(9, 2, 7, 8),
    ]
    assert state.ongoing == {}


def _data(base: int, pid: int, kind: int = DATA) -> np.ndarray:
    array = np.zeros(1, batch_type())
    array["base_offset"] = array["last_offset"] = array["max_timestamp"] = base
    array["producer_id"], array["attributes"], array["count"] = pid, kind, 1
    return array


def test_nobody_can_choose_ids_that_lie_together() -> None:
    """A client that knows where ids lie could choose such as make each look-up a walk through all of them."""

    def places() -> list[int]:
        state, batches = ProducerState(), np.zeros(32, batch_type())
        batches["base_offset"] = batches["last_offset"] = batches["producer_id"] = np.arange(32)
        state.update(batches, lambda _: (-1, -1))
        return [state.c.slots[slot].producer_id for slot in range(state.c.room)]

    one, other = places(), places()
    assert sorted(one) == sorted(other)
    assert one != other
