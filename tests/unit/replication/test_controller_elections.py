"""R24, R26, R29: elections that the controller makes or refuses, and the settings of topics for them."""

from __future__ import annotations

from typing import Any

import pytest
from replication import KEY, MISSING, beat, controller, judged, led, proposed, state, written

from segstore.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    PreferredLeaderNotAvailableError,
    SegstoreError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.config import TopicSettings
from segstore.replication.core.controller import Controller
from segstore.replication.core.election import Election
from segstore.replication.core.registration import NO_LEADER

# --- settings of topics ---------------------------------------------------------------------------


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


# --- elections ------------------------------------------------------------------------------------


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
