"""What an open store does beside: waits for it, so that a fault that is armed then hits what a test means."""

from __future__ import annotations

import threading

from waiting import until

import segstore


def caught_up(store: segstore.Store) -> None:
    """Return when the scheduler has done what it was to do at once, flushes behind rolls above all."""
    scheduler, done = store._context.scheduler, threading.Event()
    scheduler.soon(done.set)
    until(lambda: done.is_set() or scheduler._closed)
