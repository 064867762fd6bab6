"""Random events over larger logs than the model's: the share partition agrees with itself after each, nobody
gets what another holds, and all comes to an end.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from share_queue import ACCEPT, BATCH, GAP, REJECT, RELEASE, RENEW, STRICT, Queue

from segstore.coordinator.share.core.values import Limits, OffsetRange, RecordState
from segstore.errors import InvalidRecordStateError, InvalidRequestError

KINDS = (ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW)
ENDS = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def check(queue: Queue) -> None:
    runs, at = queue.part.runs(), queue.part.start
    for run in runs:
        assert at <= run.first <= run.last
        at = run.last + 1
    assert not any(run.joins(after) for run, after in pairwise(runs))
    assert not runs or at == queue.part.next_new
    done = (r for r in runs if (r.target if r.write else r.state) in ENDS)
    assert queue.part.complete == sum(r.last - r.first + 1 for r in done)
    locks = (r.lock.until for r in runs if r.lock and not r.write)
    assert queue.part.deadline() == min(locks, default=None)


def fetch(queue: Queue, rng: random.Random) -> None:
    member = rng.choice("mno")
    held = {at for other in "mno" for first, last, _ in queue.held(other) for at in range(first, last + 1)}
    mode, want = rng.choice((BATCH, STRICT)), rng.choice((1, 3, 20))
    grant = queue.grant(member, want, mode, rng.choice((1, 10)), [OffsetRange(40, 49)])
    acquired = [at for first, last, _ in grant.acquired for at in range(first, last + 1)]
    assert acquired == sorted(set(acquired))
    assert not held & set(acquired)
    assert not set(acquired) & set(range(40, 50))
    assert all(count <= queue.limits.deliveries for _, _, count in grant.acquired)
    assert mode == BATCH or len(acquired) <= want
    if rng.random() < 0.1:
        queue.did(queue.part.ungrant(grant.token))


def acknowledge(queue: Queue, rng: random.Random) -> None:
    member = rng.choice("mno")
    held = queue.held(member)
    if not held:
        return
    batches = []
    for first, last, _ in sorted(rng.sample(held, rng.randint(1, min(3, len(held))))):
        low = rng.randint(first, last)
        high = rng.randint(low, last)
        batches.append((low, high, [rng.choice(KINDS) for _ in range(low, high + 1)]))
    if rng.random() < 0.1:
        with pytest.raises((InvalidRecordStateError, InvalidRequestError)):
            queue.ack("nobody", *batches)
    queue.ack(member, *batches)


def other(queue: Queue, rng: random.Random) -> None:
    what = rng.random()
    if what < 0.5 and queue.writes:
        queue.end(ok=rng.random() < 0.8, at=rng.randrange(len(queue.writes)))
    elif what < 0.7:
        queue.later(rng.randint(0, 8))
    elif what < 0.75:
        queue.release(rng.choice("mno"))
    elif what < 0.95 and queue.letters:
        queue.lettered(queue.letters.pop())
    elif what > 0.985:
        queue.did(queue.part.move_log_start(queue.part.start + rng.randint(0, 5)))


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("deliveries", [2, 3, 5, 10])
def test_random_events(deliveries: int, dead_letters: bool, rng: random.Random) -> None:
    limits = Limits(window=30, deliveries=deliveries, lock_ms=20, dead_letters=dead_letters)
    queue = Queue(*(rng.choice((1, 3, 10, 25)) for _ in range(20)), limits=limits)
    queue.holds = True
    for _ in range(800):
        rng.choice((fetch, acknowledge, acknowledge, other))(queue, rng)
        check(queue)
    finish(queue)
    assert queue.part.start == queue.log[-1].last + 1
    assert queue.part.runs() == ()


def finish(queue: Queue) -> None:
    for _ in range(3_000):
        while queue.writes:
            queue.end(ok=True)
        while queue.letters:
            queue.lettered(queue.letters.pop())
        if queue.part.start > queue.log[-1].last:
            return
        acquired = queue.fetch(aborted=[OffsetRange(40, 49)])
        if acquired:
            queue.give_back("m", acquired, ACCEPT)
        else:
            queue.later(20)
