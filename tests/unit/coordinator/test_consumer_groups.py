"""Rebalances and administration of consumer groups (KIP-848), both protocols, and restarts. Steps of
Kafka's GroupMetadataManagerTest and ConsumerGroupTest are among them.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from consumer_groups import AT, SESSION_MS, joined, metadata, settle
from consumer_groups import clock as clock
from consumer_groups import found as found
from consumer_groups import store as store
from group_members import Member, id_of, info
from groups import Monotonic, Unsynced, coordinator, offsets

import segstore
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.classic.member import Joining
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.membership import Beaten
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.consumer_schema import Current, GroupRecordType, MemberState, RecordKey
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    UnsupportedAssignorError,
)

# --- rebalances -----------------------------------------------------------------------------------


def test_a_member_alone_has_everything_at_once(store: segstore.Store, found: GroupCoordinator) -> None:
    (member,) = joined(store, "a")
    assert (member.has, member.epoch) == (set(range(6)), 1)
    told = info(store)
    assert (told.epoch, told.target_epoch, told.assignor) == (1, 1, "uniform")
    assert member.beat() == Beaten("a", 1, 5000, None)  # nothing new
    assert member.beat(**member.said).assignment is not None  # a full request is told again


def test_partitions_are_given_up_before_another_has_them(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    (a,) = joined(store, "a")
    b = Member(store, "b").join()
    assert (b.has, b.epoch) == (set(), 2)
    answer = a.ask(owned=a.given)
    assert answer.epoch == 1  # it stays in its epoch until it has given up three
    assert answer.assignment is not None
    kept = set(answer.assignment[id_of(store)])
    assert len(kept) == 3
    assert a.ask(owned=a.given) == Beaten("a", 1, 5000, None)  # it still has them
    assert a.ask() == Beaten("a", 1, 5000, None)  # it does not say what it has
    assert b.beat().assignment is None
    a.take(answer)
    assert a.beat().epoch == 2
    assert b.beat().assignment == {id_of(store): set(range(6)) - kept}
    assert settle(store, a, b) == [kept, set(range(6)) - kept]


def test_what_members_leave_goes_to_the_others(store: segstore.Store, found: GroupCoordinator) -> None:
    a, b, c = joined(store, "a", "b", "c")
    assert [len(member.has) for member in (a, b, c)] == [2, 2, 2]
    before = a.has, b.has
    c.leave()
    after = settle(store, a, b)
    assert [len(has) for has in after] == [3, 3]
    assert all(was <= has for was, has in zip(before, after, strict=True))
    a.leave()
    b.leave()
    told = info(store)
    assert (told.state.value, told.members, told.targets) == ("Empty", (), {})
    with pytest.raises(UnknownMemberIdError, match="'a'"):
        a.beat()


def test_members_ask_for_an_assignor(store: segstore.Store, found: GroupCoordinator) -> None:
    a, b = joined(store, "a", "b", server_assignor="range")
    assert (a.has, b.has, info(store).assignor) == ({0, 1, 2}, {3, 4, 5}, "range")
    with pytest.raises(UnsupportedAssignorError, match="allowed are uniform, range"):
        a.beat(server_assignor="sticky")


def test_a_subscription_changes(store: segstore.Store, found: GroupCoordinator) -> None:
    store.create_topic("u", 2)
    (a,) = joined(store, "a")
    a.beat(topic_names=("u",))
    assert a.given == {}  # it has to give up the others first
    settle(store, a)
    assert a.given == {id_of(store, "u"): {0, 1}}
    a.beat(topic_names=())
    settle(store, a)
    assert a.given == {}


def test_topics_come_grow_and_go(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a", topic_names=("t", "u"))
    assert a.has == set(range(6))
    store.create_topic("u", 1)
    settle(store, a)
    assert a.given.keys() == {id_of(store), id_of(store, "u")}
    store.add_partitions("t", 7)
    settle(store, a)
    assert a.has == set(range(7))
    epoch = a.epoch
    store.create_topic("v")  # to which nobody subscribes
    settle(store, a)
    assert a.epoch == epoch
    before = id_of(store)
    store.delete_topic("t")
    settle(store, a)
    assert before not in a.given


def test_a_topic_that_was_made_anew_is_another(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a")
    store.delete_topic("t")
    store.create_topic("t", 2)
    settle(store, a)
    assert a.has == {0, 1}


# --- administration -------------------------------------------------------------------------------


def test_a_group_is_described_and_deleted(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a")
    found.commit(metadata(a), AT)
    groups = Groups(store)
    assert [(each.group_id, each.state, each.protocol_type) for each in groups.list()] == [
        ("g", "Stable", "consumer")
    ]
    told = groups.describe("g")
    assert (told.generation, told.protocol) == (1, "uniform")
    assert [part.member_id for part in told.partitions] == ["a"] * 6
    with pytest.raises(NonEmptyGroupError):
        groups.delete("g")
    assert found.while_subscribed("g", lambda topics: set(topics)) == {"t"}
    a.leave()
    groups.delete("g")
    assert groups.list() == ()
    assert not found.exists("g")
    assert Member(store, "a").join().epoch == 1  # a new group


def test_an_administrator_removes_members(store: segstore.Store, found: GroupCoordinator) -> None:
    a, b = joined(store, "a")[0], Member(store, "b", instance_id="i").join()
    settle(store, a, b)
    errors = found.leave_all("g", [("", "i"), ("z", None), ("a", "i")])
    assert [type(error) for error in errors] == [type(None), UnknownMemberIdError, FencedInstanceIdError]
    assert settle(store, a) == [set(range(6))]


def test_offsets_expire_only_of_topics_that_nobody_wants(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    store.create_topic("u")
    other = {TopicPartition("u", 0): OffsetAndMetadata(1)}
    (a,) = joined(store, "a")
    found.commit(metadata(a), AT | other)
    assert offsets(store).expire(1 << 60) == {"g": set(other)}
    a.leave()
    assert offsets(store).expire(1 << 60) == {"g": set(AT)}
    assert offsets(store).groups() == set()


# --- both protocols -------------------------------------------------------------------------------


def classic(found: GroupCoordinator, member_id: str = "") -> str:
    joining = Joining(protocols=(("range", b""),), member_id=member_id)
    joined = found.join("g", joining).get()
    assert joined is not None
    found.sync("g", joined.member_id, joined.generation, None, {})
    return joined.member_id


def test_an_empty_classic_group_is_taken_over(store: segstore.Store, found: GroupCoordinator) -> None:
    found.leave("g", classic(found))
    found.commit(ConsumerGroupMetadata("g"), AT)
    joined(store, "a")
    assert (offsets(store).group("g"), offsets(store).fetch("g")) == (None, AT)
    assert found.describe("g") is None


def test_an_empty_consumer_group_is_taken_over(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a")
    found.commit(metadata(a), AT)
    a.leave()
    classic(found)
    assert (offsets(store).consumer("g"), offsets(store).fetch("g")) == ({}, AT)
    assert found.describe_consumers("g") is None


def test_classic_members_are_none_of_a_consumer_group(store: segstore.Store, found: GroupCoordinator) -> None:
    joined(store, "a")
    for call in (
        found.heartbeat,
        lambda g, m, n: found.sync(g, m, n, None),
    ):
        with pytest.raises(UnknownMemberIdError):
            call("g", "a", 1)
    assert len(info(store).members) == 1


def test_a_partition_that_two_members_have_in_a_damaged_log_stays_owned() -> None:
    topic, held = b"x" * 16, Current(1, 0, MemberState.STABLE, {b"x" * 16: frozenset({0})})
    group = ConsumerGroup("g", {RecordKey(GroupRecordType.CURRENT, name): held for name in "ab"})
    group.replay(
        [(RecordKey(GroupRecordType.CURRENT, "a"), None), (RecordKey(GroupRecordType.MEMBER, "a"), None)]
    )
    assert group.is_owned(topic, 0)
    group.replay([(RecordKey(GroupRecordType.MEMBER, "b"), None)])
    assert not group.is_owned(topic, 0)


# --- restarts -------------------------------------------------------------------------------------


def test_a_group_survives_a_restart_in_the_middle(store_dir: Path) -> None:
    """Epochs, targets, and who still has to give up what: all that members know stays true."""
    clock = Monotonic()
    with segstore.open(store_dir, files=Unsynced()) as store:
        coordinator(store, clock)
        store.create_topic("t", 6)
        store.create_topic("u")
        (a,) = joined(store, "a")
        b = Member(store, "b", topic_names=(), topic_regex="t|u", instance_id="i").join()
        a.take(a.ask(owned=a.given))
        before = info(store)
    with segstore.open(store_dir, "r") as reader:
        assert Groups(reader).describe("g").generation == 2
    with segstore.open(store_dir, files=Unsynced()) as store:
        coordinator(store, clock)
        assert info(store) == before
        assert before.members[0].current.state is MemberState.UNREVOKED_PARTITIONS
        a.store = b.store = store
        settle(store, a, b)
        assert a.epoch == b.epoch == 2
        assert {id_of(store, "u")} < b.given.keys()
    with segstore.open(store_dir, files=Unsynced()) as store:
        found = coordinator(store, clock)
        offsets(store).empty_since("g")  # it is loaded, so that sessions begin
        clock.now += SESSION_MS
        found.run_due()
        assert info(store).state.value == "Empty"


def test_members_come_go_vanish_and_fall_back_at_random(store_dir: Path, rng: random.Random) -> None:
    """Lost answers, doubled heartbeats, leavers, topics that change, restarts: no partition ever has two
    owners, and the group comes to rest.
    """
    draw, clock, serial = rng, Monotonic(), iter(range(1 << 30))
    members: list[Member] = []

    def one_step(store: segstore.Store) -> None:
        action = draw.random()
        if action < 0.12 and len(members) < 6:
            regex = {"topic_names": (), "topic_regex": "t|u.*"} if draw.random() < 0.3 else {}
            members.append(Member(store, f"m{next(serial)}", **regex).join())
        elif action < 0.18 and members:
            members.pop(draw.randrange(len(members))).leave()
        elif action < 0.22:
            store.create_topic(f"u{next(serial)}", draw.randrange(1, 4))
        elif action < 0.24 and members:
            members.pop(draw.randrange(len(members)))  # it vanishes
            for _ in range(3):
                clock.now += SESSION_MS / 3 + 1
                for member in members:
                    beat(member)
        elif members:
            member = draw.choice(members)
            lost = draw.random() < 0.2
            if lost:
                member.ask(owned=member.given)  # the answer is lost, so that all fields are said again
            beat(member, lost)

    def beat(member: Member, anew: bool = False) -> None:
        full = member.said if anew or draw.random() < 0.5 else {}
        try:
            member.beat(**full)
        except (FencedMemberEpochError, UnknownMemberIdError):
            member.join()
        held = [(topic, n) for each in members for topic, numbers in each.given.items() for n in numbers]
        assert len(held) == len(set(held))

    for _ in range(4):
        with segstore.open(store_dir, files=Unsynced()) as store:
            coordinator(store, clock)
            if "t" not in store.topics():
                store.create_topic("t", 5)
            for member in members:
                member.store = store
            for _ in range(40):
                one_step(store)
            if members:
                for _ in range(4):  # the session of one that has vanished began anew, with the store
                    clock.now += SESSION_MS / 3 + 1
                    for member in members:
                        beat(member)
                settle(store, *members)
                held = ConsumerGroup("g", offsets(store).consumer("g"))
                assert held.info("uniform") == info(store)


def test_hundreds_of_members_share_a_group(store_dir: Path) -> None:
    count = 300
    with segstore.open(store_dir, files=Unsynced()) as store:
        coordinator(store, Monotonic())
        store.create_topic("t", 10)
        members = [Member(store, f"m{n}").join() for n in range(count)]
        for _ in range(3):
            for member in members[:20]:
                member.beat()
        assert sorted(n for member in members for n in member.has) == list(range(10))
        assert len(info(store).members) == count
