"""One peer's turn: the names of the works, how much is done of each, and logs that go when a work is over.

On disk: a fresh log a work, in the turn's directory. Threads: one.

After a work, not timed, all that was appended is read back: count and checksum, or `WrongError`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .peer import Log, Peer
from .records import Records, checksum

RATE, P50, P99, CPU = "records/s", "p50 µs", "p99 µs", "CPU %"
APPEND, SCAN, READ = "append", "scan", "point read"
ONE, DURABLE, DURABLE_ONE = "append by 1", "durable by 100", "durable by 1"
TAIL, APART = "tail follow", "tail follow, other process"
WORKS = {
    APPEND: "batches of 1,000, page cache; ends when all are acknowledged",
    SCAN: "all of them again, in order, warm: timestamp and value of each",
    READ: "one record at a random offset, warm",
    ONE: "batches of 1, each acknowledged before the next, page cache",
    DURABLE: "batches of 100, each synced and acknowledged before the next",
    DURABLE_ONE: "batches of 1, each synced and acknowledged before the next",
    TAIL: "a record every ms, page cache; from just before its append until another thread has it",
    APART: "the same, until another process has it",
}
"""Name -> what is done. The first three share a log."""

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
