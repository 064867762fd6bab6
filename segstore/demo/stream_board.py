"""The display of the Spark part: the progress of the query, and below the progress the events. The display
can be read without colours, and fits a terminal of 80 columns and 24 lines. Threads: one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.text import Text

from segstore.demo.screen import INDENT, Screen

EVENTS = 8
_BAR = 24  # width of the bar, in columns of the terminal
_FRAME = 0.125  # time between two frames, in seconds
_LINES = 4.0  # time between two lines, if the output is no terminal, in seconds
_PHASES = {
    "session": "Spark {version} is up, the query starts",
    "heartbeat": "a heartbeat: no flight comes any more, the last hours are over",
    "archive": "Spark counts {rows:,} flights in the archive",
}


class Progress:
    """The progress of the query, made from the events of both drivers. `windows()` returns the number of
    windows that are in the log.
    """

    def __init__(self, total: int, windows: Callable[[], int]) -> None:
        self.total, self.windows, self.driver = total, windows, ""
        self.batch, self.read, self.open, self.ms, self.watermark = -1, 0, 0, 0, ""
        self.archived = 0
        self.events: list[str] = []
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the Spark part began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Add an event with the current time."""
        self.events.append(f"{self.seconds:5.1f} s  {text}")

    def take(self, event: dict[str, Any]) -> None:
        """Update the progress from an event of a driver."""
        if event["event"] in _PHASES:
            self.say(_PHASES[event["event"]].format(**event))
        if event["event"] == "archive":
            self.archived = event["rows"]
        if event["event"] == "batch":
            self.batch, self.read, self.open, self.ms = (event[n] for n in ("batch", "read", "open", "ms"))
            self.watermark = event["watermark"][:16].replace("T", " ")

    def line(self) -> str:
        """Return the progress as one line, for output without a terminal."""
        batch = f"micro-batch {self.batch}, " if self.batch >= 0 else ""
        counts = (
            f"{self.read:,} of {self.total:,} flights, {self.windows():,} hours written, {self.open:,} open"
        )
        return f"{self.seconds:5.1f} s  {batch}{counts}"

    def frame(self) -> Group:
        """Return the current frame for a terminal."""
        full = round(_BAR * self.read / max(self.total, 1))
        bar = (("█" * full, "green"), ("░" * (_BAR - full), "dim"))
        batch = f"micro-batch {self.batch}, {self.ms:,} ms" if self.batch >= 0 else "no micro-batch yet"
        over = f", over is what ended by {self.watermark}" if self.watermark > "1971" else ""
        lines = [
            Text.assemble(INDENT, (self.driver, "bold"), f"  {self.seconds:.1f} s"),
            Text.assemble(INDENT, "flights  ", *bar, f"  {self.read:,} of {self.total:,}"),
            Text(f"{INDENT}hours    {self.windows():,} written, {self.open:,} open{over}"),
            Text(f"{INDENT}stream   {batch}"),
            *(Text(INDENT + said, style="dim") for said in [*self.events, *[""] * EVENTS][:EVENTS]),
        ]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)


class _StreamLines:
    """Shows the progress as lines of text: each event when it happens, and the progress every few seconds if
    there is a new micro-batch.
    """

    def __init__(self, screen: Screen, progress: Progress) -> None:
        self._screen, self._progress = screen, progress
        self._said, self._batch, self._due = 0, progress.batch, _LINES

    def show(self, last: bool) -> None:
        for event in self._progress.events[self._said :]:
            self._screen.say(event)
            self._said += 1
        new = self._progress.batch != self._batch and self._progress.seconds >= self._due
        if last or new:
            self._screen.say(self._progress.line())
            self._batch, self._due = self._progress.batch, self._progress.seconds + _LINES


class _Frames:
    """Shows the progress as frames, a few in each second."""

    def __init__(self, update: Callable[[Group], None], progress: Progress) -> None:
        self._update, self._progress, self._due = update, progress, 0.0

    def show(self, last: bool) -> None:
        if last or self._progress.seconds >= self._due:
            self._update(self._progress.frame())
            self._due = self._progress.seconds + _FRAME


@contextmanager
def shown(screen: Screen, progress: Progress) -> Iterator[Callable[[bool], None]]:
    """Yield a function that shows the progress. If the output is a terminal, it shows a few frames in each
    second, else a line every few seconds. The function's argument must be True in the last call, and False in
    all other calls.
    """
    if screen.interactive:
        with screen.frames() as update:
            yield _Frames(update, progress).show
        return
    yield _StreamLines(screen, progress).show
