"""Defects that the process with the store is given, to see that a round finds them: each by its name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from segstore.coordinator.share import dead_letters
from segstore.coordinator.share.core import acquisition, in_flight, partition
from segstore.coordinator.share.core.runs import NOWHERE, StateRun
from segstore.coordinator.share.core.values import Outcome, RecordState, StateBatch
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import StateLog
from segstore.errors import SegstoreError

from .beside import SteppedClock

LATE_S = 2.0
CORE = partition.SharePartition
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED


def _changed(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Put `change(original, *args)` in the place of `owner.name`."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: change(original, *a, **k))


def _acknowledge_first(_: SteppedClock) -> None:
    """States are written a while after their acknowledgement."""

    def write(original: Any, log: StateLog, writes: Any) -> Any:
        def later() -> None:
            with suppress(SegstoreError):
                original(log, writes)

        timer = threading.Timer(LATE_S, later)
        timer.daemon = True
        timer.start()
        return dict.fromkeys(writes)

    _changed(StateLog, "write", write)


def _never_expire(_: SteppedClock) -> None:
    _changed(CORE, "expire", lambda original, self, now, limits: Outcome())
    _changed(CORE, "deadline", lambda original, self: None)


def _skip_holes(_: SteppedClock) -> None:
    """A load takes holes for records that are done with."""

    def load(original: Any, durable: Any) -> Any:
        flight = original(durable)
        at = flight.start
        for run in list(flight.runs):
            if run.first > at:
                flight.add(StateRun(at, run.first - 1, RecordState.ARCHIVED, 0, NOWHERE))
            at = run.last + 1
        flight.runs.join(flight.start, flight.next_new)
        flight.advance()
        return flight

    _changed(partition, "loaded", load)


def _expire_uncounted(_: SteppedClock) -> None:
    def run_out(original: Any, self: Any, over: Any, limits: Any) -> Any:
        for run in over:
            run.count -= 1
        return original(self, over, limits)

    _changed(CORE, "_run_out", run_out)


def _release_uncounted(_: SteppedClock) -> None:
    """A record that is released at its second delivery or later counts one less."""

    def become(original: Any, self: Any, run: Any, state: Any) -> None:
        lowers = run.target is AVAILABLE and state is AVAILABLE and run.count > 1
        original(self, run, state)
        run.count -= lowers

    _changed(in_flight.InFlight, "become", become)


def _grant_again(_: SteppedClock) -> None:
    """Each tenth fetch takes what others hold."""
    turns = itertools.count(1)

    def over(original: Any, self: Any, *args: Any) -> Any:
        if next(turns) % 10 == 0:
            for run in self._flight.runs:
                if run.state is ACQUIRED and not run.write:
                    self._flight.unlock(run)
                    self._flight.become(run, AVAILABLE)
        return original(self, *args)

    _changed(acquisition.Acquisition, "over", over)


def _forget_accepted(_: SteppedClock) -> None:
    """A load has no records that were acknowledged above the start."""

    def load(original: Any, cls: Any, durable: Any, *ends: int) -> Any:
        kept = tuple(each for each in durable.batches if each.state != RecordState.ACKNOWLEDGED)
        return original(durable._replace(batches=kept), *ends)

    original = CORE.load
    CORE.load = classmethod(lambda cls, *a: load(original, cls, *a))  # type: ignore[assignment]


def _send_no_letters(_: SteppedClock) -> None:
    def send(original: Any, self: Any, leader: Any, letters: Any) -> None:
        self._archive(leader, letters[0].first, letters[-1].last)

    _changed(dead_letters.DeadLetterQueue, "_send", send)


def _lock_by_wall_clock(clock: SteppedClock) -> None:
    _changed(ShareCoordinator, "__init__", lambda original, self, store: original(self, store, clock))


def _write_half(_: SteppedClock) -> None:
    """Of several batches of a write only the first is written."""

    def write(original: Any, log: StateLog, writes: Any) -> Any:
        cut = {key: each._replace(batches=_first(each.batches)) for key, each in writes.items()}
        return original(log, cut)

    _changed(StateLog, "write", write)


def _first(batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
    return tuple(batches)[:1]


def _no_limit(_: SteppedClock) -> None:
    _changed(partition, "_given_back", lambda original, count, limits: AVAILABLE)


def _lose_released(_: SteppedClock) -> None:
    """What a session's end gives back is archived."""

    def release(original: Any, self: Any, member: str, now: float, limits: Any) -> Any:
        return original(self, member, now, limits._replace(deliveries=0))

    _changed(CORE, "release", release)


DEFECTS: dict[str, Callable[[SteppedClock], None]] = {
    "acknowledges before it writes": _acknowledge_first,
    "ends no locks": _never_expire,
    "skips holes after a load": _skip_holes,
    "forgets what was accepted over a load": _forget_accepted,
    "does not count deliveries that ran out": _expire_uncounted,
    "does not count deliveries that were released": _release_uncounted,
    "grants what others hold": _grant_again,
    "sends no dead letters": _send_no_letters,
    "locks by the wall clock": _lock_by_wall_clock,
    "writes one batch of several": _write_half,
    "delivers without a limit": _no_limit,
    "archives what a session's end gives back": _lose_released,
}


def plant(name: str, clock: SteppedClock) -> None:
    """Give this process a defect; "none" gives it none."""
    if name != "none":
        DEFECTS[name](clock)
