"""`Ledger`: counts the sent and the read records of the demo's live part, and finds differences between them.
`frame` draws a table of the live part's state.

Threads: any; one lock guards a ledger.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from segstore.cli.output import add_row, table, time_text
from segstore.client.consumer import ConsumerRecord
from segstore.client.producer import RecordMetadata
from segstore.demo.screen import INDENT

_MASK = (1 << 64) - 1


def fingerprint(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """Return 64 bits of BLAKE2b over a record's offset, timestamp (ms), key and value."""
    key, value = key or b"", value or b""
    place = b"%d %d %d " % (offset, timestamp, len(key))
    return int.from_bytes(hashlib.blake2b(place + key + value, digest_size=8).digest(), "big")


class Tally:
    """The number of a partition's records, and a checksum of the records that does not depend on their
    order.
    """

    __slots__ = ("checksum", "count")

    def __init__(self) -> None:
        self.count = self.checksum = 0

    def add(self, print_: int) -> None:
        self.count += 1
        self.checksum = self.checksum + print_ & _MASK


class Ledger:
    """The sent and the read records. For each partition `sent` counts the acknowledged records, and `seen`
    counts the records that readers got, each record only once. `again` counts the reads of records that had
    been read before. `refused` has the errors of failed sends.
    """

    def __init__(self, partitions: int) -> None:
        self.sent = [Tally() for _ in range(partitions)]
        self.seen = [Tally() for _ in range(partitions)]
        self.again = 0
        self.refused: list[str] = []
        self._offsets: list[set[int]] = [set() for _ in range(partitions)]
        self._lock = threading.Lock()

    def acknowledge(self, key: bytes, value: bytes, metadata: RecordMetadata) -> None:
        """Count an acknowledged record. Called as a producer's callback."""
        print_ = fingerprint(metadata.offset, metadata.timestamp, key, value)
        with self._lock:
            self.sent[metadata.partition].add(print_)

    def refuse(self, error: BaseException) -> None:
        """Store the error of a send. Called as a producer's errback."""
        with self._lock:
            self.refused.append(str(error))

    def read(self, records: Iterable[ConsumerRecord]) -> None:
        """Count the records that a reader got."""
        with self._lock:
            for record in records:
                if record.offset in self._offsets[record.partition]:
                    self.again += 1
                    continue
                self._offsets[record.partition].add(record.offset)
                self.seen[record.partition].add(
                    fingerprint(record.offset, record.timestamp, record.key, record.value)
                )

    def faults(self, committed: Mapping[int, int], ends: Mapping[int, int]) -> list[str]:
        """Return a sentence for each fault of the log, of the read records, and of the committed offsets."""
        with self._lock:
            found = [f"{len(self.refused):,} records were refused: {self.refused[0]}"] if self.refused else []
            for p, (sent, seen) in enumerate(zip(self.sent, self.seen, strict=True)):
                if ends[p] != sent.count:
                    found.append(
                        f"partition {p} has {ends[p]:,} records, and {sent.count:,} were acknowledged"
                    )
                if seen.count != sent.count:
                    found.append(f"of the {sent.count:,} records of partition {p} {seen.count:,} were seen")
                elif seen.checksum != sent.checksum:
                    found.append(f"partition {p}: what was seen is not what was sent, by its checksum")
                if committed.get(p, 0) != ends[p]:
                    found.append(f"partition {p} ends at {ends[p]:,}, committed is {committed.get(p)}")
        return found


def total(tallies: Iterable[Tally]) -> tuple[int, int]:
    """Return (number of records, checksum) of all partitions together."""
    each = list(tallies)
    return sum(t.count for t in each), sum(t.checksum for t in each) & _MASK


# --- board -------------------------------------------------------------------------------------

# The code below draws the display of the live part: a table of partitions, and below the table the latest
# events. The display can be read without colours, and fits a terminal of 80 columns and 24 lines. Threads:
# one.

EVENTS = 5
_BAR = 10  # width of a bar, in columns of the terminal
_WINDOW = 1.0  # time over which a rate is measured, in seconds
_WIDTHS = {"partition": 9, "owner": 17, "committed": 9, "end": 6, "lag": 6, "per s": 6, "": _BAR}


@dataclass(frozen=True)
class LedgerRow:
    """A row of the table: a partition, the client id of its reader, its committed offset, its log end offset,
    and the number of read records per second.
    """

    partition: int
    owner: str
    committed: int
    end: int
    rate: float

    @property
    def lag(self) -> int:
        """Return the number of records after the committed offset."""
        return self.end - self.committed


@dataclass(frozen=True)
class Status:
    """The state of the live part at one moment. `now` is the time that the replay's clock shows, in ms. The
    part takes `seconds`, of which `elapsed` have passed. `sent` and `read` are numbers of records; `again` is
    the number of records that were read a second time, and is included in `read`. `state` is the group's
    state, and `events` are the latest events.
    """

    now: int
    elapsed: float
    seconds: float
    sent: int
    read: int
    again: int
    state: str
    rows: Sequence[LedgerRow]
    events: Sequence[str]

    @property
    def lag(self) -> int:
        """Return the total lag of all partitions, in records."""
        return sum(row.lag for row in self.rows)

    def line(self) -> str:
        """Return the state as one line, for output without a terminal."""
        committed = sum(row.committed for row in self.rows)
        return f"{time_text(self.now)[:16]}  {self.sent:,} sent, {committed:,} committed, lag {self.lag:,}"


class Rates:
    """Measures how many records of each partition were read per second, over the last `_WINDOW` seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[int, int]]] = deque()

    def of(self, now: float, counts: Mapping[int, int]) -> dict[int, float]:
        """Return partition -> records per second. `counts` has the number of records of each partition that
        were read until the time `now` (seconds).
        """
        looks = self._looks
        looks.append((now, dict(counts)))
        while len(looks) > 2 and looks[1][0] <= now - _WINDOW:
            looks.popleft()
        began, before = looks[0]
        return {p: (n - before[p]) / max(now - began, _WINDOW / 4) for p, n in counts.items()}


def frame(status: Status) -> Group:
    """Return the display of `status`, for a terminal."""
    seconds = f"{min(status.elapsed, status.seconds):4.1f} of {status.seconds:.0f} s"
    counts = f"{status.sent:,} sent, {status.read:,} read, {status.again:,} again"
    head = Text.assemble(INDENT, (time_text(status.now)[:16], "bold"), f"  {seconds}  {counts}")
    lines = [*status.events[-EVENTS:], *[""] * EVENTS][:EVENTS]
    events = [Text(INDENT + line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
    head.no_wrap, head.overflow = True, "ellipsis"
    return Group(head, _table(status), Text(f"{INDENT}group: {status.state}", no_wrap=True), *events)


def _table(status: Status) -> Table:
    names = tuple(_WIDTHS)
    made = table(*names, right=("partition", *names[2:6]))
    for column, width in zip(made.columns, _WIDTHS.values(), strict=True):
        column.min_width, column.no_wrap = width, True
    most = max(*(row.lag for row in status.rows), 1)
    for row in status.rows:
        bar = Text("█" * round(_BAR * row.lag / max(most, 100)), style="yellow")
        numbers = (row.committed, row.end, row.lag, f"{row.rate:,.0f}")
        add_row(made, row.partition, row.owner, *numbers, bar, style=None if row.owner else "red")
    rows = status.rows
    sums = (sum(row.committed for row in rows), sum(row.end for row in rows), status.lag)
    add_row(made, "all", "", *sums, f"{sum(row.rate for row in rows):,.0f}", "", style="bold")
    return made
