"""`Alarm`: calls a function at a set time, through the store's scheduler, which refers to the alarm weakly.

Threads: any.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

from segstore.coordinator.metrics import MonotonicMs
from segstore.mutex import Mutex
from segstore.storage.scheduler import Scheduler


class Alarm:
    """Calls `ring` at the earliest of the times that were passed to `set` since the last `clear`. `due` is
    that earliest time, in ms of `clock`; inf if `set` was not called since. `ring` must call `clear` first,
    because `set` ignores times that are not earlier than `due`.
    """

    def __init__(self, scheduler: Scheduler, clock: MonotonicMs, ring: Callable[[], None]) -> None:
        self._scheduler, self._clock, self._ring = scheduler, clock, ring
        self._lock = Mutex()
        self._stopped = False
        self.due = math.inf

    def set(self, due: float) -> None:
        """Call `ring` at `due`, unless the alarm is already set for an earlier time."""
        me = weakref.ref(self)

        def ring() -> None:
            alarm = me()
            if alarm is not None and alarm._is_for(due):
                alarm._ring()

        with self._lock:
            if due >= self.due or self._stopped:
                return
            self._scheduler.after(max(due - self._clock(), 0) / 1000, ring)
            self.due = due  # after the call above: if an interrupt stops that call, the next `set` repeats it

    def _is_for(self, due: float) -> bool:
        """Return whether the alarm is set for `due`, and not for an earlier time since."""
        with self._lock:
            return self.due == due and not self._stopped

    def clear(self) -> None:
        """Forget the set time."""
        with self._lock:
            self.due = math.inf

    def stop(self) -> None:
        """Stop the alarm: `ring` is never called again."""
        self._stopped = True
