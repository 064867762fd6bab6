"""`Parts`: what a consumer is made of, put together. Nothing on disk. Threads: see `guard`."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.fetcher import Fetcher, Iteration
from segstore.client.consumer.group_member import Grouped
from segstore.client.consumer.metrics import ConsumerMetrics, Interceptors, NoMetrics
from segstore.client.consumer.no_group import Coordination, Ungrouped
from segstore.client.consumer.positions import Lookups, Positions
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.errors import (
    ClientClosedError,
    ConcurrentModificationError,
    InvalidTypeError,
    SegstoreError,
    StoreClosedError,
)
from segstore.mutex import OwnedLock, refused, under_way
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self


# --- guard -------------------------------------------------------------------------------------

# A consumer is used by one thread at a time: `Guard` sees to it that another is told. Nothing on disk.
#
# Threads: any. The thread that closes the store may end a consumer that another one uses: that one is asked
# to leave its call, and the consumer refuses all calls from then on.

P = ParamSpec("P")
R = TypeVar("R")
_NAMES = ("co_name", "co_qualname")  # of a function's code; Python 3.10 has the first alone
_AGAIN = 0.01  # seconds after which a thread that waits is woken again


class Guard(OwnedLock):  # type: ignore[misc]
    """Held within each method, by `with guard` and with `guard` as the name of a local; the thread that holds
    it may enter again where the method has called the application (a listener that seeks). A handler that
    comes into a method at any other place may not.

    `given_up`: who was within a method when the store began to close has left it, and was given nothing.
    """

    def __new__(cls, _store: str) -> Self:
        """A lock takes no arguments."""
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, store: str) -> None:
        self.closed = self.given_up = False
        self._store = store
        self._user = self._last = 0
        self._ender: int | None = None  # the thread that closes the store
        self._is_left = False  # by who was within a method then

    def __enter__(self) -> bool:
        """ConcurrentModificationError where another thread is within a method; StoreClosedError where another
        one closes the store; ReentrantCallError where a handler came into a method of this thread. No
        interrupt leaves it taken: see `Mutex`.
        """
        if self._is_owned() and not self._is_left:  # the store may be closed by what a method calls
            self._check_nested(sys._getframe(1))
        thread = threading.get_ident()
        try:
            # Behind `end`, who is within a method has come in late, is refused, and leaves at once.
            if not self.acquire(self._is_left and thread == self._ender):
                raise self._in_use()
            self._user, self._is_left = thread, False
        except BaseException:
            try:
                self.release()  # the first call here: a second interrupt comes behind it
            except RuntimeError:
                """It was not taken."""
            raise
        return True

    def _in_use(self) -> SegstoreError:
        if self._ender is not None:
            return StoreClosedError(f"{self._store} is being closed")
        return ConcurrentModificationError(
            f"a consumer is not made for several threads, and thread {self._user} uses it"
        )

    def _check_nested(self, method: FrameType) -> None:
        outer = under_way()
        if outer is not None and any(frame.f_locals.get("guard") is self for frame in outer.frames()):
            raise refused(outer, "a consumer's method")
        if not self.is_within(method):  # CPython has left it taken behind a `with`: see `mutex.LEAVES_OPEN`
            while self._is_owned():
                self.release()

    def is_within(self, method: FrameType) -> bool:
        """Whether this call of a method came from another one that this thread is in."""
        frame = method.f_back
        while frame is not None and frame.f_locals.get("guard") is not self:
            frame = frame.f_back
        return frame is not None

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
        return bool(self._is_owned())

    def end(self, deadline: float, wake: Callable[[], None]) -> bool:
        """Before who ends the consumer enters: nobody else is within a method, nor will be for long. `wake`
        has who is look at `ending`. False: that one did not leave before `deadline` (monotonic seconds).
        """
        self._ender = threading.get_ident()
        seconds = 0.0
        while not self._is_free(seconds):
            left = deadline - time.monotonic()
            wake()
            if left <= 0:
                return False
            seconds = min(left, _AGAIN)
        self._last, self._is_left = self._user, True
        return True

    def _is_free(self, seconds: float) -> bool:
        """Whether no other thread is within a method; waits so long for that."""
        try:
            found: bool = self.acquire(True, seconds)
        finally:
            try:
                self.release()
            except RuntimeError:
                """It is another one's."""
        return found

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
        with guard:
            guard.check()
            return method(self, *args, **kwargs)

    # What is told of the stack, as in a ReentrantCallError, names the method.
    names = {name: getattr(method.__code__, name) for name in _NAMES if hasattr(method.__code__, name)}
    guarded.__code__ = guarded.__code__.replace(**names)  # type: ignore[attr-defined]
    return guarded


# --- base ------------------------------------------------------------


class Parts:
    """The base of `Consumer`, which is written in several files: each has the methods of one matter."""

    def __init__(self, store: Store, settings: Mapping[str, Any]) -> None:
        """ConfigError, InvalidTypeError, InvalidGroupIdError, ReadOnlyError for a group over a store opened
        "r".
        """
        if not isinstance(store, Store):
            raise InvalidTypeError(
                f"store must be a Store, as segstore.open() gives, not {type(store).__name__}"
            )
        self.config = ConsumerConfig.parse(settings)
        self._store, self._guard, self._iteration = store, Guard(store.path), Iteration()
        self._subscription = Subscription()
        self._lookups = Lookups(store, self.config.isolation_level)
        self._metrics = (ConsumerMetrics if self.config.metrics_enabled else NoMetrics)(self.config)
        self._interceptors = Interceptors(self.config.interceptors)
        self._coordination: Coordination = (
            Ungrouped(store, self._subscription, self.config)
            if self.config.group_id is None
            else Grouped(store, self._subscription, self.config, self._interceptors)
        )
        self._positions = Positions(
            store, self._subscription, self._coordination, self._lookups, self.config.auto_offset_reset
        )
        throttle = quotas(store).throttle(CONSUMER_BYTE_RATE, self.config.client_id)
        self._fetcher = Fetcher(self._subscription, self._positions, self.config, self._metrics, throttle)
