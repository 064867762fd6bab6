"""`ConsumerEntry`: admits one thread at a time to the consumer of an `AsyncConsumer`. A call in the event
loop's thread ends a wait of the consumer's own thread.

Threads: any. The lock is taken only by `with`: an interrupt after a plain `acquire` could leave the lock
locked (see `segstore.threads`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.client.consumer.base import Guard
from segstore.errors import ConcurrentModificationError
from segstore.storage.store.store import Store

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds that `plain` waits for the consumer's thread, which may be within an application's listener,
deserializer or interceptor. If that application code waits for the event loop while the event loop waits in
`plain`, only this limit ends the deadlock.
"""
# The consumer's thread is woken again after this many seconds, because after a wake-up it may begin another
# wait.
_AGAIN = 0.01


class Entered(Protocol):
    """A consumer that a `ConsumerEntry` guards."""

    _guard: Guard
    _store: Store


class ConsumerEntry:
    """The lock around each call of the consumer. A listener that runs within a call may make another call,
    because the lock is reentrant.
    """

    def __init__(self, consumer: Entered) -> None:
        self._consumer, self._lock = consumer, threading.RLock()

    def call(self, call: Callable[[], T]) -> T:
        """Make a call that may wait. Only the consumer's thread uses this method."""
        with self._lock:
            return call()

    def plain(self, call: Callable[[], T]) -> T:
        """Make a short call in any thread. Raises ConcurrentModificationError if the consumer's thread does
        not leave its call within PATIENCE seconds.
        """
        if not self._is_free(0.0):
            self._interrupt_wait()
        with self._lock:
            return call()

    def _interrupt_wait(self) -> None:
        guard, end = self._consumer._guard, time.monotonic() + PATIENCE
        guard.asked = True
        try:
            while not self._is_free(_AGAIN):
                if time.monotonic() >= end:
                    raise ConcurrentModificationError(
                        f"the consumer's thread has been within a call for {PATIENCE:g} s: a listener, "
                        "deserializer or interceptor that waits for the event loop never ends"
                    )
        finally:
            guard.asked = False

    def _is_free(self, seconds: float) -> bool:
        """Wait up to `seconds` until no other thread is within a call. Return False if another thread still
        is.
        """
        if seconds:
            self._consumer._store.wake()
        try:
            return self._lock.acquire(timeout=seconds)
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                """Another thread has the lock."""


class Undoable:
    """A call of the consumer, with an `undo` function. If the call has returned, `take_back` calls `undo`; if
    not, `take_back` does nothing.
    """

    def __init__(
        self, entry: ConsumerEntry, call: Callable[[], Any], undo: Callable[[], None] | None
    ) -> None:
        self._entry, self._call, self._undo, self._has_returned = entry, call, undo, False

    def make(self) -> Any:
        result = self._entry.call(self._call)
        self._has_returned = True
        return result

    def take_back(self) -> None:
        if self._has_returned and self._undo is not None:
            self._entry.call(self._undo)
