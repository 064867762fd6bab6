"""Members of consumer groups (KIP-848) that are fenced, replaced, removed or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from consumer_groups import SESSION_MS, joined, settle
from consumer_groups import clock as clock
from consumer_groups import found as found
from consumer_groups import store as store
from group_members import Member, info
from groups import Monotonic, offsets

import segstore
from segstore.coordinator.group.consumers.membership import Beaten
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    StorageError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

# --- epochs ---------------------------------------------------------------------------------------


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


# --- static members -------------------------------------------------------------------------------


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


# --- time -----------------------------------------------------------------------------------------


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


# --- requests -------------------------------------------------------------------------------------

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
