"""The works that every peer does, each with how it is timed.

On disk: a fresh log a work. Threads: this one, and a follower's beside it.

A work takes at most `Effort.seconds` (after which no further batch is begun) or its records, whichever is
first. What is read in a timed part is compared afterwards, as all that was appended is.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from .apart import tail_apart
from .following import tail
from .peer import Log
from .records import SEED, Batch
from .turn import (
    APART,
    APPEND,
    DURABLE,
    DURABLE_ONE,
    ONE,
    P50,
    P99,
    RATE,
    READ,
    SCAN,
    TAIL,
    Bench,
    Figures,
    Works,
    WrongError,
    clock,
)


def bulk(bench: Bench) -> Works:
    """Append, scan, point read."""
    with bench.fresh(synced=False) as log:
        count, rate = _appended(log, bench.records.batches(1_000), bench.effort.seconds, each=False)
        bench.prove(log, count)
        yield APPEND, {RATE: rate}
        began = clock()
        seen = log.scan()
        took = clock() - began
        wanted = bench.records.seen(count)
        if seen != (wanted if seen.stamps is not None else replace(wanted, stamps=None)):
            raise WrongError(f"{wanted} is to be seen, not {seen}")
        yield SCAN, {RATE: count / took}
        yield READ, _points(bench, log, count)


def by_one(bench: Bench) -> Works:
    yield ONE, _batches(bench, 1, bench.effort.singles, synced=False)


def durable(bench: Bench) -> Works:
    yield DURABLE, _batches(bench, 100, 100 * bench.effort.synced, synced=True)
    yield DURABLE_ONE, _batches(bench, 1, bench.effort.synced, synced=True)


PARTS = {
    bulk: (APPEND, SCAN, READ),
    by_one: (ONE,),
    durable: (DURABLE, DURABLE_ONE),
    tail: (TAIL,),
    tail_apart: (APART,),
}
"""What is run, and the works that it gives figures of."""


def _appended(log: Log, batches: list[Batch], seconds: float, each: bool) -> tuple[int, float]:
    """(Records, records a second); `each`: a batch is acknowledged before the next."""
    count, began = 0, clock()
    for batch in batches:
        log.append(batch)
        if each:
            log.acknowledge()
        count += len(batch)
        if clock() - began > seconds:
            break
    log.acknowledge()
    return count, count / (clock() - began)


def _batches(bench: Bench, size: int, most: int, synced: bool) -> Figures:
    with bench.fresh(synced) as log:
        count, rate = _appended(log, bench.records.batches(size, most), bench.effort.seconds, each=True)
        bench.prove(log, count)
    return {RATE: rate}


def _points(bench: Bench, log: Log, count: int) -> Figures:
    random, took, read = Random(SEED), [], [(0, log.read(0))]  # the first may connect
    until = clock() + bench.effort.seconds
    for _ in range(bench.effort.reads):
        offset = random.randrange(count)
        began = clock()
        row = log.read(offset)
        took.append(clock() - began)
        read.append((offset, row))
        if clock() > until:
            break
    for offset, row in read:
        if row != (wanted := bench.records.rows(offset, offset + 1)[0]):
            raise WrongError(f"at offset {offset} is {wanted!r:.60}, not {row!r:.60}")
    return {P50: float(np.percentile(took, 50)) * 1e6, P99: float(np.percentile(took, 99)) * 1e6}
