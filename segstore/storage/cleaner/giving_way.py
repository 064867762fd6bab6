"""The cleaner's throttle, at which retention gets its turn: a compaction may take hours. Nothing on disk.

Threads: as `Throttle`; the turns are taken in the cleaning thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from segstore.storage.cleaner.throttle import Throttle
from segstore.threads import Latch


class GivingWay(Throttle):
    """`turn()` does what is due, and tells in how many seconds it is to be called again."""

    def __init__(self, bytes_per_second: float, turn: Callable[[], float], *, stopping: Latch) -> None:
        super().__init__(bytes_per_second, stopping=stopping, wait=self._wait_in_turns)
        self._turn = turn

    def __call__(self, nbytes: int) -> None:
        """CleaningStopped."""
        self._turn()
        super().__call__(nbytes)

    def _wait_in_turns(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._turn())):
                return True
        return self._stopping.is_open
