"""The assignors compared with kafka-python's on random groups; the cooperative one is checked against
KIP-429.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kafka.coordinator.assignors import roundrobin as their_roundrobin
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky import partition_movements, sticky_assignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from segstore.coordinator.group.assignors import (
    ASSIGNORS,
    Assignment,
    Members,
    MemberSubscription,
    Partitions,
    by_name,
)
from segstore.coordinator.group.assignors.sticky import decode_user_data, encode_user_data
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError

pytestmark = pytest.mark.kind("models")

TOPICS = ("a", "b", "c", "d", "é")


# --- random groups --------------------------------------------------------------------------------


@st.composite
def groups(draw: Any, alike: bool | None = None) -> tuple[dict[str, range], dict[str, MemberSubscription]]:
    """Topics with some partitions, and members, of which some are static, that subscribe to some of them."""
    topics = draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    partitions = {topic: range(draw(st.integers(0, 9))) for topic in topics}
    wanted = st.lists(st.sampled_from(topics), min_size=1, unique=True).map(lambda t: tuple(sorted(t)))
    same = draw(wanted) if (draw(st.booleans()) if alike is None else alike) else None
    members = {}
    for member in draw(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True)):
        instance = draw(st.sampled_from((None, None, f"i{draw(st.integers(0, 9))}-{member}")))
        members[f"m{member}"] = MemberSubscription(same or draw(wanted), group_instance_id=instance)
    subscribed = {topic for told in members.values() for topic in told.topics}
    return {topic: held for topic, held in partitions.items() if topic in subscribed}, members


@st.composite
def groups_with_a_past(draw: Any) -> tuple[dict[str, range], dict[str, MemberSubscription]]:
    """As `groups`; members tell what they had, some of it gone, or claimed by others in other generations."""
    partitions, members = draw(groups())
    some = [(topic, n) for topic, held in partitions.items() for n in range(len(held) + 1)]
    told = {}
    for name, member in members.items():
        mine = [tp for tp in some if tp[0] in member.topics]
        had = (
            draw(st.lists(st.sampled_from(mine or [("gone", 0)]), unique=True)) if draw(st.booleans()) else []
        )
        generation = draw(st.sampled_from((-1, 1, 2, 3)))
        data = encode_user_data([TopicPartition(*tp) for tp in had], generation) if had else b""
        told[name] = MemberSubscription(member.topics, (), data, -1, member.group_instance_id)
    return partitions, told


# --- kafka-python -----------------------------------------------------------------------------------


class Ordered(set):  # type: ignore[type-arg]
    """kafka-python takes any element of a set, by hashes that are another in each process: here the least."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))

    def pop(self) -> Any:
        found = next(iter(self))
        self.remove(found)
        return found

    def intersection(self, *others: Any) -> Ordered:
        return Ordered(super().intersection(*others))


class Turn(tuple):  # type: ignore[type-arg]
    """(instance, member), which kafka-python 3.0.12 also looks up as the member alone, and does not find."""

    def __hash__(self) -> int:
        return hash(self[1])

    def __eq__(self, other: object) -> bool:
        return other == self[1] if isinstance(other, str) else super().__eq__(other)


@pytest.fixture(autouse=True)
def _repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (partition_movements, sticky_assignor):
        monkeypatch.setattr(module, "set", Ordered, raising=False)
    its = their_roundrobin.itertools

    def cycle(members: list[tuple[str | None, str]]) -> Any:
        return its.cycle(map(Turn, members))

    monkeypatch.setattr(their_roundrobin, "itertools", SimpleNamespace(cycle=cycle, groupby=its.groupby))


class Cluster:
    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        held = self._partitions.get(topic)
        return None if held is None else set(held)


def theirs(assignor: Any, partitions: Partitions, members: Members) -> Assignment:
    """What kafka-python gives. Static members first: it forgets some when they are mixed with others."""
    order = sorted(members, key=lambda member: (members[member].group_instance_id is None, member))
    asked = [
        _asked(m, members[m]) for m in (order if assignor is not StickyPartitionAssignor else sorted(members))
    ]
    found = (assignor() if assignor is StickyPartitionAssignor else assignor).assign(
        Cluster(partitions), asked
    )
    return {
        member: sorted(TopicPartition(t, p) for t, held in found[member].assignment for p in held)
        for member in members
    }


def _asked(member: str, told: MemberSubscription) -> Any:
    # kafka-python 3 wants a version before the schema's bytes, Kafka has none.
    data = b"\0\1" + told.user_data if told.user_data else b""
    metadata = ConsumerProtocolSubscription(0, list(told.topics), data)
    return SimpleNamespace(member_id=member, group_instance_id=told.group_instance_id, metadata=metadata)


THEIRS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


@pytest.mark.parametrize("name", THEIRS)
@given(group=groups())
def test_agrees_with_kafka_python(name: str, group: Any) -> None:
    partitions, members = group
    found = by_name(name).assign(partitions, members)
    assert found == theirs(THEIRS[name], partitions, members)
    assert_whole(partitions, members, found)


@given(group=groups_with_a_past())
def test_sticky_agrees_with_kafka_python(group: Any) -> None:
    partitions, members = group
    found = by_name("sticky").assign(partitions, members)
    assert found == theirs(StickyPartitionAssignor, partitions, members)
    assert_whole(partitions, members, found)


# --- what every assignment is ---------------------------------------------------------------------


def assert_whole(partitions: Partitions, members: Members, found: Assignment) -> None:
    """Every partition that somebody wants is given to one who wants it, and no member is missing."""
    assert list(found) == list(members)
    given_out = [tp for held in found.values() for tp in held]
    assert len(given_out) == len(set(given_out))
    wanted = {topic for told in members.values() for topic in told.topics}
    assert set(given_out) == {TopicPartition(t, p) for t in wanted for p in partitions.get(t, ())}
    for member, held in found.items():
        assert {tp.topic for tp in held} <= set(members[member].topics)
        assert held == sorted(held)


def assert_even(members: Members, found: Assignment) -> None:
    """Nobody has two more than somebody who wants one of them (KIP-54)."""
    for poor, few in found.items():
        for rich, many in found.items():
            if len(many) > len(few) + 1:
                assert not {tp.topic for tp in many} & set(members[poor].topics), (poor, rich)


@given(group=groups(alike=True), alike=st.just(True))
def test_where_all_want_the_same_all_get_the_same_number(group: Any, alike: bool) -> None:
    partitions, members = group
    for name in ("roundrobin", "sticky", "cooperative-sticky"):
        counts = [len(held) for held in by_name(name).assign(partitions, members).values()]
        assert max(counts) - min(counts) <= 1, name


@given(group=groups_with_a_past(), wild=st.data())
def test_sticky_keeps_to_subscriptions_whatever_members_tell(group: Any, wild: Any) -> None:
    """Claims of topics that are not wanted, or not there, and bytes that are no claim."""
    partitions, members = group
    told = {}
    for name, member in members.items():
        claim = wild.draw(
            st.lists(st.tuples(st.sampled_from((*TOPICS, "gone")), st.integers(0, 9)), unique=True)
        )
        data = encode_user_data([TopicPartition(*tp) for tp in claim], wild.draw(st.integers(-1, 3)))
        data = wild.draw(st.sampled_from((data, data[:-4], data[:-1], b"\0\0\1\0", b"?")))
        told[name] = MemberSubscription(member.topics, (), data, -1, member.group_instance_id)
    assert_whole(partitions, told, by_name("sticky").assign(partitions, told))


def test_sticky_moves_only_what_a_member_that_left_had() -> None:
    partitions = {"a": range(6), "b": range(5)}
    first = by_name("sticky").assign(partitions, {m: MemberSubscription(("a", "b")) for m in "xyz"})
    told = {m: MemberSubscription(("a", "b"), (), encode_user_data(first[m], 1)) for m in "xz"}
    second = by_name("sticky").assign(partitions, told)
    assert all(set(first[m]) <= set(second[m]) for m in "xz")
    assert sorted(len(held) for held in second.values()) == [5, 6]


# --- cooperative --------------------------------------------------------------------------------------


def rounds(partitions: Partitions, members: Members, generation: int) -> Iterator[tuple[Members, Assignment]]:
    """Rebalances until one changes nothing; a member owns what it was given last, as the consumer does."""
    assignor = by_name("cooperative-sticky")
    while True:
        found = assignor.assign(partitions, members)
        yield members, found
        if all(set(told.owned) == set(found[member]) for member, told in members.items()):
            return
        generation += 1
        members = {
            member: MemberSubscription(
                told.topics, tuple(found[member]), b"", generation, told.group_instance_id
            )
            for member, told in members.items()
        }


@given(before=groups(), after=groups())
def test_cooperative_gives_nothing_away_that_another_still_owns(before: Any, after: Any) -> None:
    (_, old), (partitions, new) = before, after
    settled = list(rounds(partitions, old, 1))[-1][1]
    members = {m: MemberSubscription(t.topics, tuple(settled.get(m, ())), b"", 7) for m, t in new.items()}
    for nth, (told, found) in enumerate(rounds(partitions, members, 7)):
        for member, held in found.items():
            others = {tp for other, t in told.items() if other != member for tp in t.owned}
            assert not others & set(held)
        # One round takes, one gives, one changes nothing; where wishes differ it may take some to be even.
        alike = len({member.topics for member in new.values()}) == 1
        assert nth < (3 if alike else 6)
    assert_whole(partitions, members, found)
    assert_even(members, found)


@given(group=groups(alike=True), joined=st.integers(1, 3))
def test_cooperative_moves_no_more_than_it_must(group: Any, joined: int) -> None:
    partitions, members = group
    before = list(rounds(partitions, members, 1))[-1][1]
    topics = next(iter(members.values())).topics
    grown = {
        m: MemberSubscription(topics, tuple(before.get(m, ())), b"", 5) for m in (*members, *"xyz"[:joined])
    }
    first = next(rounds(partitions, grown, 5))[1]
    total, n = sum(map(len, before.values())), len(grown)
    # At most what is above the new share is given up, where it does not come out even less.
    most = sum(max(0, len(held) - total // n) for held in before.values())
    taken = sum(len(set(before[m]) - set(first[m])) for m in before)
    assert taken <= most
    assert all(set(first[m]) <= set(before.get(m, ())) for m in grown)


def test_what_two_members_claim_in_one_generation_nobody_gets_at_once() -> None:
    claims = {m: MemberSubscription(("a",), (TopicPartition("a", 0),), b"", 3) for m in "xy"}
    partitions = {"a": range(2)}
    assert by_name("cooperative-sticky").assign(partitions, claims)["y"] == [TopicPartition("a", 1)]
    *_, (_, found) = rounds(partitions, claims, 3)
    assert_whole(partitions, claims, found)


def test_a_member_that_missed_a_generation_owns_nothing_any_more() -> None:
    members = {
        "late": MemberSubscription(("a",), (TopicPartition("a", 0),), b"", 3),
        "new": MemberSubscription(("a",), (TopicPartition("a", 0),), b"", 4),
    }
    found = by_name("cooperative-sticky").assign({"a": range(1)}, members)
    assert found == {"late": [], "new": [TopicPartition("a", 0)]}


# --- by name, and kafka-python's own -----------------------------------------------------------------


def test_names_and_kinds() -> None:
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]
    assert [by_name(name).cooperative for name in ASSIGNORS] == [False, False, False, True]
    own = by_name("sticky")
    assert by_name(own) is own
    assert by_name(type(own)).name == "sticky"


@pytest.mark.parametrize("wrong", ["stickey", "", None, 3, object(), SimpleNamespace(name="x", assign=print)])
def test_what_is_no_assignor_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is no assignor: allowed are range, roundrobin"):
        by_name(wrong)


class Last:
    """As somebody wrote it for kafka-python: all to the last member."""

    name, version = "last", 0

    @classmethod
    def assign(cls, cluster: Any, members: Any) -> dict[str, Any]:
        last = max(member.member_id for member in members)
        every = [(topic, sorted(cluster.partitions_for_topic(topic))) for topic in sorted(cluster.topics())]
        return {
            m.member_id: SimpleNamespace(assignment=every if m.member_id == last else []) for m in members
        }

    @classmethod
    def metadata(cls, topics: Any) -> Any:
        return ConsumerProtocolSubscription(0, sorted(topics), b"told")

    @classmethod
    def on_assignment(cls, assignment: Any, generation: int) -> None: ...


def test_an_assignor_of_kafka_pythons_kind_is_used_as_it_is() -> None:
    adapted = by_name(Last)
    assert (adapted.name, adapted.cooperative) == ("last", False)
    found = adapted.assign(
        {"a": range(2), "unwanted": range(1)}, {m: MemberSubscription(("a",)) for m in "xy"}
    )
    assert found == {"x": [], "y": [TopicPartition("a", 0), TopicPartition("a", 1)]}
    assert adapted.user_data(["a"], [], -1) == b"told"


@given(group=groups_with_a_past())
def test_kafka_pythons_own_class_gives_the_same_when_adapted(group: Any) -> None:
    partitions, members = group
    told = {
        m: replace(t, user_data=b"\0\1" + t.user_data if t.user_data else b"")
        for m, t in sorted(members.items())
    }
    adapted = by_name(StickyPartitionAssignor).assign(partitions, told)
    assert adapted == by_name("sticky").assign(partitions, told)


def test_kafka_pythons_sticky_tells_what_ours_tells() -> None:
    owned = [TopicPartition("a", 1), TopicPartition("b", 0)]
    assert by_name(StickyPartitionAssignor).user_data(["a", "b"], owned, 5) == b"\0\1" + encode_user_data(
        owned, 5
    )


# --- user data ----------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from(TOPICS), st.lists(st.integers(0, 2**31 - 1), unique=True, min_size=1)),
    st.integers(-1, 2**31 - 1),
)
def test_user_data_is_kafka_pythons(topics: dict[str, list[int]], generation: int) -> None:
    owned = [TopicPartition(topic, number) for topic, held in topics.items() for number in held]
    data = encode_user_data(owned, generation)
    assert data == StickyAssignorUserData(list(topics.items()), generation).encode()[2:]
    assert decode_user_data(data) == decode_user_data(b"\0\1" + data) == (generation, owned)
    assert decode_user_data(data[:-4]) == (-1, owned)  # version 0
    assume(len(data) > 8)
    assert decode_user_data(data[:-5]) == (-1, [])
