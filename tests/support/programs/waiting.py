"""Waits for what other threads and processes do, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore import logger

T = TypeVar("T")
PATIENCE = 120.0  # seconds; far more than needed even with ten other processes on the same two cores
PAUSE = 0.002


def until(look: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Call `look` until it returns a true value, and return that. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"it did not come in {seconds:.0f} s"
        time.sleep(PAUSE)
    return found


def told() -> None:
    """Wait until all messages that the engine has logged have reached the handlers."""
    until(lambda: logger._carrier._thread is None)
