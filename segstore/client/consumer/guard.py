"""A consumer is used by one thread at a time: `Guard` sees to it that another is told. Nothing on disk.

Threads: any.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from segstore.errors import ClientClosedError, ConcurrentModificationError

P = ParamSpec("P")
R = TypeVar("R")


class Guard:
    """Held within each method; the thread that holds it may enter again (a listener that seeks)."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.RLock()
        self._user = 0

    def enter(self) -> None:
        """ConcurrentModificationError where another thread is within a method."""
        if not self._lock.acquire(blocking=False):
            raise ConcurrentModificationError(
                f"a consumer is not made for several threads, and thread {self._user} uses it"
            )
        self._user = threading.get_ident()

    def leave(self) -> None:
        """The other half of `enter`."""
        self._lock.release()


class Guarded(Protocol):
    """What has a guard."""

    _guard: Guard


G = TypeVar("G", bound=Guarded)


def alone(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """A method that one thread at a time may be in, until `close`. ConcurrentModificationError,
    ClientClosedError.
    """

    @functools.wraps(method)
    def guarded(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        guard = self._guard
        guard.enter()
        try:
            if guard.closed:
                raise ClientClosedError("the consumer is closed")
            return method(self, *args, **kwargs)
        finally:
            guard.leave()

    return guarded
