"""`LeaseTerm`: the time until which a primary with a lease takes appends. Nothing is on disk.

Threads: one thread renews the term, any thread checks it.
"""

from __future__ import annotations

import time

from segstore.errors import DemotedError


def now() -> float:
    """Return the seconds of a clock that runs while the machine is suspended, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseTerm:
    """The time until which a store's lease is valid. All logs of the store check the time before each append;
    after `until` the check raises an error with the message `why`.
    """

    def __init__(self, why: str) -> None:
        self.until, self.why = 0.0, why

    def check(self) -> None:
        """Raise DemotedError if the lease is no longer valid."""
        if now() >= self.until:
            raise DemotedError(self.why)
