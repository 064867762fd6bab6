"""The cleaner's throttle: it limits the bytes per second, makes pauses, and can stop the cleaner. Nothing is
on disk.

The cleaner pauses in proportion to its processor time, because compaction is not urgent, and delays appends.
Threads: any thread may call `stop`; only the cleaning thread uses the other methods.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from segstore.threads import Latch

INTERVAL = 0.3  # seconds between two checks of the rate (org.apache.kafka.storage.internals.utils.Throttler)
LONGEST_WAIT = 3600.0
MOST_AT_ONCE = 32 << 20  # bytes; reading them takes about 30 ms, and a stop of the cleaner waits for it


REST = 0.5  # seconds of pause for each second of processor time
LEAST_REST, LONGEST_REST = 0.005, 0.25


class CleaningStopped(Exception):
    """Raised if the store closes, or the log that is cleaned was replaced or deleted. The new files are then
    removed.
    """


class Throttler:
    """An object that the cleaner calls with the number of bytes that it has read, or is going to write. The
    call waits if the rate is too high.

    `clock` returns seconds. `wait(seconds)` waits for `seconds`, and returns False. It returns True, at once,
    if the cleaning must stop.
    """

    def __init__(
        self,
        bytes_per_second: float = sys.float_info.max,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopping: Latch | None = None,
        wait: Callable[[float], bool] | None = None,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._stopping = stopping or Latch()
        self._wait = wait or self._stopping.wait
        self._began, self._seen = clock(), 0
        self._worked, self._rested = worked, worked()

    @property
    def at_once(self) -> int:
        """Return the number of bytes that the cleaner may read before it calls this object again."""
        return max(1, int(min(MOST_AT_ONCE, self._rate * INTERVAL)))

    def stop(self) -> None:
        """Make the present or the next call of this object raise CleaningStopped."""
        self._stopping.open()

    def __call__(self, nbytes: int) -> None:
        """Wait if the rate is too high, or a pause is due. Raises CleaningStopped."""
        if self._stopping.is_open:
            raise CleaningStopped
        self._seen += nbytes
        now = self._clock()
        passed = now - self._began
        early = self._seen / self._rate - passed
        if early > 0 and (passed >= INTERVAL or early >= INTERVAL) and self._wait(min(early, LONGEST_WAIT)):
            raise CleaningStopped
        if passed >= INTERVAL or early >= INTERVAL:
            self._began, self._seen = self._clock(), 0
        self._rest()

    def _rest(self) -> None:
        rest = REST * (self._worked() - self._rested)
        if rest >= LEAST_REST and self._wait(min(rest, LONGEST_REST)):
            raise CleaningStopped
        if not 0 <= rest < LEAST_REST:  # below 0 after a call by another thread
            self._rested = self._worked()


# --- giving way --------------------------------------------------------------------------------

# A compaction may take hours, so the cleaning thread runs retention while the throttle makes it wait.


class GivingWay(Throttler):
    """A throttle that calls `turn()` when it is called, and while it waits. `turn` does work that is due, and
    returns the number of seconds after which it must be called again.
    """

    def __init__(self, bytes_per_second: float, turn: Callable[[], float], *, stopping: Latch) -> None:
        super().__init__(bytes_per_second, stopping=stopping, wait=self._wait_in_turns)
        self._turn = turn

    def __call__(self, nbytes: int) -> None:
        """Call `turn`, then wait as `Throttler` does. Raises CleaningStopped."""
        self._turn()
        super().__call__(nbytes)

    def _wait_in_turns(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._turn())):
                return True
        return self._stopping.is_open
