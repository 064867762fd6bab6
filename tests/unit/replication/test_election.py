"""R24 to R26, R30: tables of changes of a partition's state. Replicas 0 to 2, min.insync.replicas 2."""

from __future__ import annotations

from typing import Any

import pytest
from replication import state

from segstore.replication.core.election import Election, PartitionChange, reassigned
from segstore.replication.core.registration import NO_LEADER, PartitionRegistration

ISR_1, ELR_1 = {"isr": (1,)}, {"isr": (), "elr": (1, 2), "leader": NO_LEADER}
KNOWN_2 = {"isr": (), "leader": NO_LEADER, "last_known_elr": (2,)}


def change(
    before: dict[str, Any], target: dict[str, Any], live: str, elr: bool = True
) -> PartitionRegistration | None:
    """What comes of a target where the brokers of `live` do live."""
    made = PartitionChange(state(**before), lambda broker: str(broker) in live, 2, elr)
    for name, value in target.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made.build()


UNCLEAN, PREFERRED = {"election": Election.UNCLEAN}, {"election": Election.PREFERRED}
ELECTED: dict[str, tuple[dict[str, Any], dict[str, Any], str, int]] = {
    "a live leader stays": ({"leader": 2}, {}, "012", 2),
    "the first of the assignment": ({"replicas": (2, 1, 0)}, {"isr": (1, 2)}, "12", 2),
    "a fenced one is passed over": ({}, {"isr": (1, 2)}, "2", 2),
    "who is not in sync is passed over": ({}, {"isr": (2,)}, "12", 2),
    "nobody in sync lives": ({}, {"isr": (2,)}, "1", NO_LEADER),
    "the ISR is empty: an eligible one": (ELR_1, {}, "2", 2),
    "an eligible one, not while the ISR has members": (
        {"isr": (1,), "elr": (2,), "leader": NO_LEADER}, {}, "2", NO_LEADER),
    "the last known leader": (KNOWN_2, {}, "12", 2),
    "the last known leader is not alive": (KNOWN_2, {}, "01", NO_LEADER),
    "several are known": ({**KNOWN_2, "last_known_elr": (1, 2)}, {}, "012", NO_LEADER),
    "unclean: any live one": (KNOWN_2, UNCLEAN, "1", 1),
    "unclean: who is in sync comes first": (ISR_1 | {"leader": NO_LEADER}, UNCLEAN, "012", 1),
    "preferred: the first replica": ({"leader": 2}, PREFERRED, "012", 0),
    "preferred: it is not in sync": ({"leader": 2, "isr": (1, 2)}, PREFERRED, "012", 2),
    "preferred: it is not alive": ({"leader": 2}, PREFERRED, "12", 2),
    "preferred is never unclean": (KNOWN_2 | {"last_known_elr": ()}, PREFERRED, "01", NO_LEADER),
}  # fmt: skip


@pytest.mark.parametrize("name", ELECTED)
def test_r24_who_is_elected(name: str) -> None:
    before, target, live, leader = ELECTED[name]
    after = change(before, target, live) or state(**before)
    assert after.leader == leader


EPOCHS: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[int, int]]] = {
    "nothing changes": ({}, {}, "012", (5, 10)),
    "the ISR shrinks": ({}, {"isr": (0, 1)}, "012", (5, 11)),
    "the ISR grows": ({"isr": (0,)}, {"isr": (0, 1)}, "012", (5, 11)),
    "another leader": ({}, {"isr": (1, 2)}, "12", (6, 11)),
    "no leader": ({"isr": (0,)}, {"isr": ()}, "12", (6, 11)),
    "replicas are added": ({"replicas": (0, 1)}, {"replicas": (0, 1, 2)}, "012", (5, 11)),
    "a replica is removed": ({}, {"replicas": (0, 1), "isr": (0, 1)}, "012", (6, 11)),
    "replicas are ordered anew": ({}, {"replicas": (1, 0, 2)}, "012", (5, 11)),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_r25_the_epochs_of_a_change(name: str) -> None:
    before, target, live, epochs = EPOCHS[name]
    after = change(before, target, live) or state(**before)
    assert (after.leader_epoch, after.partition_epoch) == epochs


def test_r25_an_unclean_leader_is_alone_in_sync_and_recovering() -> None:
    after = change({"isr": (), "elr": (2,), "leader": NO_LEADER}, UNCLEAN, "1")
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.recovering) == (1, (1,), (), True)
    last_known = change(KNOWN_2, {}, "2")
    assert last_known is not None
    assert (last_known.isr, last_known.recovering, last_known.last_known_elr) == ((2,), True, ())


ELIGIBLE: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[Any, Any, int]]] = {
    "one leaves, enough stay": ({}, {"isr": (0, 1)}, "01", ((0, 1), (), 0)),
    "two leave": ({}, {"isr": (0,)}, "0", ((0,), (1, 2), 0)),
    "they gather": ({"isr": (0, 1), "elr": (2,)}, {"isr": (0,)}, "0", ((0,), (1, 2), 0)),
    "one comes back, not enough": ({"isr": (), "elr": (0, 1), "leader": -1}, {}, "0", ((0,), (1,), 0)),
    "enough are back": ({"isr": (0,), "elr": (1, 2)}, {"isr": (0, 1)}, "01", ((0, 1), (), 0)),
    "the last one leaves": ({"isr": (0,)}, {"isr": ()}, "12", ((), (0,), -1)),
    "shut down uncleanly": ({"isr": (0, 1)}, {"isr": (0,), "unclean_shutdown": (1,)}, "0", ((0,), (), 0)),
    "an eligible one is shut down uncleanly": (
        {"isr": (0,), "elr": (1, 2)}, {"unclean_shutdown": (1,)}, "02", ((0,), (2,), 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", ELIGIBLE)
def test_r26_eligible_leader_replicas(name: str) -> None:
    before, target, live, expected = ELIGIBLE[name]
    after = change(before, target, live)
    assert after is not None
    assert (after.isr, after.elr, after.leader) == expected


def test_r26_the_last_leader_is_remembered_until_there_is_one_again() -> None:
    gone = change({"isr": (2,), "leader": 2}, {"isr": ()}, "01")
    assert gone is not None
    assert (gone.leader, gone.last_known_elr) == (NO_LEADER, (2,))
    still = change({**KNOWN_2, "elr": (2,)}, {"unclean_shutdown": (2,)}, "01")
    assert still is not None
    assert (still.elr, still.last_known_elr) == ((), (2,))
    back = change({**KNOWN_2, "elr": (2,)}, {}, "2")
    assert back is not None
    assert (back.leader, back.isr, back.last_known_elr, back.recovering) == (2, (2,), (), False)


def test_r26_without_elr_the_last_in_sync_replicas_stay() -> None:
    after = change({"isr": (0,)}, {"isr": ()}, "12", elr=False)
    assert after is not None
    assert (after.isr, after.elr, after.leader, after.last_known_elr) == ((0,), (), NO_LEADER, ())


TARGETS = {
    "one is replaced": ((0, 1), (0, 2), ((0, 2, 1), (2,), (1,))),
    "one is added": ((0, 1), (0, 1, 2), ((0, 1, 2), (2,), ())),
    "another order": ((0, 1), (1, 0), ((1, 0), (), ())),
    "all are replaced": ((1, 0), (3, 2), ((3, 2, 0, 1), (2, 3), (0, 1))),
}


@pytest.mark.parametrize("name", TARGETS)
def test_r30_what_a_reassignment_adds_and_removes(name: str) -> None:
    current, target, expected = TARGETS[name]
    assert reassigned(current, target) == expected


MOVING = {"replicas": (1, 2, 0), "isr": (0, 1), "adding": (2,), "removing": (0,)}


def test_r30_it_is_complete_when_every_target_is_in_sync() -> None:
    assert change(MOVING, {}, "012") is None
    after = change(MOVING, {"isr": (0, 1, 2)}, "012")
    assert after is not None
    assert after[:5] == ((1, 2), (1, 2), 1, 6, 11), "the leader was removed"
    assert (after.adding, after.removing) == ((), ())


def test_r26_who_is_no_replica_any_more_is_not_eligible() -> None:
    """The last replica of a partition, which was moved to it, was not elected after a crash: two that were
    removed had stayed eligible.
    """
    moved = change({"isr": (0, 1, 2), "removing": (1, 2)}, {}, "012")
    assert moved is not None
    assert (moved.replicas, moved.isr, moved.elr, moved.leader) == ((0,), (0,), (), 0)


def test_r30_a_leader_that_stays_leads_under_a_new_epoch() -> None:
    after = change({**MOVING, "leader": 1}, {"isr": (0, 1, 2)}, "012")
    assert after is not None
    assert after[:5] == ((1, 2), (1, 2), 1, 6, 11)
