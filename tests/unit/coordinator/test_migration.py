"""Groups that change between the classic protocol and KIP-848's while they have members (Kafka:
group.consumer.migration.policy). Members are only requests, and the test sets the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from group_members import CLASSIC_SESSION_MS, REBALANCE_MS, Classic, Member, info
from groups import COOPERATIVE, Monotonic, Unsynced, coordinator, member, offsets, owned, take_turns
from waiting import until

import segstore
from segstore.coordinator.consumer_protocol import encode_subscription
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.group.classic.member import ClassicGroupState, Joining
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.consumer_schema import ClassicMember
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    StorageError,
    UnknownMemberIdError,
)

PARTITIONS = 6
EVERY = set(range(PARTITIONS))
AT = TopicPartition("t", 0)
CONFIG = {"offsets.topic.num.partitions": 1}
Any_ = Classic | Member


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic, request: pytest.FixtureRequest) -> Iterator[segstore.Store]:
    """A store with these settings besides CONFIG, if the test gives some."""
    more = getattr(request, "param", {})
    with segstore.open(store_dir, config=CONFIG | more, files=Unsynced()) as store:
        coordinator(store, clock)
        store.create_topic("t", PARTITIONS)
        yield store


def step(each: Any_) -> None:
    if isinstance(each, Classic):
        each.turn()
    elif each.epoch == 0:
        each.join()
    else:
        each.beat()


def check_apart(*members: Any_) -> None:
    """No partition is two members' at once."""
    every = [number for each in members for number in each.has]
    assert len(every) == len(set(every)), [(type(each).__name__, each.has) for each in members]


def settle(*members: Any_) -> list[set[int]]:
    """Let the members have turns until all partitions are theirs, each a fair part."""
    for _ in range(40):
        for each in members:
            step(each)
            check_apart(*members)
        sizes = [len(each.has) for each in members]
        if sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1 and _is_stable(members[0].store):
            return [each.has for each in members]
    raise AssertionError(f"the group does not come to rest: {[each.has for each in members]}")


def _is_stable(store: segstore.Store) -> bool:
    return coordinator(store).state("g").value == "Stable"


def is_consumer_group(store: segstore.Store) -> bool:
    return coordinator(store).describe_consumers("g") is not None


# --- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_roll_over_one_by_one_and_back(store: segstore.Store, assignor: str) -> None:
    old = [Classic(store, name, assignor) for name in "abc"]
    settle(*old)
    new: list[Member] = []
    for number, each in enumerate(list(old)):
        new.append(Member(store, f"n{number}").join())
        settle(*old, *new)
        assert is_consumer_group(store)
        each.leave()
        old.remove(each)
        settle(*old, *new)
    assert offsets(store).group("g") is None
    for number, each in enumerate(list(new)):
        old.append(Classic(store, f"o{number}", assignor))
        settle(*old, *new)
        assert is_consumer_group(store)
        each.leave()
        new.remove(each)
        settle(*old, *new)
    assert not is_consumer_group(store)
    assert offsets(store).consumer("g") == {}
    described = coordinator(store).describe("g")
    assert described is not None
    assert (described.state, described.protocol) == (ClassicGroupState.STABLE, assignor)


@pytest.mark.parametrize("seed", range(6))
def test_members_of_both_kinds_come_and_go_as_they_like(store: segstore.Store, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    members: list[Any_] = []
    kinds = ["cooperative-sticky"] if seed % 2 else ["range"]
    for number in range(60):
        if len(members) < 2 or (len(members) < 5 and dice.random() < 0.15):
            name = f"m{number}"
            is_classic = dice.random() < 0.5
            members.append(Classic(store, name, dice.choice(kinds)) if is_classic else Member(store, name))
        elif dice.random() < 0.15:
            gone = members.pop(dice.randrange(len(members)))
            if (isinstance(gone, Member) and gone.epoch) or (isinstance(gone, Classic) and gone.member_id):
                gone.leave()
        else:
            step(dice.choice(members))
        check_apart(*members)
    settle(*members)
    kinds_left = {type(each) for each in members}
    assert is_consumer_group(store) == (Member in kinds_left)


@pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_consumers_in_the_process_take_part(store: segstore.Store, settings: dict[str, Any]) -> None:
    settings = {**settings, "enable_auto_commit": False}
    with member(store, "t", **settings) as first, member(store, "t", **settings) as second:
        take_turns([first, second])
        new = Member(store, "n").join()

        def share(*consumers: Any) -> None:
            for _ in range(8):
                take_turns(consumers, 1)
                if new.epoch:
                    new.beat()
                every = [number for each in consumers for number in owned(each)] + sorted(new.has)
                assert len(every) == len(set(every))
            assert set(every) == EVERY

        share(first, second)
        assert [len(owned(first)), len(owned(second)), len(new.has)] == [2, 2, 2]
        first.commit({TopicPartition("t", 0): OffsetAndMetadata(3)})
        second.close()
        share(first)
        new.leave()
        new.epoch, new.given = 0, {}
        share(first)
        assert (owned(first), coordinator(store).state("g")) == (EVERY, ClassicGroupState.STABLE)
        assert first.committed(TopicPartition("t", 0)) == 3


@pytest.mark.parametrize("store", [{"group.initial.rebalance.delay.ms": 0}], indirect=True)
def test_a_group_changes_though_a_member_that_came_has_not_its_assignor(store: segstore.Store) -> None:
    both = {"partition_assignment_strategy": ["range", "cooperative-sticky"], "enable_auto_commit": False}
    with member(store, "t", **both) as first, member(store, "t", **COOPERATIVE) as second:
        take_turns([first])
        second.poll()  # the group has chosen range, and will choose the other one
        new = Member(store, "n").join()

        def shared() -> bool:
            take_turns([first, second], 1)
            new.beat()
            return owned(first) | owned(second) | new.has == EVERY and len(new.has) == 2

        until(shared)


@pytest.mark.parametrize("store", [{"group.initial.rebalance.delay.ms": 0}], indirect=True)
def test_a_group_that_changes_before_a_consumer_in_the_process_has_synced(store: segstore.Store) -> None:
    """Its first assignor is not the one that the classic group had chosen."""
    both = {"partition_assignment_strategy": ["range", "cooperative-sticky"], "enable_auto_commit": False}
    with (
        member(store, "t", **both) as first,
        member(store, "t", **COOPERATIVE) as second,
        member(store, "t", **COOPERATIVE) as third,
    ):
        take_turns([first, second])
        for each in (third, first, second):  # the second one is the last to join: the first has not synced
            each.poll()
        new = Member(store, "n").join()

        def shared() -> bool:
            take_turns([first, second, third], 1)
            new.beat()
            every = [number for each in (first, second, third) for number in owned(each)]
            return {*every, *new.has} == EVERY and len(new.has) == 1

        until(shared)


def test_a_consumer_in_the_process_that_is_not_polled_loses_its_place(
    store: segstore.Store, clock: Monotonic
) -> None:
    with member(store, "t", max_poll_interval_ms=20_000) as first:
        take_turns([first])
        new = Member(store, "n").join()
        for _ in range(3):
            clock.now += 5_000
            new.beat()
        assert len(info(store).members) == 2  # its pulse is felt: longer than its session
        for _ in range(2):
            clock.now += 5_000
            new.beat()
        assert [each.member_id for each in info(store).members] == ["n"]
        settle(new)


# --- what can't be -------------------------------------------------------------------------------

POLICIES = {"bidirectional": (True, True), "upgrade": (True, False), "downgrade": (False, True)}
POLICIES["disabled"] = (False, False)


@pytest.mark.parametrize(
    ("store", "may"),
    [({"group.consumer.migration.policy": name}, may) for name, may in POLICIES.items()],
    indirect=["store"],
    ids=list(POLICIES),
)
def test_the_policy_says_which_way(store: segstore.Store, may: tuple[bool, bool]) -> None:
    may_upgrade, may_downgrade = may
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old)
    if may_upgrade:
        new.join()
    else:
        with pytest.raises(GroupNotFoundError, match=r"group\.consumer\.migration\.policy is"):
            new.join()
        assert coordinator(store).describe_consumers("g") is None
        old.beat()
        old.leave()
        new.join()  # a group without members is taken over by any policy
        old.join()  # and classic members may join it by any, as in Kafka
    settle(old, new)
    new.leave()
    assert is_consumer_group(store) is not may_downgrade
    settle(old)


UNREADABLE = (("range", b"\0"),)
UPGRADES: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"protocol_type": "connect"}, "is of type 'connect'"),
    "what can't be read": ({"protocols": UNREADABLE}, "can't become a consumer group"),
}


@pytest.mark.parametrize("name", UPGRADES)
def test_other_groups_stay_classic(store: segstore.Store, name: str) -> None:
    fields, words = UPGRADES[name]
    found = coordinator(store)
    told = encode_subscription(MemberSubscription(("t",)))
    joined = found.join("g", Joining(**{"protocols": (("range", told),), **fields})).get()
    assert joined is not None
    found.sync("g", joined.member_id, joined.generation, None, {})
    with pytest.raises(GroupNotFoundError, match=words):
        Member(store, "n").join()
    found.heartbeat("g", joined.member_id, joined.generation)
    assert offsets(store).consumer("g") == {}


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "another type": ({"protocol_type": "connect"}, InconsistentGroupProtocolError),
    "no protocol": ({"protocols": ()}, InconsistentGroupProtocolError),
    "no protocol in common": ({"protocols": (("sticky", b""),)}, InconsistentGroupProtocolError),
    "what can't be read": ({"protocols": UNREADABLE}, InconsistentGroupProtocolError),
    "no id yet": ({"needs_member_id": True}, MemberIdRequiredError),
    "an instance of nobody": ({"member_id": "x", "group_instance_id": "j"}, UnknownMemberIdError),
    "an instance of another": ({"member_id": "x", "group_instance_id": "i"}, FencedInstanceIdError),
    "too many": ({"member_id": "x"}, GroupMaxSizeReachedError),
}


@pytest.mark.parametrize("store", [{"group.consumer.max.size": 3}], indirect=True)
def test_members_of_the_classic_protocol_are_refused(store: segstore.Store) -> None:
    old, new = Classic(store, "o"), Member(store, "n", instance_id="i")
    settle(old, new)
    told = (("range", encode_subscription(MemberSubscription(("t",)))),)
    found, before = coordinator(store), info(store)
    for name, (fields, error) in REFUSED.items():
        if name == "too many":
            settle(old, new, Classic(store, "last"))
            before = info(store)
        with pytest.raises(error):
            found.join("g", Joining(**{"protocols": told, **fields}))
        assert info(store) == before, name


CALLS: dict[str, tuple[Callable[[GroupCoordinator, Classic], object], type[Exception]]] = {
    "a heartbeat of KIP-848's": (lambda g, _: g.heartbeat("g", "n", 2), UnknownMemberIdError),
    "a sync of KIP-848's": (lambda g, _: g.sync("g", "n", 2, None), UnknownMemberIdError),
    "a heartbeat of nobody": (lambda g, _: g.heartbeat("g", "z", 2), UnknownMemberIdError),
    "a later heartbeat": (lambda g, o: g.heartbeat("g", o.member_id, 9), IllegalGenerationError),
    "a later sync": (lambda g, o: g.sync("g", o.member_id, 9, None), IllegalGenerationError),
    "a sync by another protocol": (
        lambda g, o: g.sync("g", o.member_id, o.generation, "sticky"),
        InconsistentGroupProtocolError,
    ),
    "a later commit": (
        lambda g, o: g.check_commit("g", o.generation + 1, o.member_id),
        IllegalGenerationError,
    ),
    "a later commit of KIP-848's": (lambda g, _: g.check_commit("g", 9, "n"), StaleMemberEpochError),
    "a later commit in a transaction": (
        lambda g, o: g.while_valid(ConsumerGroupMetadata("g", 9, o.member_id), (), lambda: None),
        IllegalGenerationError,
    ),
    "a later fetch": (lambda g, o: g.check_fetch("g", o.member_id, 9), IllegalGenerationError),
    "a commit of nobody": (lambda g, _: g.check_commit("g", -1, ""), UnknownMemberIdError),
}


def test_generations_are_checked_by_the_kind_of_member(store: segstore.Store) -> None:
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old, new)
    for name, (call, error) in CALLS.items():
        print(name)
        with pytest.raises(error):
            call(coordinator(store), old)
    old.commit(4)
    coordinator(store).while_valid(old.metadata, (), lambda: None)
    assert offsets(store).fetch("g")[AT].offset == 4


# --- conversions in the middle ---------------------------------------------------------------------


def test_members_that_wait_for_others_are_asked_to_join_anew(store: segstore.Store) -> None:
    first = Classic(store, "a")
    settle(first)
    second = Classic(store, "b").join()
    assert second.joining is not None
    assert not second.joining.done
    new = Member(store, "n").join()
    with pytest.raises(RebalanceInProgressError):
        second.joining.get()
    settle(first, second, new)


@pytest.mark.parametrize("store", [{"group.initial.rebalance.delay.ms": 0}], indirect=True)
def test_partitions_stay_with_cooperative_members_whose_rebalance_is_broken_off(
    store: segstore.Store,
) -> None:
    """A broker of Kafka 4.4 forgets the last assignments then, and gives the partitions to the new member."""
    first, second = Classic(store, "a", "cooperative-sticky"), Classic(store, "b", "cooperative-sticky")
    settle(first)
    second.join()
    first.join()  # the next generation has begun, and its leader has not assigned anything
    third = Classic(store, "c", "cooperative-sticky").join()
    new = Member(store, "n").join()
    assert (first.has, new.has) == (EVERY, set())
    settle(first, second, third, new)


@pytest.mark.parametrize("store", [{"group.initial.rebalance.delay.ms": 0}], indirect=True)
def test_partitions_that_a_cooperative_member_is_giving_up_are_given_to_nobody(store: segstore.Store) -> None:
    """The member was told of its new assignment, and has not joined again to say what it has given up. A
    broker of Kafka 4.4 gives the partitions to the new member.
    """
    first, second = Classic(store, "a", "cooperative-sticky"), Classic(store, "b", "cooperative-sticky")
    settle(first)
    second.join()
    first.join()
    first.turn()  # it leads, and gives itself a half
    assert first.syncing is not None
    new = Member(store, "n").join()
    assert (first.has, new.has) == (EVERY, set())
    for _ in range(3):
        new.beat()
        check_apart(first, new)
    with pytest.raises(RebalanceInProgressError):
        first.beat()
    settle(first, second, new)


def test_a_partition_that_a_member_claims_and_another_one_was_given_stays_there(
    store: segstore.Store,
) -> None:
    first = Classic(store, "a", "cooperative-sticky")
    settle(first)
    second = Classic(store, "b", "cooperative-sticky")
    second.has = {0, 1}  # of a generation that it was left out of
    second.join()
    new = Member(store, "n").join()
    second.has = set()
    assert new.has == set()
    settle(first, second, new)


def test_a_group_whose_first_generation_has_not_begun_is_converted(store: segstore.Store) -> None:
    told = encode_subscription(MemberSubscription(("t",)))
    waiting = coordinator(store).join("g", Joining(protocols=(("range", told),), initial_delay_ms=3000))
    assert not waiting.done
    new = Member(store, "n").join()
    assert new.epoch == 1
    assert len(info(store).members) == 2
    coordinator(store).leave("g", waiting.member_id)
    settle(new)


def test_nothing_changes_where_the_conversion_cant_be_written(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("no space")

    old, new = Classic(store, "o"), Member(store, "n")
    settle(old)
    with monkeypatch.context() as broken:
        broken.setattr(offsets(store), "write_consumer", fail)
        with pytest.raises(StorageError):
            new.join()
    assert not is_consumer_group(store)
    old.beat()
    settle(old, new)
    with monkeypatch.context() as broken:
        broken.setattr(offsets(store), "write_group", fail)
        with pytest.raises(StorageError):
            new.leave()
    assert is_consumer_group(store)
    old.beat()
    new.leave()
    settle(old)
    assert not is_consumer_group(store)


def test_a_group_that_goes_back_waits_for_all_in_their_generation(store: segstore.Store) -> None:
    """Members keep what they have until they join: none is told that its generation is over."""
    first, second, new = Classic(store, "a"), Classic(store, "b"), Member(store, "n")
    settle(first, second, new)
    epoch = info(store).epoch
    new.leave()
    assert (coordinator(store).generation("g"), first.generation) == (epoch, epoch)
    for each in (first, second):
        with pytest.raises(RebalanceInProgressError):
            each.beat()
        each.commit(9)
    settle(first, second)
    assert coordinator(store).generation("g") == epoch + 1


# --- static members ------------------------------------------------------------------------------


def test_a_static_member_goes_over_and_keeps_its_partitions(store: segstore.Store) -> None:
    old, other = Classic(store, "o", instance="i"), Classic(store, "b")
    had = settle(old, other)[0]
    new = Member(store, "n", instance_id="i").join()
    settle(new, other)
    assert new.has == had
    with pytest.raises(FencedInstanceIdError):
        old.beat()
    back = Classic(store, "back", instance="i").join()
    assert back.joining is not None
    assert back.joining.done  # nobody else has to join anew
    settle(back, other)  # the last of KIP-848 was replaced: the group is classic again
    assert back.has == had
    assert not is_consumer_group(store)
    assert coordinator(store).generation("g") == back.generation


def test_a_static_member_goes_back_while_others_have_not_settled(store: segstore.Store) -> None:
    Member(store, "n", instance_id="i").join()
    other = Classic(store, "b").join()
    back = Classic(store, "back", instance="i").join()
    assert not is_consumer_group(store)
    assert back.joining is not None
    assert not back.joining.done
    settle(back, other)


# --- time ----------------------------------------------------------------------------------------


def test_sessions_are_those_that_each_kind_has(store: segstore.Store, clock: Monotonic) -> None:
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old, new)
    clock.now += CLASSIC_SESSION_MS - 1
    old.beat()
    clock.now += CLASSIC_SESSION_MS - 1
    new.beat()
    assert len(info(store).members) == 2
    clock.now += 1
    new.beat()
    assert [each.member_id for each in info(store).members] == ["n"]
    settle(new)


def test_a_group_whose_last_member_of_kip_848_dies_is_classic_again(
    store: segstore.Store, clock: Monotonic
) -> None:
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old, new)
    for _ in range(5):
        clock.now += CLASSIC_SESSION_MS - 1
        old.turn()
    assert not is_consumer_group(store)
    settle(old)


def test_a_member_that_came_in_time_is_not_waited_for(store: segstore.Store, clock: Monotonic) -> None:
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old, new)
    passed = 0
    while passed < 3 * REBALANCE_MS:
        passed += CLASSIC_SESSION_MS - 1
        clock.now += CLASSIC_SESSION_MS - 1
        old.beat()
        new.beat()
    assert len(info(store).members) == 2


@pytest.mark.parametrize("wait", ["join", "sync"])
def test_a_member_that_comes_too_late_is_removed(store: segstore.Store, clock: Monotonic, wait: str) -> None:
    old, new = Classic(store, "o"), Member(store, "n")
    settle(old, new)
    third = Member(store, "m").join() if wait == "join" else None
    if wait == "sync":
        old.join()
    passed = 0.0
    while passed < REBALANCE_MS + CLASSIC_SESSION_MS:
        passed += CLASSIC_SESSION_MS - 1
        clock.now += CLASSIC_SESSION_MS - 1
        for each in (new, third):
            if each is not None:
                each.beat()
        if wait == "join":
            with pytest.raises((RebalanceInProgressError, UnknownMemberIdError)):
                old.beat()
        else:
            with suppress(UnknownMemberIdError):
                coordinator(store).heartbeat("g", old.member_id, new.epoch)
    with pytest.raises(UnknownMemberIdError):
        old.beat()


# --- restarts ------------------------------------------------------------------------------------


def test_both_kinds_go_on_after_a_restart(store_dir: Path, clock: Monotonic) -> None:
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        coordinator(store, clock)
        store.create_topic("t", PARTITIONS)
        old, new = Classic(store, "o"), Member(store, "n")
        settle(old, new)
        before = info(store)
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        coordinator(store, clock)
        assert info(store) == before
        told = next(each.subscription for each in before.members if each.is_classic)
        assert told.classic is not None
        assert isinstance(told.classic, ClassicMember)
        assert told.classic.session_timeout_ms == CLASSIC_SESSION_MS
        old.store = new.store = store
        old.beat()
        old.commit(5)
        new.beat()
        clock.now += CLASSIC_SESSION_MS
        new.beat()  # the session of the other has begun with the server, and is its own
        assert [each.member_id for each in info(store).members] == ["n"]
        settle(new)
