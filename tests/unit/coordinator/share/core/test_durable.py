"""How durable states are combined and folded (rules Q54 to Q57; properties P7 and P9), against a model that
keeps a state for each offset.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from segstore.coordinator.share.core.durable import (
    Fold,
    PrunePoint,
    StateDelta,
    apply_update,
    combine,
)
from segstore.coordinator.share.core.values import Durable, StateBatch

B = StateBatch

COMBINED: dict[str, tuple[list[StateBatch], list[StateBatch], int, list[StateBatch]]] = {
    "nothing": ([], [], 0, []),
    "apart": ([B(0, 1, 0, 1)], [B(3, 4, 0, 1)], 0, [B(0, 1, 0, 1), B(3, 4, 0, 1)]),
    "neighbours of one state": ([B(0, 1, 0, 1)], [B(2, 4, 0, 1)], 0, [B(0, 4, 0, 1)]),
    "neighbours with other counts": ([B(0, 1, 0, 1)], [B(2, 4, 0, 2)], 0, [B(0, 1, 0, 1), B(2, 4, 0, 2)]),
    "neighbours in other states": ([B(0, 1, 2, 1)], [B(2, 4, 4, 1)], 0, [B(0, 1, 2, 1), B(2, 4, 4, 1)]),
    "the higher count wins": (
        [B(0, 9, 2, 1)],
        [B(3, 5, 0, 2)],
        0,
        [B(0, 2, 2, 1), B(3, 5, 0, 2), B(6, 9, 2, 1)],
    ),
    "then the higher state": (
        [B(0, 9, 0, 1)],
        [B(3, 5, 2, 1)],
        0,
        [B(0, 2, 0, 1), B(3, 5, 2, 1), B(6, 9, 0, 1)],
    ),
    "4 beats 2": ([B(0, 5, 4, 1)], [B(0, 5, 2, 1)], 0, [B(0, 5, 4, 1)]),
    "a weaker one is lost": ([B(0, 9, 2, 2)], [B(3, 5, 4, 1)], 0, [B(0, 9, 2, 2)]),
    "below the start": ([B(0, 4, 2, 1), B(5, 9, 0, 1)], [], 7, [B(7, 9, 0, 1)]),
    "wholly below the start": ([B(0, 4, 2, 1)], [B(2, 6, 0, 1)], 7, []),
    "the start is not known": ([B(0, 4, 2, 1)], [], -1, [B(0, 4, 2, 1)]),
    "one within, one at the end": (
        [B(0, 9, 0, 1)],
        [B(9, 12, 0, 3), B(2, 2, 0, 2)],
        0,
        [B(0, 1, 0, 1), B(2, 2, 0, 2), B(3, 8, 0, 1), B(9, 12, 0, 3)],
    ),
    "joined across what is covered": ([B(0, 3, 0, 1), B(5, 9, 0, 1)], [B(2, 6, 0, 1)], 0, [B(0, 9, 0, 1)]),
    "an empty one": ([B(5, 4, 0, 1)], [B(0, 1, 0, 1)], 0, [B(0, 1, 0, 1)]),
}


@pytest.mark.parametrize("name", COMBINED)
def test_q55_batches_are_combined(name: str) -> None:
    stored, new, start, expected = COMBINED[name]
    assert combine(stored, new, start) == tuple(expected)
    assert combine(new, stored, start) == tuple(expected)
    assert combine((), [*new, *stored], start) == tuple(expected)


def drawn(rng: random.Random, n: int = 4, offsets: int = 12) -> list[StateBatch]:
    """Return batches in any order, which may overlap."""
    found = []
    for _ in range(rng.randrange(n + 1)):
        first = rng.randrange(offsets)
        found.append(B(first, first + rng.randrange(4), rng.choice((0, 2, 3, 4)), rng.randrange(1, 4)))
    return found


def by_offset(batches: Iterable[StateBatch], start: int) -> dict[int, tuple[int, int]]:
    """Return (count, state) of each offset."""
    found: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for offset in range(max(first, start), last + 1):
            found[offset] = max(found.get(offset, (0, 0)), (count, state))
    return found


def test_q55_each_offset_has_the_strongest_state_in_the_longest_runs(rng: random.Random) -> None:
    for _ in range(2000):
        stored, new, start = drawn(rng), drawn(rng), rng.randrange(-1, 8)
        found = combine(stored, new, start)
        assert by_offset(found, 0) == by_offset([*stored, *new], max(start, 0))
        for one, other in itertools.pairwise(found):
            assert one.last < other.first
            assert one.last + 1 < other.first or one[2:] != other[2:]
        assert combine(found, (), start) == found


# --- records ---------------------------------------------------------------------------------------


STORED = Durable(3, 5, 7, 10, 4, (B(10, 12, 2, 1), B(13, 19, 0, 1)), 100, 200)
UPDATES: dict[str, tuple[StateDelta, Durable]] = {
    "a higher start": (
        StateDelta(3, 7, 12, 1),
        STORED._replace(start=12, complete=1, batches=(B(12, 12, 2, 1), B(13, 19, 0, 1))),
    ),
    "a higher start, and no count": (
        StateDelta(3, 7, 12, -1),
        STORED._replace(start=12, complete=-1, batches=(B(12, 12, 2, 1), B(13, 19, 0, 1))),
    ),
    "the same start, a larger count": (StateDelta(3, 7, 10, 6), STORED._replace(complete=6)),
    "the same start, a smaller count": (StateDelta(3, 7, 10, 3), STORED),
    "a lower start": (StateDelta(3, 7, 8, 99), STORED),
    "no start": (StateDelta(3, 7, -1, -1), STORED),
    "a higher leader epoch": (StateDelta(3, 9, -1, -1), STORED._replace(leader_epoch=9)),
    "a lower leader epoch": (StateDelta(3, 2, -1, -1), STORED),
    "batches": (
        StateDelta(3, 7, 10, 5, (B(13, 13, 2, 1),)),
        STORED._replace(complete=5, batches=(B(10, 13, 2, 1), B(14, 19, 0, 1))),
    ),
    "batches below the stored start": (StateDelta(3, 7, 4, 0, (B(4, 9, 4, 5),)), STORED),
}


@pytest.mark.parametrize("name", UPDATES)
def test_q54_q56_an_update_changes_the_state(name: str) -> None:
    delta, expected = UPDATES[name]
    assert apply_update(STORED, delta) == expected


def test_q56_an_update_without_a_snapshot_is_taken_as_it_is() -> None:
    batches = (B(4, 6, 0, 1), B(7, 8, 2, 1))
    assert apply_update(None, StateDelta(3, 2, 5, 2, batches)) == Durable(
        3, 0, 2, 5, 2, (B(5, 6, 0, 1), B(7, 8, 2, 1)), 0, 0
    )


def test_q56_a_snapshot_replaces_all() -> None:
    new = Durable(4, 6, 0, 2, 0, (B(2, 3, 0, 1),), 300, 400)
    fold = Fold(STORED)
    fold.update(StateDelta(3, 7, 10, 4, (B(10, 10, 4, 9),)))
    fold.snapshot(new)
    assert fold.state == new


def test_a_snapshot_is_not_mended() -> None:
    """Batches below the start, or that overlap, are reported by those who load a share partition."""
    wrong = Durable(0, 0, 0, 5, 0, (B(0, 9, 0, 1), B(3, 4, 2, 1)))
    fold = Fold()
    fold.snapshot(wrong)
    assert fold.state == wrong


def drawn_delta(rng: random.Random) -> StateDelta:
    start = rng.choice((-1, rng.randrange(12)))
    return StateDelta(0, rng.randrange(-1, 3), start, rng.randrange(-1, 5), tuple(drawn(rng)))


def test_p9_the_order_of_writes_does_not_matter(rng: random.Random) -> None:
    for _ in range(300):
        snapshot = Durable(0, 1, rng.randrange(2), rng.randrange(-1, 5), rng.randrange(-1, 3))
        deltas = [drawn_delta(rng) for _ in range(rng.randrange(2, 5))]
        found = set()
        for order in itertools.permutations(deltas):
            state = snapshot
            for delta in order:
                state = apply_update(state, delta)
            found.add(state)
        assert len(found) == 1, (snapshot, deltas)


def test_a_fold_is_the_updates_one_after_the_other(rng: random.Random) -> None:
    """Also if it is asked for in between, and has many batches."""
    for _ in range(200):
        fold, state = Fold(), None
        for _ in range(rng.randrange(1, 30)):
            if rng.random() < 0.1:
                snapshot = Durable(
                    1, rng.randrange(3), 0, rng.randrange(-1, 5), 0, combine((), drawn(rng), 0)
                )
                fold.snapshot(snapshot)
                state = snapshot
            else:
                delta = drawn_delta(rng)
                fold.update(delta)
                state = apply_update(state, delta)
            assert fold.head is not None
            assert fold.head[:5] == state[:5]
            if rng.random() < 0.3:
                assert fold.state == state
        assert fold.state == state


def test_a_fold_keeps_few_batches() -> None:
    fold = Fold(Durable(0, 0, 0, 0, 0))
    for _ in range(5000):
        fold.update(StateDelta(0, 0, 0, 0, (B(1, 1, 0, 1), B(3, 3, 2, 1))))
        assert len(fold._pending) <= 1026
    assert fold.state == Durable(0, 0, 0, 0, 0, (B(1, 1, 0, 1), B(3, 3, 2, 1)))


# --- prune -----------------------------------------------------------------------------------------


def test_q57_the_prune_point_is_the_lowest_latest_snapshot() -> None:
    point: PrunePoint[str] = PrunePoint()
    assert point.offset is None
    point.snapshot("a", 3)
    point.snapshot("b", 5)
    assert point.offset == 3
    point.snapshot("a", 8)
    assert point.offset == 5
    point.forget("b", 9)
    assert point.offset == 8
    point.forget("a", 11)
    assert point.offset == 11  # its own offset counts once
    point.snapshot("c", 20)
    assert point.offset == 20
    point.keep(13)
    point.keep(15)
    assert point.offset == 13
