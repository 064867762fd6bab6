"""The group coordinator by itself: members are only requests, and the test sets the clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from groups import SESSION_MS, Monotonic, Unsynced, coordinator, offsets

import segstore
from segstore.coordinator.group.classic.member import ClassicGroupState, Joining, Ticket
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberIdError,
)

REBALANCE_MS = 60_000
AT = {TopicPartition("t", 0): OffsetAndMetadata(1)}


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t")
        yield store


@pytest.fixture
def found(store: segstore.Store, clock: Monotonic) -> GroupCoordinator:
    return coordinator(store, clock)


def joining(*protocols: str, **said: Any) -> Joining:
    """A request with subscriptions that are none of a consumer's."""
    said = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, **said}
    return Joining(protocols=tuple((name, name.encode()) for name in protocols or ("p",)), **said)


def alone(found: GroupCoordinator, **said: Any) -> tuple[str, int]:
    """A group of one member, stable: (member id, generation)."""
    joined = found.join("g", joining(**said)).get()
    assert joined is not None
    ticket = found.sync(
        "g",
        joined.member_id,
        joined.generation,
        "p",
        {joined.member_id: b"all"},
        said.get("group_instance_id"),
    )
    assert ticket.get() == b"all"
    return joined.member_id, joined.generation


def two(found: GroupCoordinator) -> tuple[str, str, int]:
    """A stable group of a leader and another member."""
    first, _ = alone(found)
    waits = found.join("g", joining())
    again = found.join("g", joining(member_id=first)).get()
    assert again is not None
    other = waits.get()
    assert other is not None
    assert (other.members, [m.member_id for m in again.members]) == ((), [first, other.member_id])
    asked = found.sync("g", other.member_id, other.generation, "p")
    assert asked.get() is None
    found.sync("g", first, again.generation, "p", {first: b"1", other.member_id: b"2"})
    assert asked.get() == b"2"
    return first, other.member_id, again.generation


def test_states_and_generations(found: GroupCoordinator) -> None:
    assert (found.state("g"), found.generation("g")) == (ClassicGroupState.DEAD, -1)
    first = found.join("g", joining()).get()
    assert first is not None
    assert found.state("g") is ClassicGroupState.COMPLETING_REBALANCE
    found.sync("g", first.member_id, 1, "p", {})
    assert found.state("g") is ClassicGroupState.STABLE
    found.join("g", joining())
    assert found.state("g") is ClassicGroupState.PREPARING_REBALANCE
    with pytest.raises(RebalanceInProgressError):
        found.heartbeat("g", first.member_id, 1)
    found.leave("g", first.member_id)
    assert (found.state("g"), found.generation("g")) == (ClassicGroupState.COMPLETING_REBALANCE, 2)
    assert found.ids() == {"g"}


VOTES = {
    "the one that all have": ([["a", "b"], ["b", "c"]], "b"),
    "the one that most like best": ([["a", "b"], ["b", "a"], ["b", "a"]], "b"),
    "a tie is the first's": ([["a", "b"], ["b", "a"]], "a"),
}


@pytest.mark.parametrize("case", VOTES)
def test_members_vote(found: GroupCoordinator, case: str) -> None:
    lists, chosen = VOTES[case]
    first = found.join("g", joining(*lists[0])).member_id
    tickets = [found.join("g", joining(*protocols)) for protocols in lists[1:]]
    again = found.join("g", joining(*lists[0], member_id=first)).get()
    assert again is not None
    assert {again.protocol} | {t.get().protocol for t in tickets} == {chosen}


WRONG = {
    "an unknown member": (lambda c, m, g: c.heartbeat("g", "x", g), UnknownMemberIdError),
    "an older generation": (lambda c, m, g: c.heartbeat("g", m, g - 1), IllegalGenerationError),
    "a commit of an older one": (
        lambda c, m, g: c.commit(ConsumerGroupMetadata("g", g - 1, m), AT),
        IllegalGenerationError,
    ),
    "a commit of nobody": (lambda c, m, g: c.commit(ConsumerGroupMetadata("g"), AT), UnknownMemberIdError),
    "a check of nobody": (lambda c, m, g: c.check_commit("g", -1, ""), UnknownMemberIdError),
    "a static one that is none": (lambda c, m, g: c.check_commit("g", g, m, "x"), UnknownMemberIdError),
    "a join by a wrong id": (lambda c, m, g: c.join("g", joining(member_id="x")), UnknownMemberIdError),
    "nothing in common": (lambda c, m, g: c.join("g", joining("q")), InconsistentGroupProtocolError),
    "another type": (
        lambda c, m, g: c.join("g", joining(protocol_type="connect")),
        InconsistentGroupProtocolError,
    ),
    "another protocol": (lambda c, m, g: c.sync("g", m, g, "q"), InconsistentGroupProtocolError),
    "a group without a name": (lambda c, m, g: c.join("", joining()), InvalidGroupIdError),
    "a commit for no group": (
        lambda c, m, g: c.while_valid(ConsumerGroupMetadata(), (), list),
        InvalidGroupIdError,
    ),
    "members to be gone": (lambda c, m, g: c.while_empty("g", lambda: None), NonEmptyGroupError),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(store: segstore.Store, found: GroupCoordinator, case: str) -> None:
    do, error = WRONG[case]
    member, generation = alone(found)
    with pytest.raises(error):
        do(found, member, generation)
    found.heartbeat("g", member, generation)
    assert offsets(store).fetch("g") == {}


def test_a_transaction_may_commit_for_a_group_by_its_name(found: GroupCoordinator) -> None:
    member, generation = alone(found)
    found.while_valid(ConsumerGroupMetadata("g"), (), list)
    found.while_valid(ConsumerGroupMetadata("g", generation, member), (), list)
    with pytest.raises(IllegalGenerationError):
        found.while_valid(ConsumerGroupMetadata("g", generation + 1, member), (), list)


def test_who_does_not_join_again_is_out(found: GroupCoordinator, clock: Monotonic) -> None:
    first, other, generation = two(found)
    waits = found.join("g", joining())
    clock.now += SESSION_MS - 1
    found.run_due()
    assert waits.get() is None
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        for member in (first, other):
            with pytest.raises(RebalanceInProgressError):
                found.heartbeat("g", member, generation)
        clock.now += SESSION_MS // 2
        found.run_due()
        if waits.done:
            break
    joined = waits.get()
    assert joined is not None
    assert (joined.leader, len(joined.members)) == (joined.member_id, 1)
    with pytest.raises(UnknownMemberIdError):
        found.heartbeat("g", first, generation)


def test_a_leader_that_brings_nothing_is_out(found: GroupCoordinator, clock: Monotonic) -> None:
    first, other, generation = two(found)
    tickets = [found.join("g", joining("p", "q", member_id=m)) for m in (first, other)]
    assert tickets[1].get() is not None
    asked = found.sync("g", other, generation + 1, "p")
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        clock.now += SESSION_MS // 2
        found.run_due()
        if asked.done:
            break
    with pytest.raises(RebalanceInProgressError):
        asked.get()
    assert {m.member_id for m in found.members("g")} == {other}


def test_an_assignment_that_can_not_be_kept_is_brought_again(
    store: segstore.Store, found: GroupCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = found.join("g", joining()).get()
    assert joined is not None

    def full(record: Any) -> None:
        raise StorageError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(offsets(store), "write_group", full)
        with pytest.raises(StorageError):
            found.sync("g", joined.member_id, 1, "p", {joined.member_id: b"all"})
    assert found.state("g") is ClassicGroupState.COMPLETING_REBALANCE
    assert found.sync("g", joined.member_id, 1, "p", {joined.member_id: b"all"}).get() == b"all"


def test_static_members(found: GroupCoordinator, clock: Monotonic) -> None:
    old, generation = alone(found, group_instance_id="x")
    new = found.join("g", joining(group_instance_id="x")).get()
    assert new is not None
    assert (new.generation, new.skip_assignment, new.leader) == (generation, True, new.member_id)
    assert found.sync("g", new.member_id, generation, "p", group_instance_id="x").get() == b"all"
    for refused in (found.heartbeat, lambda g, m, n, i: found.check_commit(g, n, m, i)):
        with pytest.raises(FencedInstanceIdError):
            refused("g", old, generation, "x")
    found.join("g", joining("p", "q", group_instance_id="x"))
    changed = found.join("g", joining("q", group_instance_id="x"))
    joined = changed.get()
    assert joined is not None
    assert joined.protocol == "q"
    assert joined.generation > generation
    clock.now += SESSION_MS
    found.run_due()
    assert found.state("g") is ClassicGroupState.EMPTY


def test_a_group_that_was_forgotten_begins_anew(store: segstore.Store, found: GroupCoordinator) -> None:
    member, _ = alone(found)
    found.leave("g", member)
    found.while_empty("g", lambda: offsets(store).delete("g"))
    found.forget("g")
    assert found.state("g") is ClassicGroupState.DEAD
    assert alone(found)[1] == 1


def test_the_first_members_are_waited_for(store_dir: Path, clock: Monotonic) -> None:
    config = {"group.initial.rebalance.delay.ms": 3_000, "offsets.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        found = coordinator(store, clock)
        first = found.join("g", joining())
        clock.now += 2_999
        second = found.join("g", joining())
        clock.now += 1
        found.run_due()
        assert (first.done, second.done) == (False, False)  # the second one made the wait begin anew
        clock.now += 3_000
        found.run_due()
        assert [t.get().generation for t in (first, second)] == [1, 1]


def test_offsets_live_as_long_as_their_group_has_members(store_dir: Path, clock: Monotonic) -> None:
    config = {"offsets.retention.minutes": 1, "offsets.topic.num.partitions": 1}
    now = 1_700_000_000_000
    with segstore.open(store_dir, config=config, files=Unsynced(), clock=lambda: now) as store:
        store.create_topic("t")
        found = coordinator(store, clock)
        member, generation = alone(found)
        found.commit(ConsumerGroupMetadata("g", generation, member), AT)
        now += 60_000
        assert offsets(store).expire() == {}
        found.leave("g", member)
        assert offsets(store).expire() == {}
        now += 60_000
        assert offsets(store).expire() == {"g": set(AT)}


def test_a_ticket_calls_once_whenever_it_is_asked_to() -> None:
    """Before it is done, and after; a failed one too."""
    told: list[str] = []
    ticket: Ticket[bytes] = Ticket("m")
    ticket.when_done(lambda: told.append("before"))
    assert told == []
    ticket.complete(b"x")
    ticket.fail(ValueError())
    ticket.when_done(lambda: told.append("after"))
    assert (told, ticket.get()) == (["before", "after"], b"x")
    failed: Ticket[bytes] = Ticket("m")
    failed.when_done(lambda: told.append("failed"))
    failed.fail(RebalanceInProgressError())
    assert told[-1] == "failed"


WEEKS_MS = 15 * 24 * 60 * 60_000


@pytest.mark.parametrize("kind", ["of members", "by its id", "whose offsets were deleted"])
def test_a_group_that_has_expired_is_none(store: segstore.Store, found: GroupCoordinator, kind: str) -> None:
    if kind == "of members":
        member, generation = alone(found)
        found.commit(ConsumerGroupMetadata("g", generation, member, None), AT)
        found.leave("g", member)
    else:
        found.commit(ConsumerGroupMetadata("g", -1, "", None), AT)
    if kind == "whose offsets were deleted":
        segstore.Groups(store).delete_offsets("g", ["t"])
    assert found.ids() == {"g"}
    offsets(store).expire(now_ms=store.context.clock() + WEEKS_MS)
    assert found.ids() == set()
    assert found.state("g") is ClassicGroupState.DEAD
    assert alone(found)[1] == 1


@pytest.mark.parametrize("kind", ["a member", "a member to come", "offsets"])
def test_a_group_that_is_in_use_stays_over_an_expiry(
    store: segstore.Store, found: GroupCoordinator, kind: str
) -> None:
    if kind == "a member":
        alone(found)
    elif kind == "offsets":
        found.commit(ConsumerGroupMetadata("g", -1, "", None), AT)
    else:
        with pytest.raises(MemberIdRequiredError) as given:
            found.join("g", joining(needs_member_id=True))
    offsets(store).expire()
    assert found.ids() == {"g"}
    if kind == "a member to come":
        assert found.join("g", joining(member_id=given.value.member_id)).get() is not None
