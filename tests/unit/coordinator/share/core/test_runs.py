"""Runs of a share partition against a list of one value per offset."""

from __future__ import annotations

import random

import pytest

from segstore.coordinator.share.core.deadlines import LockDeadlines
from segstore.coordinator.share.core.runs import Lock, StateRun, StateRuns
from segstore.coordinator.share.core.values import OffsetRange, RecordState

PIECE = OffsetRange(0, 9)
ALIKE: dict[str, tuple[StateRun, bool]] = {
    "alike": (StateRun(5, 6, RecordState.AVAILABLE, 1, PIECE), True),
    "not next to it": (StateRun(6, 6, RecordState.AVAILABLE, 1, PIECE), False),
    "another state": (StateRun(5, 6, RecordState.ARCHIVING, 1, PIECE), False),
    "another count": (StateRun(5, 6, RecordState.AVAILABLE, 2, PIECE), False),
    "another piece": (StateRun(5, 6, RecordState.AVAILABLE, 1, OffsetRange(5, 6)), False),
    "a lock": (StateRun(5, 6, RecordState.AVAILABLE, 1, PIECE, Lock("m", 1, 1)), False),
    "a write": (StateRun(5, 6, RecordState.AVAILABLE, 1, PIECE, None, 3), False),
    "a target": (StateRun(5, 6, RecordState.AVAILABLE, 1, PIECE, None, 0, RecordState.ARCHIVED), False),
}


@pytest.mark.parametrize("name", ALIKE)
def test_neighbours_that_are_alike_are_joined(name: str) -> None:
    other, expected = ALIKE[name]
    runs = StateRuns()
    runs.insert(StateRun(3, 4, RecordState.AVAILABLE, 1, PIECE))
    runs.insert(other)
    runs.join(3, 4)
    assert len(runs) == 2 - expected


def test_runs_never_overlap() -> None:
    runs = StateRuns()
    runs.insert(StateRun(3, 5, RecordState.AVAILABLE))
    for first, last in ((5, 5), (1, 3), (4, 4), (2, 9)):
        with pytest.raises(AssertionError, match="runs overlap"):
            runs.insert(StateRun(first, last, RecordState.AVAILABLE))
    assert [(run.first, run.last) for run in runs] == [(3, 5)]


def test_runs_are_as_a_list_of_counts(rng: random.Random) -> None:
    runs, counts = StateRuns(), dict.fromkeys(range(40), 0)
    runs.insert(StateRun(0, 39, RecordState.AVAILABLE))
    for _ in range(2_000):
        first = rng.randrange(40)
        last = min(39, first + rng.randrange(12))
        count = rng.randrange(3)
        for run in runs.cut(first, last):
            run.count = count
        runs.join(first, last)
        counts.update(dict.fromkeys(range(first, last + 1), count))
        assert {at: run.count for run in runs for at in range(run.first, run.last + 1)} == counts
        joined = 1 + sum(counts[at] != counts[at - 1] for at in range(1, 40))
        assert len(runs) == joined
        assert runs.overlapping(first, last)[0].count == count
        assert next(runs.from_offset(last)).first <= last


def test_runs_below_an_offset_are_dropped() -> None:
    runs = StateRuns()
    for first, last in ((0, 2), (4, 6), (8, 9)):
        runs.insert(StateRun(first, last, RecordState.AVAILABLE))
    assert [(run.first, run.last) for run in runs.drop_below(5)] == [(0, 2), (4, 4)]
    assert [(run.first, run.last) for run in runs] == [(5, 6), (8, 9)]
    assert [runs.position(at) for at in (0, 5, 6, 7, 8, 10)] == [0, 0, 0, 1, 1, 2]
    assert len(runs.drop_below(20)) == 2
    assert runs.drop_below(30) == []


def test_the_earliest_deadline_is_that_of_a_lock_that_is_held() -> None:
    deadlines = LockDeadlines()
    assert deadlines.earliest() is None
    deadlines.add(20, 2)
    deadlines.add(10, 3)
    deadlines.remove(10, 2)
    copied = deadlines.copy()
    deadlines.remove(10, 1)
    assert (deadlines.earliest(), copied.earliest()) == (20, 10)
    deadlines.add(10, 1)
    assert deadlines.earliest() == 10
    deadlines.remove(10, 1)
    deadlines.remove(20, 2)
    assert (deadlines.earliest(), deadlines.counts()) == (None, {})
    assert copied.counts() == {20: 2, 10: 1}
