"""Following a log's end: a record is appended every millisecond; how soon has another thread it?

On disk: a fresh log. Threads: the writer's is the caller's, the follower has one of its own, which ends with
the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from .peer import Log
from .records import Batch, Row
from .turn import CPU, P50, P99, TAIL, Bench, Works, WrongError, clock

PAUSE = 0.001
PATIENCE = 30.0


def tail(bench: Bench) -> Works:
    """A writer, and a follower in a thread beside it."""
    wanted = bench.effort.followed
    with bench.fresh(synced=False) as log:
        follower = Follower(log, wanted)
        follower.start()
        try:
            follower.wait(follower.ready)
            began, used = clock(), time.process_time()
            sent = paced(log, bench.records.batches(1, wanted))
            follower.wait(follower.done)
            cpu = (time.process_time() - used) / (clock() - began)
        finally:
            follower.stop.set()
            follower.join(PATIENCE)
        if follower.rows != bench.records.rows(0, wanted):
            raise WrongError(f"the follower has seen other records than the {wanted:,} that were appended")
    took = np.subtract(follower.seen, sent) * 1e6
    yield TAIL, {P50: float(np.percentile(took, 50)), P99: float(np.percentile(took, 99)), CPU: 100 * cpu}


def paced(log: Log, batches: list[Batch]) -> list[float]:
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
