"""R21, R24 to R31: what the controller decides of brokers, in-sync replicas, leaders and assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from replication import KEY, NOW, beat, controller, led, sent, state, written

from segstore.errors import (
    DuplicateBrokerRegistrationError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NoReassignmentInProgressError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    SegstoreError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.cluster import BrokerHeartbeat, BrokerState
from segstore.replication.core.config import TopicSettings
from segstore.replication.core.controller import Controller
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.election import Election
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply
from segstore.replication.core.records import BrokerRecord, HeartbeatReply
from segstore.replication.core.registration import NO_LEADER

SESSION = 9_000
MISSING = ("other", 0)

# --- proposals -----------------------------------------------------------------------------------


def proposed(of: Controller, *isr: int, **fields: Any) -> AlterPartition:
    """The leader 0 proposes an ISR."""
    members = tuple((replica, of.cluster.brokers[replica].epoch) for replica in isr)
    return AlterPartition(0, 5, 10, members)._replace(**fields)


def judged(of: Controller, proposal: AlterPartition, key: Any = KEY) -> AlterPartitionReply:
    effects = of.alter_partition(key, proposal, of.cluster.brokers[proposal.leader].epoch)
    (reply,) = sent(effects)
    assert isinstance(reply, AlterPartitionReply)
    return reply


REFUSED: dict[str, tuple[tuple[int, ...], dict[str, Any], type[SegstoreError]]] = {
    "a higher leader epoch": ((0, 1), {"leader_epoch": 6}, NotControllerError),
    "a higher partition epoch": ((0, 1), {"partition_epoch": 11}, NotControllerError),
    "a lower leader epoch": ((0, 1), {"leader_epoch": 4}, FencedLeaderEpochError),
    "not the leader": ((0, 1), {"leader": 1}, InvalidRequestError),
    "a lower partition epoch": ((0, 1), {"partition_epoch": 9}, InvalidUpdateVersionError),
    "both epochs lower": ((0, 1), {"leader_epoch": 4, "partition_epoch": 9}, FencedLeaderEpochError),
    "without the leader": ((1, 2), {}, InvalidRequestError),
    "one twice": ((0, 1, 1), {}, InvalidRequestError),
    "recovering and not alone": ((0, 1), {"recovering": True}, InvalidRequestError),
    "recovering again": ((0,), {"recovering": True}, InvalidRequestError),
    "another registration": ((0,), {"isr": ((0, -1), (1, 0))}, IneligibleReplicaError),
    "not registered": ((0,), {"isr": ((0, -1), (2, 1 << 40))}, IneligibleReplicaError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_r21_a_proposal_is_refused(name: str) -> None:
    isr, fields, error = REFUSED[name]
    of = controller()
    before = led(of)
    reply = judged(of, proposed(of, *isr, **fields))
    assert (reply, of.partitions[KEY]) == (AlterPartitionReply(error), before)


def test_r21_a_replica_that_is_not_assigned_can_t_be_in_sync() -> None:
    of = controller()
    led(of, replicas=(0, 1), isr=(0, 1))
    assert judged(of, proposed(of, 0, 1, 2)).error is InvalidRequestError


INELIGIBLE: dict[str, Callable[[Controller], Any]] = {
    "fenced": lambda of: of.heartbeat(
        BrokerHeartbeat(2, of.cluster.brokers[2].epoch, of.next_offset, want_fence=True), NOW),
    "shutting down": lambda of: of.cluster.brokers.update(
        {2: of.cluster.brokers[2]._replace(shutting_down=True)}),
    "not registered": lambda of: of.cluster.brokers.pop(2),
    "registered anew": lambda of: (of.register(2, "new", -1, NOW + SESSION), beat(of, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", INELIGIBLE)
def test_r21_ineligible_members(name: str) -> None:
    of = controller()
    led(of, isr=(0, 1))
    proposal = proposed(of, 0, 1, 2)
    INELIGIBLE[name](of)
    assert judged(of, proposal).error is IneligibleReplicaError


def test_r21_of_an_unknown_partition() -> None:
    of = controller()
    led(of)
    assert judged(of, proposed(of, 0, 1), MISSING).error is UnknownTopicOrPartitionError


def test_r21_from_an_old_incarnation() -> None:
    of = controller()
    led(of)
    with pytest.raises(StaleBrokerEpochError):
        of.alter_partition(KEY, proposed(of, 0, 1), of.cluster.brokers[0].epoch - 1)


def test_r21_r25_what_is_taken_counts_one_partition_epoch() -> None:
    of = controller()
    led(of, recovering=True)
    reply = judged(of, proposed(of, 0, 1))
    assert reply == AlterPartitionReply(None, 5, 11, (0, 1))
    assert of.partitions[KEY] == state(isr=(0, 1), partition_epoch=11)


def test_r21_the_same_isr_again_changes_nothing() -> None:
    of = controller()
    led(of)
    assert judged(of, proposed(of, 0, 1, 2)) == AlterPartitionReply(None, 5, 10, (0, 1, 2))


# --- durable first -------------------------------------------------------------------------------

ANSWERED: dict[str, Callable[[Controller], Effects]] = {
    "a proposal": lambda of: of.alter_partition(KEY, proposed(of, 0, 1), of.cluster.brokers[0].epoch),
    "a registration": lambda of: of.register(1, "new", -1, NOW + SESSION),
    "a heartbeat that fences": lambda of: beat(of, 1, want_fence=True),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_r31_what_is_answered_was_written_before(name: str) -> None:
    of = controller()
    led(of)
    effects = ANSWERED[name](of)
    assert len(effects) > 1
    assert [type(effect) for effect in effects] == [Persist] * (len(effects) - 1) + [Send]


def test_r31_what_was_written_is_the_whole_state() -> None:
    of = controller(live=0)
    effects: Effects = ()
    for broker in range(3):
        effects += beat(of, broker)
    effects += of.create_partitions({KEY: (0, 1, 2)})
    effects += of.on_time(NOW + SESSION)
    read = controller(live=0)
    for effect in effects:
        if isinstance(effect, Persist):
            read.apply(effect.record)
    assert (read.partitions, read.cluster.brokers, read.next_offset) == (
        of.partitions, of.cluster.brokers, of.next_offset)  # fmt: skip


# --- registrations and sessions ------------------------------------------------------------------


def test_r27_a_broker_epoch_is_the_offset_of_its_record_and_rises() -> None:
    of = controller()
    led(of)
    before, at = of.cluster.brokers[1].epoch, of.next_offset
    effects = of.register(1, "new", -1, NOW + SESSION)
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert isinstance(records[-1], BrokerRecord)
    assert sent(effects) == [at + len(records) - 1]
    assert of.cluster.brokers[1].epoch == at + len(records) - 1 > before
    assert of.cluster.brokers[1].fenced


def test_r27_another_incarnation_waits_for_the_session_to_end() -> None:
    of = controller()
    with pytest.raises(DuplicateBrokerRegistrationError, match="incarnation i1"):
        of.register(1, "new", -1, NOW + SESSION - 1)
    of.register(1, "new", -1, NOW + SESSION)


def test_r27_the_same_incarnation_keeps_its_epoch() -> None:
    of = controller()
    epoch = of.cluster.brokers[1].epoch
    assert of.register(1, "i1", -1, NOW) == (Send(epoch),)
    assert not of.cluster.brokers[1].fenced


def test_r27_a_session_that_is_over_fences_one_broker_at_a_time() -> None:
    of = controller()
    led(of)
    beat(of, 1, NOW + 1)
    assert of.on_time(NOW + SESSION - 1) == ()
    assert [each.isr for each in written(of.on_time(NOW + SESSION))] == [(1, 2)]
    assert of.cluster.brokers[0].fenced
    assert of.partitions[KEY][2:5] == (1, 6, 11)
    assert [each.isr for each in written(of.on_time(NOW + SESSION))] == [(1,)]
    assert of.on_time(NOW + SESSION) == (), "1 was heard of a moment later"
    of.on_time(NOW + SESSION + 1)
    assert (of.partitions[KEY].leader, of.partitions[KEY].isr, of.partitions[KEY].elr) == (-1, (), (1,))


def test_r27_a_new_incarnation_begins_outside_of_every_isr() -> None:
    of = controller()
    led(of)
    of.register(1, "new", of.cluster.brokers[1].epoch, NOW + SESSION)
    assert of.partitions[KEY].isr == (0, 2)


PROOFS = {"clean": (True, (1,)), "unclean": (False, ())}


@pytest.mark.parametrize("name", PROOFS)
def test_r26_without_proof_of_a_clean_shutdown_a_broker_is_not_eligible(name: str) -> None:
    clean, elr = PROOFS[name]
    of = controller(min_insync_replicas=2)
    led(of, isr=(0,), elr=(1, 2))
    of.register(2, "new", -1, NOW + SESSION)
    of.register(1, "new", of.cluster.brokers[1].epoch if clean else -1, NOW + SESSION)
    assert of.partitions[KEY].elr == elr


def test_r26_the_last_replica_standing_loses_its_tail() -> None:
    """KIP-966: 1, then 0 left the ISR alive and well, then a power cut takes the end of 2's log. With ELR, 0
    leads, which has all that was committed; without, 2 would be elected again.
    """
    for elr, leader in ((True, 0), (False, 2)):
        of = controller(min_insync_replicas=2, eligible_leader_replicas=elr)
        led(of, leader=2, isr=(0, 1, 2))
        for broker in (1, 0):
            beat(of, broker, want_fence=True)
        assert (of.partitions[KEY].isr, of.partitions[KEY].elr) == ((2,), (0,) if elr else ())
        of.register(2, "after the power cut", -1, NOW + SESSION)
        assert of.partitions[KEY].leader == NO_LEADER
        for broker in (2, 1):
            beat(of, broker)
        assert of.partitions[KEY].leader == (NO_LEADER if elr else 2), "1 may lack what 0 and 2 committed"
        beat(of, 0)
        assert of.partitions[KEY].leader == leader


class Unseen(dict[Any, Any]):
    """Partitions that nobody may look through."""

    def values(self) -> Any:
        raise AssertionError("all partitions are looked at")

    items = __iter__ = values


@pytest.mark.parametrize(("wants_shutdown", "looks"), [(False, False), (True, True)])
def test_r28_only_a_shutdown_asks_which_partitions_a_broker_leads(wants_shutdown: bool, looks: bool) -> None:
    """Heartbeats come all the time, and there may be thousands of partitions."""
    of = controller()
    of.partitions = Unseen(of.partitions)
    heartbeat = BrokerHeartbeat(1, of.cluster.brokers[1].epoch, 100, want_shutdown=wants_shutdown)
    try:
        of.heartbeat(heartbeat, NOW)
    except AssertionError:
        assert looks
    else:
        assert not looks


def test_r28_a_heartbeat_with_another_epoch_is_stale() -> None:
    of = controller()
    for broker, epoch in ((1, of.cluster.brokers[1].epoch - 1), (7, 0)):
        with pytest.raises(StaleBrokerEpochError, match=f"broker {broker} has broker epoch {epoch}"):
            of.heartbeat(BrokerHeartbeat(broker, epoch, 100), NOW)


def test_r28_a_broker_is_unfenced_once_it_has_read_its_registration() -> None:
    of = controller(live=0)
    epoch = of.cluster.brokers[2].epoch
    assert sent(of.heartbeat(BrokerHeartbeat(2, epoch, epoch - 1), NOW)) == [
        HeartbeatReply(False, BrokerState.FENCED)
    ]
    assert sent(of.heartbeat(BrokerHeartbeat(2, epoch, epoch, want_fence=True), NOW)) == [
        HeartbeatReply(True, BrokerState.FENCED)
    ]
    assert sent(of.heartbeat(BrokerHeartbeat(2, epoch, epoch), NOW)) == [
        HeartbeatReply(True, BrokerState.UNFENCED)
    ]
    assert of.cluster.active(2)


def test_r28_who_is_unfenced_leads_what_has_no_leader() -> None:
    of = controller(live=2)
    led(of, isr=(), elr=(2,), leader=NO_LEADER)
    assert [each.leader for each in written(beat(of, 2))] == [2]
    assert of.partitions[KEY].isr == (2,)


def test_r28_a_controlled_shutdown_moves_leaders_and_waits_for_the_others() -> None:
    of = controller()
    led(of)
    moved = beat(of, 0, want_shutdown=True)
    assert [(each.leader, each.isr) for each in written(moved)] == [(1, (1, 2))]
    assert sent(moved) == [HeartbeatReply(True, BrokerState.CONTROLLED_SHUTDOWN)]
    assert not of.cluster.active(0)
    assert sent(beat(of, 0, want_shutdown=True)) == [HeartbeatReply(True, BrokerState.CONTROLLED_SHUTDOWN)]
    beat(of, 1)
    assert sent(beat(of, 0, want_shutdown=True)) == [HeartbeatReply(True, BrokerState.CONTROLLED_SHUTDOWN)]
    beat(of, 2)
    assert sent(beat(of, 0, want_shutdown=True)) == [HeartbeatReply(True, BrokerState.SHUTDOWN_NOW)]
    assert of.cluster.brokers[0].fenced


def test_r28_a_leadership_that_nobody_can_take_is_given_up() -> None:
    of = controller(eligible_leader_replicas=False)
    led(of, isr=(0,))
    beat(of, 0, want_shutdown=True)
    assert of.partitions[KEY].leader == NO_LEADER
    assert of.partitions[KEY].isr == (0,), "the last in-sync replica is remembered"


def test_r28_who_leads_nothing_stops_at_once() -> None:
    of = controller()
    led(of)
    stopped = beat(of, 1, want_shutdown=True)
    assert sent(stopped) == [HeartbeatReply(True, BrokerState.SHUTDOWN_NOW)]
    assert of.partitions[KEY].isr == (0, 2)
    assert sent(beat(of, 1, want_shutdown=True)) == [HeartbeatReply(True, BrokerState.SHUTDOWN_NOW)]


# --- directories that fail -----------------------------------------------------------------------


def test_r32_whose_directory_fails_leaves_every_isr_and_others_lead() -> None:
    of = controller()
    led(of)
    of.partitions["follows"] = state(leader=1)
    effects = of.fail(0)
    assert [(each.leader, each.isr, each.leader_epoch) for each in written(effects)] == [
        (1, (1, 2), 6), (1, (1, 2), 5)]  # fmt: skip
    assert of.cluster.brokers[0].fenced
    assert of.fail(0) == (), "it has failed before"
    assert of.fail(7) == (), "it is not registered"


def test_r32_r26_the_last_one_in_sync_fails_and_leads_when_it_is_back() -> None:
    """Without proof that it lost nothing, the election is an unclean one, of the last known leader (R24)."""
    for clean in (True, False):
        of = controller()
        led(of, isr=(0,))
        of.fail(0)
        assert (of.partitions[KEY].leader, of.partitions[KEY].elr) == (NO_LEADER, (0,))
        of.register(0, "another", of.cluster.brokers[0].epoch if clean else -1, NOW)
        beat(of, 0)
        assert (of.partitions[KEY].leader, of.partitions[KEY].isr) == (0, (0,))
        assert of.partitions[KEY].recovering == (not clean)


def test_r32_a_replaced_directory_registers_at_once() -> None:
    of = controller()
    with pytest.raises(DuplicateBrokerRegistrationError):
        of.register(0, "another", -1, NOW)
    of.fail(0)
    of.register(0, "another", -1, NOW)


# --- settings of topics --------------------------------------------------------------------------


def test_r26_each_partition_has_its_own_min_insync_replicas() -> None:
    of = controller()
    led(of)
    of.partitions["strict"] = state()
    of.settings["strict"] = TopicSettings(min_insync_replicas=2)
    for broker in (2, 1):
        of.fail(broker)
    assert (of.partitions[KEY].elr, of.partitions["strict"].elr) == ((), (1,))


CHANGED: dict[str, tuple[int, tuple[int, ...], int]] = {
    "lowered": (1, (), 1),
    "raised": (3, (), 1),
    "the same": (2, (1, 2), 0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_r26_with_another_min_insync_replicas_nobody_is_eligible(name: str) -> None:
    min_isr, elr, changes = CHANGED[name]
    of = controller(min_insync_replicas=2)
    led(of, isr=(0,), elr=(1, 2))
    effects = of.configure([KEY], TopicSettings(min_isr))
    assert of.partitions[KEY] == state(isr=(0,), elr=elr, partition_epoch=10 + changes)
    assert len(written(effects)) == changes


def test_r26_without_a_leader_they_stay_eligible_and_the_elected_one_is_alone() -> None:
    """With min.insync.replicas 1 the elected leader commits alone, so the other is not eligible any more."""
    for min_isr, elr in ((1, ()), (2, (1,)), (3, (1,))):
        of = controller(live=0, min_insync_replicas=2)
        led(of, isr=(), elr=(0, 1), leader=NO_LEADER)
        assert of.configure([KEY], TopicSettings(min_isr)) == ()
        beat(of, 0)
        assert (of.partitions[KEY].leader, of.partitions[KEY].isr, of.partitions[KEY].elr) == (0, (0,), elr)


def test_r24_where_unclean_elections_become_allowed_they_are_made() -> None:
    of = controller(live=2)
    led(of, isr=(), elr=(2,), leader=NO_LEADER)
    of.partitions["other"] = of.partitions[KEY]
    (after,) = written(of.configure([KEY], TopicSettings(1, unclean_leader_election=True)))
    assert (after.leader, after.isr, after.recovering) == (0, (0,), True)
    assert of.partitions["other"].leader == NO_LEADER


def test_settings_of_an_unknown_partition_change_nothing() -> None:
    of = controller()
    led(of)
    with pytest.raises(UnknownTopicOrPartitionError, match="other"):
        of.configure([KEY, MISSING], TopicSettings(3))
    assert of.settings == {}


# --- elections -----------------------------------------------------------------------------------


def test_r24_an_unclean_election_by_request() -> None:
    of = controller(live=2)
    led(of, isr=(), elr=(2,), leader=NO_LEADER)
    (after,) = written(of.elect(KEY, Election.UNCLEAN))
    assert (after.leader, after.isr, after.elr, after.recovering) == (0, (0,), (), True)


NOT_ELECTED: dict[str, tuple[dict[str, Any], Election, type[SegstoreError]]] = {
    "the preferred one leads": ({}, Election.PREFERRED, ElectionNotNeededError),
    "there is a leader": ({"leader": 1}, Election.UNCLEAN, ElectionNotNeededError),
    "not in sync": ({"leader": 1, "isr": (1, 2)}, Election.PREFERRED, PreferredLeaderNotAvailableError),
    "nobody lives": (
        {"replicas": (2,), "isr": (2,), "leader": NO_LEADER}, Election.UNCLEAN,
        EligibleLeadersNotAvailableError),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_ELECTED)
def test_r29_an_election_is_refused(name: str) -> None:
    fields, election, error = NOT_ELECTED[name]
    of = controller(live=2)
    before = led(of, **fields)
    with pytest.raises(error):
        of.elect(KEY, election)
    assert of.partitions[KEY] == before


def test_r29_the_preferred_leader_is_elected_by_request_and_by_itself() -> None:
    for elect in (lambda of: of.elect(KEY, Election.PREFERRED), Controller.elect_preferred):
        of = controller()
        led(of, leader=2)
        assert [each[2:5] for each in written(elect(of))] == [(0, 6, 11)]
        assert of.elect_preferred() == ()


EXPELLED: dict[str, tuple[dict[str, Any], int, tuple[int, ...], tuple[Any, ...]]] = {
    # state before, who is damaged, who is sound; then leader, leader epoch, partition epoch, ISR, ELR
    "the leader": ({}, 0, (1, 2), (1, 5 + 1, 11, (1, 2), ())),
    "the leader, and the next one is not sound at that place": ({}, 0, (2,), (2, 6, 11, (1, 2), ())),
    "a follower": ({}, 2, (0, 1), (0, 5, 11, (0, 1), ())),
    "a follower, of a leader that is not sound there": ({}, 2, (1,), (1, 6, 11, (0, 1), ())),
    "who is not in sync": ({"isr": (0, 1)}, 2, (0, 1), (0, 5, 11, (0, 1), ())),
    "who is eligible": ({"isr": (0,), "elr": (1, 2)}, 2, (0,), (0, 5, 11, (0,), (1,))),
}


@pytest.mark.parametrize("name", EXPELLED)
def test_a_damaged_replica_is_expelled(name: str) -> None:
    """It is not eligible either, and the partition epoch rises in any case, so that older proposals fail."""
    fields, damaged, sound, expected = EXPELLED[name]
    of = controller(min_insync_replicas=2)
    led(of, **fields)
    old = proposed(of, 0, 1, 2)
    (after,) = written(of.expel(KEY, damaged, sound))
    assert (after.leader, after.leader_epoch, after.partition_epoch, after.isr, after.elr) == expected
    assert of.partitions[KEY] == after
    assert judged(of, old).error in (InvalidUpdateVersionError, FencedLeaderEpochError)


@pytest.mark.parametrize(
    ("fields", "live", "sound"),
    [({}, 3, ()), ({}, 1, (1, 2)), ({"isr": (0,)}, 3, (1, 2)), ({"isr": (0,), "elr": (1,)}, 3, (1,))],
    ids=["none is sound", "none is live", "none is in sync", "one is eligible alone"],
)
def test_without_a_sound_one_in_sync_nobody_is_expelled(
    fields: dict[str, Any], live: int, sound: tuple[int, ...]
) -> None:
    of = controller(live, unclean_leader_election=True)
    before = led(of, **fields)
    with pytest.raises(EligibleLeadersNotAvailableError):
        of.expel(KEY, 0, sound)
    assert of.partitions[KEY] == before


def test_of_an_unknown_partition() -> None:
    of = controller()
    for call in (
        lambda: of.elect(MISSING, Election.PREFERRED),
        lambda: of.expel(MISSING, 0, (1,)),
        lambda: of.reassign(MISSING, (0,)),
        lambda: of.cancel_reassignment(MISSING),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="other"):
            call()


# --- assignments ---------------------------------------------------------------------------------


def test_a_new_partition_has_its_live_replicas_in_sync() -> None:
    of = controller(live=2)
    (made,) = written(of.create_partitions({KEY: (2, 1, 0)}))
    assert made == state(replicas=(2, 1, 0), isr=(1, 0), leader=1, leader_epoch=0, partition_epoch=0)


def test_the_partitions_of_a_topic_are_made_in_one_go() -> None:
    of = controller()
    made = of.create_partitions({("a", 0): (0, 1), ("a", 1): (1, 2)}, TopicSettings(2, True))
    assert [(each.replicas, each.leader) for each in written(made)] == [((0, 1), 0), ((1, 2), 1)]
    assert of.settings_of(("a", 1)) == TopicSettings(2, True)


def test_all_partitions_of_a_topic_are_made_or_none() -> None:
    of = controller()
    before = of.next_offset
    with pytest.raises(InvalidReplicaAssignmentError):
        of.create_partitions({("a", 0): (0, 1), ("a", 1): (1, 1)}, TopicSettings(2, True))
    assert (of.partitions, of.settings, of.next_offset) == ({}, {}, before)


def test_a_topic_is_removed_with_its_settings() -> None:
    of = controller()
    keys = [("a", 0), ("a", 1)]
    of.create_partitions(dict.fromkeys(keys, (0, 1)), TopicSettings(2, True))
    of.create_partitions({KEY: (0, 1, 2)})
    with pytest.raises(UnknownTopicOrPartitionError, match="other"):
        of.remove([*keys, MISSING])
    assert [*of.partitions] == [*keys, KEY]
    of.remove(keys)
    assert ([*of.partitions], of.settings) == ([KEY], {})
    assert of.settings_of(keys[0]) == TopicSettings(1, False)


@pytest.mark.parametrize("replicas", [(), (0, 0), (0, 7), (2,)], ids=["none", "twice", "unknown", "not live"])
def test_a_bad_assignment_is_refused(replicas: tuple[int, ...]) -> None:
    of = controller(live=2)
    with pytest.raises(InvalidReplicaAssignmentError):
        of.create_partitions({KEY: replicas})
    assert of.partitions == {}


def test_r30_a_reassignment_from_its_beginning_to_its_end() -> None:
    of = controller()
    led(of, replicas=(0, 1), isr=(0, 1))
    (begun,) = written(of.reassign(KEY, (2, 1)))
    assert begun == state(replicas=(2, 1, 0), isr=(0, 1), adding=(2,), removing=(0,), partition_epoch=11)
    reply = judged(of, proposed(of, 0, 1, 2, partition_epoch=11))
    assert reply == AlterPartitionReply(NewLeaderElectedError), "the leader was removed"
    assert of.partitions[KEY] == state(
        replicas=(2, 1), isr=(1, 2), leader=2, leader_epoch=6, partition_epoch=12
    )


def test_r30_a_reassignment_is_cancelled() -> None:
    of = controller()
    before = led(of, replicas=(0, 1), isr=(0, 1))
    of.reassign(KEY, (2, 1))
    of.cancel_reassignment(KEY)
    assert of.partitions[KEY] == before._replace(replicas=(1, 0), leader_epoch=6, partition_epoch=12), (
        "2 was removed, and the order is that of the target"
    )
    with pytest.raises(NoReassignmentInProgressError):
        of.cancel_reassignment(KEY)


def test_r30_a_cancellation_that_would_lose_records_needs_an_unclean_election() -> None:
    for allowed in (False, True):
        of = controller(unclean_leader_election=allowed)
        led(of, replicas=(2, 0), isr=(2,), leader=2, adding=(2,), removing=(0,))
        if allowed:
            (after,) = written(of.cancel_reassignment(KEY))
            assert (after.replicas, after.isr, after.leader) == ((0,), (0,), 0)
        else:
            with pytest.raises(InvalidReplicaAssignmentError, match="none is in sync"):
                of.cancel_reassignment(KEY)


def test_r30_a_bad_target_is_refused() -> None:
    of = controller()
    before = led(of)
    with pytest.raises(InvalidReplicaAssignmentError):
        of.reassign(KEY, (0, 9))
    assert of.partitions[KEY] == before


def test_a_copy_shares_nothing() -> None:
    of = controller()
    led(of)
    of.settings[KEY] = TopicSettings(2)
    made = of.copy()
    assert made.settings_of(KEY) == TopicSettings(2)
    made.settings[KEY] = TopicSettings(3)
    assert of.settings_of(KEY) == TopicSettings(2)
    made.on_time(NOW + SESSION)
    made.heartbeat(BrokerHeartbeat(1, made.cluster.brokers[1].epoch, 50), NOW + 1)
    assert (of.partitions[KEY], of.cluster.brokers[0].fenced) == (state(), False)
    assert of.cluster.sessions[1].contact_ms == NOW
