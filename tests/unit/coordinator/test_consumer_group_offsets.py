"""Commits of members of consumer groups (KIP-848): the epochs that each counts for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from consumer_groups import AT, joined, metadata, settle
from consumer_groups import clock as clock
from consumer_groups import found as found
from consumer_groups import store as store
from group_members import Member
from groups import Unsynced, coordinator, offsets

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import StaleMemberEpochError, UnknownMemberIdError, UnsupportedVersionError


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
