"""Deliveries near the limit; rules by their numbers in docs/queues.md."""

from __future__ import annotations

import pytest
from share_queue import ACCEPT, RELEASE, STRICT, Queue, stored

from segstore.coordinator.share.core.throttle import allowance, is_alone, threshold
from segstore.coordinator.share.core.values import Limits

SINGLES = [(at, at) for at in range(16)]


def polled(queue: Queue, polls: int, want: int = 500) -> list[tuple[int, int]]:
    """Offsets of each poll by a client that releases all of the last poll with the next fetch: the release
    is under way while the fetch is answered, and durable behind it.
    """
    spans, last = [], ()
    for _ in range(polls):
        queue.holds = True
        if last:
            queue.give_back("m", last, RELEASE)
        last = queue.fetch(want=want)
        while queue.writes:
            queue.end(ok=True)
        if last:
            spans.append((last[0][0], last[-1][1]))
    return spans


def test_q24_a_broker_s_sequence_with_limit_5() -> None:
    """16 records always released: 16, 16, 16, 8, 8, then one by one; then they are archived (S4)."""
    queue = Queue(16)
    spans = [queue.fetch() for _ in (1,)]
    for _ in range(2):
        queue.ack("m", (0, 15, RELEASE))
        spans.append(queue.fetch())
    queue.ack("m", (0, 15, RELEASE))
    spans += [queue.fetch(), queue.fetch()]
    assert spans == [((0, 15, 1),), ((0, 15, 2),), ((0, 15, 3),), ((0, 7, 4),), ((8, 15, 4),)]
    queue.ack("m", (0, 15, RELEASE))
    assert [queue.fetch() for _ in range(16)] == [((at, at, 5),) for at in range(16)]
    assert queue.fetch() == ()
    queue.ack("m", (0, 15, RELEASE))
    assert (queue.part.start, queue.fetch()) == (16, ())


def test_q24_what_a_client_sees_that_polls_and_releases() -> None:
    queue = Queue(16)
    spans = polled(queue, 60)
    assert sorted(spans) == sorted([(0, 15)] * 3 + [(0, 7), (8, 15)] + SINGLES)
    assert queue.part.start == 16


def test_q24_limit_2_is_not_throttled() -> None:
    """S5: the threshold is 2, which no Available record has."""
    queue = Queue(8, limits=Limits(deliveries=2))
    assert queue.fetch() == ((0, 7, 1),)
    queue.ack("m", (0, 7, RELEASE))
    assert queue.fetch() == ((0, 7, 2),)


def test_q24_limit_3_gives_the_last_delivery_alone() -> None:
    queue = Queue(8, limits=Limits(deliveries=3))
    for count in (1, 2):
        assert queue.fetch() == ((0, 7, count),)
        queue.ack("m", (0, 7, RELEASE))
    assert [queue.fetch() for _ in range(9)] == [*(((at, at, 3),) for at in range(8)), ()]


def test_q24_limit_10_halves_with_each_delivery() -> None:
    queue = Queue(16, limits=Limits(deliveries=10))
    for _ in range(5):
        assert len(queue.fetch()) == 1
        queue.ack("m", (0, 15, RELEASE))
    sizes = []
    while acquired := queue.fetch():
        sizes.append(acquired[-1][1] - acquired[0][0] + 1)
    assert sizes == [8, 8]
    queue.ack("m", (0, 15, RELEASE))
    assert [queue.fetch()[0] for _ in range(4)] == [(0, 3, 7), (4, 7, 7), (8, 11, 7), (12, 15, 7)]


def test_q24_a_batch_near_the_limit_is_not_added_to_others() -> None:
    queue = Queue(4, 4, 4, durable=stored(0, (0, 3, 0, 1), (4, 7, 0, 3), (8, 11, 0, 1)))
    assert queue.fetch() == ((0, 3, 2),)
    assert queue.fetch() == ((4, 5, 4),), "alone, and half of it"
    assert queue.fetch() == ((6, 7, 4),)
    assert queue.fetch() == ((8, 11, 2),)


def test_q24_new_records_are_not_added_to_a_batch_near_the_limit() -> None:
    queue = Queue(1, 4, durable=stored(0, (0, 0, 0, 3)))
    assert queue.fetch() == ((0, 0, 4),)
    assert queue.fetch() == ((1, 4, 1),)


def test_q24_the_first_count_at_the_threshold_says_how_many() -> None:
    queue = Queue(8, durable=stored(0, (0, 7, 0, 2)))
    assert queue.fetch() == ((0, 7, 3),)
    queue.ack("m", (0, 7, RELEASE))
    assert queue.fetch(want=2, mode=STRICT) == ((0, 1, 4),)
    queue.ack("m", (0, 1, RELEASE))
    assert queue.fetch() == ((0, 0, 5),)
    assert queue.fetch() == ((1, 1, 5),)
    assert queue.fetch() == ((2, 5, 4),), "the size is that of the whole batch"


def test_q24_a_record_on_its_last_delivery_ends_an_answer() -> None:
    queue = Queue(8, durable=stored(0, (0, 7, 0, 2)))
    queue.fetch()
    queue.ack("m", (0, 1, RELEASE), (3, 7, RELEASE))
    assert queue.fetch(want=2, mode=STRICT) == ((0, 1, 4),)
    queue.ack("m", (0, 0, ACCEPT), (1, 2, RELEASE))
    assert queue.fetch() == ((1, 1, 5),)
    queue.release("m")
    assert queue.fetch() == ((2, 5, 4),)


def test_q24_a_poisoned_record_does_not_take_others_to_the_limit() -> None:
    """Record 5 of 16 is never accepted, the others are if it is not among them."""
    queue = Queue(16)
    accepted: set[int] = set()
    for _ in range(60):
        acquired = queue.fetch()
        if not acquired:
            break
        offsets = [at for first, last, _ in acquired for at in range(first, last + 1)]
        bad = 5 in offsets
        accepted |= set() if bad else set(offsets)
        queue.give_back("m", acquired, RELEASE if bad else ACCEPT)
    assert accepted == set(range(16)) - {5}
    assert queue.part.start == 16


THRESHOLDS: dict[int, int] = {2: 2, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 10: 5, 25: 13}


@pytest.mark.parametrize("limit", THRESHOLDS)
def test_q24_the_threshold_is_half_of_the_limit(limit: int) -> None:
    assert threshold(limit) == THRESHOLDS[limit]


def test_q24_how_many_are_delivered_together() -> None:
    assert [allowance(500, count, 10) for count in range(5, 10)] == [250, 125, 62, 31, 15]
    assert [allowance(1, count, 5) for count in (3, 4)] == [1, 1]
    assert [is_alone(count, 5) for count in (3, 4, 5)] == [False, True, True]
    assert [is_alone(count, 2) for count in (1, 2)] == [False, False]
