"""A consumer object that nobody refers to any more gives its partitions back at once, as after a notebook's
cell is run again.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from consumers import LONG_MS, fill, tp

import segstore


def joined(store: segstore.Store, **settings: Any) -> segstore.Consumer:
    """A member that was given its partitions, and has read something."""
    given: Any = {"group_id": "g", "auto_offset_reset": "earliest", "session_timeout_ms": LONG_MS, **settings}
    consumer = segstore.Consumer(store, "t", **given)
    while not consumer.poll(1000, max_records=1):
        pass
    return consumer


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    fill(store, partitions=2, records=100)
    return store


def test_the_same_cell_again(filled: segstore.Store) -> None:
    for _ in range(3):
        consumer = joined(filled)  # the one before is still referred to until this one has joined
        assert consumer.assignment() <= {tp(0), tp(1)}
        consumer = None  # type: ignore[assignment]
        gc.collect()
    assert len(segstore.Groups(filled).describe("g").members) == 1


def test_a_new_member_has_all_partitions_of_one_that_was_dropped(filled: segstore.Store) -> None:
    consumer = joined(filled)
    dropped = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert dropped() is None
    with joined(filled) as second:
        assert second.assignment() == {tp(0), tp(1)}
        assert len(segstore.Groups(filled).describe("g").members) == 1


def test_members_that_stay_get_the_partitions(filled: segstore.Store) -> None:
    settings = {"heartbeat_interval_ms": 20}
    staying, leaving = (
        joined(filled, **settings),
        segstore.Consumer(filled, "t", group_id="g", session_timeout_ms=LONG_MS, **settings),
    )
    while not (staying.assignment() and leaving.assignment() and len(staying.assignment()) == 1):
        staying.poll(20)
        leaving.poll(20)
    del leaving
    gc.collect()
    while staying.assignment() != {tp(0), tp(1)}:
        staying.poll(50)
    staying.close()


def test_a_static_member_keeps_its_place(filled: segstore.Store) -> None:
    consumer = joined(filled, group_instance_id="one")
    del consumer
    gc.collect()
    (member,) = segstore.Groups(filled).describe("g").members
    assert member.group_instance_id == "one"
    with joined(filled, group_instance_id="one") as again:
        assert again.assignment() == {tp(0), tp(1)}
