"""R21, R31: the controller's answers to proposals of in-sync replicas, and writes that come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from replication import KEY, MISSING, NOW, SESSION, beat, controller, judged, led, proposed, state

from segstore.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
    SegstoreError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.controller import Controller
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.messages import AlterPartitionReply

# --- proposals ------------------------------------------------------------------------------------

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


# --- durable first --------------------------------------------------------------------------------

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
