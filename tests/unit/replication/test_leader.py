"""R3, R8, R9, R14 to R18, R22, R39: the leader and its followers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from replication import LAG, NOW, brokers, fetch, following, leading, log, proposal, state

from segstore.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ReplicaOfflineError,
    SegstoreError,
    UnknownLeaderEpochError,
)
from segstore.leader_epochs import EpochEnd
from segstore.replication.core.config import ReplicaConfig
from segstore.replication.core.effects import AssignEpoch, Complete, SetHighWatermark
from segstore.replication.core.isr import Committed
from segstore.replication.core.leader import Leader
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.registration import BrokerRegistration


def test_r3_a_leader_assigns_its_epoch_at_its_end_before_the_first_append() -> None:
    part = PartitionReplica(0, log((1, 0), end=9), brokers(), ReplicaConfig())
    assert part.become(state(), NOW)[0] == AssignEpoch(5, 9)
    assert part.log.epochs.entries == ((1, 0), (5, 9))
    assert part.leader.epoch_start_offset == 9


# --- fetches -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, int], type[SegstoreError]]] = {
    "a lower epoch": ({"current_leader_epoch": 4}, FencedLeaderEpochError),
    "a higher epoch": ({"current_leader_epoch": 6}, UnknownLeaderEpochError),
    "a replica that is not assigned": ({"replica": 3}, UnknownLeaderEpochError),
    "an older broker epoch": ({"broker_epoch": 70}, NotLeaderOrFollowerError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_r8_a_fetch_is_refused(name: str) -> None:
    fields, error = REFUSED[name]
    part, leader = leading()
    with pytest.raises(error):
        part.on_fetch(fetch(1, 0)._replace(**fields), NOW)
    assert leader.remotes[1].end_offset == -1


def test_r8_who_does_not_lead_answers_nobody() -> None:
    part, _ = following(log())
    with pytest.raises(NotLeaderOrFollowerError, match="replica 0 does"):
        part.on_fetch(fetch(2, 0), NOW)
    with pytest.raises(FencedLeaderEpochError):
        part.on_fetch(fetch(2, 0, current_leader_epoch=4), NOW)
    part.go_offline()
    with pytest.raises(ReplicaOfflineError):
        part.on_fetch(fetch(2, 0), NOW)


DIVERGING = {
    "a later epoch that the leader has not": (fetch(1, 9, last=4), EpochEnd(3, 9)),
    "an epoch that ended earlier": (fetch(1, 7, last=1), EpochEnd(1, 5)),
    "an epoch between": (fetch(1, 4, last=2), EpochEnd(1, 5)),
    "beyond the end in the latest epoch": (fetch(1, 12, last=5), EpochEnd(5, 9)),
}


@pytest.mark.parametrize("name", DIVERGING)
def test_r9_diverging_logs(name: str) -> None:
    request, end = DIVERGING[name]
    part, leader = leading(log((1, 0), (3, 5), end=9))
    answer, effects = part.on_fetch(request, NOW)
    assert (answer.diverging, effects) == (end, ())
    assert leader.remotes[1].end_offset == -1, "nothing is noted of the follower"


OUTSIDE = {
    "an epoch above the leader's": fetch(1, 7, last=6),
    "an offset below the start": fetch(1, 2, last=1),
    "below the start, whatever the epoch": fetch(1, 2, last=4),
    "no epoch, beyond the end": fetch(1, 12, last=-1),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_r9_out_of_range(name: str) -> None:
    part, leader = leading(log((1, 3), (3, 5), start=3, end=9))
    with pytest.raises(OffsetOutOfRangeError):
        part.on_fetch(OUTSIDE[name], NOW)
    assert leader.remotes[1].end_offset == -1


def test_r12_a_follower_out_of_range_asks_under_its_epoch() -> None:
    part, _ = leading(log((1, 3), start=3, end=9))
    assert part.offsets(5) == (3, 9)
    with pytest.raises(FencedLeaderEpochError):
        part.offsets(4)
    with pytest.raises(UnknownLeaderEpochError):
        part.offsets(6)


def test_r14_replicas_read_to_the_log_end() -> None:
    part, _ = leading(log((1, 0), end=9, shown=4))
    answer, _ = part.on_fetch(fetch(1, 4, last=1), NOW)
    assert (answer.diverging, answer.high_watermark, answer.end_offset) == (None, 4, 9)


# --- high watermark ------------------------------------------------------------------------------


def test_r15_the_high_watermark_is_the_lowest_end_of_the_isr() -> None:
    part, leader = leading(log((1, 0), end=9))
    part.on_fetch(fetch(1, 7, last=1), NOW)
    assert part.log.high_watermark == 0, "2 has not fetched yet"
    _, effects = part.on_fetch(fetch(2, 4, last=1), NOW)
    assert effects == (SetHighWatermark(4),)
    assert leader.on_append(12) == ()
    _, effects = part.on_fetch(fetch(2, 12, last=5), NOW)
    assert effects == (SetHighWatermark(7),)


def test_r15_a_leader_alone_shows_what_it_appends() -> None:
    part, leader = leading(isr=(0,))
    assert leader.on_append(5) == (SetHighWatermark(5),)
    assert leader.on_append(6) == (SetHighWatermark(6),)
    assert part.log.high_watermark == 6


def test_r15_it_never_decreases() -> None:
    part, _ = leading(log((1, 0), end=9), isr=(0, 1))
    part.on_fetch(fetch(1, 9), NOW)
    part.on_fetch(fetch(1, 4, last=1), NOW)
    assert part.log.high_watermark == 9


def test_r15_it_waits_for_who_is_about_to_join_and_not_for_who_lags() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    part.on_fetch(fetch(2, 0, last=-1), NOW)
    assert isinstance(leader.isr, Committed) is False, "2 has reached all that is committed"
    leader.isr = Committed(leader.isr.isr)  # the controller does not take it yet
    leader.on_append(9)
    part.on_fetch(fetch(2, 5), NOW + 10)
    leader.isr = Committed(leader.isr.isr)
    part.on_fetch(fetch(1, 9), NOW + 10)
    assert part.log.high_watermark == 5, "2 was caught up a moment ago"
    assert leader.on_time(NOW + LAG + 11)[-1] == SetHighWatermark(9), "2 lags now"


def test_r15_who_is_assigned_but_lags_does_not_hold_it_up() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(9)
    part.on_fetch(fetch(1, 9), NOW)
    assert part.log.high_watermark == 9


def test_r15_who_is_fenced_does_not_hold_it_up() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    part.brokers[2] = BrokerRegistration(72, "i2", fenced=True)  # type: ignore[index]
    part.on_fetch(fetch(2, 0), NOW)
    part.on_fetch(fetch(1, 5), NOW)
    assert part.log.high_watermark == 5


def test_r15_an_append_looks_at_no_follower() -> None:
    """One Python call while followers are behind, three more to show what a leader alone appends."""
    part, leader = leading(log(), isr=(0, 1))
    part.on_fetch(fetch(1, 0), NOW)
    assert calls_of(lambda: leader.on_append(5)) == 1
    _, alone = leading(log(), isr=(0,))
    assert calls_of(lambda: alone.on_append(5)) == 4, "also _raise, the effect, and whether requests wait"


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions are called by `work`, which is one itself."""
    called = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code) if event == "call" else None)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(called) - 1


@pytest.mark.parametrize("isr", [(0,), (0, 1)])
def test_r16_below_min_isr_it_stands_still(isr: tuple[int, ...]) -> None:
    part, leader = leading(log(), min_isr=2, isr=isr)
    leader.on_append(5)
    part.on_fetch(fetch(1, 5), NOW)
    assert part.log.high_watermark == (5 if len(isr) > 1 else 0)


def test_r16_min_isr_is_at_most_the_number_of_replicas() -> None:
    _, leader = leading(log(), min_isr=3, replicas=(0, 1), isr=(0, 1))
    assert leader.min_isr == 2
    assert leading(log(), min_isr=2)[1].min_isr == 2


def test_r16_a_changed_setting_counts_at_once() -> None:
    part, leader = leading(log(), min_isr=2, isr=(0,))
    leader.on_append(5)
    assert part.configure(ReplicaConfig(1, LAG), NOW) == (SetHighWatermark(5),)


# --- what is known of followers ------------------------------------------------------------------


def test_r17_after_an_election_nothing_is_known_of_followers() -> None:
    part, leader = leading(log((1, 0), end=9), isr=(0, 1))
    part.on_fetch(fetch(1, 9, last=1), NOW)
    assert leader.remotes[1].end_offset == 9
    part.become(state(isr=(0, 1), leader_epoch=7, partition_epoch=12), NOW)
    assert [remote.end_offset for remote in part.leader.remotes.values()] == [-1, -1]
    part.leader.on_append(10)
    assert part.log.high_watermark == 9


def test_r17_from_append_to_the_follower_s_high_watermark_are_two_rounds() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    first, _ = part.on_fetch(fetch(1, 0), NOW)
    second, _ = part.on_fetch(fetch(1, 5), NOW)
    assert (first.high_watermark, second.high_watermark) == (0, 5)


CAUGHT_UP = {
    "at the leader's end": ([(5, 5, 10)], 10),
    "at the end of before": ([(0, 5, 10), (5, 9, 30)], 10),
    "below the end of before": ([(0, 5, 10), (4, 9, 30)], None),
    "then the end of before again": ([(5, 5, 10), (6, 9, 30), (9, 12, 50)], 30),
    "it stays when it falls behind": ([(5, 5, 10), (5, 9, 30), (6, 20, 50), (7, 30, 60)], 10),
}


@pytest.mark.parametrize("name", CAUGHT_UP)
def test_r18_when_a_follower_was_caught_up(name: str) -> None:
    """Fetches are offset, the leader's end, and time."""
    fetches, expected = CAUGHT_UP[name]
    _, leader = leading(isr=(0,))
    remote = leader.remotes[1]
    for offset, end, time in fetches:
        remote.record_fetch(offset, 0, 71, end, time)
    assert remote.last_caught_up_ms == expected


def test_r18_at_the_election_members_are_in_sync_and_others_are_not() -> None:
    _, leader = leading(log((1, 0), end=9), isr=(0, 1))
    caught_up = [remote.is_caught_up(9, NOW + LAG, LAG) for remote in leader.remotes.values()]
    assert caught_up == [True, False]
    assert not leader.remotes[1].is_caught_up(9, NOW + LAG + 1, LAG)


def test_r18_who_has_everything_is_in_sync_however_long_ago_it_fetched() -> None:
    part, leader = leading(log((1, 0), end=9))
    part.on_fetch(fetch(1, 9, last=1), NOW)
    assert leader.remotes[1].is_caught_up(9, NOW + 100 * LAG, LAG)


# --- metadata ------------------------------------------------------------------------------------


def test_r22_an_older_state_changes_nothing() -> None:
    part, leader = leading()
    assert part.become(state(leader=1, leader_epoch=6, partition_epoch=9), NOW) == ()
    assert part.role is leader
    assert part.become(state(isr=(0,), partition_epoch=9), NOW) == ()
    assert leader.isr.isr == {0, 1, 2}


def test_r22_in_the_same_epoch_what_is_known_of_followers_stays() -> None:
    part, leader = leading(log((1, 0), end=9))
    part.on_fetch(fetch(1, 9, last=1), NOW)
    part.become(state(replicas=(0, 1, 3), isr=(0, 1), partition_epoch=11), NOW)
    assert part.role is leader
    assert {replica: remote.end_offset for replica, remote in leader.remotes.items()} == {1: 9, 3: -1}
    assert part.log.high_watermark == 9, "2 is not waited for any more"


def test_r22_a_state_that_is_known_says_nothing_of_the_proposal_made_since() -> None:
    part, leader = leading(log(), isr=(0, 1))
    _, effects = part.on_fetch(fetch(2, 0), NOW)
    pending = leader.isr
    assert proposal(effects).isr == ((0, 70), (1, -1), (2, 72))
    part.become(state(isr=(0, 1)), NOW)
    assert leader.isr is pending


def test_r22_a_follower_of_the_same_leader_in_the_same_epoch_truncates_nothing() -> None:
    part, _ = following(log(end=9, shown=9))
    part.log.end_offset = 12
    assert part.become(state(isr=(0,), partition_epoch=11), NOW) == ()


def test_a_replica_that_is_taken_away_goes_offline() -> None:
    part, _ = leading()
    part.become(state(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=6, partition_epoch=11), NOW)
    with pytest.raises(ReplicaOfflineError):
        _ = part.leader
    assert part.become(state(partition_epoch=12), NOW) == ()


def test_r32_an_offline_replica_stays_so() -> None:
    part, _ = leading()
    part.go_offline()
    assert part.become(state(leader_epoch=6, partition_epoch=11), NOW) == ()
    with pytest.raises(ReplicaOfflineError):
        part.leader_for(5)


# --- consumers and deletions ---------------------------------------------------------------------


def test_r39_followers_in_sync_that_have_an_offset_can_be_read() -> None:
    part, leader = leading(log((1, 0), end=9, shown=9), isr=(0, 1))
    part.on_fetch(fetch(1, 9, last=1, log_start_offset=3), NOW)
    part.on_fetch(fetch(2, 9, last=1), NOW)
    leader.isr = Committed(frozenset((0, 1)))
    assert [leader.can_serve(offset) for offset in (2, 3, 9, 10)] == [(), (1,), (1,), ()]


def test_a_copy_shares_nothing_but_registrations() -> None:
    part, leader = leading(log((1, 0), end=9))
    leader.wait(10, NOW + 1, "a")
    made = part.copy()
    made.on_fetch(fetch(1, 9, last=1), NOW)
    made.leader.on_append(12)
    made.leader.expire(NOW + 1)
    assert isinstance(made.role, Leader)
    assert (leader.remotes[1].end_offset, part.log.end_offset, len(part.acks)) == (-1, 9, 1)
    assert made.brokers is part.brokers
    assert following(log())[0].copy().role is not None
    part.go_offline()
    assert part.copy().role is None


# --- appends to all replicas at once ----------------------------------------------------------------


def test_a_partition_is_whole_when_all_replicas_have_all_and_may_stay() -> None:
    part, leader = leading()
    end = part.log.end_offset
    assert not leader.is_whole
    part.on_fetch(fetch(1, end), NOW)
    assert not leader.is_whole
    part.on_fetch(fetch(2, end), NOW)
    assert leader.is_whole
    leader.on_append(end + 1)
    assert not leader.is_whole
    leader.on_handed_on(end + 1, NOW)
    assert leader.is_whole
    leader.isr = Committed(frozenset({0, 1}))
    assert not leader.is_whole


def test_a_partition_with_a_member_that_has_registered_anew_is_not_whole() -> None:
    known = brokers()
    part, leader = leading()
    part.brokers = leader.brokers = known
    for follower in (1, 2):
        part.on_fetch(fetch(follower, part.log.end_offset), NOW)
    assert leader.is_whole
    known[2] = known[2]._replace(epoch=known[2].epoch + 1)
    assert not leader.is_whole


def test_r15_r17_what_was_handed_on_is_committed_and_answered() -> None:
    part, leader = leading()
    end = part.log.end_offset
    for follower in (1, 2):
        part.on_fetch(fetch(follower, end), NOW)
    leader.wait(end + 3, NOW + 100, "ticket")
    assert Complete("ticket", None) in leader.on_handed_on(end + 3, NOW + 5)
    assert (part.log.high_watermark, part.log.end_offset) == (end + 3, end + 3)
    assert {remote.end_offset for remote in leader.remotes.values()} == {end + 3}
    assert leader.on_time(NOW + 5 + LAG) == ()


def test_the_high_watermark_does_not_wait_for_a_replica_that_was_cut_to_be_copied() -> None:
    """It had all records a moment ago, but fetches from the beginning: it joins when it has all again."""
    partition, leader = leading(log((5, 0)))
    leader.on_append(10)
    for replica in (1, 2):
        partition.on_fetch(fetch(replica, 10), NOW)
    assert leader.log.high_watermark == 10
    partition.become(state(isr=(0, 1), partition_epoch=11), NOW)
    partition.on_fetch(fetch(2, 0), NOW + 1)
    leader.on_append(20)
    partition.on_fetch(fetch(1, 20), NOW + 2)
    assert leader.log.high_watermark == 20
