"""segstore.coordinator.shared: a store has one part of each kind, which is closed before the store."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from struck import struck
from waiting import PATIENCE

import segstore
from segstore.coordinator.shared import existing, shared
from segstore.errors import ReadOnlyError, StoreClosedError


class Part:
    made: list[Part]

    def __init__(self, store: segstore.Store) -> None:
        self.store, self.seen_open = store, False
        Part.made.append(self)

    def close(self) -> None:
        self.store.topics()  # still open
        self.seen_open = True
        Part.made.remove(self)


class Second(Part):
    def __init__(self, store: segstore.Store) -> None:
        shared(store, Part)
        super().__init__(store)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Part.made = []


def test_a_store_has_one_of_a_kind_whoever_asks_first(tmp_path: Path) -> None:
    with segstore.open(tmp_path) as store:
        found: list[Part] = []
        threads = [threading.Thread(target=lambda: found.append(shared(store, Part))) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(found) == 8
        assert len(Part.made) == len(set(map(id, found))) == 1
    assert found[0].seen_open


def test_who_asks_for_a_part_waits_for_no_other_that_is_being_made(tmp_path: Path) -> None:
    begun, over = threading.Event(), threading.Event()

    class Slow(Part):
        def __init__(self, store: segstore.Store) -> None:
            begun.set()
            over.wait(PATIENCE)
            super().__init__(store)

    with segstore.open(tmp_path) as store:
        part, found = shared(store, Part), list[object]()
        making = threading.Thread(target=shared, args=(store, Slow))
        making.start()
        assert begun.wait(PATIENCE)
        asking = threading.Thread(target=lambda: found.extend([shared(store, Part), existing(store, Slow)]))
        asking.start()
        asking.join(PATIENCE / 10)
        assert found == [part, None]
        over.set()
        making.join()
        assert isinstance(existing(store, Slow), Slow)


def test_what_was_made_last_is_closed_first(tmp_path: Path) -> None:
    with segstore.open(tmp_path) as store:
        second, first = shared(store, Second), shared(store, Part)
        closed = []
        first.close, second.close = lambda: closed.append("first"), lambda: closed.append("second")
    assert closed == ["second", "first"]


def test_two_stores_share_nothing(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "a") as a, segstore.open(tmp_path / "b") as b:
        assert shared(a, Part) is not shared(b, Part)


def test_a_reader_and_a_closed_store_are_refused(tmp_path: Path) -> None:
    with (
        segstore.open(tmp_path) as store,
        segstore.open(tmp_path, mode="r") as reader,
        pytest.raises(ReadOnlyError),
    ):
        shared(reader, Part)
    with pytest.raises(StoreClosedError):
        shared(store, Part)
    assert not Part.made


def test_a_nudge_wakes_who_waits(tmp_path: Path) -> None:
    with segstore.open(tmp_path) as store:
        seen = store.publications
        woken = threading.Event()
        waiter = threading.Thread(target=lambda: (store.wait(seen, 60_000), woken.set()))
        waiter.start()
        store.nudge()
        assert woken.wait(PATIENCE)
        waiter.join()
        assert store.publications == seen + 1


def test_an_interrupt_at_any_place_leaves_the_part_to_be_made(store_dir: Path) -> None:
    """It came just before the block whose end takes the name back: no producer could be made any more."""
    with segstore.open(store_dir) as store:
        place = raised = 1
        while raised:
            part: type[Part] = type(f"Part{place}", (Part,), {})
            raised = struck(partial(shared, store, part), place)
            assert type(shared(store, part)) is part
            place += 1
        assert place > 5
