"""Waits for the background work of a store, so that a fault that is armed then hits the call that a test
means.
"""

from __future__ import annotations

import threading

from waiting import until

import segstore


def caught_up(store: segstore.Store) -> None:
    """Wait until the scheduler has done its immediate work, above all the flushes after rolls."""
    scheduler, done = store.context.scheduler, threading.Event()
    scheduler.soon(done.set)
    until(lambda: done.is_set() or scheduler._closed)
