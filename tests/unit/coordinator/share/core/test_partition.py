"""The events of a share partition; rules by their numbers in docs/queues.md."""

from __future__ import annotations

import pytest
from share_queue import ACCEPT, GAP, REJECT, RELEASE, RENEW, STRICT, Queue, stored

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import (
    AckBatch,
    Cause,
    DeadLetter,
    Durable,
    Limits,
    OffsetRange,
    StateBatch,
)
from segstore.errors import InvalidRecordStateError, InvalidRequestError

DEAD = Limits(dead_letters=True)


def test_a_first_session() -> None:
    """10 records: 3 ACCEPT, 3 RELEASE, 2 REJECT, 2 RENEW, then the rest: the writes that a broker made."""
    queue = Queue(10)
    assert queue.fetch() == ((0, 9, 1),)
    queue.ack("m", (0, 2, ACCEPT), (3, 5, RELEASE), (6, 7, REJECT), (8, 9, RENEW))
    assert queue.made[0][1:] == (
        0,
        5,
        (StateBatch(0, 2, 2, 1), StateBatch(3, 5, 0, 1), StateBatch(6, 7, 4, 1)),
    )
    assert (queue.part.start, queue.part.complete, queue.part.lag(10)) == (3, 2, 5)
    queue.ack("m", (8, 9, ACCEPT))
    assert queue.made[1][1:] == (3, 4, (StateBatch(8, 9, 2, 1),))
    assert queue.fetch() == ((3, 5, 2),)
    queue.ack("m", (3, 5, ACCEPT))
    assert (queue.part.start, queue.part.complete, queue.part.lag(10)) == (10, 0, 0)
    assert len(queue.part.runs()) == 0


# --- beginning -----------------------------------------------------------------------------------


def test_q13_the_first_start_is_durable_before_the_first_grant() -> None:
    queue = Queue(10, start=-1)
    queue.holds = True
    assert (queue.part.start, queue.part.fetch_offset(), queue.part.lag(10)) == (-1, -1, -1)
    assert queue.fetch() == ()
    write = queue.did(queue.part.begin_at(4)).write
    assert write is not None
    assert write[1:] == (4, 0, ())
    assert queue.part.start == 4
    assert not queue.part.may_grant(queue.limits)
    assert queue.fetch() == ()
    assert queue.end(ok=True).wakes
    assert queue.fetch() == ((4, 9, 1),)


def test_q13_a_start_that_could_not_be_written_is_looked_for_again() -> None:
    queue = Queue(10, start=-1)
    queue.holds = True
    queue.did(queue.part.begin_at(4))
    queue.end(ok=False)
    assert queue.part.start == -1
    queue.did(queue.part.begin_at(6))
    queue.end(ok=True)
    assert queue.fetch() == ((6, 9, 1),)


# --- counts and limits ---------------------------------------------------------------------------


def test_q12_the_count_rises_with_each_acquisition_alone() -> None:
    queue = Queue(1)
    assert queue.fetch() == ((0, 0, 1),)
    queue.ack("m", (0, 0, RELEASE))
    assert queue.fetch() == ((0, 0, 2),)
    queue.later(30_000)
    assert queue.fetch() == ((0, 0, 3),)
    queue.release("m")
    assert queue.states() == [(0, 0, "AVAILABLE", 3)]


@pytest.mark.parametrize("how", ["acknowledged", "run out", "session over"])
@pytest.mark.parametrize("limits", [Limits(deliveries=2), DEAD._replace(deliveries=2)])
def test_q12_at_the_limit_records_are_not_available_again(how: str, limits: Limits) -> None:
    queue = Queue(1, limits=limits)
    for _ in range(2):
        assert queue.fetch()
        {
            "acknowledged": lambda: queue.ack("m", (0, 0, RELEASE)),
            "run out": lambda: queue.later(30_000),
            "session over": lambda: queue.release("m"),
        }[how]()
    assert queue.fetch() == ()
    dead = [DeadLetter(0, 0, 2, Cause.LIMIT_EXCEEDED)] if limits.dead_letters else []
    assert queue.letters == dead
    assert queue.part.start == (0 if dead else 1)
    assert queue.made[-1].batches == (StateBatch(0, 0, 3 if dead else 4, 2),)


def test_q12_a_lower_limit_acts_at_the_next_end_of_a_lock() -> None:
    queue = Queue(2, limits=Limits(deliveries=5))
    for _ in range(3):
        queue.fetch()
        queue.ack("m", (0, 1, RELEASE))
    queue.limits = Limits(deliveries=2)
    assert queue.fetch(), "records that wait are granted once more"
    queue.ack("m", (0, 0, RELEASE))
    assert queue.part.start == 1


# --- locks ---------------------------------------------------------------------------------------


def test_q25_a_lock_lasts_for_the_time_that_is_set_at_the_grant() -> None:
    queue = Queue(1, 1, limits=Limits(lock_ms=10))
    assert queue.part.deadline() is None
    queue.fetch(want=1)
    queue.now, queue.limits = 5, Limits(lock_ms=100)
    queue.fetch(want=1)
    assert queue.part.deadline() == 10
    queue.later(5)
    assert queue.held() == ((1, 1, 1),)
    assert queue.part.deadline() == 105
    queue.later(94)
    assert queue.held()
    queue.later(1)
    assert queue.held() == ()
    assert queue.part.deadline() is None


def test_q36_memory_changes_before_the_write_and_stays_if_it_fails() -> None:
    queue = Queue(4)
    queue.fetch()
    queue.holds = True
    outcome = queue.later(30_000)
    assert outcome.wakes
    assert outcome.write is not None
    assert outcome.write[1:] == (0, 0, (StateBatch(0, 3, 0, 1),))
    assert queue.fetch("n") == ((0, 3, 2),)
    assert queue.end(ok=False) == (None, False, ())
    assert queue.held("n") == ((0, 3, 2),)


@pytest.mark.parametrize("ok", [True, False])
def test_q36_dead_letters_of_a_lock_s_end_are_sent_whether_or_not_it_is_durable(ok: bool) -> None:
    queue = Queue(1, limits=DEAD._replace(deliveries=1))
    queue.fetch()
    queue.holds = True
    assert queue.later(30_000).dead_letters == ()
    assert queue.end(ok).dead_letters == (DeadLetter(0, 0, 1, Cause.LIMIT_EXCEEDED),)
    queue.holds = False
    queue.lettered(queue.letters[0])
    assert queue.part.start == 1


def test_q37_only_the_lock_that_ran_out_ends() -> None:
    """Renewed, acknowledged, released and granted anew: the old end does nothing."""
    queue = Queue(1, 1, 1, 1, limits=Limits(lock_ms=10))
    queue.fetch()
    queue.now = 5
    queue.ack("m", (0, 0, RENEW), (1, 1, ACCEPT), (2, 2, RELEASE))
    assert queue.fetch("n") == ((2, 2, 2),)
    queue.later(5)
    assert queue.states() == [
        (0, 0, "ACQUIRED", 1),
        (1, 1, "ACKNOWLEDGED", 0),
        (2, 2, "ACQUIRED", 2),
        (3, 3, "AVAILABLE", 1),
    ]
    assert queue.held("n") == ((2, 2, 2),)


def test_q37_a_lock_does_not_end_while_a_transition_is_under_way() -> None:
    queue = Queue(1)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 0, ACCEPT))
    assert queue.part.deadline() is None
    assert queue.later(30_000) == (None, False, ())
    queue.end(ok=True)
    assert queue.part.start == 1


def test_expire_before_its_time_does_nothing() -> None:
    queue = Queue(1)
    queue.fetch()
    assert queue.later(29_999) == (None, False, ())
    assert queue.held()


# --- writes that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT, GAP])
def test_q34_a_failed_write_gives_records_back_to_their_owner(kind: int) -> None:
    queue = Queue(2, limits=DEAD)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 0, kind))
    assert queue.part.complete == (kind in (ACCEPT, GAP))
    assert queue.end(ok=False) == (None, False, ())
    assert (queue.held(), queue.part.complete, queue.letters) == (((0, 1, 1),), 0, [])
    assert queue.part.deadline() == 30_000
    queue.ack("m", (0, 1, ACCEPT))
    queue.end(ok=True)
    assert queue.part.start == 2


@pytest.mark.parametrize("limits", [Limits(), DEAD, DEAD._replace(deliveries=1), Limits(deliveries=1)])
def test_q34_a_lock_that_ran_out_while_a_write_failed_ends_by_a_write_of_its_own(limits: Limits) -> None:
    queue = Queue(1, limits=limits)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 0, ACCEPT))
    queue.later(30_000)
    outcome = queue.end(ok=False)
    state = 0 if limits.deliveries > 1 else 3 if limits.dead_letters else 4
    assert outcome.write is not None
    assert outcome.write.batches == (StateBatch(0, 0, state, 1),)
    assert outcome.wakes == (state == 0)
    assert (queue.held(), queue.part.deadline()) == ((), None)
    queue.end(ok=True)
    assert len(queue.letters) == (state == 3)
    assert queue.fetch() == (((0, 0, 2),) if state == 0 else ())


def test_q33_under_way_nothing_else_happens_to_an_offset() -> None:
    queue = Queue(3)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 1, RELEASE))
    with pytest.raises(InvalidRecordStateError):
        queue.ack("m", (1, 2, ACCEPT))
    assert (queue.fetch(), queue.held(), queue.part.start) == ((), ((2, 2, 1),), 0)
    assert queue.release("m").write is not None
    assert [write.batches for write in queue.writes] == [(StateBatch(0, 1, 0, 1),), (StateBatch(2, 2, 0, 1),)]


@pytest.mark.parametrize("order", [(0, 0), (1, 0)])
def test_q33_writes_end_in_any_order(order: tuple[int, int]) -> None:
    queue = Queue(4)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 1, ACCEPT))
    queue.ack("m", (2, 3, ACCEPT))
    assert [write[1:3] for write in queue.writes] == [(0, 2), (0, 4)]
    for at in order:
        queue.end(ok=True, at=at)
    assert (queue.part.start, queue.part.complete) == (4, 0)


def test_a_write_ends_once() -> None:
    queue = Queue(1)
    with pytest.raises(KeyError):
        queue.part.written(7, True, 0, queue.limits)


# --- wakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "offset", "wakes"), [(6, 0, 0), (4, 0, 1), (4, 2, 0)])
def test_q28_a_start_that_moves_wakes_if_the_window_was_full(window: int, offset: int, wakes: int) -> None:
    """Else each acknowledgement would wake all members that wait for records, in vain."""
    queue = Queue(2, 2, 2, limits=Limits(window=window))
    queue.fetch(want=4)
    assert queue.part.window == 4
    queue.ack("m", (offset, offset + 1, ACCEPT))
    assert (queue.part.start, queue.wakes) == (2 if offset == 0 else 0, wakes)


def test_q28_a_lock_that_runs_out_at_the_limit_wakes_if_the_window_was_full() -> None:
    for window, wakes in ((6, 0), (4, 1)):
        queue = Queue(2, 2, 2, limits=Limits(window=window, deliveries=1))
        queue.fetch(want=4)
        queue.later(30_000)
        queue.did(queue.part.expire(queue.now, queue.limits))
        assert (queue.part.start, queue.wakes) == (4, wakes), f"window {window}"


# --- sessions, log start, dead letters -----------------------------------------------------------


def test_q35_the_end_of_a_session_frees_what_its_member_holds() -> None:
    queue = Queue(3, 3)
    queue.fetch("m", want=3)
    queue.fetch("n", want=3)
    outcome = queue.release("m")
    assert (queue.held("m"), queue.held("n")) == ((), ((3, 5, 1),))
    assert outcome.write is not None
    assert outcome.write.batches == (StateBatch(0, 2, 0, 1),)
    assert queue.wakes == 1
    assert queue.release("m") == (None, False, ())


def test_q41_all_batches_below_a_new_log_start_are_passed() -> None:
    queue = Queue(2, 2, 2, 2)
    for _ in range(4):
        queue.fetch(want=2)
    queue.ack("m", (0, 3, RELEASE))
    queue.ack("m", (6, 6, ACCEPT))
    assert queue.did(queue.part.move_log_start(5)).wakes
    assert (queue.part.start, queue.part.fetch_offset(), queue.part.complete) == (5, 8, 1)
    assert queue.states() == [(5, 5, "ACQUIRED", 1), (6, 6, "ACKNOWLEDGED", 0), (7, 7, "ACQUIRED", 1)]


def test_q41_acknowledgements_below_the_log_start_succeed_without_effect() -> None:
    queue = Queue(10)
    queue.fetch()
    queue.did(queue.part.move_log_start(5))
    even = [ACCEPT, RELEASE] * 5
    queue.ack("m", (0, 9, even))
    assert [batch[:3] for batch in queue.made[-1].batches] == [
        (5, 5, 0),
        (6, 6, 2),
        (7, 7, 0),
        (8, 8, 2),
        (9, 9, 0),
    ]
    assert queue.fetch() == ((5, 5, 2), (7, 7, 2), (9, 9, 2))


def test_q41_a_log_start_above_all_that_is_in_flight() -> None:
    queue = Queue(3, 3, 3)
    queue.fetch(want=3)
    queue.did(queue.part.move_log_start(7))
    assert (queue.part.start, queue.part.next_new, queue.part.deadline()) == (7, 7, None)
    assert queue.fetch() == ((7, 8, 1),)
    assert queue.did(queue.part.move_log_start(7)) == (None, False, ()), "it is there"


@pytest.mark.parametrize("ok", [True, False])
def test_q11_the_log_s_start_wins_against_a_write_under_way(ok: bool) -> None:
    queue = Queue(4)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 2, ACCEPT))
    queue.did(queue.part.move_log_start(2))
    assert queue.part.complete == 1
    queue.later(30_000)
    queue.writes.pop()
    assert queue.end(ok).write is (None if ok else queue.writes[-1])
    assert queue.part.start == (3 if ok else 2)
    assert queue.part.complete == 0


def test_q62_dead_letters_are_redone_after_a_load() -> None:
    queue = Queue(9, durable=stored(0, (0, 1, 3, 5), (2, 2, 3, 1), (3, 8, 2, 1)))
    letters = queue.part.redo_dead_letters()
    assert letters == (DeadLetter(0, 1, 5, Cause.LIMIT_EXCEEDED), DeadLetter(2, 2, 1, Cause.REJECTED))
    assert (queue.part.start, queue.fetch()) == (0, ())
    for letter in letters:
        queue.lettered(letter)
    assert queue.part.start == 9


def test_q70_state_3_then_the_letter_then_state_4_then_the_start() -> None:
    queue = Queue(1, limits=DEAD)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 0, REJECT))
    assert queue.writes[0].batches == (StateBatch(0, 0, 3, 1),)
    assert queue.letters == []
    queue.end(ok=True)
    assert queue.letters == [DeadLetter(0, 0, 1, Cause.REJECTED)]
    assert (queue.part.complete, queue.part.start) == (0, 0)
    queue.lettered(queue.letters[0])
    assert queue.writes[0][1:] == (0, 1, (StateBatch(0, 0, 4, 1),))
    assert queue.part.start == 0
    queue.end(ok=True)
    assert queue.part.start == 1


def test_q70_the_start_passes_a_letter_though_its_end_was_not_written() -> None:
    queue = Queue(1, limits=DEAD)
    queue.fetch()
    queue.ack("m", (0, 0, REJECT))
    queue.holds = True
    queue.lettered(queue.letters[0])
    queue.end(ok=False)
    assert queue.part.start == 1


def test_q70_a_letter_of_records_that_the_log_has_no_more() -> None:
    queue = Queue(3, limits=DEAD)
    queue.fetch()
    queue.holds = True
    queue.ack("m", (0, 1, REJECT))
    queue.did(queue.part.move_log_start(1))
    queue.end(ok=True)
    assert queue.letters == [DeadLetter(0, 1, 1, Cause.REJECTED)]
    queue.lettered(queue.letters[0])
    queue.lettered(DeadLetter(0, 0, 1, Cause.REJECTED))
    assert [write[1:] for write in queue.writes] == [(1, 1, (StateBatch(1, 1, 4, 1),)), (1, 1, ())]


def test_q94_a_grant_that_is_not_answered_is_as_if_it_never_was() -> None:
    queue = Queue(4)
    queue.fetch(want=2, mode=STRICT)
    queue.ack("m", (1, 1, RELEASE))
    grant = queue.grant("n")
    assert grant.acquired == ((1, 1, 2), (2, 3, 1))
    assert queue.did(queue.part.ungrant(grant.token)).wakes
    assert queue.states() == [(0, 0, "ACQUIRED", 1), (1, 1, "AVAILABLE", 1), (2, 3, "AVAILABLE", 0)]
    assert queue.fetch("o") == ((1, 1, 2), (2, 3, 1))
    assert queue.part.ungrant(grant.token) == (None, False, ())
    assert queue.held("o") == ((1, 1, 2), (2, 3, 1))


# --- loading -------------------------------------------------------------------------------------


def test_q40_complete_counts_what_is_done_with_from_the_start_on() -> None:
    queue = Queue(5, 5)
    queue.fetch()
    queue.ack("m", (2, 3, ACCEPT), (6, 6, REJECT))
    assert (queue.part.complete, queue.part.lag(10)) == (3, 7)
    queue.ack("m", (0, 1, ACCEPT))
    assert (queue.part.start, queue.part.complete, queue.part.lag(10)) == (4, 1, 5)
    queue.ack("m", (4, 5, ACCEPT), (7, 9, GAP))
    assert (queue.part.start, queue.part.complete, queue.part.lag(12)) == (10, 0, 2)


def test_a_copy_changes_independently() -> None:
    queue = Queue(4)
    queue.fetch(want=2, mode=STRICT)
    before = queue.part.frozen()
    copied = queue.part.copy()
    assert copied.frozen() == before
    queue.holds = True
    queue.ack("m", (0, 0, ACCEPT))
    queue.later(30_000)
    assert copied.frozen() == before
    assert copied.deadline() == 30_000
    assert queue.part.copy().frozen() == queue.part.frozen() != before


def test_load_without_a_start() -> None:
    part = SharePartition.load(Durable(), 3, 9)
    assert (part.start, part.fetch_offset(), part.cut, part.in_flight()) == (-1, -1, False, 0)
    with pytest.raises(InvalidRequestError):
        part.acknowledge("m", [AckBatch(0, 0, [ACCEPT])], 0, Limits())
    assert part.move_log_start(5) == (None, False, ())
    assert part.release("m", 0, Limits()) == (None, False, ())


def test_load_under_a_log_start() -> None:
    part = SharePartition.load(stored(0, (0, 1, 0, 1), (4, 6, 0, 2)), 5, 9)
    assert (part.start, part.fetch_offset(), part.window) == (5, 5, 2)


def test_q15_the_start_is_moved_at_load() -> None:
    part = SharePartition.load(stored(0, (0, 1, 4, 1), (2, 4, 2, 2), (6, 6, 2, 1)), 0, 9)
    assert (part.start, part.complete, part.fetch_offset()) == (5, 1, 5)


def test_q44_what_was_aborted_is_a_hole_after_a_crash() -> None:
    queue = Queue(2, 2, 2)
    queue.fetch(aborted=[OffsetRange(2, 3)])
    queue.ack("m", (4, 5, ACCEPT))
    write = queue.made[-1]
    again = Queue(2, 2, 2, durable=Durable(start=write.start, complete=write.complete, batches=write.batches))
    assert again.fetch(aborted=[OffsetRange(2, 3)]) == ((0, 1, 1),)
    again.ack("m", (0, 1, ACCEPT))
    assert again.part.start == 6
