"""Share groups (KIP-932) when a write fails, when its outcome is not known, and when members in this process
end without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from groups import Monotonic, Unsynced, coordinator, offsets
from share_groups import SharingMember, States, key, share_info
from undecided import Undecided

import segstore
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.share.keeper import RETRY_MS
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    OffsetNotAvailableError,
    RequestTimedOutError,
    StorageError,
    UnknownMemberIdError,
)

SESSION_MS, INTERVAL_MS = 45_000, 1_000


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic, states: States) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}, files=Unsynced()) as store:
        store.create_topic("t", 4)
        coordinator(store, clock).set_share_states(lambda: states)
        yield store


def undecided(store: segstore.Store) -> Undecided:
    return Undecided(store.partition(TOPIC, 0).partition_for_write())


def failing(patch: pytest.MonkeyPatch, store: segstore.Store, after: int) -> None:
    """Let writes of share groups fail, but the first ones."""
    write, left = offsets(store).write_share, [after]

    def fail(*args: Any) -> None:
        if not left[0]:
            raise StorageError("the disk is full")
        left[0] -= 1
        write(*args)

    patch.setattr(offsets(store), "write_share", fail)


# --- writes that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1])
def test_a_join_that_could_not_be_written_may_be_tried_again(
    store: segstore.Store, states: States, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The first write is the note of new states, the second the member."""
    with monkeypatch.context() as patch:
        failing(patch, store, after)
        with pytest.raises(StorageError):
            SharingMember(store, "a").join()
    assert coordinator(store).exists("g") == (after > 0)
    member = SharingMember(store, "a").join()
    assert (member.epoch, member.has) == (2, {0, 1, 2, 3})
    assert {state.state_epoch for state in states.held.values()} == {2}


def test_a_removal_that_could_not_be_written_is_tried_again(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharingMember(store, "a").join()
    clock.now += SESSION_MS
    with monkeypatch.context() as patch:
        failing(patch, store, 0)
        coordinator(store).run_due()
    assert len(share_info(store).members) == 1
    clock.now += RETRY_MS
    coordinator(store).run_due()
    assert share_info(store).members == ()


@pytest.mark.parametrize("after", [0, 1])
def test_q98_an_alteration_that_could_not_be_written_may_be_tried_again(
    store: segstore.Store, states: States, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    at = TopicPartition("t", 0)
    with monkeypatch.context() as patch:
        failing(patch, store, after)
        with pytest.raises(StorageError):
            coordinator(store).alter_share_offsets("g", {at: 7})
    assert coordinator(store).alter_share_offsets("g", {at: 7}) == {at: None}
    assert (states.held[key(store, 0)].start, share_info(store).epoch) == (7, 2)
    assert coordinator(store).share_partitions("g") == [key(store, 0)]


@pytest.mark.parametrize("after", range(3))
def test_q100_a_deletion_that_could_not_be_written_may_be_tried_again(
    store: segstore.Store, states: States, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    SharingMember(store, "a").join().leave()
    with monkeypatch.context() as patch:
        failing(patch, store, after)
        if after < 2:
            with pytest.raises(StorageError):
                coordinator(store).delete_share_group("g")
        else:
            coordinator(store).delete_share_group("g")
    if after < 2:
        coordinator(store).delete_share_group("g")
    assert (states.held, offsets(store).groups()) == ({}, set())


# --- writes whose outcome is not known -------------------------------------------------------------


def test_a_new_group_whose_first_join_timed_out_is_there(store: segstore.Store, states: States) -> None:
    SharingMember(store, "b", group="other").join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        SharingMember(store, "a").join()
    for call in (SharingMember(store, "a").join, partial(SharingMember(store, "a").ask, epoch=2)):
        with pytest.raises(OffsetNotAvailableError):
            call()
    log.commit()
    assert SharingMember(store, "a").join().has == {0, 1, 2, 3}


def test_a_member_whose_join_timed_out_is_in_the_group(store: segstore.Store, clock: Monotonic) -> None:
    a = SharingMember(store, "a").join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        SharingMember(store, "b").join()
    with pytest.raises(OffsetNotAvailableError):
        a.beat()
    log.commit()
    a.beat()
    assert [member.member_id for member in share_info(store).members] == ["a", "b"]
    clock.now += SESSION_MS - 1
    a.beat()
    clock.now += 2  # the session of "b" began when its record was read
    a.beat()
    assert [member.member_id for member in share_info(store).members] == ["a"]


def test_a_member_that_was_removed_is_not_answered_as_if_it_were_there(
    store: segstore.Store, clock: Monotonic
) -> None:
    a = SharingMember(store, "a").join()
    log = undecided(store)
    clock.now += SESSION_MS + 1
    for _ in range(2):
        with pytest.raises(OffsetNotAvailableError, match="not known yet"):
            a.beat()
    log.commit()
    with pytest.raises(UnknownMemberIdError):
        a.beat()


# --- members in this process -----------------------------------------------------------------------


def test_q84_a_member_in_this_process_lives_as_long_as_its_pulse(
    store: segstore.Store, clock: Monotonic
) -> None:
    """It sends no heartbeats; one that was dropped is removed at the next look, not at its session's end."""
    pulse = Pulse(clock.now, 3_000, 300_000)
    a = SharingMember(store, "a")
    a.take(a.ask(epoch=0, pulse=pulse, **a.said))
    for _ in range(20):
        clock.now += 5_000
        coordinator(store).run_due()
    assert [member.member_id for member in share_info(store).members] == ["a"]
    assert pulse.beats > 10
    del pulse
    clock.now += 5_000
    coordinator(store).run_due()
    assert share_info(store).members == ()


def test_a_member_in_this_process_is_known_after_the_group_was_read_anew(
    store: segstore.Store, clock: Monotonic
) -> None:
    pulse = Pulse(clock.now, 3_000, 300_000)
    a = SharingMember(store, "a")
    a.take(a.ask(epoch=0, pulse=pulse, **a.said))
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        SharingMember(store, "b").join()
    log.commit()
    for _ in range(20):
        clock.now += 5_000
        coordinator(store).run_due()
    assert [member.member_id for member in share_info(store).members] == ["a"]


def test_q84_a_member_in_this_process_that_polls_too_late_is_removed(
    store: segstore.Store, clock: Monotonic
) -> None:
    pulse = Pulse(clock.now, 3_000, 10_000)
    a = SharingMember(store, "a")
    a.ask(epoch=0, pulse=pulse, **a.said)
    for passed, members in ((5_000, 1), (4_999, 1), (1, 0)):
        clock.now += passed
        coordinator(store).run_due()
        assert len(share_info(store).members) == members
