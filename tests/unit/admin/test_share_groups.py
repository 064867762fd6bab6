"""Share groups (KIP-932) for administrators: how they are shown, with which lag, and what changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from groups import Monotonic, Unsynced, coordinator, member
from share_groups import SharingMember, key

import segstore
from segstore import AdminClient, ConfigResource, Reset
from segstore.client.admin import SharePartitionOffsetInfo
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ConfigError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidTypeError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)

CONFIG = {"offsets.topic.num.partitions": 1, "share.coordinator.state.topic.num.partitions": 2}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        coordinator(store, Monotonic())
        store.create_topic("t", 2)
        for number in range(2):
            store.partition("t", number).append_batch([b"x"] * 10)
        yield store


@pytest.fixture
def admin(store: segstore.Store) -> AdminClient:
    return AdminClient(store)


def done(store: segstore.Store, partition: int, start: int, complete: int) -> None:
    """Write a state of the share partition: `complete` records from `start` on are done, out of order."""
    state = Durable(start=start, complete=complete, batches=(StateBatch(start + 1, start + complete, 2, 1),))
    epoch = shared(store, StateLog).read(key(store, partition))
    assert epoch is not None
    shared(store, StateLog).raise_epoch(key(store, partition), epoch.state_epoch, state)


def test_groups_are_listed_by_type(store: segstore.Store, admin: AdminClient) -> None:
    SharingMember(store, "a").join()
    with member(store, "t", group="classic", group_protocol="classic") as classic:
        classic.poll()
        with member(store, "t", group="modern", group_protocol="consumer") as modern:
            modern.poll()
            found = {each["group_id"]: each for each in admin.list_groups()}
            assert {name: each["group_type"] for name, each in found.items()} == {
                "g": "share",
                "classic": "classic",
                "modern": "consumer",
            }
    assert found["g"] == {
        "group_id": "g",
        "protocol_type": "share",
        "group_state": "Stable",
        "group_type": "share",
    }
    assert [each["group_id"] for each in admin.list_groups(types=("Share",))] == ["g"]
    with pytest.raises(InvalidTypeError):
        admin.list_groups(types="share")


def test_q40_the_lag_is_without_what_is_done(store: segstore.Store, admin: AdminClient) -> None:
    SharingMember(store, "a", client_id="c").join()
    unknown = SharePartitionOffsetInfo(None, None, None)
    assert admin.list_share_group_offsets("g") == {T0: unknown, T1: unknown}
    done(store, 0, 2, 3)
    assert admin.list_share_group_offsets("g", [T0, TopicPartition("t", 7)]) == {
        T0: SharePartitionOffsetInfo(2, 0, 5),
        TopicPartition("t", 7): unknown,
    }
    told = admin.describe_share_groups(["g"])["g"]
    assert (told.state, told.protocol, told.generation, told.lag) == ("Stable", "simple", 2, 5)
    (only,) = told.members
    assert (only.member_id, only.client_id, only.assignment) == ("a", "c", (T0, T1))


def test_another_process_sees_the_same(store_dir: Path, store: segstore.Store, admin: AdminClient) -> None:
    SharingMember(store, "a").join()
    done(store, 1, 2, 3)
    with segstore.open(store_dir, mode="r") as reader:
        assert Groups(reader).describe("g") == admin.describe_share_groups(["g"])["g"]
        assert Groups(reader).list() == Groups(store).list()


def test_q97_to_q100_by_kafka_s_names(store: segstore.Store, admin: AdminClient) -> None:
    told = admin.alter_share_group_offsets("g", {T1: 4, TopicPartition("t", 9): 1})
    assert told[T1] is None
    assert isinstance(told[TopicPartition("t", 9)], UnknownTopicOrPartitionError)
    assert admin.list_share_group_offsets("g") == {T1: SharePartitionOffsetInfo(4, 0, 6)}
    sharing = SharingMember(store, "a").join()
    for call in (
        lambda: admin.alter_share_group_offsets("g", {T1: 4}),
        lambda: admin.delete_share_group_offsets("g", ["t"]),
    ):
        with pytest.raises(NonEmptyGroupError):
            call()
    assert isinstance(admin.delete_share_groups(["g"])["g"], NonEmptyGroupError)
    sharing.leave()
    told_of = admin.delete_share_group_offsets("g", ["t", "u"])
    assert (told_of["t"], type(told_of["u"])) == (None, UnknownTopicOrPartitionError)
    assert admin.list_share_group_offsets("g") == {}
    deleted = admin.delete_share_groups(["g", "h"])
    assert (deleted["g"], type(deleted["h"])) == (None, GroupNotFoundError)
    assert admin.list_groups() == []


def test_a_group_of_another_type_is_not_found(store: segstore.Store, admin: AdminClient) -> None:
    with member(store, "t", group="classic") as classic:
        classic.poll()
        for call in (
            lambda: admin.describe_share_groups(["classic"]),
            lambda: admin.list_share_group_offsets("classic"),
            lambda: admin.alter_share_group_offsets("classic", {T0: 1}),
            lambda: admin.delete_share_group_offsets("classic", ["t"]),
            lambda: admin.describe_share_groups(["nothing"]),
        ):
            with pytest.raises(GroupNotFoundError):
                call()


def test_a_group_is_reset_and_deleted_as_any(store: segstore.Store) -> None:
    groups = Groups(store)
    SharingMember(store, "a").join().leave()
    moved = groups.reset("g", Reset.to_offset(3), dry_run=True)
    assert [(each.partition, each.before, each.after) for each in moved] == [(T0, None, 3), (T1, None, 3)]
    assert groups.describe("g").lag == 0
    groups.reset("g", Reset.to_offset(3), ["t"])
    assert [part.lag for part in groups.describe("g").partitions] == [7, 7]
    (only,) = groups.reset("g", Reset.shift_by(-1), [T1])
    assert (only.before, only.after) == (3, 2)
    with pytest.raises(InvalidArgumentError, match="t-1 is not named"):
        groups.delete_offsets("g", [T0])
    assert groups.delete_offsets("g", ["t"]) == {T0, T1}
    assert groups.describe("g").partitions == ()
    groups.delete("g")
    assert groups.list() == ()


def test_settings_of_a_group_that_is_not_there_yet(store: segstore.Store, admin: AdminClient) -> None:
    settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    admin.incremental_alter_configs([ConfigResource("GROUP", "g", settings)])
    assert group_settings(store).share_limits("g").deliveries == 3
    assert not coordinator(store).exists("g")
    found = admin.describe_configs([ConfigResource("GROUP", "g")], config_filter="all")["group"]["g"]
    assert (found["share.auto.offset.reset"]["value"], found["share.isolation.level"]["value"]) == (
        "earliest",
        "read_uncommitted",
    )
    with pytest.raises(ConfigError, match=r"share\.delivery\.count\.limit=11"):
        admin.alter_configs([ConfigResource("GROUP", "g", {"share.delivery.count.limit": 11})])
