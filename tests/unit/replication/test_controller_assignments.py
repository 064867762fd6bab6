"""R30: partitions that the controller makes, removes and reassigns."""

from __future__ import annotations

import pytest
from replication import KEY, MISSING, NOW, SESSION, controller, judged, led, proposed, state, written

from segstore.errors import (
    InvalidReplicaAssignmentError,
    NewLeaderElectedError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.config import TopicSettings
from segstore.replication.core.messages import AlterPartitionReply


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
