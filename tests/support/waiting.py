"""Waits for what other threads and processes do: as long as a busy machine may need, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore import logger

T = TypeVar("T")
PATIENCE = 120.0  # seconds; far more than it takes with ten others at work on the same two cores
PAUSE = 0.002


def until(look: Callable[[], T], seconds: float = PATIENCE) -> T:
    """What `look` gives, once it is true. Fails where it does not come."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"it did not come in {seconds:.0f} s"
        time.sleep(PAUSE)
    return found


def told() -> None:
    """Return when what the engine has told by `logging` until now has reached the handlers."""
    until(lambda: logger._carrier._thread is None)
