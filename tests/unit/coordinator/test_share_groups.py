"""Share groups (KIP-932) by themselves: members are only heartbeats, states are in memory, and the test sets
the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from group_members import Classic, Member, id_of
from groups import Monotonic, Unsynced, coordinator, offsets
from share_groups import SharingMember, States, key, share_info

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.offsets.consumer_schema import TargetAssignment
from segstore.coordinator.offsets.share_schema import (
    ShareCurrent,
    ShareKind,
    ShareRecordKey,
    ShareTargetEpoch,
)
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    NonEmptyGroupError,
    StorageError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)

SESSION_MS, INTERVAL_MS = 45_000, 1_000
AT = {TopicPartition("t", 0): OffsetAndMetadata(1)}


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.share.max.size": 3}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", 4)
        yield store


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture
def found(store: segstore.Store, clock: Monotonic, states: States) -> GroupCoordinator:
    made = coordinator(store, clock)
    made.set_share_states(lambda: states)
    return made


def kinds(store: segstore.Store) -> list[ShareKind]:
    return sorted(each.kind for each in offsets(store).share("g"))


def settle(clock: Monotonic, *members: SharingMember) -> list[set[int]]:
    """Let members send heartbeats, after the time between two assignments has passed."""
    clock.now += INTERVAL_MS
    for member in (*members, *members):
        member.beat()
    return [member.has for member in members]


# --- heartbeats ----------------------------------------------------------------------------------


def test_d1_the_first_heartbeat_of_a_group_assigns(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    member = SharingMember(store, "a").join()
    assert (member.has, member.epoch) == ({0, 1, 2, 3}, 2)
    assert states.calls == [("initialise", {key(store, number): (2, -1) for number in range(4)})]
    told = share_info(store)
    assert (told.state.value, told.epoch, told.target_epoch, told.assignor) == ("Stable", 2, 2, "simple")
    assert kinds(store) == list(ShareKind)
    beaten = member.beat()
    assert (beaten.epoch, beaten.heartbeat_interval_ms, beaten.assignment) == (2, 5_000, None)


REFUSED: dict[str, dict[str, Any]] = {
    "no member id": {"member_id": ""},
    "a blank member id": {"member_id": " "},
    "a long member id": {"member_id": "m" * 37},
    "an empty rack": {"rack_id": ""},
    "an epoch below -1": {"epoch": -2},
    "no topics to join": {"topic_names": None},
    "an empty list of topics to join": {"topic_names": ()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_q77_a_request_that_can_t_be_meant_makes_no_group(
    store: segstore.Store, found: GroupCoordinator, states: States, name: str
) -> None:
    with pytest.raises(InvalidRequestError):
        SharingMember(store, "a").ask(**{"epoch": 0, "topic_names": ("t",), **REFUSED[name]})
    assert (found.exists("g"), states.calls) == (False, [])


@pytest.mark.parametrize("group", ["", " "])
def test_q77_a_group_must_be_named(store: segstore.Store, found: GroupCoordinator, group: str) -> None:
    with pytest.raises(InvalidRequestError):
        SharingMember(store, "a", group=group).join()


def test_q77_epochs_of_members(store: segstore.Store, found: GroupCoordinator, clock: Monotonic) -> None:
    with pytest.raises(GroupNotFoundError):
        SharingMember(store, "a").ask(epoch=1)
    with pytest.raises(GroupNotFoundError):
        SharingMember(store, "a").leave()
    a = SharingMember(store, "a").join()
    with pytest.raises(UnknownMemberIdError):
        SharingMember(store, "b").ask(epoch=1)
    for epoch in (1, 3):
        with pytest.raises(FencedMemberEpochError):
            a.ask(epoch=epoch)
    SharingMember(store, "b").join()
    settle(clock, a)
    assert a.epoch == 3
    lost = a.ask(epoch=2)  # the answer of epoch 3 was lost
    assert (lost.epoch, lost.assignment) == (3, a.given)
    with pytest.raises(FencedMemberEpochError):
        a.ask(epoch=1)


def test_q77_a_full_group_takes_no_more(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    for name in "abc":
        SharingMember(store, name).join()
    with pytest.raises(GroupMaxSizeReachedError):
        SharingMember(store, "d").join()
    SharingMember(store, "c").join()  # it is in it


def test_q78_a_living_member_that_joins_anew_changes_nothing(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    member = SharingMember(store, "a").join()
    before = offsets(store).share("g")
    assert member.join().epoch == 2
    assert member.has == {0, 1, 2, 3}
    assert offsets(store).share("g") == before


def test_q79_an_assignment_is_told_to_who_asks_or_if_it_changed(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a = SharingMember(store, "a").join()
    assert a.beat().assignment is None
    assert a.beat(topic_names=("t",)).assignment == a.given
    SharingMember(store, "b").join()
    clock.now += INTERVAL_MS
    assert a.beat().assignment is not None
    assert a.beat().assignment is None


def test_q81_members_keep_their_targets_for_the_interval(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a = SharingMember(store, "a").join()
    b = SharingMember(store, "b").join()
    assert (b.has, share_info(store).epoch, share_info(store).target_epoch) == (set(), 3, 2)
    clock.now += INTERVAL_MS - 1
    a.beat()
    b.beat()
    assert (len(a.has), len(b.has)) == (4, 0)
    changes = found.changes("g")
    clock.now += 1
    found.run_due()
    assert found.changes("g") > changes  # members in this process look what has changed
    a.beat()
    b.beat()
    assert (len(a.has), len(b.has), a.has & b.has) == (2, 2, set())


def test_q81_the_interval_is_the_group_s(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    group_settings(store).alter("g", {"share.assignment.interval.ms": 0})
    SharingMember(store, "a").join()
    assert len(SharingMember(store, "b").join().has) == 2


def test_q80_a_changed_subscription_raises_the_epoch(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic, states: States
) -> None:
    store.create_topic("u")
    a = SharingMember(store, "a").join()
    clock.now += INTERVAL_MS
    assert a.beat(topic_names=("u",)).epoch == 3
    assert a.given == {id_of(store, "u"): {0}}
    assert states.held[key(store, 0, "u")].start == -1
    assert len(found.share_partitions("g")) == 5  # the state of the other topic stays
    assert a.beat(topic_names=["u"]).epoch == 3


def test_an_assignment_that_is_due_raises_the_epoch_once(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    """Other topics are created before the time between two assignments is over."""
    a = SharingMember(store, "a", "u").join()
    store.create_topic("u", 2)
    assert (a.beat().epoch, a.given, share_info(store).epoch) == (2, {}, 3)
    store.create_topic("v")
    assert (a.beat().epoch, a.given, share_info(store).epoch) == (2, {}, 3)
    clock.now += INTERVAL_MS
    assert (a.beat().epoch, a.given) == (3, {id_of(store, "u"): {0, 1}})


def test_the_partitions_of_a_deleted_topic_are_taken_at_once(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    store.create_topic("u")
    a = SharingMember(store, "a", "t", "u").join()
    store.delete_topic("t")
    assert (a.beat().epoch, a.given) == (2, {id_of(store, "u"): {0}})
    clock.now += INTERVAL_MS
    assert (a.beat().epoch, a.given) == (3, {id_of(store, "u"): {0}})


def test_the_partitions_of_a_topic_that_a_member_leaves_are_taken_at_once(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    store.create_topic("u")
    a = SharingMember(store, "a").join()
    assert (a.beat(topic_names=("u",)).epoch, a.given) == (2, {})
    clock.now += INTERVAL_MS
    assert (a.beat().epoch, a.given) == (3, {id_of(store, "u"): {0}})


def test_q84_a_member_that_is_not_heard_of_is_removed(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a, b = SharingMember(store, "a").join(), SharingMember(store, "b").join()
    settle(clock, a, b)
    clock.now += SESSION_MS - 1
    a.beat()
    clock.now += 1
    found.run_due()
    assert [member.member_id for member in share_info(store).members] == ["a"]
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    assert settle(clock, a) == [{0, 1, 2, 3}]


def test_q85_the_last_member_leaves_an_empty_group(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic
) -> None:
    a = SharingMember(store, "a").join()
    beaten = a.leave()
    assert (beaten.member_id, beaten.epoch) == ("a", -1)
    told = share_info(store)
    assert (told.state.value, told.epoch, told.members) == ("Empty", 3, ())
    assert kinds(store) == [ShareKind.EPOCH, ShareKind.TARGET_EPOCH, ShareKind.PARTITIONS]
    assert offsets(store).share("g")[ShareRecordKey(ShareKind.TARGET_EPOCH)] == ShareTargetEpoch(3, 0)
    assert SharingMember(store, "b").join().has == {0, 1, 2, 3}  # at once: nobody else is to wait for


def test_q86_a_group_is_never_expired(store: segstore.Store, found: GroupCoordinator) -> None:
    SharingMember(store, "a").join().leave()
    offsets(store).expire(now_ms=1 << 60)
    assert share_info(store).epoch == 3
    assert found.ids() == {"g"}


def test_a_group_is_read_from_the_log(store_dir: Path, clock: Monotonic, states: States) -> None:
    with segstore.open(store_dir, files=Unsynced()) as store:
        store.create_topic("t", 2)
        coordinator(store, clock).set_share_states(lambda: states)
        member = SharingMember(store, "a", rack_id="r", client_id="c").join()
        before = share_info(store)
    with segstore.open(store_dir, files=Unsynced()) as store:
        made = coordinator(store, clock)
        made.set_share_states(lambda: states)
        assert share_info(store) == before
        member.store = store
        assert member.beat().epoch == member.epoch
        clock.now += SESSION_MS
        made.run_due()
        assert share_info(store).members == ()


def test_q80_a_partition_that_a_broker_has_begun_and_not_assigned_is_assigned(
    store_dir: Path, clock: Monotonic, states: States
) -> None:
    with segstore.open(store_dir, files=Unsynced()) as store:
        store.create_topic("t", 2)
        coordinator(store, clock).set_share_states(lambda: states)
        member = SharingMember(store, "a").join()
        member.leave()
        member.join()
        nothing = [
            (ShareRecordKey(ShareKind.TARGET, "a"), TargetAssignment({})),
            (ShareRecordKey(ShareKind.CURRENT, "a"), ShareCurrent(member.epoch, 0)),
        ]
        offsets(store).write_share("g", nothing)
    with segstore.open(store_dir, files=Unsynced()) as store:
        coordinator(store, clock).set_share_states(lambda: states)
        member.store = store
        assert (member.beat().epoch, member.has) == (5, {0, 1})
        assert member.beat().epoch == 5


# --- the states of partitions ----------------------------------------------------------------------


def test_q47_a_partition_that_is_added_begins_at_its_beginning(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic, states: States
) -> None:
    a = SharingMember(store, "a").join()
    store.add_partitions("t", 6)
    assert settle(clock, a) == [set(range(6))]
    assert states.calls[1:] == [("initialise", {key(store, number): (3, 0) for number in (4, 5)})]
    assert a.epoch == 3


def test_q46_a_topic_that_is_deleted_and_made_anew_is_another(
    store: segstore.Store, found: GroupCoordinator, clock: Monotonic, states: States
) -> None:
    fenced: list[ShareKey] = []
    found.set_share_fence(fenced.extend)
    a = SharingMember(store, "a").join()
    old = [key(store, number) for number in range(4)]
    store.delete_topic("t")
    assert (states.held, fenced, found.share_partitions("g")) == ({}, old, [])
    store.create_topic("t", 1)
    assert settle(clock, a) == [{0}]
    assert [(each, held.start) for each, held in states.held.items()] == [(key(store, 0), -1)]


def test_q83_what_was_begun_is_begun_again(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    """The note is in the log, the states are not."""
    states.fails = StorageError("the disk is full")
    with pytest.raises(StorageError):
        SharingMember(store, "a").join()
    assert kinds(store) == [ShareKind.PARTITIONS]
    assert found.share_partitions("g") == []
    assert SharingMember(store, "a").join().has == {0, 1, 2, 3}
    assert states.calls == [("initialise", {key(store, number): (2, -1) for number in range(4)})]


def test_q48_the_group_s_epoch_is_not_below_a_state_s(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    SharingMember(store, "a").join().leave()
    states.held[key(store, 1)] = states.held[key(store, 1)]._replace(state_epoch=7)
    assert found.alter_share_offsets("g", {TopicPartition("t", 1): 5}) == {TopicPartition("t", 1): None}
    assert (states.held[key(store, 1)].state_epoch, share_info(store).epoch) == (8, 8)
    found.raise_share_epoch("g", 8)
    assert share_info(store).epoch == 8
    found.raise_share_epoch("g", 11)
    assert share_info(store).epoch == 11


# --- administration ------------------------------------------------------------------------------


def test_q98_offsets_of_an_empty_group_are_altered(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    """A group that is not there is made; who joins has the partition at once."""
    fenced: list[ShareKey] = []
    found.set_share_fence(fenced.extend)
    told = found.alter_share_offsets(
        "g", {TopicPartition("t", 1): 50, TopicPartition("t", 9): 1, TopicPartition("nowhere", 0): 1}
    )
    assert {tp.partition: type(error) for tp, error in told.items() if tp.topic == "t"} == {
        1: type(None),
        9: UnknownTopicOrPartitionError,
    }
    assert isinstance(told[TopicPartition("nowhere", 0)], UnknownTopicOrPartitionError)
    assert (share_info(store).epoch, fenced) == (2, [key(store, 1)])
    assert (states.held[key(store, 1)].start, states.held[key(store, 1)].state_epoch) == (50, 2)
    member = SharingMember(store, "a").join()
    assert member.has == {0, 1, 2, 3}
    assert states.held[key(store, 1)].start == 50
    with pytest.raises(NonEmptyGroupError):
        found.alter_share_offsets("g", {TopicPartition("t", 1): 0})
    member.leave()
    found.alter_share_offsets("g", {TopicPartition("t", 1): 0})
    assert states.held[key(store, 1)].state_epoch == share_info(store).epoch


def test_q99_offsets_of_topics_are_deleted(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    fenced: list[ShareKey] = []
    found.set_share_fence(fenced.extend)
    member = SharingMember(store, "a").join()
    with pytest.raises(NonEmptyGroupError):
        found.delete_share_offsets("g", ["t"])
    member.leave()
    told = found.delete_share_offsets("g", ["t", "u"])
    assert told["t"] is None
    assert "no offset information to delete" in str(told["u"])
    assert isinstance(told["u"], UnknownTopicOrPartitionError)
    assert (states.held, len(fenced), found.share_partitions("g")) == ({}, 4, [])
    with pytest.raises(GroupNotFoundError):
        found.delete_share_offsets("h", ["t"])


def test_q99_a_deletion_that_was_begun_is_finished(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    member = SharingMember(store, "a").join()
    member.beat()
    member.leave()
    states.fails = StorageError("the disk is full")
    with pytest.raises(StorageError):
        found.delete_share_offsets("g", ["t"])
    assert (len(states.held), found.share_partitions("g")) == (4, [])
    member.join()  # deletes, and begins anew
    assert [name for name, _ in states.calls] == ["initialise", "delete", "initialise"]
    assert member.has == {0, 1, 2, 3}


def test_q100_a_group_is_deleted_with_its_states(
    store: segstore.Store, found: GroupCoordinator, states: States
) -> None:
    member = SharingMember(store, "a").join()
    with pytest.raises(NonEmptyGroupError):
        found.delete_share_group("g")
    member.leave()
    states.fails = StorageError("the disk is full")
    with pytest.raises(StorageError):
        found.delete_share_group("g")
    assert found.exists("g")
    found.delete_share_group("g")
    assert (states.held, offsets(store).share("g"), found.exists("g")) == ({}, {}, False)
    with pytest.raises(GroupNotFoundError):
        found.delete_share_group("g")
    assert member.join().epoch == 2  # a new group


# --- one namespace of ids --------------------------------------------------------------------------


def test_q87_a_group_of_another_kind_is_no_share_group(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    consumer = Member(store, "a").join()
    with pytest.raises(GroupNotFoundError, match="not a share group"):
        SharingMember(store, "b").join()
    consumer.leave()
    with pytest.raises(GroupNotFoundError, match="not a share group"):
        SharingMember(store, "b").join()
    Classic(store, "c", group="classic").join()
    with pytest.raises(GroupNotFoundError, match="not a share group"):
        SharingMember(store, "b", group="classic").join()
    found.commit(ConsumerGroupMetadata("offsets"), AT)
    with pytest.raises(GroupNotFoundError, match="not a share group"):
        SharingMember(store, "b", group="offsets").join()
    with pytest.raises(GroupNotFoundError, match="not a share group"):
        found.alter_share_offsets("offsets", {TopicPartition("t", 0): 1})


@pytest.mark.parametrize("is_empty", [False, True])
def test_q87_a_share_group_is_of_no_other_kind(
    store: segstore.Store, found: GroupCoordinator, is_empty: bool
) -> None:
    sharing = SharingMember(store, "a").join()
    if is_empty:
        sharing.leave()
    with pytest.raises(GroupNotFoundError):
        Member(store, "b").join()
    with pytest.raises(InconsistentGroupProtocolError):
        Classic(store, "c").join()
    with pytest.raises(GroupNotFoundError):
        found.commit(ConsumerGroupMetadata("g"), AT)
    with pytest.raises(GroupNotFoundError):
        found.while_valid(ConsumerGroupMetadata("g"), AT, lambda: None)
    assert offsets(store).fetch("g") == {}
    assert found.describe("g") is None
    assert found.describe_consumers("g") is None
    assert share_info(store).state.value == ("Empty" if is_empty else "Stable")
