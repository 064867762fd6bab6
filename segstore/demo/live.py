"""The live part of the demo: two producers send flights in the order and at the pace of their departures, a
group of three consumers reads them, and one of the consumers stops polling.

On disk: a topic of the demo's store, and the group's offsets, through the engine. Threads: two that send,
three that read, and the calling thread, which shows the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import segstore
from segstore.demo.crew import HALVES, PARTITIONS, TOPIC, ReplayPlan, ReplayThreads
from segstore.demo.flights import Flights
from segstore.demo.ledger import frame, total
from segstore.demo.screen import Screen
from segstore.errors import StorageError

_FRAME = 0.125  # time between two frames, in seconds
_LINES = 5  # number of lines with the state, if the output is no terminal


def live(screen: Screen, path: str, flights: Flights, seconds: float, days: float) -> None:
    """Send the flights of `days` days in each second, for `seconds`, or until the last flight is sent. Raises
    StorageError if a record was not read, or its offset was not committed. Raises KeyboardInterrupt after
    Ctrl-C, when all readers have left the group and the store is closed.
    """
    plan = ReplayPlan.of(flights, seconds, days)
    with screen.step("Live", f"{plan.records:,} flights as they left, {days:g} days a second"):
        screen.say(f"two producers, airlines {' and '.join(HALVES)}, {PARTITIONS} partitions of {TOPIC};")
        screen.say(f"a group of three readers: who is silent for {plan.patience_ms / 1000:g} s is out")
        try:
            _run(screen, path, plan)
        except KeyboardInterrupt:
            screen.say("Ctrl-C: the producers are closed, the readers have left, the store is closed")
            raise


def _run(screen: Screen, path: str, plan: ReplayPlan) -> None:
    with segstore.open(path) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        crew = ReplayThreads(store, plan)
        with crew, _shown(screen, crew) as show:
            crew.begin()
            while not crew.done():
                show(False)
                time.sleep(_FRAME)
            show(True)
        _prove(screen, crew)


class _LiveLines:
    """Shows the live part as lines of text: each event when it happens, and the state at intervals and at the
    end.
    """

    def __init__(self, screen: Screen, crew: ReplayThreads) -> None:
        self._screen, self._crew = screen, crew
        self._said, self._due = 0, 0.0

    def show(self, last: bool) -> None:
        status = self._crew.status()
        for event in status.events[self._said :]:
            self._screen.say(event)
            self._said += 1
        if last or status.elapsed >= self._due:
            self._screen.say(f"{status.elapsed:5.1f} s  {status.line()}")
            self._due += self._crew.plan.seconds / _LINES


@contextmanager
def _shown(screen: Screen, crew: ReplayThreads) -> Iterator[Callable[[bool], None]]:
    """Yield a function that shows the state: as a frame if the output is a terminal, else as lines. The
    function's argument must be True in the last call, and False in all other calls.
    """
    if screen.interactive:
        with screen.frames() as update:
            yield lambda last: update(frame(crew.status()))
        return
    yield _LiveLines(screen, crew).show


def _prove(screen: Screen, crew: ReplayThreads) -> None:
    """Check that all sent records were read, and their offsets committed. Raises StorageError."""
    faults, ledger = crew.faults(), crew.ledger
    if faults:
        raise StorageError("the live part failed: " + "; ".join(faults))
    count, checksum = total(ledger.seen)
    screen.good(f"all {count:,} records sent were seen and committed, checksum {checksum:016x}")
    screen.good(f"at least once: {ledger.again:,} of them were seen a second time")
