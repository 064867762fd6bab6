"""Share groups (KIP-932) over the state log: what is in the log after each step, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from groups import Monotonic, Unsynced, coordinator, offsets
from share_groups import SharingMember, key, share_info

import segstore
from segstore import names
from segstore.coordinator.offsets.share_schema import (
    ShareKind,
    ShareRecordKey,
    ShareStateTopics,
    TopicPartitionsInfo,
)
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import StorageError

CONFIG = {"offsets.topic.num.partitions": 1, "share.coordinator.state.topic.num.partitions": 1}


def opened(store_dir: Path) -> segstore.Store:
    store = segstore.open(store_dir, config=CONFIG, files=Unsynced())
    coordinator(store, Monotonic())
    return store


def held(store: segstore.Store, group: str = "g") -> dict[ShareKey, tuple[int, int, int]]:
    """State epoch, start offset and count of each state of a group."""
    states = shared(store, StateLog)
    found = {each: states.read(each) for each in states.keys_of(group)}
    assert all(isinstance(state, Durable) for state in found.values())
    return {each: (s.state_epoch, s.start, s.complete) for each, s in found.items() if s is not None}


def test_d1_states_are_there_when_the_first_heartbeat_is_answered(store_dir: Path) -> None:
    with opened(store_dir) as store:
        store.create_topic("t", 2)
        SharingMember(store, "a").join()
        wanted = {key(store, number): (2, -1, -1) for number in range(2)}
        assert held(store) == wanted
    with opened(store_dir) as store:
        assert held(store) == wanted
        assert coordinator(store).share_partitions("g") == sorted(wanted)
        member = SharingMember(store, "a").join()  # nothing is begun anew
        assert (member.epoch, member.has, held(store)) == (2, {0, 1}, wanted)
        store.add_partitions("t", 3)
        member.beat()
        assert held(store) == {**wanted, key(store, 2): (3, 0, 0)}


def test_q98_an_altered_offset_begins_a_state_anew(store_dir: Path) -> None:
    with opened(store_dir) as store:
        store.create_topic("t", 2)
        at = TopicPartition("t", 1)
        for offset, epoch in ((7, 2), (3, 3)):
            assert coordinator(store).alter_share_offsets("g", {at: offset}) == {at: None}
            assert held(store) == {key(store, 1): (epoch, offset, 0)}
            assert share_info(store).epoch == epoch


def test_q100_a_deleted_group_leaves_nothing(store_dir: Path) -> None:
    with opened(store_dir) as store:
        store.create_topic("t", 2)
        for group in ("g", "h"):
            SharingMember(store, "a", group=group).join().leave()
        coordinator(store).delete_share_group("g")
        assert (held(store), offsets(store).groups()) == ({}, {"h"})
    with opened(store_dir) as store:
        assert (held(store), len(held(store, "h")), offsets(store).groups()) == ({}, 2, {"h"})


@pytest.mark.parametrize("used", [False, True])
def test_q46_a_deleted_topic_leaves_nothing(store_dir: Path, used: bool) -> None:
    """Also in a process that has not used the group before."""
    with opened(store_dir) as store:
        store.create_topic("t", 2)
        store.create_topic("u")
        SharingMember(store, "a", "t", "u").join()
        left = key(store, 0, "u")
        if used:
            store.delete_topic("t")
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        if not used:
            store.delete_topic("t")
        assert list(held(store)) == [left]
        assert coordinator(store).share_partitions("g") == [left]


def test_a_crash_between_the_note_and_the_states(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process begins them; start offsets are those of the first try."""
    with opened(store_dir) as store:
        store.create_topic("t", 2)

        def fail(states: object) -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(shared(store, StateLog), "initialise", fail)
            with pytest.raises(StorageError):
                SharingMember(store, "a").join()
        assert [each.kind for each in offsets(store).share("g")] == [ShareKind.PARTITIONS]
    with opened(store_dir) as store:
        assert (coordinator(store).exists("g"), held(store)) == (True, {})
        assert SharingMember(store, "a").join().has == {0, 1}
        assert held(store) == {key(store, number): (2, -1, -1) for number in range(2)}


def test_q98_a_crash_between_an_altered_offset_and_its_note(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers between the two. The next process keeps the offset, and begins the other partition."""
    with opened(store_dir) as store:
        store.create_topic("t", 2)
        write, writes = offsets(store).write_share, list[object]()

        def fail(*args: Any) -> None:
            if writes:
                raise StorageError("the disk is full")
            writes.append(write(*args))

        with monkeypatch.context() as patch:
            patch.setattr(offsets(store), "write_share", fail)
            with pytest.raises(StorageError):
                coordinator(store).alter_share_offsets("g", {TopicPartition("t", 1): 7})
        altered = {key(store, 1): (2, 7, 0)}
        assert (held(store), coordinator(store).share_partitions("g")) == (altered, [])
    with opened(store_dir) as store:
        member = SharingMember(store, "a").join()
        assert (member.epoch, member.has) == (2, {0, 1})
        assert held(store) == {key(store, 0): (2, -1, -1), **altered}
        assert coordinator(store).share_partitions("g") == sorted(held(store))


def test_a_state_whose_note_was_lost_may_be_of_a_later_epoch(store_dir: Path) -> None:
    """The group's epoch follows it, so that the next state has a later one."""
    with opened(store_dir) as store:
        store.create_topic("t")
        info = store.topics()["t"]
        begun = TopicPartitionsInfo("t", frozenset({0}))
        record = ShareStateTopics(initializing={names.topic_id_bytes(info.topic_id): begun})
        offsets(store).write_share("g", [(ShareRecordKey(ShareKind.PARTITIONS), record)])
        shared(store, StateLog).initialise({key(store, 0): (9, 4)})
    with opened(store_dir) as store:
        assert SharingMember(store, "a").join().has == {0}
        assert (held(store), share_info(store).epoch) == ({key(store, 0): (9, 4, 0)}, 9)
