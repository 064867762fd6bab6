"""Interrupts that come at any moment of a call: a timer's signal, whose handler raises KeyboardInterrupt."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import segstore

PATIENCE = int(os.environ.get("STORM_PATIENCE", "120"))
"""Seconds; a call that takes longer hangs: all stacks are told, and the process ends."""
PAIRED = 0.4  # of the strikes have a second one
GAPS = (2e-5, 5e-5, 1e-4, 2e-4, 1e-3)  # seconds between two


class Striker:
    """Strikes the main thread. `counts`: calls by name, and single and paired interrupts that were raised."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.counts = rng, Counter[str]()
        self._left = 0
        self._seconds: dict[str, float] = {}  # that a call takes, by name: when it is struck
        signal.signal(signal.SIGALRM, self._handle)
        sys.unraisablehook = _untold

    def _handle(self, _signal: int, frame: FrameType | None) -> None:
        if self._left and (frame is None or frame.f_code is not _untold.__code__):
            self._left -= 1
            raise KeyboardInterrupt

    def strike(self, name: str, run: Callable[[], Any]) -> bool:
        """Whether the call ended by itself; what it raises, other than interrupts, passes."""
        watch()
        self.counts[name] += 1
        rng, came = self.rng, 0
        planned = 2 if rng.random() < PAIRED else 1
        delay = 2e-5 + rng.random() * 1.3 * self._seconds.get(name, 1e-3)
        began = time.monotonic()
        try:
            try:
                self._left = planned
                signal.setitimer(signal.ITIMER_REAL, delay, rng.choice(GAPS))
                run()
            finally:
                came, self._left = planned - self._left, 0
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self._tell(came)
            # So that the end of what takes long is struck too.
            self._seconds[name] = 1.02 * self._seconds.get(name, 1e-3)
            return False
        self._tell(came)
        if not came:
            self._seconds[name] = 0.8 * self._seconds.get(name, 1e-3) + 0.2 * (time.monotonic() - began)
        return True

    def _tell(self, came: int) -> None:
        self.counts["interrupts"] += came
        self.counts["single"] += came == 1
        self.counts["paired"] += came == 2


def opened(striker: Striker, open_: Callable[[], segstore.Store]) -> segstore.Store:
    """A store that is opened, struck, until that goes well: what was interrupted locks nobody out."""
    made: list[segstore.Store] = []
    while not made:  # an interrupt may come when it is in there already
        striker.strike("open", lambda: made.append(open_()))
    return made.pop()


def descriptors() -> dict[str, str]:
    """The process's open descriptors, and what each is of."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def at_rest(before: dict[str, str]) -> None:
    """Nothing is left of stores that are closed: no descriptor, and no thread."""
    gc.collect()
    until = time.monotonic() + PATIENCE / 2
    while threading.active_count() > 1:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.001)
    left = {number: of for number, of in descriptors().items() if before.get(number) != of}
    assert not left, left


def watch() -> None:
    """From now on the process has PATIENCE for what it does next."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)


def _untold(unraisable: Any) -> None:
    """An interrupt within a destructor is passed over by Python; anything else is told."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
