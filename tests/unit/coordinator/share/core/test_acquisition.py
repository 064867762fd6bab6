"""Grants of a share partition; rules by their numbers in docs/queues.md."""

from __future__ import annotations

import pytest
from share_queue import ACCEPT, BATCH, REJECT, RELEASE, STRICT, Queue, Spans, log_of, stored

from segstore.coordinator.share.core.values import AcquireMode, Limits, OffsetRange, ReadBatch


def test_q17_the_next_fetch_begins_at_the_first_available_offset() -> None:
    queue = Queue(5, 5, 5)
    assert queue.part.fetch_offset() == 0
    queue.fetch(want=10)
    assert queue.part.fetch_offset() == 10
    queue.ack("m", (7, 8, RELEASE))
    assert queue.part.fetch_offset() == 7
    queue.holds = True
    queue.ack("m", (2, 2, RELEASE))
    assert queue.part.fetch_offset() == 7, "the release is not durable yet"
    queue.end(ok=True)
    assert queue.part.fetch_offset() == 2
    assert queue.fetch(want=1, mode=STRICT) == ((2, 2, 2),)
    assert queue.part.fetch_offset() == 7


def test_q18_in_flight_only_what_is_available_is_granted() -> None:
    queue = Queue(10)
    queue.fetch()
    queue.ack("m", (0, 1, RELEASE), (2, 3, ACCEPT), (5, 5, RELEASE))
    assert queue.fetch("other") == ((0, 1, 2), (5, 5, 2))
    assert queue.held("m") == ((4, 4, 1), (6, 9, 1))


# Sizes of batches, want, mode, piece: what each of some fetches gets.
MODES: dict[str, tuple[tuple[int, ...], int, AcquireMode, list[Spans]]] = {
    "a whole batch": ((10,), 3, BATCH, [((0, 9, 1),), ()]),
    "to the end of the batch": ((4, 4, 4), 5, BATCH, [((0, 7, 1),), ((8, 11, 1),)]),
    "exactly two": ((4, 4, 4), 8, BATCH, [((0, 7, 1),), ((8, 11, 1),)]),
    "single records": ((1, 1, 1), 2, BATCH, [((0, 1, 1),), ((2, 2, 1),)]),
    "at most": ((10,), 3, STRICT, [((0, 2, 1),), ((3, 5, 1),), ((6, 8, 1),), ((9, 9, 1),)]),
    "at most, over batches": ((4, 4), 6, STRICT, [((0, 5, 1),), ((6, 7, 1),)]),
    "at most one": ((2,), 1, STRICT, [((0, 0, 1),), ((1, 1, 1),), ()]),
    "499 of 500": ((500,), 499, STRICT, [((0, 498, 1),), ((499, 499, 1),)]),
    "500 of 500": ((500,), 500, STRICT, [((0, 499, 1),), ()]),
    "501 of 500": ((500,), 501, BATCH, [((0, 499, 1),), ()]),
}


@pytest.mark.parametrize("name", MODES)
def test_q19_how_much_is_granted(name: str) -> None:
    sizes, want, mode, expected = MODES[name]
    queue = Queue(*sizes)
    assert [queue.fetch(want=want, mode=mode) for _ in expected] == expected


def test_q19_pieces_end_where_record_batches_do() -> None:
    queue = Queue(3, 3, 3, 3)
    assert queue.fetch(want=20, piece=4) == ((0, 5, 1), (6, 11, 1))
    queue = Queue(3, 3, 3)
    assert queue.fetch(want=20, piece=6) == ((0, 5, 1), (6, 8, 1))


def test_q19_the_rest_of_a_batch_is_available_with_count_0() -> None:
    queue = Queue(10)
    queue.fetch(want=3, mode=STRICT)
    assert queue.states() == [(0, 2, "ACQUIRED", 1), (3, 9, "AVAILABLE", 0)]
    assert queue.part.window == 10


def test_q20_acquired_are_alike_in_count_and_come_of_one_piece() -> None:
    queue = Queue(4, 4)
    assert queue.fetch(want=8, piece=4) == ((0, 3, 1), (4, 7, 1))
    queue.ack("m", (0, 7, RELEASE))
    assert queue.fetch("n", want=2, mode=STRICT) == ((0, 1, 2),)
    queue.release("n")
    assert queue.fetch(want=8) == ((0, 1, 3), (2, 3, 2), (4, 7, 2))


def test_q21_holes_after_a_load_are_granted_as_new() -> None:
    durable = stored(0, (3, 4, 2, 1), (7, 7, 0, 2))
    queue = Queue(5, 5, 5, durable=durable)
    assert (queue.part.start, queue.part.fetch_offset(), queue.part.next_new) == (0, 0, 8)
    assert queue.fetch(want=15) == ((0, 2, 1), (5, 6, 1), (7, 7, 3), (8, 14, 1))


def test_q21_the_start_does_not_pass_a_hole() -> None:
    queue = Queue(10, durable=stored(0, (2, 9, 2, 1)))
    assert (queue.part.start, queue.part.complete) == (0, 8)
    assert queue.fetch(want=1, mode=STRICT) == ((0, 0, 1),)
    queue.ack("m", (0, 0, ACCEPT))
    assert queue.part.start == 1
    assert queue.fetch() == ((1, 1, 1),)
    queue.ack("m", (1, 1, ACCEPT))
    assert queue.part.start == 10


def test_q21_holes_come_from_the_lowest_upward() -> None:
    queue = Queue(4, 4, 4, durable=stored(0, (2, 2, 0, 1), (8, 11, 2, 1)))
    assert queue.part.fetch_offset() == 0
    assert queue.fetch(want=2) == ((0, 1, 1), (2, 2, 2), (3, 3, 1))
    assert queue.fetch(want=9) == ((4, 7, 1),)


def test_q21_holes_are_granted_though_the_window_is_full() -> None:
    queue = Queue(10, 2, durable=stored(0, (9, 9, 0, 1)), limits=Limits(window=3))
    assert queue.part.may_grant(queue.limits)
    assert queue.fetch() == ((0, 8, 1), (9, 9, 2))
    assert not queue.part.may_grant(queue.limits)
    assert queue.fetch() == ()


def test_q22_released_records_that_vanished_are_archived_without_a_write() -> None:
    queue = Queue(4, 4, 4)
    queue.fetch()
    queue.ack("m", (0, 5, RELEASE))
    made = len(queue.made)
    queue.log = log_of(4, 4, 4)[1:]
    assert queue.part.fetch_offset() == 0
    assert queue.fetch() == ((4, 5, 2),)
    assert (queue.part.start, len(queue.made)) == (4, made)


def test_q22_also_between_two_batches_and_not_those_that_are_held() -> None:
    queue = Queue(2, 2, 2)
    queue.fetch()
    queue.ack("m", (0, 0, RELEASE), (3, 3, RELEASE), (4, 5, RELEASE))
    queue.log = [ReadBatch(0, 1), ReadBatch(4, 5)]
    assert queue.fetch("n") == ((0, 0, 2), (4, 5, 2))
    assert queue.states()[1:3] == [(1, 2, "ACQUIRED", 1), (3, 3, "ARCHIVED", 0)]


def test_q22_offsets_that_were_compacted_away_before_the_first_fetch_are_passed() -> None:
    queue = Queue(log=[ReadBatch(5, 6), ReadBatch(9, 9)])
    assert queue.fetch() == ((5, 6, 1), (9, 9, 1))
    queue.ack("m", (5, 6, ACCEPT), (9, 9, ACCEPT))
    assert queue.part.start == 10


def test_q22_a_hole_that_vanished_lets_the_start_pass() -> None:
    queue = Queue(durable=stored(0, (4, 5, 2, 1)), log=[ReadBatch(4, 5), ReadBatch(6, 6)])
    grant = queue.grant()
    assert grant.acquired == ((6, 6, 1),)
    assert grant.wakes
    assert queue.part.start == 6


def test_q26_a_full_window_takes_no_new_batch() -> None:
    queue = Queue(500, 10, limits=Limits(window=100))
    assert queue.fetch(want=500) == ((0, 499, 1),)
    assert not queue.part.may_grant(queue.limits)
    queue.ack("m", (10, 400, ACCEPT))
    assert queue.fetch() == (), "0-9 are held"
    queue.ack("m", (401, 401, RELEASE))
    assert queue.part.may_grant(queue.limits)
    assert queue.fetch() == ((401, 401, 2),), "inside of the window"
    queue.ack("m", (0, 9, ACCEPT), (402, 499, ACCEPT))
    assert queue.part.start == 401
    assert queue.fetch() == ((500, 509, 1),), "401-499 are 99"


def test_q26_the_window_may_be_exceeded_by_one_batch() -> None:
    queue = Queue(2, 2, 2, 2, limits=Limits(window=3))
    assert queue.fetch() == ((0, 3, 1),)
    assert queue.part.window == 4
    assert queue.fetch() == ()


def test_q26_a_record_limit_is_cut_to_the_room() -> None:
    queue = Queue(10, limits=Limits(window=3))
    assert queue.fetch(want=5, mode=STRICT) == ((0, 2, 1),)
    assert queue.fetch(want=5, mode=STRICT) == ((3, 7, 1),), "these are in flight"


def test_q42_the_part_of_a_batch_above_the_window_waits() -> None:
    """After a load the window may end inside of a batch."""
    queue = Queue(10, durable=stored(0, (0, 3, 0, 1)), limits=Limits(window=4))
    assert queue.fetch() == ((0, 3, 2),)
    queue.ack("m", (0, 0, ACCEPT))
    assert queue.fetch() == ((4, 9, 1),)


def test_q43_control_batches_are_granted_like_others() -> None:
    queue = Queue(log=[ReadBatch(0, 2, 7), ReadBatch(3, 3, 7, True)])
    assert queue.fetch() == ((0, 3, 1),)


def test_q44_aborted_records_are_archived_in_memory() -> None:
    queue = Queue(3, 1, 3, 1)
    grant = queue.grant(aborted=[OffsetRange(0, 2)])
    assert grant.acquired == ((3, 7, 1),)
    assert (queue.part.start, grant.wakes, queue.made) == (3, True, [])
    queue = Queue(3, 1, 3, 1)
    assert queue.fetch(aborted=[OffsetRange(4, 6)]) == ((0, 3, 1), (7, 7, 1))
    assert (queue.part.start, queue.part.complete) == (0, 3)
    assert queue.fetch(aborted=[OffsetRange(4, 6)]) == ()


def test_q44_released_records_of_an_aborted_transaction_are_archived_too() -> None:
    queue = Queue(3, 3)
    queue.fetch()
    queue.ack("m", (0, 5, RELEASE))
    assert queue.fetch(aborted=[OffsetRange(3, 5)]) == ((0, 2, 2),)
    assert queue.part.complete == 3


def test_q44_an_answer_of_aborted_records_alone_moves_the_start() -> None:
    queue = Queue(3, 3)
    grant = queue.grant(aborted=[OffsetRange(0, 5)])
    assert (grant.acquired, grant.wakes, queue.part.start) == ((), True, 6)


def test_q23_a_fetch_below_the_log_s_start_goes_on_from_there() -> None:
    queue = Queue(start=0)
    queue.log = log_of(10)
    queue.part.move_log_start(5)
    assert queue.fetch() == ((5, 9, 1),)


def test_p12_grants_of_members_are_disjoint_and_rise() -> None:
    queue = Queue(5, 5, 5, 5)
    first, second = queue.fetch("m", want=5), queue.fetch("n", want=10)
    assert (first, second) == (((0, 4, 1),), ((5, 14, 1),))
    queue.ack("n", (5, 14, RELEASE))
    queue.ack("m", (1, 1, REJECT), (3, 4, RELEASE))
    assert queue.fetch("o") == ((3, 4, 2), (5, 14, 2), (15, 19, 1))


def test_q16_what_became_available_below_the_fetch_offset_while_it_was_read_waits() -> None:
    queue = Queue(5, 5)
    queue.fetch(want=5)
    batches, begin, end = queue.read()
    queue.ack("m", (2, 2, RELEASE))
    grant = queue.part.grant("n", BATCH, 9, 9, batches, begin, end, (), 0, queue.limits)
    assert grant.acquired == ((5, 9, 1),)
    assert queue.fetch() == ((2, 2, 2),)


def test_nothing_is_granted_for_nothing() -> None:
    queue = Queue(5)
    assert queue.fetch(want=0) == ()
    assert queue.part.window == 0
