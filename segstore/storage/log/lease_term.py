"""`LeaseTerm`: until when a primary with a lease takes appends. Nothing is on disk.

Threads: one renews, any asks.
"""

from __future__ import annotations

import time

from segstore.errors import DemotedError


def now() -> float:
    """Return seconds of a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseTerm:
    """All logs of one store ask it before each append. `why` says why it has run out."""

    def __init__(self, why: str) -> None:
        self.until, self.why = 0.0, why

    def check(self) -> None:
        """Raise DemotedError where the term has run out."""
        if now() >= self.until:
            raise DemotedError(self.why)
