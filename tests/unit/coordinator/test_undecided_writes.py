"""Promise: what a group's coordinator has written and could not see committed is no failure. Until that is
decided the group answers nobody, and then it is what the log says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_members import Classic, Member, info
from groups import Monotonic, Unsynced, coordinator, offsets
from undecided import Undecided
from waiting import until

import segstore
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.consumers.keeper import RETRY_MS
from segstore.coordinator.group.consumers.member import STATIC_LEAVE_EPOCH
from segstore.coordinator.offsets import cache
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.offsets.state import load
from segstore.coordinator.structs import (
    CLIENT_HOST,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)
from segstore.errors import (
    GroupNotFoundError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    ReplicaOfflineError,
    RequestTimedOutError,
    SegstoreError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)

SESSION_MS = 45_000
AT = TopicPartition("t", 0)


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.consumer.migration.policy": "bidirectional"}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", 6)
        coordinator(store, clock)
        yield store


def undecided(store: segstore.Store) -> Undecided:
    return Undecided(store.partition(TOPIC, 0).partition_for_write())


def test_a_member_that_was_removed_is_not_answered_as_if_it_were_there(
    store: segstore.Store, clock: Monotonic
) -> None:
    a = Member(store, "a").join()
    log = undecided(store)
    clock.now += SESSION_MS + 1
    for _ in range(2):  # the removal of "a" may be committed, so it must not hear that it has all
        with pytest.raises(OffsetNotAvailableError, match="not known yet"):
            coordinator(store).run_due() or a.beat()
    log.commit()
    with pytest.raises(UnknownMemberIdError):
        a.beat()
    b = Member(store, "b").join()
    assert b.has == set(range(6))


def test_a_member_whose_join_timed_out_is_in_the_group(store: segstore.Store, clock: Monotonic) -> None:
    a = Member(store, "a").join()
    log = undecided(store)
    b = Member(store, "b")
    with pytest.raises(RequestTimedOutError):
        b.join()
    with pytest.raises(OffsetNotAvailableError):
        a.beat()
    log.commit()
    a.beat()
    assert {each.member_id for each in info(store).members} == {"a", "b"}
    assert len(a.has) == 3
    clock.now += SESSION_MS - 1
    a.beat()
    clock.now += 2  # the session of "b" began when its record was read
    a.beat()
    assert {each.member_id for each in info(store).members} == {"a"}


def test_a_new_group_whose_first_join_timed_out_is_there(store: segstore.Store) -> None:
    offsets(store).commit("other", {AT: OffsetAndMetadata(1)})
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        Member(store, "a").join()
    log.commit()
    a = Member(store, "a")
    a.epoch = 1  # as if the answer had come
    assert a.beat().epoch == 1
    assert [each.member_id for each in info(store).members] == ["a"]


def test_offsets_are_those_that_are_committed(store: segstore.Store) -> None:
    held = offsets(store)
    held.commit("g", {AT: OffsetAndMetadata(1)})
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        held.commit("g", {AT: OffsetAndMetadata(2)})
    assert held.fetch("g")[AT].offset == 1
    log.commit()
    assert held.fetch("g")[AT].offset == 2


def test_an_upgrade_that_timed_out_is_one(store: segstore.Store) -> None:
    offsets(store).commit("g", {AT: OffsetAndMetadata(1)})
    classic = Classic(store, "c")
    classic.join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        Member(store, "a").join()
    log.commit()
    coordinator(store).run_due()
    assert {each.member_id for each in info(store).members} == {classic.member_id, "a"}


def test_a_downgrade_that_timed_out_is_one(store: segstore.Store, clock: Monotonic) -> None:
    a = Member(store, "a").join()
    classic = Classic(store, "c")
    classic.join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        a.leave()
    log.commit()
    with pytest.raises(GroupNotFoundError):
        a.beat()
    assert coordinator(store).describe_consumers("g") is None


def test_an_interrupted_write_is_read_once_it_is_committed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = offsets(store)
    held.commit("g", {AT: OffsetAndMetadata(1)})
    log = undecided(store)

    def wait(end_offset: int, acks: int, timeout_ms: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        held.commit("g", {AT: OffsetAndMetadata(2)})
    assert held.fetch("g")[AT].offset == 1
    log.commit()
    assert held.fetch("g")[AT].offset == 2


def test_no_answer_follows_a_removal_that_timed_out(store: segstore.Store, clock: Monotonic) -> None:
    a = Member(store, "a").join()
    undecided(store)
    clock.now += SESSION_MS + 1
    with pytest.raises(OffsetNotAvailableError, match="not known yet"):
        a.beat()  # this request has had "a" removed before it is answered


def test_a_commit_does_not_follow_its_members_removal(store: segstore.Store, clock: Monotonic) -> None:
    a = Member(store, "a").join()
    undecided(store)
    clock.now += SESSION_MS + 1
    with pytest.raises(OffsetNotAvailableError, match="not known yet"):
        coordinator(store).commit(ConsumerGroupMetadata("g", a.epoch, "a"), {AT: OffsetAndMetadata(1)})


def test_a_refused_write_does_not_decide_the_one_before(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(clock.now, 3_000, 2 * SESSION_MS)
    Member(store, "i", instance_id="i", client_host=CLIENT_HOST, pulse=pulse).join()
    a = Member(store, "a").join()
    log = undecided(store)

    def refuse(acks: int) -> None:
        raise NotEnoughReplicasError("a replica has left the ISR")

    def wait(end_offset: int, acks: int, timeout_ms: float) -> None:
        monkeypatch.setattr(log, "check", refuse)
        raise RequestTimedOutError("the records were appended, and are not committed yet")

    monkeypatch.setattr(log, "wait", wait)
    del pulse
    clock.now += SESSION_MS + 1  # "i" leaves for a while, which times out; that "a" is removed is refused
    coordinator(store).run_due()
    with pytest.raises(OffsetNotAvailableError, match="not known yet"):
        a.beat()


@pytest.mark.parametrize("error", [ReplicaOfflineError("no leader"), UnsupportedVersionError("99")], ids=repr)
def test_a_group_that_cannot_be_read_does_not_keep_others_from_what_is_due(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch, error: SegstoreError
) -> None:
    Member(store, "a").join()
    other = Classic(store, "c", group="other")
    other.join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        Member(store, "b").join()
    log.commit()

    def check_decided(group: str) -> None:
        raise error

    monkeypatch.setattr(offsets(store), "check_decided", check_decided)
    clock.now += SESSION_MS + 1
    coordinator(store).run_due()
    assert coordinator(store).members("other") == []


def test_a_new_group_whose_first_join_is_lost_is_none(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets(store).commit("other", {AT: OffsetAndMetadata(1)})
    log = undecided(store)

    def lose(acks: int) -> None:
        raise NotLeaderOrFollowerError("another replica leads, and has nothing of it")

    with monkeypatch.context() as patched:
        patched.setattr(log, "check", lose)
        with pytest.raises(NotLeaderOrFollowerError):
            Member(store, "a").join()
    coordinator(store).run_due()
    assert coordinator(store).ids() == {"other"}
    log.commit()
    assert Member(store, "a").join().has == set(range(6))


def test_nothing_is_loaded_to_ask_whether_a_write_is_decided(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(store, "a").join()
    log = undecided(store)
    with pytest.raises(RequestTimedOutError):
        Member(store, "b").join()
    loaded: list[object] = []
    monkeypatch.setattr(cache, "load", lambda source: loaded.append(source) or load(source))
    for _ in range(3):
        coordinator(store).run_due()
        with pytest.raises(OffsetNotAvailableError):
            a.beat()
    assert not loaded  # a partition that all groups share may be large
    log.commit()
    a.beat()
    assert len(loaded) == 1


@pytest.mark.parametrize("write", ["timed out", "refused"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "classic"])
def test_a_consumer_that_cannot_say_that_it_leaves_is_closed_and_removed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, kind: str, write: str
) -> None:
    other = Member(store, "other").join()
    said = {
        "dynamic": {"group_protocol": "consumer"},
        "static": {"group_protocol": "consumer", "group_instance_id": "i"},
        "classic": {},
    }[kind]
    consumer = segstore.Consumer(store, group_id="g", enable_auto_commit=False, **said)
    consumer.subscribe(["t"])
    until(lambda: consumer.poll(0) or (other.beat() and len(consumer.assignment()) == 3))
    log = undecided(store)

    def refuse(acks: int) -> None:
        raise NotEnoughReplicasError("too few replicas are in sync")

    with monkeypatch.context() as patched:
        if write == "refused":
            patched.setattr(log, "check", refuse)
        consumer.close()
    log.commit()
    clock = coordinator(store)._clock
    assert isinstance(clock, Monotonic)
    clock.now += 2 * RETRY_MS
    coordinator(store).run_due()
    left = {each.member_id: each.epoch for each in info(store).members if each.member_id != "other"}
    assert list(left.values()) == ([STATIC_LEAVE_EPOCH] if kind == "static" else [])
