"""The clock of replicas."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of the monotonic clock in ms. The lag of replicas and the sessions of brokers are
    measured with this clock.
    """
    return time.monotonic_ns() // 1_000_000
