"""The assignor "simple" of share groups: each partition gets enough members, members are equal, and keep what
they can. Members come, go and change their minds at random.
"""

from __future__ import annotations

import random

import pytest

from segstore.coordinator.group.share.simple import ShareMemberSpec, assign
from segstore.coordinator.offsets.consumer_schema import Assignment

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
BOTH = frozenset({A, B})


def there(**counts: int) -> dict[bytes, frozenset[int]]:
    return {name.encode() * 16: frozenset(range(count)) for name, count in counts.items()}


def counted(found: dict[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, held.values())) for name, held in found.items()}


def holders(found: dict[str, Assignment], topic: bytes, number: int) -> int:
    return sum(number in held.get(topic, ()) for held in found.values())


CASES: dict[str, tuple[int, int, list[int]]] = {
    "one of each": (1, 1, [1]),
    "a member for all": (1, 5, [5]),
    "more partitions": (2, 5, [2, 3]),
    "as many": (4, 4, [1, 1, 1, 1]),
    "more members": (5, 2, [1, 1, 1, 1, 2]),
    "twice as many": (4, 2, [1, 1, 1, 1]),
    "members of one partition": (7, 1, [1] * 7),
}


@pytest.mark.parametrize("name", CASES)
def test_q82_numbers_of_kafka_s(name: str) -> None:
    """m members and p partitions: each partition to ceil(m / p), each member its fair number."""
    members, partitions, wanted = CASES[name]
    specs = {f"m{number}": ShareMemberSpec(frozenset({A}), {}) for number in range(members)}
    found = assign(specs, there(a=partitions))
    assert sorted(counted(found).values()) == wanted
    sharing = -(-members // partitions)
    assert {holders(found, A, number) for number in range(partitions)} == {sharing}


def test_q82_what_is_not_there_or_not_wanted_goes_to_nobody() -> None:
    specs = {
        "a": ShareMemberSpec(BOTH, {A: frozenset({0, 9}), C: frozenset({1})}),
        "b": ShareMemberSpec(frozenset({C}), {A: frozenset({0})}),
        "c": ShareMemberSpec(frozenset(), {A: frozenset({0})}),
    }
    assert assign(specs, there(a=2)) == {"a": {A: frozenset({0, 1})}, "b": {}, "c": {}}
    assert assign(specs, {}) == {"a": {}, "b": {}, "c": {}}
    assert assign({}, there(a=2)) == {}


def test_q82_members_keep_what_they_have() -> None:
    specs = {name: ShareMemberSpec(BOTH, {}) for name in "ab"}
    first = assign(specs, there(a=3, b=3))
    again = assign({name: ShareMemberSpec(BOTH, first[name]) for name in "ab"}, there(a=3, b=3))
    assert again == first
    third = {name: ShareMemberSpec(BOTH, first.get(name, {})) for name in "abc"}
    after = assign(third, there(a=3, b=3))
    for name in "ab":
        for topic, numbers in after[name].items():
            assert numbers <= first[name][topic]
    assert set(counted(after).values()) == {2}


def test_q82_each_topic_is_shared_by_its_subscribers() -> None:
    specs = {
        "a": ShareMemberSpec(frozenset({A}), {}),
        "b": ShareMemberSpec(BOTH, {}),
        "c": ShareMemberSpec(frozenset({B}), {}),
    }
    found = assign(specs, there(a=4, b=4))
    assert counted(found) == {"a": 2, "b": 4, "c": 2}
    for topic in (A, B):
        assert {holders(found, topic, number) for number in range(4)} == {1}


@pytest.mark.parametrize("seed", range(60))
def test_q82_whatever_happens_the_numbers_hold(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    topics = [A, B, C][: rng.randint(1, 3)]
    same = rng.random() < 0.5
    found: dict[str, Assignment] = {}
    for _ in range(12):
        names = [f"m{number:02}" for number in range(12) if rng.random() < 0.6]
        counts = {topic: frozenset(range(rng.randint(0, 6))) for topic in topics}
        of_all = frozenset(topics)
        wanted = {
            name: of_all if same else frozenset(each for each in topics if rng.random() < 0.7)
            for name in names
        }
        specs = {name: ShareMemberSpec(wanted[name], found.get(name, {})) for name in names}
        found = assign(specs, counts)
        assert assign(specs, counts) == found
        _check(found, wanted, counts)
        if len(set(wanted.values())) == 1 and any(counts.values()):
            told = counted(found).values()
            assert max(told) - min(told) <= 1
        assert assign({n: ShareMemberSpec(wanted[n], found[n]) for n in names}, counts) == found


def _check(
    found: dict[str, Assignment],
    wanted: dict[str, frozenset[bytes]],
    counts: dict[bytes, frozenset[int]],
) -> None:
    pools = [list(counts)] if len(set(wanted.values())) == 1 else [[topic] for topic in counts]
    for pool in pools:
        subscribers = [name for name in found if wanted[name] & set(pool)]
        pairs = [(topic, number) for topic in pool for number in counts[topic] if subscribers]
        sharing = -(-len(subscribers) // len(pairs)) if pairs else 0
        assert {holders(found, *pair) for pair in pairs} <= {sharing}
        own = [sum(len(found[name].get(topic, ())) for topic in pool) for name in subscribers]
        assert not own or max(own) - min(own) <= 1
    for name, held in found.items():
        assert held.keys() <= wanted[name]
        assert all(numbers and numbers <= counts[topic] for topic, numbers in held.items())
