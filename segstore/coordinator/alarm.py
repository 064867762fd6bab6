"""`Alarm`: calls a function at a set time, through the store's scheduler. The scheduler has only a weak
reference to the alarm.

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
    """Calls the function `ring` at the earliest of the times that were passed to `set` after the last call of
    `clear`. `due` is that earliest time, in ms of `clock`; inf if there is none. `ring` must call `clear`
    before it calls `set`, because `set` ignores times that are not earlier than `due`.
    """

    def __init__(self, scheduler: Scheduler, clock: MonotonicMs, ring: Callable[[], None]) -> None:
        self._scheduler, self._clock, self._ring = scheduler, clock, ring
        self._lock = Mutex()
        self._stopped = False
        self.due = math.inf

    def set(self, due: float) -> None:
        """Call `ring` at the time `due`, unless the alarm is already set for that time or an earlier one."""
        me = weakref.ref(self)

        def ring() -> None:
            alarm = me()
            if alarm is not None and alarm._is_for(due):
                alarm._ring()

        with self._lock:
            if due >= self.due or self._stopped:
                return
            self._scheduler.after(max(due - self._clock(), 0) / 1000, ring)
            # `due` is set after the call of `after`: if an interrupt ends that call, the next `set` repeats
            # it.
            self.due = due

    def _is_for(self, due: float) -> bool:
        """Return whether the alarm is still set for the time `due`: neither `clear` nor `stop` was called,
        and no earlier time was set.
        """
        with self._lock:
            return self.due == due and not self._stopped

    def clear(self) -> None:
        """Cancel the set time, so that `set` accepts any time."""
        with self._lock:
            self.due = math.inf

    def stop(self) -> None:
        """Stop the alarm: `ring` is never called again."""
        self._stopped = True
