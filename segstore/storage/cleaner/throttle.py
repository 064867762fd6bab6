"""The cleaner's throttle holds it to its rate, gives it rests and lets it be stopped. Nothing is on disk.

The cleaner rests in proportion to the processor time that it took: background work has time, and each of its
turns makes an append wait. Threads: `stop` may be called from any; the rest belongs to the cleaning thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from segstore.threads import Latch

INTERVAL = 0.3  # seconds between two looks at the rate (org.apache.kafka.storage.internals.utils.Throttler)
LONGEST_WAIT = 3600.0
MOST_AT_ONCE = 32 << 20  # bytes: 30 ms or so, for which a stop waits


REST = 0.5  # seconds to rest for each second of work
LEAST_REST, LONGEST_REST = 0.005, 0.25


class CleaningStopped(Exception):
    """The store closes, or the log is no longer the one that the cleaning began with: new files are
    removed.
    """


class Throttler:
    """Called with the bytes that were read or are to be written; it waits where that was too fast.

    `clock` gives seconds; `wait(seconds)` returns True, at once, when the cleaning is to stop.
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
        """Return how many bytes may be read between two calls."""
        return max(1, int(min(MOST_AT_ONCE, self._rate * INTERVAL)))

    def stop(self) -> None:
        """Let the next call, or the one that waits, raise CleaningStopped."""
        self._stopping.open()

    def __call__(self, nbytes: int) -> None:
        """Wait as needed. Raises CleaningStopped."""
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
        if not 0 <= rest < LEAST_REST:  # below 0: another thread cleans now
            self._rested = self._worked()


# --- giving way --------------------------------------------------------------------------------

# A compaction may take hours: in its waits retention gets its turn, in the cleaning thread.


class GivingWay(Throttler):
    """A throttle that calls `turn()`, which does what is due, and returns in how many seconds it is to be
    called again.
    """

    def __init__(self, bytes_per_second: float, turn: Callable[[], float], *, stopping: Latch) -> None:
        super().__init__(bytes_per_second, stopping=stopping, wait=self._wait_in_turns)
        self._turn = turn

    def __call__(self, nbytes: int) -> None:
        """Take a turn, then wait as needed. Raises CleaningStopped."""
        self._turn()
        super().__call__(nbytes)

    def _wait_in_turns(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._turn())):
                return True
        return self._stopping.is_open
