"""`Parts`: the base of `Consumer`; it makes and connects the consumer's parts. `Guard`: the lock that refuses
a second thread.

Threads: a consumer is used by one thread at a time; a second thread gets ConcurrentModificationError. If one
thread closes the store while another thread is in a method of a consumer, that method returns early, and all
later calls raise StoreClosedError.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from segstore.client.consumer.classic_member import ClassicSubscription
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.fetcher import Fetcher, Iteration
from segstore.client.consumer.metrics import ConsumerInterceptors, ConsumerMetrics, NoMetrics
from segstore.client.consumer.no_group import Coordination, ManualSubscription
from segstore.client.consumer.positions import Lookups, Positions
from segstore.client.consumer.subscription import Subscription
from segstore.client.consumer.tailing import Tailing
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

# `Guard`: the lock of a consumer. A second thread that takes the lock does not wait, but gets an error.
# Threads: any.

P = ParamSpec("P")
R = TypeVar("R")
# A code object has its name in these attributes; in Python 3.10 only in co_name.
_NAMES = ("co_name", "co_qualname")
# A waiting thread is woken again after this many seconds.
_AGAIN = 0.01


class Guard(OwnedLock):  # type: ignore[misc]
    """The lock that each method of a consumer holds during its call. A method must take the lock by `with
    guard`, and `guard` must be a local variable: `is_within` finds the method by this name. The thread that
    holds the lock may call a second method if the first one has called the application (such as a listener
    that calls `seek`). A signal handler that interrupts a method at any other time may not call a second
    method.

    `given_up` is True if a method returned without a result because the store began to close. `calls` is the
    number of method calls so far, not counting polls.
    """

    def __new__(cls, _store: str) -> Self:
        """Make the lock without the argument `_store`, because the base class takes no arguments."""
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, store: str) -> None:
        self.closed = self.given_up = False
        self.calls = 0
        self._store = store
        self._user = self._last = 0
        self.ender: int | None = None
        """The id of the thread that closes the store, or None."""
        self.asked = False
        """Whether another thread waits for this lock. If so, a method that waits for records returns without
        a result.
        """
        # `_is_left`: whether `end` was called, and has found no other thread in a method.
        self._is_left = False

    def __enter__(self) -> bool:
        """Take this lock. Raises ConcurrentModificationError if another thread is within a method. Raises
        StoreClosedError if another thread closes the store. Raises ReentrantCallError if this call is made by
        a signal handler that interrupted a method of this thread. An interrupt never leaves the lock locked
        (see `Mutex`).
        """
        # If `_is_left`, a method has called code that closes the store. That code may close the consumer.
        if self._is_owned() and not self._is_left:
            self._check_nested(sys._getframe(1))
        thread = threading.get_ident()
        try:
            # After `end`, the thread that closes the store waits for the lock. It gets the lock soon,
            # because every other thread that takes the lock is refused and releases it.
            if not self.acquire(self._is_left and thread == self.ender):
                raise self._in_use()
            self._user, self._is_left = thread, False
        except BaseException:
            try:
                # This is the first statement, so that a second interrupt can't come before it.
                self.release()
            except RuntimeError:
                """The interrupt came before the lock was acquired."""
            raise
        return True

    def _in_use(self) -> SegstoreError:
        if self.ender is not None:
            return StoreClosedError(f"{self._store} is being closed")
        return ConcurrentModificationError(
            f"a consumer is not made for several threads, and thread {self._user} uses it"
        )

    def _check_nested(self, method: FrameType) -> None:
        outer = under_way()
        if outer is not None and any(frame.f_locals.get("guard") is self for frame in outer.frames()):
            raise refused(outer, "a consumer's method")
        if not self.is_within(method):
            # No method of this thread runs: an interrupt has made CPython leave the lock locked
            # (`mutex.LEAVES_OPEN`).
            while self._is_owned():
                self.release()

    def is_within(self, method: FrameType) -> bool:
        """Return whether another method that holds this lock has called the frame `method`, at any depth."""
        frame = method.f_back
        while frame is not None and frame.f_locals.get("guard") is not self:
            frame = frame.f_back
        return frame is not None

    def check(self) -> None:
        """Raise ClientClosedError or StoreClosedError if the consumer may not be used."""
        if self.closed or self.ending:
            raise self.refusal()

    def check_wait(self) -> None:
        """Raise the errors of `check`, and GiveWay if another thread waits for this lock. A method must not
        call `check_wait` after it has changed anything.
        """
        self.check()
        if self.asked:
            raise GiveWay

    def refusal(self) -> SegstoreError:
        """Return the error of a consumer that may not be used: StoreClosedError if its store was closed or is
        being closed, else ClientClosedError.
        """
        if self.ender is not None:
            return StoreClosedError(f"{self._store} is closed")
        return ClientClosedError("the consumer is closed")

    # --- closing with the store ----------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Return whether another thread is closing the store. If so, this thread must leave its method at
        once.
        """
        return self.ender is not None and self.ender != threading.get_ident()

    @property
    def entered(self) -> bool:
        """Return whether this thread is within a method of the consumer that holds this lock."""
        return bool(self._is_owned())

    def end(self, deadline: float, wake: Callable[[], None]) -> bool:
        """Refuse new calls because the store is being closed, and wait until no other thread is within a
        method. `wake` wakes a thread that waits within a method, so that the thread checks `ending`. Return
        True, or False if a thread is still within a method at `deadline` (monotonic seconds).
        """
        self.ender = threading.get_ident()
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
        """Wait up to `seconds` until no other thread is within a method. Return False if another thread still
        is.
        """
        try:
            is_free: bool = self.acquire(True, seconds)
        finally:
            try:
                self.release()
            except RuntimeError:
                """Another thread has the lock."""
        return is_free

    def at_rest(self) -> bool:
        """Return whether the application has processed all records that polls returned. Called after `end`.
        The result is False if another thread made the last call, got a result and is still alive, because
        that thread may still be processing the records.
        """
        return (
            self.given_up
            or self._last in (0, threading.get_ident())
            or all(thread.ident != self._last for thread in threading.enumerate())
        )


class GiveWay(Exception):
    """Raised in a method that waits, if another thread waits for the consumer's lock. The method has changed
    nothing, so the code that called the method calls it again.
    """


class Guarded(Protocol):
    """An object that has a `Guard`."""

    _guard: Guard


G = TypeVar("G", bound=Guarded)


def alone(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """Wrap the method so that it holds the consumer's lock: one thread at a time may call the method, and no
    thread after `close`. A call makes the next poll check all partitions for records. Raises
    ConcurrentModificationError, ClientClosedError, StoreClosedError.
    """

    @functools.wraps(method)
    def guarded(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        guard = self._guard
        with guard:
            if guard.closed or guard.ender is not None:
                guard.check()
            guard.calls += 1
            return method(self, *args, **kwargs)

    # The wrapper's code gets the method's name, because errors that describe the stack, such as
    # ReentrantCallError, show the name of the code.
    names = {name: getattr(method.__code__, name) for name in _NAMES if hasattr(method.__code__, name)}
    guarded.__code__ = guarded.__code__.replace(**names)  # type: ignore[attr-defined]
    return guarded


def unguarded(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """Return the method that `alone` has wrapped. The unwrapped method may only read attributes whose objects
    are never changed, but replaced by other objects, because another thread may be changing the consumer.
    """
    wrapped: Callable[Concatenate[G, P], R] = method.__wrapped__  # type: ignore[attr-defined]
    return wrapped


# --- base ------------------------------------------------------------


def _grouped(protocol: str) -> Callable[..., Coordination]:
    """Return the subclass of `GroupSubscription` for a group_protocol."""
    if protocol == "consumer":
        from segstore.client.consumer.consumer_member import ConsumerSubscription

        return ConsumerSubscription
    return ClassicSubscription


class Parts:
    """The base of `Consumer`: makes and connects the parts of the consumer."""

    def __init__(self, store: Store, settings: Mapping[str, Any]) -> None:
        """Raises ConfigError, InvalidTypeError, InvalidGroupIdError, and ReadOnlyError if `settings` have a
        group_id and the store was opened "r".
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
        self._interceptors = ConsumerInterceptors(self.config.interceptors)
        self._coordination: Coordination = (
            ManualSubscription(store, self._subscription, self.config)
            if self.config.group_id is None
            else _grouped(self.config.group_protocol)(
                store, self._subscription, self.config, self._interceptors
            )
        )
        self._positions = Positions(
            store, self._subscription, self._coordination, self._lookups, self.config.auto_offset_reset
        )
        throttle = quotas(store).throttle(CONSUMER_BYTE_RATE, self.config.client_id)
        self._fetcher = Fetcher(self._subscription, self._positions, self.config, self._metrics, throttle)
        self._following = Tailing(
            store,
            self._guard,
            self._subscription,
            self._coordination,
            self._fetcher,
            self._metrics,
            self.config,
        )
