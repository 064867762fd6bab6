"""Faults that could be made in the core, and that others have made: each as one change of it. The search
finds a broken property, or a unit test fails.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from segstore.coordinator.share.core import acknowledgement, partition, sessions, stored, throttle
from segstore.coordinator.share.core import acquisition as acquisition_module
from segstore.coordinator.share.core.acquisition import Acquisition
from segstore.coordinator.share.core.deadlines import LockDeadlines
from segstore.coordinator.share.core.in_flight import ACQUIRED, ARCHIVED, AVAILABLE, ENDS, InFlight
from segstore.coordinator.share.core.partition import NOTHING, SharePartition
from segstore.coordinator.share.core.runs import StateRun, StateRuns
from segstore.coordinator.share.core.sessions import ShareSession, ShareSessions
from segstore.coordinator.share.core.values import Acquired, Limits, Outcome, RecordState
from segstore.coordinator.share.core.writes import PendingWrite


class Mutation(NamedTuple):
    """What is put in place of an attribute, the space in which it shows, and the property that breaks."""

    owner: Any
    name: str
    value: Any
    space: str
    told: str


# --- loads ---------------------------------------------------------------------------------------


def _without_holes(durable: Any) -> InFlight:
    flight = _loaded(durable)
    for first, last, run in list(flight.segments(flight.start, flight.next_new - 1)):
        if run is None:
            flight.add(StateRun(first, last, ARCHIVED))
    flight.advance()
    return flight


def _over_holes(flight: InFlight) -> bool:
    start = flight.start
    for run in flight.runs:
        if run.write or run.state not in ENDS:
            break
        start = run.last + 1
    return start > flight.start and flight.move_start(start)


def _past_writes(flight: InFlight) -> bool:
    start = flight.start
    for run in flight.runs:
        if run.first != start or (run.target or run.state) not in ENDS:
            break
        start = run.last + 1
    return start > flight.start and flight.move_start(start)


def _past_archiving(flight: InFlight) -> bool:
    start = flight.start
    for run in flight.runs:
        if run.first != start or run.write or run.state in (ACQUIRED, AVAILABLE):
            break
        start = run.last + 1
    return start > flight.start and flight.move_start(start)


def _begin_without_a_write(part: SharePartition, offset: int) -> Outcome:
    part._flight = InFlight(offset)
    return Outcome(wakes=True)


def _grants_at_once(part: SharePartition, limits: Limits) -> bool:
    has_room = part.window < limits.window or part.fetch_offset() < part.next_new
    return part.start >= 0 and has_room


# --- writes that fail ----------------------------------------------------------------------------


def _never_over(part: SharePartition, run: StateRun, now: float) -> bool:
    return bool(_is_over(part, run, now)) and False


def _without_limit(part: SharePartition, over: Any, limits: Limits) -> Outcome:
    return _run_out(part, over, limits._replace(deliveries=99))


def _without_letters(part: SharePartition, over: Any, limits: Limits) -> Outcome:
    return _run_out(part, over, limits._replace(dead_letters=False))


def _counted_still(flight: InFlight, run: StateRun) -> None:
    run.target, run.write = None, 0


def _forgotten_owner(part: SharePartition, run: StateRun, now: float) -> bool:
    _is_over(part, run, now)
    return False if run.lock and run.lock.until > now else _free(part, run)


def _free(part: SharePartition, run: StateRun) -> bool:
    part._flight.become(run, AVAILABLE)
    return False


# --- fetches -------------------------------------------------------------------------------------


def _twice(way: Acquisition, *read: Any) -> tuple[Acquired, ...]:
    acquired = _over(way, *read)
    return (*acquired, *acquired[-1:])


def _takes_held(way: Acquisition, first: int, last: int) -> bool:
    for run in way._flight.runs.overlapping(first, last):
        if run.state is ACQUIRED and not run.write and run.lock is not way._lock:
            way._flight.unlock(run)
            way._flight.become(run, AVAILABLE)
    return _take(way, first, last)


def _counted_twice(flight: InFlight, run: StateRun, lock: Any) -> None:
    _acquire(flight, run, lock)
    run.count += 1


def _count_taken_back(flight: InFlight, run: StateRun, state: RecordState) -> None:
    run.count -= run.count > 0 and state is AVAILABLE
    _become(flight, run, state)


def _free_at_once(flight: InFlight, run: StateRun, target: RecordState, write: int) -> None:
    _begin(flight, run, target, write)
    if target is AVAILABLE:
        flight.become(run, target)


def _keeps_its_count(part: SharePartition, token: int) -> Outcome:
    before = {at: run.count for run in part.runs() for at in range(run.first, run.last + 1)}
    outcome = _ungrant(part, token)
    for run in part._flight.runs:
        run.count = before[run.first] if run.state is AVAILABLE else run.count
    return outcome


# --- wakes, the log's start, dead letters --------------------------------------------------------


def _silent(name: str) -> Any:
    event = getattr(SharePartition, name)

    def silent(part: SharePartition, *args: Any) -> Outcome:
        return event(part, *args)._replace(wakes=False)

    return silent


def _only_the_first(runs: StateRuns, offset: int) -> list[StateRun]:
    dropped = _drop_below(runs, offset)
    for run in dropped[1:]:
        runs.insert(run)
    return dropped[:1]


def _always_a_letter(kind: int, run: StateRun, limits: Limits) -> RecordState:
    return _target(kind, run, limits._replace(dead_letters=True))


def _never_a_letter(kind: int, run: StateRun, limits: Limits) -> RecordState:
    return _target(kind, run, limits._replace(dead_letters=False))


def _accepted_all(kind: int, run: StateRun, limits: Limits) -> RecordState:
    return RecordState.ACKNOWLEDGED


def _held_by_anybody(flight: InFlight, member: str, first: int, last: int) -> None:
    runs = flight.runs.overlapping(first, last)
    if not runs or any(run.lock is None or run.write for run in runs):
        raise acknowledgement.InvalidRecordStateError("not acquired")


def _under_way_too(flight: InFlight, member: str, first: int, last: int) -> None:
    runs = flight.runs.overlapping(first, last)
    if not runs or any(run.lock is None or run.lock.owner != member for run in runs):
        raise acknowledgement.InvalidRecordStateError("not acquired")


_loaded, _is_over, _run_out = stored.loaded, SharePartition._is_over, SharePartition._run_out
_over, _take, _ungrant = Acquisition.over, Acquisition._take, SharePartition.ungrant
_acquire, _become, _begin = InFlight.acquire, InFlight.become, InFlight.begin
_drop_below, _target = StateRuns.drop_below, partition._target

FOUND_BY_SEARCH: dict[str, Mutation] = {
    "holes of a load are archived": Mutation(
        partition, "loaded", _without_holes, "a crash, one batch", "P5: offset"),
    "the start passes a hole": Mutation(InFlight, "advance", _over_holes, "a crash", "P5: offset"),
    "the start passes a write under way": Mutation(
        InFlight, "advance", _past_writes, "a failed write", "Q15"),
    "the start passes a record that is archiving": Mutation(
        InFlight, "advance", _past_archiving, "dead letters and a crash", "P"),
    "the start stays": Mutation(InFlight, "advance", lambda flight: False, "one member", "P5: the start"),
    "the first start is not written": Mutation(
        SharePartition, "begin_at", _begin_without_a_write, "beginning at the end", "P5: offset"),
    "grants before the first start is durable": Mutation(
        SharePartition, "may_grant", _grants_at_once, "beginning at the end", "Q30"),
    "a lock that ran out during a failed write has no timer": Mutation(
        SharePartition, "_is_over", _never_over, "a failed write", "P5: the start"),
    "at the end of such a lock the limit is not looked at": Mutation(
        SharePartition, "_run_out", _without_limit, "a failed write", "P4"),
    "at the end of such a lock there is no dead letter": Mutation(
        SharePartition, "_run_out", _without_letters, "dead letters and a failed write", "P5: offset"),
    "a failed write counts as done": Mutation(
        InFlight, "take_back", _counted_still, "a failed write", "P10"),
    "a failed write frees records whose lock has run out without a write": Mutation(
        SharePartition, "_is_over", _forgotten_owner, "a failed write", "P4|Q28"),
    "an offset is granted twice in an answer": Mutation(Acquisition, "over", _twice, "one member", "P12"),
    "records that another holds are granted": Mutation(
        Acquisition, "_take", _takes_held, "two members", "P1"),
    "a full window is not looked at": Mutation(
        Acquisition, "_reach", lambda way, last: last, "a full window", "Q26"),
    "a delivery counts twice": Mutation(InFlight, "acquire", _counted_twice, "one member", "P4"),
    "a release lowers the count": Mutation(InFlight, "become", _count_taken_back, "one member", "P4"),
    "a release is granted before it is durable": Mutation(
        InFlight, "begin", _free_at_once, "a failed write", "."),
    "a last delivery is not alone": Mutation(
        acquisition_module, "is_alone", lambda count, limit: False, "4 offsets in one batch, limit 3", "Q24"),
    "a grant that is taken back is counted": Mutation(
        SharePartition, "ungrant", _keeps_its_count, "an answer is lost", "Q94"),
    "a grant is not taken back": Mutation(
        SharePartition, "ungrant", lambda part, token: NOTHING, "an answer is lost", "Q94"),
    "nobody is woken when the start moves": Mutation(
        SharePartition, "written", _silent("written"), "a full window", "Q28"),
    "nobody is woken when locks run out": Mutation(
        SharePartition, "expire", _silent("expire"), "one member", "Q28"),
    "nobody is woken when the log's start moves": Mutation(
        SharePartition, "move_log_start", _silent("move_log_start"),
        "a full window, the log's start moves", "Q28"),
    "only the first batch below the log's start is archived": Mutation(
        StateRuns, "drop_below", _only_the_first, "the log's start moves", "."),
    "the end of a session frees nothing": Mutation(
        SharePartition, "release", lambda *args: NOTHING, "a session ends", "Q35"),
    "dead letters of a load are not redone": Mutation(
        SharePartition, "redo_dead_letters", lambda *args: (), "dead letters and a crash", "P"),
    "dead letters without a topic for them": Mutation(
        partition, "_target", _always_a_letter, "rejects", "Q66"),
    "no dead letters": Mutation(partition, "_target", _never_a_letter, "dead letters", "P"),
    "all is accepted": Mutation(partition, "_target", _accepted_all, "dead letters", "P"),
    "a renewed lock ends at its old time": Mutation(
        LockDeadlines, "remove", lambda *args: None, "renewals", "P5: fetches"),
    "a member acknowledges what another holds": Mutation(
        acknowledgement, "_check_held", _held_by_anybody, "late acknowledgements of two", "Q30"),
    "a record is acknowledged twice": Mutation(
        acknowledgement, "_check_held", _under_way_too, "two writes, late acknowledgements", "."),
    "aborted records are granted": Mutation(
        Acquisition, "_archive", lambda *args: None, "aborted transactions", "Q44"),
}  # fmt: skip


# --- found by unit tests -------------------------------------------------------------------------


class Tested(NamedTuple):
    """What is put in place of an attribute, and the test that fails then."""

    owner: Any
    name: str
    value: Any
    file: str
    test: str


def _some(part: SharePartition, member: str, batches: Any, now: float, limits: Limits) -> Outcome:
    """Acknowledge batch by batch."""
    outcome = NOTHING
    for batch in batches:
        outcome = _acknowledge(part, member, [batch], now, limits)
    return outcome


def _start_of_after(part: SharePartition, write: PendingWrite) -> Outcome:
    outcome = _under_way(part, write)
    assert outcome.write is not None
    first, last = write.ranges[0] if write.ranges else (0, 0)
    start = last + 1 if first == part.start else part.start
    return outcome._replace(write=outcome.write._replace(start=start))


def _letters_at_once(part: SharePartition, write: PendingWrite) -> Outcome:
    return _under_way(part, write)._replace(dead_letters=tuple(write.letters))


def _one_of_a_connection(of: Any, connection: Any) -> Any:
    ended = _disconnected(of, connection)
    for session in ended[1:]:
        of._open(session)
    return ended[:1]


def _opened_first(of: Any, group: str, member: str, epoch: int, connection: Any, acknowledges: bool) -> Any:
    if epoch == 0:
        of._open(ShareSession(group, member, connection))
    return _fetch(of, group, member, epoch, connection, acknowledges)


def _without_those_for_acknowledgements(session: Any, named: Any, forgotten: Any) -> None:
    _change(session, [], forgotten)


def _evicting(of: Any, group: str, member: str, epoch: int, connection: Any, acknowledges: bool) -> Any:
    of.limit = 99
    return _fetch(of, group, member, epoch, connection, acknowledges)


def _counted_for_acknowledgements_too(
    of: Any, group: str, member: str, epoch: int, connection: Any, acknowledges: bool
) -> Any:
    session = _fetch(of, group, member, epoch, connection, acknowledges)
    if acknowledges and epoch > 0:
        session._advance()
    return session


_acknowledge, _under_way = SharePartition.acknowledge, SharePartition._under_way
_disconnected, _fetch, _change = ShareSessions.disconnected, ShareSessions.fetch, ShareSession.change

FOUND_BY_TESTS: dict[str, Tested] = {
    "not all or nothing": Tested(SharePartition, "acknowledge", _some,
        "test_acknowledgement", "test_q31_all_or_nothing"),
    "corrupt batches are handed on": Tested(stored, "check", lambda durable: None,
        "test_stored", "test_q61_a_state_that_contradicts_itself_is_refused"),
    "offsets above the log's end are kept": Tested(partition, "cut_above", lambda durable, end: durable,
        "test_stored", "test_q48_records_that_are_appended_anew_are_delivered"),
    "a write carries the start behind it": Tested(SharePartition, "_under_way", _start_of_after,
        "test_partition", "test_a_first_session"),
    "dead letters before they are durable": Tested(SharePartition, "_under_way", _letters_at_once,
        "test_partition", "test_q70_state_3_then_the_letter_then_state_4_then_the_start"),
    "records that vanished stay available": Tested(Acquisition, "_vanished", lambda *args: None,
        "test_acquisition", "test_q22_released_records_that_vanished_are_archived_without_a_write"),
    "no throttling": Tested(Acquisition, "_throttled", lambda *args: None,
        "test_throttle", "test_q24_a_broker_s_sequence_with_limit_5"),
    "the threshold is low": Tested(throttle, "threshold", lambda limit: 2,
        "test_throttle", "test_q24_how_many_are_delivered_together"),
    "runs overlap": Tested(StateRuns, "insert", lambda runs, run: runs._runs.append(run),
        "test_runs", "test_runs_never_overlap"),
    "runs are not joined": Tested(StateRuns, "join", lambda *args: None,
        "test_acknowledgement", "test_500_single_acknowledgements_leave_few_runs"),
    "the form of batches is not checked": Tested(partition, "check_form", lambda batches: None,
        "test_acknowledgement", "test_the_form_of_batches"),
    "one session ends with a connection": Tested(ShareSessions, "disconnected", _one_of_a_connection,
        "test_sessions", "test_q93_all_sessions_of_a_connection_end_with_it"),
    "epoch 0 with acknowledgements is refused too late": Tested(ShareSessions, "fetch", _opened_first,
        "test_sessions", "test_q89_another_epoch_is_refused_and_the_session_stays"),
    "an epoch counts twice with acknowledgements": Tested(
        ShareSessions, "fetch", _counted_for_acknowledgements_too,
        "test_sessions", "test_q89_epochs_rise_with_each_request"),
    "the number of sessions has no limit": Tested(ShareSessions, "fetch", _evicting,
        "test_sessions", "test_q88_no_more_sessions_than_the_limit"),
    "named partitions are not added": Tested(ShareSession, "change", _without_those_for_acknowledgements,
        "test_sessions", "test_q90_partitions_are_added_and_forgotten"),
    "epoch 2^31-1 is the last": Tested(sessions, "LAST", 2**40,
        "test_sessions", "test_q89_epochs_rise_with_each_request"),
}  # fmt: skip
