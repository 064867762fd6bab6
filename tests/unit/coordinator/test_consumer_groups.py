"""Consumer groups (KIP-848) by themselves: members are only heartbeats, and the test sets the clock. Steps of
Kafka's GroupMetadataManagerTest and ConsumerGroupTest are among them.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from group_members import Classic, Member, id_of, info
from groups import Monotonic, Unsynced, coordinator, offsets

import segstore
from segstore.coordinator import linear_pattern
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
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    StorageError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)

SESSION_MS = 45_000
AT = {TopicPartition("t", 0): OffsetAndMetadata(1)}


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.consumer.max.size": 3}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", 6)
        yield store


@pytest.fixture
def found(store: segstore.Store, clock: Monotonic) -> GroupCoordinator:
    return coordinator(store, clock)


def settle(store: segstore.Store, *members: Member) -> list[set[int]]:
    """Have the members send heartbeats until nothing changes; meanwhile no partition has two owners."""
    for _ in range(10):
        before = [(member.epoch, member.given) for member in members]
        for member in members:
            member.beat()
            every = [number for each in members for number in each.has]
            assert len(every) == len(set(every))
        if [(member.epoch, member.given) for member in members] == before:
            break
    assert info(store).state.value == "Stable"
    return [member.has for member in members]


def joined(store: segstore.Store, *member_ids: str, **said: Any) -> list[Member]:
    members = [Member(store, member_id, **said).join() for member_id in member_ids]
    settle(store, *members)
    return members


# --- rebalances ----------------------------------------------------------------------------------


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


# --- regular expressions -------------------------------------------------------------------------


def test_members_subscribe_by_regular_expressions(store: segstore.Store, found: GroupCoordinator) -> None:
    store.create_topic("t2", 2)
    (a,) = joined(store, "a", topic_names=(), topic_regex="t[0-9]|x.*")
    assert a.given == {id_of(store, "t2"): {0, 1}}
    store.create_topic("x1")
    store.create_topic("y1")
    settle(store, a)
    assert a.given.keys() == {id_of(store, "t2"), id_of(store, "x1")}
    kept = offsets(store).consumer("g")
    assert kept[RecordKey(GroupRecordType.REGEX, "t[0-9]|x.*")].topics == {"t2", "x1"}  # type: ignore[union-attr]
    b = Member(store, "b", topic_names=(), topic_regex="t.*").join()
    settle(store, a, b)
    assert b.has
    b.leave()
    a.beat(topic_regex="")
    settle(store, a)
    assert a.given == {}
    assert not any(key.kind is GroupRecordType.REGEX for key in offsets(store).consumer("g"))


def test_an_expression_has_the_topics_that_its_member_may_describe(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    """New topics are judged when they come; whoever may describe all sees all."""
    store.create_topic("secret")
    may = {"may_describe": lambda topic: topic != "secret" and not topic.startswith("x")}
    a = Member(store, "a", topic_names=(), topic_regex="[^_].*", **may).join()
    a.beat(**may)
    assert a.given.keys() == {id_of(store)}
    for name in ("u", "x1"):
        store.create_topic(name)
    a.beat(**may)
    assert a.given.keys() == {id_of(store), id_of(store, "u")}
    assert offsets(store).consumer("g")[RecordKey(GroupRecordType.REGEX, "[^_].*")].topics == {"t", "u"}  # type: ignore[union-attr]


def test_a_classic_member_looks_for_no_topics_of_expressions(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    """Else those would be assigned that the members with the expression may not describe."""
    may = {"may_describe": lambda topic: topic != "secret"}
    a = Member(store, "a", topic_names=(), topic_regex="[^_].*", **may).join()
    old = Classic(store, "o")
    for name in ("secret", "u"):
        store.create_topic(name)
    old.join()
    key = RecordKey(GroupRecordType.REGEX, "[^_].*")
    assert offsets(store).consumer("g")[key].topics == {"t"}  # type: ignore[union-attr]
    a.beat(**may)
    assert offsets(store).consumer("g")[key].topics == {"t", "u"}  # type: ignore[union-attr]


def test_an_expression_that_is_no_longer_understood_keeps_its_topics(
    store: segstore.Store, found: GroupCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted while google-re2 was installed; other members must go on."""
    with monkeypatch.context() as patched:
        patched.setattr(linear_pattern, "_by_re2", lambda pattern: re.compile(pattern).fullmatch)
        a = Member(store, "a", topic_names=(), topic_regex="(?i)T.*").join()
    monkeypatch.setitem(sys.modules, "re2", None)
    b = Member(store, "b", topic_names=(), topic_regex="x.*").join()
    store.create_topic("x1")
    store.create_topic("t2")
    settle(store, a, b)
    assert a.given.keys() == {id_of(store)}
    assert b.given.keys() == {id_of(store, "x1")}
    with pytest.raises(InvalidRegularExpressionError, match="google-re2"):
        Member(store, "c", topic_regex="(?i)X").join()


def test_names_and_an_expression_add_up(store: segstore.Store, found: GroupCoordinator) -> None:
    store.create_topic("u")
    (a,) = joined(store, "a", topic_regex="u")
    assert a.given.keys() == {id_of(store), id_of(store, "u")}


def test_a_wrong_expression_is_refused_and_nothing_is_kept(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="not understood"):
        Member(store, "a", topic_regex="(").join()
    assert not found.exists("g")
    assert found.ids() == set()
    assert offsets(store).groups() == set()


# --- epochs --------------------------------------------------------------------------------------


def test_an_answer_that_was_lost_is_given_again(store: segstore.Store, found: GroupCoordinator) -> None:
    a, b = joined(store, "a", "b")
    b.leave()
    lost = a.ask(owned=a.given)
    assert (lost.epoch, a.epoch) == (3, 2)
    again = a.ask(owned=a.given, **a.said)  # as after a time-out: with all that it has to say
    assert (again.epoch, again.assignment) == (3, lost.assignment)
    a.take(again)
    assert settle(store, a) == [set(range(6))]


def test_an_answer_that_was_lost_while_partitions_are_given_up(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    (a,) = joined(store, "a")
    b = Member(store, "b").join()
    answer = a.ask(owned=a.given)
    a.take(answer)
    lost = a.ask(owned=a.given)
    assert (lost.epoch, a.epoch) == (2, 1)
    a.beat(**a.said)
    assert a.epoch == 2
    assert [len(has) for has in settle(store, a, b)] == [3, 3]


FENCED: dict[str, Callable[[Member], object]] = {
    "a later epoch": lambda a: a.ask(epoch=9, owned=a.given),
    "an epoch long past": lambda a: a.ask(epoch=1, owned=a.given),
    "the last epoch with partitions that it never had": lambda a: a.ask(
        epoch=a.epoch - 1, owned={b"x" * 16: frozenset({0})}
    ),
    "the last epoch without a word of partitions": lambda a: a.ask(epoch=a.epoch - 1),
}


@pytest.mark.parametrize("name", FENCED)
def test_other_epochs_are_fenced(store: segstore.Store, found: GroupCoordinator, name: str) -> None:
    a, b, c = joined(store, "a", "b", "c")
    b.leave()
    settle(store, a, c)
    settle(store, a, b.join(), c)
    assert a.epoch == 5
    before = info(store)
    with pytest.raises(FencedMemberEpochError, match="join again"):
        FENCED[name](a)
    assert info(store) == before
    a.join()  # with its id: it need not wait until its session ends
    assert [len(has) for has in settle(store, a, b, c)] == [2, 2, 2]


def test_unknown_topics_among_a_members_partitions_are_passed_by(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    (a,) = joined(store, "a")
    assert a.ask(owned={**a.given, b"x" * 16: frozenset({5})}).epoch == 1


# --- static members ------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had(store: segstore.Store, found: GroupCoordinator) -> None:
    a, b = joined(store, "a")[0], Member(store, "b", instance_id="i").join()
    before = settle(store, a, b)[1]
    assert b.leave(-2) == Beaten("b", -2, 0)
    assert a.beat().assignment is None
    anew = Member(store, "c", instance_id="i").join()
    assert (anew.has, anew.epoch, info(store).epoch) == (before, 2, 2)
    with pytest.raises(FencedInstanceIdError, match="'c'"):
        b.beat()
    with pytest.raises(FencedInstanceIdError):
        b.leave(-2)
    anew.leave()
    with pytest.raises(UnknownMemberIdError, match="'i'"):
        anew.beat()
    assert settle(store, a) == [set(range(6))]


def test_an_instance_id_has_one_owner(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a", instance_id="i")
    with pytest.raises(UnreleasedInstanceIdError, match="'a'"):
        Member(store, "b", instance_id="i").join()
    assert a.join().has == set(range(6))  # the same member has only forgotten its epoch


def test_a_static_member_that_stays_away_is_removed(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a, b = joined(store, "a", instance_id="i")[0], Member(store, "b").join()
    settle(store, a, b)
    a.leave(-2)
    clock.now += SESSION_MS - 1
    b.beat()
    assert len(info(store).members) == 2
    clock.now += 1
    assert settle(store, b) == [set(range(6))]


# --- time ----------------------------------------------------------------------------------------


def test_members_that_vanish_are_removed(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a, b = joined(store, "a", "b")
    clock.now += SESSION_MS - 1
    a.beat()
    clock.now += 1
    found.run_due()
    assert [member.member_id for member in info(store).members] == ["a"]
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    assert settle(store, a) == [set(range(6))]


def test_a_member_that_vanishes_while_it_gives_up_partitions(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    """Its heartbeats go on, but it gives nothing up: only its rebalance timeout ends that."""
    (a,) = joined(store, "a", rebalance_timeout_ms=100_000)
    b = Member(store, "b").join()
    for _ in range(10):
        a.ask(owned=a.given)
        b.beat()
        clock.now += 10_000
    with pytest.raises(UnknownMemberIdError):
        a.beat()
    assert settle(store, b) == [set(range(6))]


def test_partitions_that_were_given_up_in_time_count(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a, b = joined(store, "a")[0], Member(store, "b").join()
    a.beat()
    settle(store, a, b)
    for _ in range(4):
        clock.now += SESSION_MS - 1
        a.beat()
        b.beat()
    assert len(info(store).members) == 2


def test_a_removal_that_can_not_be_written_is_tried_again(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = joined(store, "a", "b")
    clock.now += SESSION_MS - 1
    a.beat()
    clock.now += 1

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(offsets(store), "write_consumer", fail)
        found.run_due()
        assert len(info(store).members) == 2
        with pytest.raises(StorageError):
            a.beat(topic_names=("u",))
    assert b.beat().epoch == 2  # it came in time after all
    clock.now += SESSION_MS
    found.run_due()
    assert info(store).members == ()


# --- requests ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "an epoch below -2": ({"epoch": -3}, InvalidRequestError),
    "no member id": ({"member_id": "", "epoch": 1}, InvalidRequestError),
    "an empty instance id": ({"instance_id": " "}, InvalidRequestError),
    "an empty rack": ({"rack_id": ""}, InvalidRequestError),
    "to leave for a while without an instance id": ({"epoch": -2}, InvalidRequestError),
    "to join without a timeout": ({"epoch": 0, "owned": {}, "topic_names": ()}, InvalidRequestError),
    "to join with partitions": (
        {"epoch": 0, "rebalance_timeout_ms": 1, "topic_names": (), "owned": {b"x" * 16: frozenset({1})}},
        InvalidRequestError,
    ),
    "to join without topics": ({"epoch": 0, "rebalance_timeout_ms": 1, "owned": {}}, InvalidRequestError),
    "a member that is none": ({"member_id": "z", "epoch": 1}, UnknownMemberIdError),
    "to leave as nobody": ({"member_id": "z", "epoch": -1}, UnknownMemberIdError),
    "an instance that is none": ({"instance_id": "z"}, UnknownMemberIdError),
    "a regular expression": ({"topic_regex": "["}, InvalidRegularExpressionError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_are_refused_and_change_nothing(
    store: segstore.Store, found: GroupCoordinator, name: str
) -> None:
    (a,) = joined(store, "a")
    before, (said, error) = info(store), REFUSED[name]
    with pytest.raises(error):
        a.ask(**said)
    assert info(store) == before


def test_a_group_is_full(store: segstore.Store, found: GroupCoordinator) -> None:
    a, *_ = joined(store, "a", "b", "c")
    with pytest.raises(GroupMaxSizeReachedError, match=r"group\.consumer\.max\.size"):
        Member(store, "d").join()
    a.join()


def test_a_member_without_an_id_is_given_one(store: segstore.Store, found: GroupCoordinator) -> None:
    member = Member(store, "")
    beaten = member.ask(epoch=0, owned={}, **member.said)
    assert info(store).members[0].member_id == beaten.member_id != ""


def test_a_group_that_nobody_joined_is_none(store: segstore.Store, found: GroupCoordinator) -> None:
    for epoch in (1, -1):
        with pytest.raises(GroupNotFoundError):
            Member(store, "a").ask(epoch=epoch)
    assert not found.exists("g")


# --- offsets -------------------------------------------------------------------------------------


def metadata(member: Member, epoch: int | None = None) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata("g", member.epoch if epoch is None else epoch, member.member_id)


def test_members_commit_in_their_epochs(store: segstore.Store, found: GroupCoordinator) -> None:
    (a,) = joined(store, "a")
    found.commit(metadata(a), AT)
    found.check_fetch("g", "a", 1)
    found.check_fetch("g", None, -1)
    for call in (lambda: found.commit(metadata(a, 0), AT), lambda: found.check_fetch("g", "a", 2)):
        with pytest.raises(StaleMemberEpochError):
            call()
    with pytest.raises(UnknownMemberIdError):
        found.commit(ConsumerGroupMetadata("g"), AT)
    with pytest.raises(UnknownMemberIdError):
        found.check_fetch("g", "z", 1)
    with pytest.raises(UnsupportedVersionError, match="OffsetCommit 9"):
        found.commit(metadata(a), AT, knows_epochs=False)
    assert found.while_valid(ConsumerGroupMetadata("g"), (), lambda: 7) == 7
    with pytest.raises(StaleMemberEpochError):
        found.while_valid(metadata(a, 3), (), lambda: 7)
    a.leave()
    found.commit(ConsumerGroupMetadata("g"), AT)
    assert offsets(store).fetch("g") == AT


class Shared(NamedTuple):
    """What two members have: `kept` is a's from epoch 1 on, `moved` b's from 2 on."""

    kept: set[int]
    moved: set[int]


class Commit(NamedTuple):
    """A commit of a member of `in_two_epochs`, `since` epochs after its own, and the error that it gets."""

    member: str
    since: int
    partitions: Callable[[Shared], set[int]]
    error: type[Exception] | None = None


KEPT, MOVED = (lambda of: of.kept), (lambda of: of.moved)
COMMITS = {
    "in its epoch": Commit("a", 0, KEPT),
    "in its epoch, of what it has given up": Commit("a", 0, MOVED),
    "one behind, of what it has kept": Commit("a", -1, KEPT),
    "one behind, of what it has given up": Commit("a", -1, MOVED, StaleMemberEpochError),
    "one behind, of one of either": Commit(
        "a", -1, lambda of: {*list(of.kept)[:1], *list(of.moved)[:1]}, StaleMemberEpochError
    ),
    "before it joined": Commit("a", -2, KEPT, StaleMemberEpochError),
    "one ahead": Commit("a", 1, KEPT, StaleMemberEpochError),
    "of what it did not have yet": Commit("b", -1, MOVED, StaleMemberEpochError),
    "of what it was given": Commit("b", 0, MOVED),
}


def in_two_epochs(store: segstore.Store) -> tuple[dict[str, Member], Shared]:
    (a,) = joined(store, "a")
    b = Member(store, "b").join()
    settle(store, a, b)
    assert (a.epoch, b.epoch) == (2, 2)
    return {"a": a, "b": b}, Shared(a.has, b.has)


@pytest.mark.parametrize("after", ["at once", "after a restart"])
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_counts_for_what_the_member_has_had_since(
    store_dir: Path, name: str, transactional: bool, after: str
) -> None:
    """KIP-1251. The epochs of partitions are in the records."""
    config = {"offsets.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", 6)
        members, shared = in_two_epochs(store)
        if after == "at once":
            commit(store, members, shared, COMMITS[name], transactional)
    if after != "at once":
        with segstore.open(store_dir, files=Unsynced()) as store:
            commit(store, members, shared, COMMITS[name], transactional)


def commit(
    store: segstore.Store, members: dict[str, Member], shared: Shared, asked: Commit, transactional: bool
) -> None:
    member = members[asked.member]
    at = {TopicPartition("t", number): OffsetAndMetadata(7) for number in asked.partitions(shared)}
    who, group = metadata(member, member.epoch + asked.since), coordinator(store)

    def run() -> None:
        if transactional:
            group.while_valid(who, at, lambda: offsets(store).commit("g", at))
        else:
            group.commit(who, at)

    if asked.error is None:
        run()
        assert offsets(store).fetch("g") == at
    else:
        with pytest.raises(asked.error):
            run()
        assert offsets(store).fetch("g") == {}


def test_a_member_commits_what_it_gives_up_with_the_epoch_before(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    a, _ = joined(store, "a", "b")
    had = a.has
    Member(store, "c").join()
    a.ask(owned=a.given)  # which tells it to give up one
    assert a.epoch == 2
    at = {TopicPartition("t", number): OffsetAndMetadata(7) for number in had}
    found.commit(metadata(a, 1), at)
    assert offsets(store).fetch("g") == at


def test_a_topic_that_was_made_anew_is_committed_in_its_epoch(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    (a,) = joined(store, "a")
    store.delete_topic("t")
    store.create_topic("t", 6)
    settle(store, a)
    with pytest.raises(StaleMemberEpochError):
        found.commit(metadata(a, 1), AT)
    found.commit(metadata(a), AT)


def test_the_member_that_takes_a_static_ones_place_commits_in_any_epoch(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    (a,) = joined(store, "a")
    old, new = (Member(store, name, instance_id="i") for name in "bc")
    settle(store, a, old.join())
    old.leave(-2)
    with pytest.raises(StaleMemberEpochError):
        found.commit(metadata(old), AT)
    new.join()
    at = {TopicPartition("t", number): OffsetAndMetadata(7) for number in new.has}
    found.commit(metadata(new, 1), at)


# --- administration ------------------------------------------------------------------------------


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


# --- both protocols ------------------------------------------------------------------------------


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


# --- restarts ------------------------------------------------------------------------------------


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
