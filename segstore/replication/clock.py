"""The clock of replicas."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time by which lag and sessions are measured: ms of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
