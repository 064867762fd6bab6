"""What the live part shows: a table of partitions, and beneath it what happened last. Nothing on disk.

It says the same without colours, and fits a terminal of 80 columns and 24 lines. Threads: one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from segstore.cli.output import add_row, table, time_text
from segstore.demo.screen import INDENT

EVENTS = 5
_BAR = 10  # cells
_WINDOW = 1.0  # seconds that a rate is measured over
_WIDTHS = {"partition": 9, "owner": 17, "committed": 9, "end": 6, "lag": 6, "per s": 6, "": _BAR}


@dataclass(frozen=True)
class Row:
    """A partition: who reads it, offsets, records read a second."""

    partition: int
    owner: str
    committed: int
    end: int
    rate: float

    @property
    def lag(self) -> int:
        """Records that nobody has committed yet."""
        return self.end - self.committed


@dataclass(frozen=True)
class Status:
    """One look at all: `now` in 2013 (ms), `elapsed` of `seconds`, records `sent` and read (`again`: a second
    time), the group's `state`, and the last `events`.
    """

    now: int
    elapsed: float
    seconds: float
    sent: int
    read: int
    again: int
    state: str
    rows: Sequence[Row]
    events: Sequence[str]

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(row.lag for row in self.rows)

    def line(self) -> str:
        """All of it in a line, for where there is no terminal."""
        committed = sum(row.committed for row in self.rows)
        return f"{time_text(self.now)[:16]}  {self.sent:,} sent, {committed:,} committed, lag {self.lag:,}"


class Rates:
    """Records a second over the last moments, by partition."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[int, int]]] = deque()

    def of(self, now: float, counts: Mapping[int, int]) -> dict[int, float]:
        """The rates at `now` (seconds), when so many were counted."""
        looks = self._looks
        looks.append((now, dict(counts)))
        while len(looks) > 2 and looks[1][0] <= now - _WINDOW:
            looks.popleft()
        began, before = looks[0]
        return {p: (n - before[p]) / max(now - began, _WINDOW / 4) for p, n in counts.items()}


def frame(status: Status) -> Group:
    """What is shown at this moment."""
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
