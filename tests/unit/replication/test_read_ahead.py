"""Promise: what was read ahead of a leader's log is handed out where it is asked for, under the leader epoch
and of the leader that it was read of, and nothing is read twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segstore.records import Encoded, batch_type
from segstore.replication.core.messages import FetchedSpan
from segstore.replication.fetched import FetchedBatches
from segstore.replication.read_ahead import MOST, ReadAhead, ReadAheadPosition

LEADER, OTHER = object(), object()


def piece(next_offset: int) -> FetchedBatches:
    batches = np.zeros(0, batch_type())
    return FetchedBatches(Encoded(np.zeros(0, np.uint8), 0, batches), FetchedSpan(next_offset, ()))


@pytest.fixture
def ahead() -> ReadAhead:
    """Three pieces of ten offsets, from 10 on, read one behind the other."""
    made, place = ReadAhead(), ReadAheadPosition(LEADER, 3, 10)
    for end in (20, 30, 40):
        made.add(place, piece(end))
        place = made.next_from(ReadAheadPosition(LEADER, 3, 10))
    return made


def test_pieces_are_taken_in_order_and_the_next_place_is_behind_the_last_one(ahead: ReadAhead) -> None:
    for offset in (10, 20, 30):
        assert ahead.next_from(ReadAheadPosition(LEADER, 3, offset)).offset == 40
        found = ahead.take(ReadAheadPosition(LEADER, 3, offset))
        assert found is not None
        assert found.fetched.next_offset == offset + 10
    assert ahead.next_from(ReadAheadPosition(LEADER, 3, 40)).offset == 40


@pytest.mark.parametrize(
    "place",
    [ReadAheadPosition(OTHER, 3, 10), ReadAheadPosition(LEADER, 4, 10), ReadAheadPosition(LEADER, 3, 15)],
    ids=["leader", "epoch", "offset"],
)
def test_what_was_read_of_another_place_is_dropped(ahead: ReadAhead, place: Any) -> None:
    assert ahead.take(place) is None
    assert ahead.take(ReadAheadPosition(LEADER, 3, 10)) is None
    assert ahead.next_from(place) == place


def test_a_follower_that_was_cut_reads_anew_from_there(ahead: ReadAhead) -> None:
    for offset in (10, 20, 30):
        ahead.take(ReadAheadPosition(LEADER, 3, offset))
    assert ahead.take(ReadAheadPosition(LEADER, 3, 20)) is None
    assert ahead.next_from(ReadAheadPosition(LEADER, 3, 30)).offset == 30


def test_pieces_that_were_passed_over_are_dropped(ahead: ReadAhead) -> None:
    found = ahead.take(ReadAheadPosition(LEADER, 3, 30))
    assert found is not None
    assert found.fetched.next_offset == 40
    assert ahead.take(ReadAheadPosition(LEADER, 3, 10)) is None


def test_few_are_kept_and_none_after_a_change_of_roles(ahead: ReadAhead) -> None:
    while not ahead.is_full:
        place = ahead.next_from(ReadAheadPosition(LEADER, 3, 10))
        ahead.add(place, piece(place.offset + 10))
    assert ahead.next_from(ReadAheadPosition(LEADER, 3, 10)).offset == 10 + 10 * MOST
    ahead.clear()
    assert not ahead.is_full
    assert ahead.take(ReadAheadPosition(LEADER, 3, 10)) is None
