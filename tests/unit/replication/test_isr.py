"""R19 to R21, the leader's part: who leaves and joins the in-sync replicas, with one proposal in flight."""

from __future__ import annotations

import pytest
from replication import LAG, NOW, fetch, following, leading, log, proposal, sent, state

from segstore.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotControllerError,
    OperationNotAttemptedError,
    RequestTimedOutError,
    SegstoreError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.effects import Send, SetHighWatermark, Truncate
from segstore.replication.core.isr import Committed, PendingExpand, PendingShrink
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.registration import BrokerRegistration


def lagging() -> tuple[PartitionReplica, Leader]:
    """1 has all nine records, 2 has six of them, and has fetched long ago."""
    part, leader = leading(log((1, 0), end=9))
    part.on_fetch(fetch(2, 6, last=1), NOW)
    part.on_fetch(fetch(1, 9, last=1), NOW)
    return part, leader


def test_r19_who_lags_is_proposed_to_leave() -> None:
    _, leader = lagging()
    assert leader.on_time(NOW + LAG) == ()
    effects = leader.on_time(NOW + LAG + 1)
    assert proposal(effects) == AlterPartition(0, 5, 10, ((0, 70), (1, 71)))
    assert isinstance(leader.isr, PendingShrink)


def test_r19_all_who_lag_leave_at_once_and_the_leader_never_does() -> None:
    _, leader = leading(log((1, 0), end=9))
    assert proposal(leader.on_time(NOW + LAG + 1)).isr == ((0, 70),)


def test_r19_while_it_is_pending_the_old_isr_holds_the_high_watermark() -> None:
    part, leader = lagging()
    leader.on_time(NOW + LAG + 1)
    part.on_fetch(fetch(1, 9), NOW + LAG + 2)
    assert part.log.high_watermark == 6
    assert leader.isr.maximal == {0, 1, 2}


def test_r19_once_it_is_committed_the_high_watermark_goes_on() -> None:
    part, leader = lagging()
    asked = proposal(leader.on_time(NOW + LAG + 1))
    reply = AlterPartitionReply(None, 5, 11, (0, 1))
    assert leader.on_alter_reply(asked, reply, NOW + LAG + 2) == (SetHighWatermark(9),)
    assert (leader.isr, leader.partition_epoch) == (Committed(frozenset((0, 1))), 11)
    assert part.log.high_watermark == 9


def test_r19_one_proposal_is_in_flight() -> None:
    part, leader = lagging()
    leader.on_time(NOW + LAG + 1)
    assert leader.on_time(NOW + 10 * LAG) == ()
    part.become(state(replicas=(0, 1, 2, 3), partition_epoch=11), NOW)
    leader.on_time(NOW + 10 * LAG)
    _, effects = part.on_fetch(fetch(3, 9, last=1), NOW + 10 * LAG)
    assert isinstance(leader.isr, PendingShrink)
    assert sent(effects) == []


def joining(**fields: object) -> tuple[PartitionReplica, Leader]:
    """0 and 1 are in sync; nine records, of which seven are shown; epoch 5 starts at 9."""
    return leading(log((1, 0), end=9, shown=7), isr=(0, 1), **fields)  # type: ignore[arg-type]


JOINS = {
    "it has all": (9, 72, {}, True),
    "less than the start of the epoch": (8, 72, {}, False),
    "less than the high watermark": (6, 72, {}, False),
    "it is fenced": (9, 72, {"fenced": True}, False),
    "it is shutting down": (9, 72, {"shutting_down": True}, False),
    "it is registered anew": (9, 72, {"epoch": 73}, False),
    "the leader has not heard of its registration": (9, 73, {}, False),
    "it fetches without a broker epoch": (9, -1, {}, True),
}


@pytest.mark.parametrize("name", JOINS)
def test_r20_who_joins(name: str) -> None:
    offset, epoch, changed, joins = JOINS[name]
    part, leader = joining()
    registered = BrokerRegistration(72, "i2", fenced=False)._replace(**changed)  # type: ignore[arg-type]
    request = fetch(2, offset, last=1, broker_epoch=epoch)
    if registered.epoch > epoch >= 0:  # it registers right after its fetch was accepted
        part.on_fetch(request, NOW)
        leader.isr = Committed(frozenset((0, 1)))
        part.brokers[2] = registered  # type: ignore[index]
        effects = leader._expand(2)
    else:
        part.brokers[2] = registered  # type: ignore[index]
        _, effects = part.on_fetch(request, NOW)
    assert bool(sent(effects)) == joins
    assert isinstance(leader.isr, PendingExpand) == joins


BEGINS = {
    "where the leader's log does": (4, True),
    "above: it is retained for itself": (5, True),
    "below": (3, False),
    "at the very beginning": (0, False),
}
"""Where the log of 2 begins, while the leader's begins at 4; whether 2 joins."""


@pytest.mark.parametrize("name", BEGINS)
def test_r20_who_joins_has_nothing_below_the_leaders_log_start(name: str) -> None:
    start, joins = BEGINS[name]
    part, leader = leading(log((1, 4), start=4, end=9, shown=7), isr=(0, 1))
    answer, effects = part.on_fetch(fetch(2, 9, last=1, log_start_offset=start), NOW)
    assert (answer.log_start_offset, bool(sent(effects))) == (4, joins)
    assert isinstance(leader.isr, PendingExpand) == joins


@pytest.mark.parametrize("records", [4, 6])
def test_r20_records_that_were_deleted_where_the_leader_has_others_are_not_shown(records: int) -> None:
    """1 has `records` of epoch 0 that were never committed; of the leader's, of epoch 1, the first four are
    deleted. 1 keeps four of its own: of them the leader knows nothing.
    """
    led, leader = leading(log((1, 4), start=4, end=4, shown=4), isr=(0, 2))
    part, follower = following(log((0, 0), end=records))
    for _ in range(3):
        request = follower.fetch(71)
        answer, effects = led.on_fetch(request, NOW)
        assert not sent(effects) or request.log_start_offset == 4
        for effect in follower.on_answer(request, answer, None):
            if isinstance(effect, Truncate):
                part.log.truncated(effect.offset, effect.offset)
    assert (part.log.start_offset, part.log.end_offset) == (4, 4)
    assert isinstance(leader.isr, PendingExpand), "it joins once its log begins there"


SYNCED = {
    "all": (9, 9, True),
    "all of the earlier epochs, and the leader no more": (9, 0, True),
    "not all of the earlier epochs": (8, 0, False),
    "all that the leader has synced": (11, 11, True),
    "less than the leader": (10, 11, False),
    "all that it has, and less than the leader": (12, 20, True),
}
"""What 2 has synced, what its leader has; whether 2 joins. Epoch 5 starts at 9, and 2 has 12 records."""


@pytest.mark.parametrize("name", SYNCED)
def test_r20_who_joins_has_synced_what_was_promised(name: str) -> None:
    synced, own_synced, joins = SYNCED[name]
    part, leader = joining()
    leader.on_append(20)
    answer, effects = part.on_fetch(fetch(2, 12), NOW, synced, own_synced)
    assert (answer.sync_first, bool(sent(effects))) == (not joins, joins)


def test_r20_who_is_in_sync_or_may_not_join_need_not_sync() -> None:
    part, leader = joining()
    leader.on_append(20)
    for request in (fetch(1, 12), fetch(2, 8, last=1)):
        answer, effects = part.on_fetch(request, NOW, 0, 20)
        assert not answer.sync_first
        assert sent(effects) == []


def test_r20_above_the_start_of_the_epoch_the_high_watermark_counts() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(9)
    part.on_fetch(fetch(1, 9), NOW)
    assert part.log.high_watermark == 9
    assert sent(part.on_fetch(fetch(2, 8), NOW)[1]) == []
    assert len(sent(part.on_fetch(fetch(2, 9), NOW)[1])) == 1


def test_r20_while_it_is_pending_the_high_watermark_waits_for_it() -> None:
    part, leader = joining()
    asked = proposal(part.on_fetch(fetch(2, 9, last=1), NOW)[1])
    assert asked == AlterPartition(0, 5, 10, ((0, 70), (1, -1), (2, 72)))
    leader.on_append(12)
    part.on_fetch(fetch(1, 12), NOW)
    assert part.log.high_watermark == 9
    assert (leader.isr.isr, leader.isr.maximal) == ({0, 1}, {0, 1, 2})


BACK = (IneligibleReplicaError, OperationNotAttemptedError)
STAYS = (
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    UnknownTopicOrPartitionError,
)
AGAIN = (NotControllerError, RequestTimedOutError)


def pending() -> tuple[PartitionReplica, Leader, AlterPartition]:
    part, leader = joining()
    return part, leader, proposal(part.on_fetch(fetch(2, 9, last=1), NOW)[1])


@pytest.mark.parametrize("error", BACK)
def test_r21_what_was_not_applied_goes_back_to_the_committed_state(error: type[SegstoreError]) -> None:
    _, leader, asked = pending()
    assert leader.on_alter_reply(asked, AlterPartitionReply(error), NOW) == ()
    assert leader.isr == Committed(frozenset((0, 1)))


@pytest.mark.parametrize("error", STAYS)
def test_r21_other_errors_stay_pending_until_the_metadata_decides(error: type[SegstoreError]) -> None:
    part, leader, asked = pending()
    assert leader.on_alter_reply(asked, AlterPartitionReply(error), NOW) == ()
    assert isinstance(leader.isr, PendingExpand)
    part.become(state(isr=(0, 1), partition_epoch=11), NOW)
    assert leader.isr == Committed(frozenset((0, 1)))


@pytest.mark.parametrize("error", AGAIN)
def test_r21_what_may_have_been_done_is_asked_again(error: type[SegstoreError]) -> None:
    _, leader, asked = pending()
    assert leader.on_alter_reply(asked, AlterPartitionReply(error), NOW) == (Send(asked),)
    assert isinstance(leader.isr, PendingExpand)


LATE = {
    "of another epoch": AlterPartitionReply(None, 6, 11, (0, 1, 2)),
    "of an older state": AlterPartitionReply(None, 5, 9, (0, 1, 2)),
}


@pytest.mark.parametrize("name", LATE)
def test_r21_an_answer_that_does_not_fit_stays_pending(name: str) -> None:
    _, leader, asked = pending()
    assert leader.on_alter_reply(asked, LATE[name], NOW) == ()
    assert isinstance(leader.isr, PendingExpand)


def test_r21_an_answer_to_an_older_proposal_is_ignored() -> None:
    part, leader, asked = pending()
    part.become(state(isr=(0, 1), partition_epoch=11), NOW)
    part.on_fetch(fetch(2, 9, last=1), NOW)
    now = leader.isr
    assert leader.on_alter_reply(asked, AlterPartitionReply(IneligibleReplicaError), NOW) == ()
    assert leader.on_alter_reply(asked, AlterPartitionReply(None, 5, 12, (0,)), NOW) == ()
    assert leader.isr is now


def test_r21_no_change_is_committed_too() -> None:
    _, leader, asked = pending()
    leader.on_alter_reply(asked, AlterPartitionReply(None, 5, 10, (0, 1, 2)), NOW)
    assert (leader.isr.isr, leader.partition_epoch) == ({0, 1, 2}, 10)
