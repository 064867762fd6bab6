"""A consumer is used by one thread at a time: `Guard` sees to it that another is told. Nothing on disk.

Threads: any. The thread that closes the store may end a consumer that another one uses: that one is asked to
leave its call, and the consumer refuses all calls from then on.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from segstore.errors import ClientClosedError, ConcurrentModificationError, SegstoreError, StoreClosedError
from segstore.mutex import refused, under_way

P = ParamSpec("P")
R = TypeVar("R")
_NAMES = ("co_name", "co_qualname")  # of a function's code; Python 3.10 has the first alone
_AGAIN = 0.01  # seconds after which a thread that waits is woken again


class Guard:
    """Held within each method; the thread that holds it may enter again where the method has called the
    application (a listener that seeks). A handler that comes into a method at any other place may not.

    `given_up`: who was within a method when the store began to close has left it, and was given nothing.
    """

    def __init__(self, store: str) -> None:
        self.closed = self.given_up = False
        self._store = store
        self._lock = threading.RLock()
        self._user = self._last = self._depth = 0
        self._ender: int | None = None  # the thread that closes the store

    def enter(self) -> None:
        """ConcurrentModificationError where another thread is within a method; StoreClosedError where another
        one closes the store; ReentrantCallError where a handler came into a method of this thread.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._check_nested()
        if not self._lock.acquire(blocking=False):
            if self._ender is not None:
                raise StoreClosedError(f"{self._store} is being closed")
            raise ConcurrentModificationError(
                f"a consumer is not made for several threads, and thread {self._user} uses it"
            )
        self._user = threading.get_ident()
        self._depth += 1

    def _check_nested(self) -> None:
        outer = under_way()
        # Where an interrupt has left the lock taken, no method is under way.
        if outer is not None and any(frame.f_locals.get("guard") is self for frame in outer.frames()):
            raise refused(outer, "a consumer's method")

    def leave(self) -> None:
        """The other half of `enter`."""
        self._depth -= 1
        self._lock.release()

    def check(self) -> None:
        """Within: whether the consumer may be used. ClientClosedError, StoreClosedError."""
        if self.closed or self.ending:
            raise self.refusal()

    def refusal(self) -> SegstoreError:
        """Why it may not be used."""
        if self._ender is not None:
            return StoreClosedError(f"{self._store} is closed")
        return ClientClosedError("the consumer is closed")

    # --- the end, with the store ----------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether another thread ends the consumer with its store: this one is to leave soon."""
        return self._ender is not None and self._ender != threading.get_ident()

    @property
    def entered(self) -> bool:
        """Whether this thread is within a method."""
        return self._depth > 0 and self._user == threading.get_ident()

    def end(self, deadline: float, wake: Callable[[], None]) -> bool:
        """Enter to end the consumer: `wake` has who is within a method look at `ending`. False: that one did
        not leave before `deadline` (monotonic seconds).
        """
        self._ender = threading.get_ident()
        while not self._lock.acquire(blocking=False):
            left = deadline - time.monotonic()
            wake()
            if left <= 0:
                return False
            if self._lock.acquire(timeout=min(left, _AGAIN)):
                break
        self._last, self._user = self._user, threading.get_ident()
        self._depth += 1
        return True

    def at_rest(self) -> bool:
        """Within `end`: whether what polls gave was seen to. Another thread that used the consumer last, and
        is not in a poll again, may be at work on it still.
        """
        return (
            self.given_up
            or self._last in (0, threading.get_ident())
            or all(thread.ident != self._last for thread in threading.enumerate())
        )


class Guarded(Protocol):
    """What has a guard."""

    _guard: Guard


G = TypeVar("G", bound=Guarded)


def alone(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """A method that one thread at a time may be in, until `close`. ConcurrentModificationError,
    ClientClosedError, StoreClosedError.
    """

    @functools.wraps(method)
    def guarded(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        guard = self._guard
        guard.enter()
        try:
            guard.check()
            return method(self, *args, **kwargs)
        finally:
            guard.leave()

    # What is told of the stack, as in a ReentrantCallError, names the method.
    names = {name: getattr(method.__code__, name) for name in _NAMES if hasattr(method.__code__, name)}
    guarded.__code__ = guarded.__code__.replace(**names)  # type: ignore[attr-defined]
    return guarded
