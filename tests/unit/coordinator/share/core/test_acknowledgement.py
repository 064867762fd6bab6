"""Acknowledgements of a share partition; rules by their numbers in docs/queues.md."""

from __future__ import annotations

import pytest
from share_queue import ACCEPT, GAP, REJECT, RELEASE, RENEW, Queue, stored

from segstore.coordinator.share.core.values import (
    AckBatch,
    AcknowledgeType,
    Cause,
    DeadLetter,
    Limits,
    StateBatch,
)
from segstore.errors import InvalidRecordStateError, InvalidRequestError

DEAD = Limits(dead_letters=True)


def test_q29_offsets_below_the_start_are_done_with() -> None:
    queue = Queue(5)
    queue.fetch()
    queue.ack("m", (0, 2, ACCEPT))
    assert queue.ack("m", (0, 2, REJECT)) == (None, False, ())
    assert queue.ack("other", (1, 1, ACCEPT)).write is None
    queue.ack("m", (0, 4, [RELEASE, RELEASE, RELEASE, ACCEPT, RELEASE]))
    assert queue.made[-1].batches == (StateBatch(3, 3, 2, 1), StateBatch(4, 4, 0, 1))


# What a member may not acknowledge, of 0-4 held by m, 5-9 by n, 10-14 released, and the loaded 15-19 of
# which 17 is Available and the others are holes.
NOT_HELD: dict[str, tuple[int, int, type[Exception]]] = {
    "another's": (5, 5, InvalidRecordStateError),
    "partly another's": (3, 6, InvalidRecordStateError),
    "available": (10, 10, InvalidRecordStateError),
    "partly available": (4, 10, InvalidRecordStateError),
    "a hole": (15, 15, InvalidRecordStateError),
    "up to the end": (0, 17, InvalidRecordStateError),
    "behind the end": (18, 18, InvalidRequestError),
    "over the end": (4, 18, InvalidRequestError),
    "far away": (500, 500, InvalidRequestError),
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_q30_only_what_the_member_holds(name: str) -> None:
    first, last, error = NOT_HELD[name]
    queue = Queue(5, 5, 5, 5, durable=stored(0, (17, 17, 0, 1)))
    queue.fetch("m", want=5)
    queue.fetch("n", want=5)
    queue.fetch("o", want=5)
    queue.release("o")
    before = queue.part.frozen()
    with pytest.raises(error):
        queue.ack("m", (first, last, ACCEPT))
    assert queue.part.frozen() == before


def test_q30_a_record_is_acknowledged_once() -> None:
    queue = Queue(3)
    queue.fetch()
    queue.ack("m", (1, 1, ACCEPT))
    with pytest.raises(InvalidRecordStateError, match="offset 1 is acknowledged by member m"):
        queue.ack("m", (1, 1, ACCEPT))


def test_q30_a_lock_that_ran_out_is_held_no_more() -> None:
    """S3: the whole partition's commit fails, and all come again with count 2."""
    queue = Queue(16, limits=Limits(lock_ms=1000))
    queue.fetch()
    queue.later(2500)
    with pytest.raises(InvalidRecordStateError):
        queue.ack("m", (0, 15, ACCEPT))
    assert queue.fetch() == ((0, 15, 2),)


def test_q31_all_or_nothing() -> None:
    queue = Queue(10)
    queue.fetch("m", want=1)
    queue.ack("m", (4, 4, ACCEPT))
    before = queue.part.frozen()
    with pytest.raises(InvalidRecordStateError):
        queue.ack("m", (0, 3, ACCEPT), (4, 4, ACCEPT), (5, 9, REJECT))
    assert queue.part.frozen() == before
    assert queue.held() == ((0, 3, 1), (5, 9, 1))


def test_q31_renewals_before_a_bad_offset_stay() -> None:
    queue = Queue(10)
    queue.fetch()
    queue.ack("m", (4, 4, ACCEPT))
    queue.now = 100
    with pytest.raises(InvalidRecordStateError):
        queue.ack("m", (0, 1, RENEW), (2, 2, ACCEPT), (4, 4, ACCEPT), (5, 5, RENEW))
    queue.later(29_900)
    assert queue.held() == ((0, 1, 1),)


# Kind, DLQ, to (state, complete).
ENDS: dict[str, tuple[AcknowledgeType, Limits, int, int]] = {
    "accept": (ACCEPT, Limits(), 2, 1),
    "accept with dead letters": (ACCEPT, DEAD, 2, 1),
    "gap": (GAP, Limits(), 4, 1),
    "gap is no dead letter": (GAP, DEAD, 4, 1),
    "reject": (REJECT, Limits(), 4, 1),
    "reject with dead letters": (REJECT, DEAD, 3, 0),
    "release": (RELEASE, Limits(), 0, 0),
    "release at the limit": (RELEASE, Limits(deliveries=1), 4, 1),
    "release at the limit with dead letters": (RELEASE, DEAD._replace(deliveries=1), 3, 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_q32_what_a_record_becomes(name: str) -> None:
    kind, limits, state, complete = ENDS[name]
    queue = Queue(2, limits=limits)
    queue.fetch()
    outcome = queue.ack("m", (1, 1, kind))
    assert outcome.write is not None
    assert outcome.write[1:] == (0, complete, (StateBatch(1, 1, state, 1),))
    cause = Cause.REJECTED if kind == REJECT else Cause.LIMIT_EXCEEDED
    assert queue.letters == ([DeadLetter(1, 1, 1, cause)] if state == 3 else [])
    assert queue.wakes == (state == 0)


def test_q32_a_renewal_starts_the_lock_anew_and_writes_nothing() -> None:
    queue = Queue(2, limits=Limits(lock_ms=10))
    queue.fetch()
    queue.now = 6
    assert queue.ack("m", (0, 0, RENEW)) == (None, False, ())
    queue.later(4)
    assert (queue.held(), queue.part.deadline()) == (((0, 0, 1),), 16)
    queue.later(6)
    assert queue.held() == ()


def test_q32_a_renewal_may_be_forbidden() -> None:
    queue = Queue(2, limits=Limits(may_renew=False))
    queue.fetch()
    with pytest.raises(InvalidRecordStateError, match=r"share\.renew\.acknowledge\.enable"):
        queue.ack("m", (0, 0, ACCEPT), (1, 1, RENEW))
    assert queue.held() == ((0, 1, 1),)


def test_s25_renewals_mixed_with_other_types_and_below_the_start() -> None:
    queue = Queue(4)
    queue.fetch()
    for _ in range(10):
        queue.now += 20_000
        queue.ack("m", (0, 3, [RENEW, RENEW, RENEW, RENEW]))
    queue.ack("m", (0, 3, [ACCEPT, RENEW, ACCEPT, RENEW]))
    assert queue.held() == ((1, 1, 1), (3, 3, 1))
    queue.ack("m", (1, 1, ACCEPT))
    assert queue.part.start == 3
    assert queue.ack("m", (1, 2, RENEW)) == (None, False, ())
    assert queue.held() == ((3, 3, 1),)


# Batches that no partition takes, and one that is odd.
FORMS: dict[str, list[tuple[int, int, list[int]]]] = {
    "first above last": [(3, 2, [1])],
    "negative": [(-1, 2, [1])],
    "falling": [(4, 6, [1]), (2, 3, [1])],
    "overlapping": [(0, 4, [1]), (3, 6, [1])],
    "no types": [(0, 4, [])],
    "too few types": [(0, 4, [1, 1])],
    "too many types": [(0, 4, [1] * 6)],
    "unknown type": [(0, 4, [5])],
    "negative type": [(0, 1, [1, -1])],
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_batches(name: str) -> None:
    queue = Queue(10)
    queue.fetch()
    before = queue.part.frozen()
    batches = [AckBatch(0, 0, [RENEW])] if FORMS[name][0][0] > 0 else []
    with pytest.raises(InvalidRequestError):
        queue.part.acknowledge("m", [*batches, *(AckBatch(*each) for each in FORMS[name])], 5, queue.limits)
    assert queue.part.frozen() == before


def test_a_batch_may_begin_where_the_one_before_ends() -> None:
    """The offset is then acknowledged twice, which works for a renewal before something else only."""
    queue = Queue(10)
    queue.fetch()
    with pytest.raises(InvalidRecordStateError, match="offset 4 is acknowledged twice"):
        queue.ack("m", (0, 4, ACCEPT), (4, 6, ACCEPT))
    queue.ack("m", (0, 4, RENEW), (4, 6, ACCEPT))
    assert queue.held() == ((0, 3, 1), (7, 9, 1))


@pytest.mark.parametrize("how", ["one call each", "one batch each", "one type each"])
def test_500_single_acknowledgements_leave_few_runs(how: str) -> None:
    queue = Queue(500, 1)
    queue.fetch(want=500)
    most = 0
    if how == "one call each":
        for at in range(1, 500):
            queue.ack("m", (at, at, ACCEPT))
            most = max(most, len(queue.part.runs()))
    elif how == "one batch each":
        queue.ack("m", *((at, at, ACCEPT) for at in range(1, 500)))
        assert queue.made[-1].batches == (StateBatch(1, 499, 2, 1),)
    else:
        queue.ack("m", (1, 499, [ACCEPT] * 499))
        assert queue.made[-1].batches == (StateBatch(1, 499, 2, 1),)
    assert most <= 3
    assert queue.states() == [(0, 0, "ACQUIRED", 1), (1, 499, "ACKNOWLEDGED", 0)]
    queue.ack("m", (0, 0, ACCEPT))
    assert queue.part.start == 500
