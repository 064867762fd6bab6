"""Faults that could be made in the core, each as one change of it. The search finds a broken property, or a
unit test fails: docs/replication.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from replicas.algorithms import ONE_HAS_IT
from replicas.bounds import Bounds
from replicas.world import World
from segstore.integers import INT64_MAX
from segstore.replication.core import follower as follower_module
from segstore.replication.core.acks import DelayedProduces
from segstore.replication.core.controller import Controller
from segstore.replication.core.effects import AssignEpoch, Complete, SetHighWatermark
from segstore.replication.core.election import PartitionChange
from segstore.replication.core.follower import Follower
from segstore.replication.core.isr import Committed, PendingExpand, PendingShrink
from segstore.replication.core.leader import Leader
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.replica import RemoteReplica

SMALL, THREE = Bounds(2, 2, 3, losses=True), Bounds(3, 1, 3)
MIN_ISR = Bounds(2, 1, 3, min_isr=2)
RESTARTS = Bounds(2, 1, 3, restarts=1, losses=True)
TWO_OF_THREE = (
    "the controller fences 2",
    "the controller unfences 2",
    "0 hears of leader 0",
    "0 appends record 0",
    "1 hears of leader 0",
    "1 fetches",
    "1 loses the answer",
    "the controller elects 1",
)
"""0 and 1 are in sync and have a record, 0 shows it; 1 is elected."""
LATE = Bounds(2, 2, 3, late=1)


class Mutation(NamedTuple):
    """What is put in place of an attribute, and where the search finds it."""

    owner: Any
    name: str
    value: Any
    bounds: Bounds = SMALL
    steps: tuple[str, ...] = ()
    world: type[World] = World


def _raise_to(reached: Callable[[Leader], int]) -> Callable[[Leader], Any]:
    def raised(leader: Leader) -> Any:
        leader.log.high_watermark = reached(leader)
        return (SetHighWatermark(leader.log.high_watermark),)

    return raised


def _beyond_the_leader(leader: Leader) -> int:
    waits = leader._reached
    return leader.log.end_offset + 1 if waits == INT64_MAX else max(waits, leader.log.high_watermark)


def _back(leader: Leader) -> int:
    return max(min(leader._reached, leader.log.end_offset), 0)


def _as_the_leader(follower: Follower, answer: Any) -> Any:
    follower.log.high_watermark = answer.high_watermark
    return ()


def _joins_by(*offsets: str) -> Callable[[Leader, int], bool]:
    def may_join(leader: Leader, replica: int) -> bool:
        lowest = {"hw": leader.log.high_watermark, "start": leader.epoch_start_offset}
        end = leader.remotes[replica].end_offset
        return end >= max(lowest[name] for name in offsets) and leader._eligible(replica)

    return may_join


def _lead(assign: bool, reset: bool = True) -> Callable[..., Any]:
    """`PartitionReplica._lead` that does not assign the epoch, or keeps what was known of followers."""

    def lead(part: PartitionReplica, role: Any, registration: Any, now_ms: int) -> Any:
        if isinstance(role, Leader) and role.leader_epoch == registration.leader_epoch:
            return role.apply(registration, now_ms)
        assigned = AssignEpoch(registration.leader_epoch, part.log.end_offset)
        if assign:
            part.log.epochs.assign(*assigned)
        leader = part.role = part.leading()
        if not reset and isinstance(role, Leader):
            leader.remotes = role.remotes
        return (assigned, *leader.apply(registration, now_ms))

    return lead


class ForgetfulWorld(World):
    """A replica that restarts hears of the metadata from the beginning."""

    def registered(self, move: Any, replica: int) -> Follower:
        return move.parts[replica].following(-1, -1, -1)


def _truncated(log: ReplicaLog, target: int, end_offset: int) -> None:
    log.end_offset = end_offset
    log.high_watermark = min(log.high_watermark, end_offset)


def _from_anybody(change: PartitionChange, elr: Any) -> Any:
    live = [replica for replica in change._candidates() if replica >= 0 and change.live(replica)]
    return (live[0], False) if live else (-1, False)


def _eligible_even(change: PartitionChange) -> Any:
    """The ELR whatever the size of the ISR."""
    candidates = {*change.partition.elr, *change.partition.isr}
    return tuple(sorted(candidates - {*change.isr} - {*change.unclean_shutdown}))


def _eligible_after_all(change: PartitionChange) -> Any:
    """The ELR with replicas that were shut down uncleanly."""
    if len(change.isr) >= change.min_isr:
        return ()
    return tuple(sorted({*change.partition.elr, *change.partition.isr} - {*change.isr}))


def _same_epoch(change: PartitionChange, after: Any) -> Any:
    before = change.partition
    return None if after == before else after._replace(partition_epoch=before.partition_epoch + 1)


def _refuse(higher: bool, lower: bool) -> Callable[..., None]:
    original = PartitionReplica._check_epoch

    def check(part: PartitionReplica, asked: int, mine: int) -> None:
        if (asked > mine and higher) or (asked < mine and lower):
            original(part, asked, mine)

    return check


def _by_any_registration(leader: Leader, replica: int) -> bool:
    broker = leader.brokers.get(replica)
    return broker is not None and broker.active


def _wherever_its_log_begins(leader: Leader, replica: int) -> bool:
    end_offset = leader.remotes[replica].end_offset
    reached = end_offset >= max(leader.log.high_watermark, leader.epoch_start_offset)
    return reached and leader._eligible(replica)


def _apply_again(leader: Leader, registration: Any, now_ms: int) -> Any:
    leader.leader_epoch, leader.partition_epoch = registration.leader_epoch, registration.partition_epoch
    leader._assign(registration, now_ms)
    leader.isr = Committed(frozenset(registration.isr))
    return leader._advance(now_ms)


FOUND_BY_SEARCH: dict[str, Mutation] = {
    "HW without a pending member": Mutation(PendingExpand, "maximal", property(lambda isr: isr.isr)),
    "HW beyond the leader's end": Mutation(Leader, "_raise", _raise_to(_beyond_the_leader)),
    "HW below min.insync.replicas": Mutation(Leader, "min_isr", property(lambda leader: 1), MIN_ISR),
    "HW of a follower is the leader's": Mutation(Follower, "_keep_up", _as_the_leader),
    "expand without the start of the epoch": Mutation(Leader, "_may_join", _joins_by("hw"),
        Bounds(3, 1, 2, losses=True), TWO_OF_THREE),
    "expand without the HW": Mutation(Leader, "_may_join", _joins_by("start")),
    "expand with any broker epoch": Mutation(Controller, "_eligible",
        lambda of, replica, epoch: of.cluster.active(replica), RESTARTS),
    "shrink applied before it is committed": Mutation(PendingShrink, "maximal",
        property(lambda isr: frozenset(replica for replica, _ in isr.sent.isr))),
    "truncate to the HW": Mutation(follower_module, "truncation_offset", lambda log, end: log.high_watermark),
    "epoch not assigned": Mutation(PartitionReplica, "_lead", _lead(assign=False)),
    "CurrentLE not checked": Mutation(PartitionReplica, "_check_epoch", _refuse(False, False),
        THREE, ONE_HAS_IT),
    "a lower CurrentLE is taken": Mutation(PartitionReplica, "_check_epoch", _refuse(True, False),
        THREE, ONE_HAS_IT),
    "an answer is used after a change of leaders": Mutation(Follower, "awaits",
        lambda follower, request: request.fetch_offset == follower.log.end_offset, LATE),
    "election outside of the ISR": Mutation(PartitionChange, "_elect", _from_anybody),
    "ELR kept after an unclean shutdown": Mutation(PartitionChange, "_eligible", _eligible_after_all,
        RESTARTS._replace(min_isr=2)),
    "ELR kept at min.insync.replicas": Mutation(PartitionChange, "_eligible", _eligible_even),
    "LE not raised": Mutation(PartitionChange, "_numbered", _same_epoch),
    "acks=all answered at the log end": Mutation(Leader, "wait",
        lambda leader, required, deadline, ticket: (Complete(ticket, None),)),
    "followers are remembered when a leader is elected again (Kafka)": Mutation(PartitionReplica, "_lead",
        _lead(assign=True, reset=False), THREE, ONE_HAS_IT),
    "a known state of the metadata ends a proposal (Kafka)": Mutation(Leader, "apply", _apply_again),
    "old metadata after a restart": Mutation(None, "", None, RESTARTS, (), ForgetfulWorld),
}  # fmt: skip


# --- found by unit tests -------------------------------------------------------------------------


class Tested(NamedTuple):
    """What is put in place of an attribute, and the test that fails then."""

    owner: Any
    name: str
    value: Any
    file: str
    test: str


def _all_assigned(leader: Leader, now_ms: int) -> int:
    return min((remote.end_offset for remote in leader.remotes.values()), default=INT64_MAX)


def _expand_always(leader: Leader, replica: int) -> Any:
    leader.isr = Committed(leader.isr.isr)
    return _expand(leader, replica)


def _become_anything(part: PartitionReplica, registration: Any, now_ms: int) -> Any:
    assert part.role is not None
    part.role.partition_epoch = -1
    return _become(part, registration, now_ms)


def _append_all(follower: Follower, request: Any, answer: Any, fetched: Any) -> Any:
    return (follower_module.Append(fetched.next_offset),) if fetched else ()


def _start_of_leader(follower: Follower, answer: Any) -> Any:
    effects = _keep_up(follower, answer)
    follower.log.start_offset = max(answer.log_start_offset, follower.log.start_offset)
    return effects


def _answer_first(of: Controller, key: Any, proposal: Any, broker_epoch: int) -> Any:
    return tuple(reversed(_alter_partition(of, key, proposal, broker_epoch)))


def _fence_all(of: Controller, now_ms: int) -> Any:
    effects = ()
    while more := _on_time(of, now_ms):
        effects += more
    return effects


def _complete_late(produces: DelayedProduces) -> Any:
    return ()


_expand, _become, _keep_up = Leader._expand, PartitionReplica.become, Follower._keep_up
_alter_partition, _on_time = Controller.alter_partition, Controller.on_time

FOUND_BY_TESTS: dict[str, Tested] = {
    "HW goes back on the leader": Tested(Leader, "_raise", _raise_to(_back),
        "test_leader", "test_r15_it_never_decreases"),
    "truncate by offset only": Tested(follower_module, "truncation_offset",
        lambda log, end: min(end.end_offset, log.end_offset),
        "test_follower", "test_r10_where_a_diverging_log_is_cut"),
    "epoch assigned at the first append": Tested(PartitionReplica, "_lead", _lead(assign=False),
        "test_leader", "test_r3_a_leader_assigns_its_epoch_at_its_end_before_the_first_append"),
    "epochs not cut": Tested(ReplicaLog, "truncated", _truncated,
        "test_epochs", "test_r5_truncation_takes_epochs_high_watermark_and_start_along"),
    "a higher CurrentLE is taken": Tested(PartitionReplica, "_check_epoch", _refuse(False, True),
        "test_leader", "test_r8_a_fetch_is_refused"),
    "HW from all that are assigned": Tested(Leader, "_slowest", _all_assigned,
        "test_leader", "test_r15_who_is_assigned_but_lags_does_not_hold_it_up"),
    "two proposals in flight": Tested(Leader, "_expand", _expand_always,
        "test_isr", "test_r19_one_proposal_is_in_flight"),
    "PE not checked": Tested(PartitionReplica, "become", _become_anything,
        "test_leader", "test_r22_an_older_state_changes_nothing"),
    "log start above the HW": Tested(Follower, "_keep_up", _start_of_leader,
        "test_follower", "test_r13_after_the_append_the_high_watermark_then_the_start"),
    "batches of a later epoch are appended": Tested(Follower, "on_answer", _append_all,
        "test_follower", "test_r11_batches_of_a_later_epoch_are_not_appended"),
    "NOT_ENOUGH_REPLICAS only after writing": Tested(Leader, "check_enough_replicas", lambda leader: None,
        "test_acks", "test_r23_too_few_replicas_before_the_append"),
    "requests wait on when leadership is lost": Tested(DelayedProduces, "lose_leadership", _complete_late,
        "test_acks", "test_r23_leadership_lost"),
    "a follower behind serves": Tested(RemoteReplica, "can_serve", lambda remote, offset: True,
        "test_leader", "test_r39_followers_in_sync_that_have_an_offset_can_be_read"),
    "expand with any registration known": Tested(Leader, "_eligible", _by_any_registration,
        "test_isr", "test_r20_who_joins"),
    "who joins may have records below the leader's log start": Tested(
        Leader, "_may_join", _wherever_its_log_begins,
        "test_isr", "test_r20_who_joins_has_nothing_below_the_leaders_log_start"),
    "answered before it is durable": Tested(Controller, "alter_partition", _answer_first,
        "test_controller", "test_r31_what_is_answered_was_written_before"),
    "all stale brokers are fenced at once": Tested(Controller, "on_time", _fence_all,
        "test_controller_registrations", "test_r27_a_session_that_is_over_fences_one_broker_at_a_time"),
}  # fmt: skip
