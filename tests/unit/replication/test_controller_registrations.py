"""R26 to R28, R32: registrations, sessions and directories of brokers, as the controller keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from replication import KEY, NOW, SESSION, beat, controller, led, sent, state, written

from segstore.errors import DuplicateBrokerRegistrationError, StaleBrokerEpochError
from segstore.replication.core.cluster import BrokerHeartbeat, BrokerState
from segstore.replication.core.effects import Persist, Send
from segstore.replication.core.records import BrokerRecord, HeartbeatReply
from segstore.replication.core.registration import NO_LEADER

# --- registrations and sessions -------------------------------------------------------------------


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


# --- directories that fail ------------------------------------------------------------------------


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
