"""The clock of replicas."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the monotonic clock in ms, by which lag and sessions are measured."""
    return time.monotonic_ns() // 1_000_000
