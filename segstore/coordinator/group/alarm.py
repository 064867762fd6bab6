"""`Alarm`: has something done when it is due, without a thread of its own. Nothing on disk.

Threads: any. Keeps nobody alive: the store's scheduler holds it weakly.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

from segstore.coordinator.group.membership import MonotonicMs
from segstore.mutex import Mutex
from segstore.storage.scheduler import Scheduler


class Alarm:
    """Calls `ring` at the earliest time that it was told since it was cleared. `due` is that time, in ms of
    `clock`; inf: none. `ring` clears it, and says when it is due next.
    """

    def __init__(self, scheduler: Scheduler, clock: MonotonicMs, ring: Callable[[], None]) -> None:
        self._scheduler, self._clock, self._ring = scheduler, clock, ring
        self._lock = Mutex()
        self._stopped = False
        self.due = math.inf

    def set(self, due: float) -> None:
        """Ring then, if not before."""
        me = weakref.ref(self)

        def ring() -> None:
            alarm = me()
            if alarm is not None and alarm._is_for(due):
                alarm._ring()

        with self._lock:
            if due >= self.due or self._stopped:
                return
            self._scheduler.after(max(due - self._clock(), 0) / 1000, ring)
            self.due = due  # last: where that was interrupted, whoever is due next sets it anew

    def _is_for(self, due: float) -> bool:
        """One that was overtaken by an earlier ring does nothing: each ring arms the next."""
        with self._lock:
            return self.due == due and not self._stopped

    def clear(self) -> None:
        """Whoever is due from here on sets it anew."""
        with self._lock:
            self.due = math.inf

    def stop(self) -> None:
        """It rings no more."""
        self._stopped = True
