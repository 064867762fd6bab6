"""The server-side assignors on random groups that change: everything has one owner, loads are even, and no
partition moves that need not.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.coordinator.group.consumers.assignors import SERVER_ASSIGNORS, MemberSpec, Targets
from segstore.coordinator.group.consumers.assignors.base import Members

A, B, C = (bytes([letter]) * 16 for letter in b"abc")
UNIFORM, RANGE = SERVER_ASSIGNORS["uniform"], SERVER_ASSIGNORS["range"]
COUNTS = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in (A, B, C)})
NAMES = st.lists(st.sampled_from("klmnopqr"), unique=True, min_size=1)
TOPICS = st.frozensets(st.sampled_from([A, B, C]))


def owners(targets: Targets) -> dict[tuple[bytes, int], str]:
    """Return who has each partition, which must be one member."""
    found: dict[tuple[bytes, int], str] = {}
    for member, target in targets.items():
        for topic, numbers in target.items():
            assert numbers
            for number in numbers:
                assert (topic, number) not in found
                found[topic, number] = member
    return found


def sizes(targets: Targets) -> dict[str, int]:
    return {member: sum(map(len, target.values())) for member, target in targets.items()}


def check_whole(members: Members, counts: dict[bytes, int], targets: Targets) -> None:
    """All partitions of topics that anybody wants are given, to members that want them."""
    assert targets.keys() == members.keys()
    held = owners(targets)
    wanted = {topic for spec in members.values() for topic in spec.topics}
    assert held.keys() == {(topic, number) for topic in wanted for number in range(counts[topic])}
    assert all(topic in members[member].topics for (topic, _), member in held.items())


def after(names: list[str], topics: frozenset[bytes], before: Targets) -> dict[str, MemberSpec]:
    return {name: MemberSpec(topics, before.get(name, {})) for name in names}


@pytest.mark.parametrize("assignor", SERVER_ASSIGNORS.values(), ids=SERVER_ASSIGNORS)
@given(COUNTS, st.dictionaries(st.sampled_from("klmnop"), TOPICS, min_size=1))
def test_everything_has_one_owner_that_wants_it(assignor, counts, wanted) -> None:  # type: ignore[no-untyped-def]
    members = {name: MemberSpec(topics, {}) for name, topics in wanted.items()}
    check_whole(members, counts, assignor.assign(members, counts))


@given(COUNTS, st.lists(st.tuples(NAMES, TOPICS), min_size=1, max_size=5))
def test_uniform_is_even_and_moves_only_what_it_must(  # type: ignore[no-untyped-def]
    counts, history
) -> None:
    targets: Targets = {}
    for names, topics in history:
        members, before = after(names, topics, targets), owners(targets)
        targets = UNIFORM.assign(members, counts)
        check_whole(members, counts, targets)
        loads = sizes(targets)
        assert max(loads.values()) - min(loads.values()) <= 1
        assert sum(before.get(at) != name for at, name in owners(targets).items()) == least_moves(
            members, counts, before
        )


def least_moves(members: Members, counts: dict[bytes, int], before: dict[tuple[bytes, int], str]) -> int:
    """Return how many partitions get another owner at least: those that nobody has any more, and those that
    members have beyond an even load, of which as many as there are may have one more.
    """
    topics = next(iter(members.values())).topics
    share, more = divmod(sum(counts[topic] for topic in topics), len(members))
    had = [sum(owner == name and topic in topics for (topic, _), owner in before.items()) for name in members]
    larger = min(sum(count > share for count in had), more)
    kept = sum(min(count, share) for count in had) + larger
    return sum(counts[topic] for topic in topics) - kept


@given(
    COUNTS, st.lists(st.dictionaries(st.sampled_from("klmnop"), TOPICS, min_size=1), min_size=1, max_size=4)
)
def test_uniform_evens_out_different_subscriptions(counts, history) -> None:  # type: ignore[no-untyped-def]
    targets: Targets = {}
    for wanted in history:
        members = {name: MemberSpec(topics, targets.get(name, {})) for name, topics in wanted.items()}
        targets = UNIFORM.assign(members, counts)
        check_whole(members, counts, targets)
        loads = sizes(targets)
        for topic in (A, B, C):
            for giver, taker in ((g, t) for g in wanted for t in wanted if topic in wanted[g] & wanted[t]):
                assert not targets[giver].get(topic) or loads[giver] - loads[taker] <= 1
        again = {name: spec._replace(target=targets[name]) for name, spec in members.items()}
        assert UNIFORM.assign(again, counts) == targets  # an even group stays as it is


@given(COUNTS, NAMES)
def test_range_gives_neighbours_to_members_in_order(counts, names) -> None:  # type: ignore[no-untyped-def]
    members = {name: MemberSpec(frozenset({A, B}), {}) for name in names}
    targets = RANGE.assign(members, counts)
    for topic in (A, B):
        ends = [sorted(targets[name].get(topic, ())) for name in sorted(names)]
        assert [number for held in ends for number in held] == list(range(counts[topic]))
        assert all(len(one) >= len(other) >= len(one) - 1 for one, other in pairwise(ends))


def test_range_takes_static_members_first() -> None:
    members = {
        "k": MemberSpec(frozenset({A}), {}),
        "l": MemberSpec(frozenset({A}), {}, "z"),
        "m": MemberSpec(frozenset({A}), {}, "y"),
    }
    assert RANGE.assign(members, {A: 3}) == {"m": {A: {0}}, "l": {A: {1}}, "k": {A: {2}}}


def test_a_topic_that_lost_partitions_or_members_is_handed_out_anew() -> None:
    """A target may have partitions that are gone: a topic of its name and id can't shrink, but a copy may."""
    members = {"k": MemberSpec(frozenset({A}), {A: frozenset({0, 7}), B: frozenset({1})})}
    assert UNIFORM.assign(members, {A: 2, B: 2}) == {"k": {A: {0, 1}}}


def test_nobody_gets_nothing() -> None:
    assert UNIFORM.assign({}, {A: 2}) == RANGE.assign({}, {A: 2}) == {}
