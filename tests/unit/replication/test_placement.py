"""segstore.replication.placement: leaders are spread evenly, followers too; what can't be is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from segstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError, InvalidTypeError
from segstore.replication.placement import as_assignments, check_assignments, place

PLACED: dict[str, tuple[tuple[Any, ...], list[tuple[int, ...]]]] = {
    "round the directories": ((3, 2, {2, 0, 1}), [(0, 1), (1, 2), (2, 0)]),
    "from another start": ((3, 2, [0, 1, 2], 2), [(2, 0), (0, 2), (1, 0)]),
    "one each": ((2, 1, [0, 1, 2]), [(0,), (1,)]),
    "all": ((2, 3, [0, 1, 2]), [(0, 1, 2), (1, 2, 0)]),
    "one directory": ((3, 1, [4]), [(4,), (4,), (4,)]),
    "not all work": ((4, 2, [0, 2]), [(0, 2), (2, 0), (0, 2), (2, 0)]),
    "as numpy has it": ((1, np.int64(2), [0, 1]), [(0, 1)]),
    "none": ((0, 1, [0]), []),
}


@pytest.mark.parametrize("name", PLACED)
def test_where_replicas_go(name: str) -> None:
    arguments, expected = PLACED[name]
    assert place(*arguments) == expected


@pytest.mark.parametrize("factor", range(1, 6))
@pytest.mark.parametrize("start", [0, 7, 1000])
def test_leaders_and_who_would_take_over_are_spread_evenly(factor: int, start: int) -> None:
    live, rounds = [0, 2, 3, 5, 8], 4
    placed = place(len(live) * rounds, factor, live, start)
    assert all(len({*replicas}) == factor and {*replicas} <= {*live} for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {rounds}
    assert set(Counter(each for replicas in placed for each in replicas).values()) == {rounds * factor}
    if factor > 1:
        seconds = Counter(replicas[:2] for replicas in placed)
        assert set(seconds.values()) == {1}, "no two directories share more than others"


def test_topics_made_one_after_the_other_are_spread_too() -> None:
    placed: list[tuple[int, ...]] = []
    for _ in range(6):
        placed += place(1, 2, [0, 1, 2], len(placed))
    assert Counter(replicas[0] for replicas in placed) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_a_factor_that_the_directories_don_t_allow(factor: int) -> None:
    with pytest.raises(
        InvalidReplicationFactorError,
        match=rf"replication_factor={factor}: must be from 1 to 3.*: 0, 1, 5",
    ):
        place(1, factor, [5, 0, 1])


def test_where_nothing_works_nothing_is_placed() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="work: none"):
        place(1, 1, [])


@pytest.mark.parametrize("factor", [True, 1.0, "1", None])
def test_a_factor_is_an_integer(factor: Any) -> None:
    with pytest.raises(InvalidTypeError, match="replication_factor must be an int, not"):
        place(1, factor, [0])


def test_assignments_as_they_were_asked_for() -> None:
    asked: Mapping[int, Sequence[int]] = {1: [2, 0], 0: (1, np.int64(2))}
    assert check_assignments(as_assignments(asked), range(2), [0, 1, 2]) == {0: (1, 2), 1: (2, 0)}
    assert check_assignments({4: (0,)}, range(4, 5), [0]) == {4: (0,)}


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a partition is missing": ({0: [0]}, InvalidReplicaAssignmentError, "the partitions 0; must be 0, 1"),
    "one too many": (
        {0: [0], 1: [1], 2: [2]}, InvalidReplicaAssignmentError, "partitions 0, 1, 2; must be 0, 1"),
    "not from 0 on": ({1: [0], 2: [1]}, InvalidReplicaAssignmentError, "partitions 1, 2; must be 0, 1"),
    "nothing": ({}, InvalidReplicaAssignmentError, "partitions none; must be"),
    "unknown": ({0: [0, 1], 1: [0, 7]}, InvalidReplicaAssignmentError, r"\[1\]=\[0, 7\]: must be different"),
    "twice": ({0: [0, 0], 1: [0, 1]}, InvalidReplicaAssignmentError, r"\[0\]=\[0, 0\]: must be different"),
    "no replicas": ({0: [], 1: []}, InvalidReplicaAssignmentError, r"\[0\]=\[\]: must be different"),
    "not as many": ({0: [0, 1], 1: [0]}, InvalidReplicaAssignmentError, r"\[1\]=\[0\]: must be 2 replicas"),
    "no mapping": ([[0], [1]], InvalidTypeError, "a mapping of partitions to replicas, not list"),
    "no sequence": ({0: 1, 1: 1}, InvalidTypeError, r"assignments\[0\] must be a sequence"),
    "text": ({0: "01", 1: "12"}, InvalidTypeError, r"assignments\[0\] must be a sequence.*not str"),
    "no integers": ({0: ["a"], 1: ["b"]}, InvalidTypeError, r"assignments\[0\] must be an int, not str"),
    "true": ({0: [True], 1: [0]}, InvalidTypeError, "must be an int, not bool"),
    "a partition that is no integer": ({"0": [0], 1: [1]}, InvalidTypeError, "partition must be an int, not"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_assignments(name: str) -> None:
    asked, error, message = BAD[name]
    with pytest.raises(error, match=message):
        check_assignments(as_assignments(asked), range(2), [0, 1, 2])
