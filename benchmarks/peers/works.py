"""The works that every peer does, each with how it is timed, and the proof that its records came back.

On disk: a fresh log a work, removed after it. Threads: this one, and a follower's beside it in `tail`.

A work takes at most `Effort.seconds` (after which no further batch is begun) or its records, whichever is
first. Then, not timed, all that was appended is read back: count and checksum, or `WrongError`. What is
read in a timed part is compared as well.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from .peer import Log, Peer
from .records import SEED, Batch, Records, Row, checksum

RATE, P50, P99, CPU = "records/s", "p50 µs", "p99 µs", "CPU %"
APPEND, SCAN, READ = "append", "scan", "point read"
ONE, DURABLE, DURABLE_ONE, TAIL = "append by 1", "durable by 100", "durable by 1", "tail follow"
WORKS = {
    APPEND: "batches of 1,000, page cache; ends when all are acknowledged",
    SCAN: "all of them again, in order, warm: timestamp and value of each",
    READ: "one record at a random offset, warm",
    ONE: "batches of 1, each acknowledged before the next, page cache",
    DURABLE: "batches of 100, each synced and acknowledged before the next",
    DURABLE_ONE: "batches of 1, each synced and acknowledged before the next",
    TAIL: "a record every ms, page cache; from just before its append until another thread has it",
}
"""Name -> what is done. The first three share a log."""

PAUSE = 0.001
PATIENCE = 30.0
clock = time.perf_counter
Figures = dict[str, float]
Works = Generator[tuple[str, Figures], None, None]


class WrongError(Exception):
    """A peer gave other records than it got."""


@dataclass(frozen=True)
class Effort:
    """Seconds that a work takes at most, and how many records each appends, reads or follows at most."""

    seconds: float
    singles: int
    synced: int
    reads: int
    followed: int


@dataclass
class Bench:
    """One peer's turn: `directory` is empty before and after."""

    peer: Peer
    records: Records
    effort: Effort
    directory: Path
    opened: int = 0

    @contextmanager
    def fresh(self, synced: bool) -> Iterator[Log]:
        """A log that goes when the work is over, in a directory with a name that no other had."""
        self.opened += 1
        where = self.directory / f"log-{self.opened}"
        where.mkdir()
        try:
            with closing(self.peer.open(where, synced)) as log:
                yield log
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def prove(self, log: Log, count: int) -> None:
        found, wanted = checksum(log.rows()), self.records.checksum(count)
        if found != wanted:
            raise WrongError(
                f"{wanted[0]:,} records with checksum {wanted[1]:08x} went in, but came out: {found}"
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
        if seen != bench.records.seen(count):
            raise WrongError(f"{bench.records.seen(count)} is to be seen, not {seen}")
        yield SCAN, {RATE: count / took}
        yield READ, _points(bench, log, count)


def by_one(bench: Bench) -> Works:
    yield ONE, _batches(bench, 1, bench.effort.singles, synced=False)


def durable(bench: Bench) -> Works:
    yield DURABLE, _batches(bench, 100, 100 * bench.effort.synced, synced=True)
    yield DURABLE_ONE, _batches(bench, 1, bench.effort.synced, synced=True)


def tail(bench: Bench) -> Works:
    """A writer, and a follower in a thread beside it."""
    wanted = bench.effort.followed
    with bench.fresh(synced=False) as log:
        follower = Follower(log, wanted)
        follower.start()
        try:
            follower.wait(follower.ready)
            began, used = clock(), time.process_time()
            sent = _paced(log, bench.records.batches(1, wanted))
            follower.wait(follower.done)
            cpu = (time.process_time() - used) / (clock() - began)
        finally:
            follower.stop.set()
            follower.join(PATIENCE)
        if follower.rows != bench.records.rows(0, wanted):
            raise WrongError(f"the follower has seen other records than the {wanted:,} that were appended")
    took = np.subtract(follower.seen, sent) * 1e6
    yield TAIL, {P50: float(np.percentile(took, 50)), P99: float(np.percentile(took, 99)), CPU: 100 * cpu}


PARTS = {bulk: (APPEND, SCAN, READ), by_one: (ONE,), durable: (DURABLE, DURABLE_ONE), tail: (TAIL,)}
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


def _paced(log: Log, batches: list[Batch]) -> list[float]:
    """Append one every PAUSE: when each was begun."""
    sent, next_at = [], clock()
    for batch in batches:
        next_at += PAUSE
        time.sleep(max(0.0, next_at - clock()))
        sent.append(clock())
        log.append(batch)
    log.acknowledge()
    return sent


class Follower(threading.Thread):
    """Takes `wanted` records; `seen` has when each came."""

    def __init__(self, log: Log, wanted: int) -> None:
        super().__init__(daemon=True)
        self._log, self._wanted = log, wanted
        self.rows: list[Row] = []
        self.seen: list[float] = []
        self.ready, self.done, self.stop = threading.Event(), threading.Event(), threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(self._log.follow()) as following:
                self._take(following)
        except BaseException as error:
            self.failed = error
        finally:
            self.ready.set()
            self.done.set()

    def _take(self, following: Iterator[list[Row]]) -> None:
        for rows in following:
            self.seen += [clock()] * len(rows)
            self.rows += rows
            self.ready.set()
            if self.stop.is_set() or len(self.rows) >= self._wanted:
                return

    def wait(self, event: threading.Event) -> None:
        """WrongError where it does not come, and what the follower failed with."""
        if not event.wait(PATIENCE):
            raise WrongError(
                f"the follower has {len(self.rows):,} of {self._wanted:,} records after {PATIENCE} s"
            )
        if self.failed is not None:
            raise self.failed
