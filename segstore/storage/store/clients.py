"""`Clients`: the producers and consumers of an open store, and how they end when the store is closed.

Nothing is on disk. The storage layer knows clients by the `StoreClient` protocol only: they attach
themselves, and are referred to weakly, so that a client that is dropped is not kept. Threads: any. One thread
closes the store; another that closes waits for it, unless the first thread waits for the second.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from segstore.errors import (
    InvalidArgumentError,
    SegstoreError,
    StoreClosedError,
    UnwrittenRecordsError,
    first_of,
)
from segstore.logger import Logger
from segstore.threads import others_are_gone

log = Logger("segstore")

CLOSE_TIMEOUT = 30.0
"""Seconds that `Store.close` waits for its clients by default; as long as Kafka's consumer waits in close."""


def tell(what: str, error: BaseException) -> None:
    """Log an error that is not raised; one that is not a SegstoreError with its traceback."""
    log.error("%s: %s", what, error, exc_info=None if isinstance(error, SegstoreError) else error)


class Turn(IntEnum):
    """The order in which clients end: what listeners of readers send is still written."""

    READER = 0
    WRITER = 1


class Unwritten(NamedTuple):
    """Records that a client had taken, and that are not in the log: how many by (topic, partition), and the
    last error.
    """

    counts: Counter[tuple[str, int]]
    error: BaseException | None


class StoreClient(Protocol):
    """An object that is used over a store, and ends with it."""

    turn: Turn

    def entered(self) -> bool:
        """Return whether this very thread is within one of the client's calls, or runs one of its
        callbacks.
        """

    def begin_to_close(self) -> None:
        """Take no more records; this waits for nothing."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """End, by `deadline` (monotonic seconds). `orderly`: the store is not closed because of an exception
        of the application's. A second call does nothing.
        """

    def unwritten(self) -> Unwritten:
        """Return the records that could not be written; called once the store is closed."""


R = TypeVar("R")


class Clients:
    """The clients of one store, whose path is `path`, in the order in which they attached themselves."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._attached: dict[int, weakref.ref[StoreClient]] = {}
        self._lock = threading.RLock()  # held by the thread that closes
        self._busy = self._refused = False
        self._writers: list[StoreClient] = []

    def attach(self, client: StoreClient) -> None:
        """Attach a client. Raises StoreClosedError. No lock is taken: either the closing thread sees the
        client, or this sees that the store is being closed.
        """
        key = id(client)
        # What a callback in Python raises CPython prints and forgets, Ctrl-C, too. This one is called with
        # the reference, which is what `pop` gives where the key is not there.
        self._attached[key] = weakref.ref(client, partial(self._attached.pop, key))
        if self._refused:
            del self._attached[key]
            raise StoreClosedError(f"{self._path} is being closed")

    def _live(self, turn: Turn) -> list[StoreClient]:
        found = [ref() for ref in list(self._attached.values())]
        return [client for client in found if client is not None and client.turn is turn]

    def once(self, close: Callable[[], R]) -> R | None:
        """Call `close`, after another thread's call of it is over; returns None within such a call, which
        does the work. Raises InvalidArgumentError in a producer's callback, for which that producer waits.
        """
        if any(client.entered() for client in self._live(Turn.WRITER)):
            raise InvalidArgumentError(
                f"close() of {self._path} in a producer's callback would wait for itself"
            )
        if others_are_gone() and not self._is_free():
            return None  # the interpreter ended a thread in the midst of a close: the next open recovers
        # Another thread that closes waits for the reader whose listener makes this call.
        if any(client.entered() for client in self._live(Turn.READER)) and not self._is_free():
            return None
        with self._lock:
            if self._busy:
                return None
            try:
                self._busy = True
                return close()
            finally:
                self._busy = False

    def _is_free(self) -> bool:
        """Return whether no other thread closes."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return True
        return False

    def close(self, timeout: float, orderly: bool) -> None:
        """End all clients, within `timeout` seconds. All are tried; an interrupt is raised in preference to
        other errors, and ends the wait for the remaining clients. Of the clients' errors the first is raised,
        the others are logged.
        """
        self._refused = True
        ends = _Ends(time.monotonic() + timeout, orderly)
        ends.of(self._live(Turn.READER))
        self._writers = self._live(Turn.WRITER)
        for client in self._writers:
            ends.tried(client.begin_to_close)
        ends.of(self._writers)
        ends.told()

    def unwritten(self) -> UnwrittenRecordsError | None:
        """Return which of the producers' records are not in the log, now that the store is closed; this is
        logged.
        """
        counts: Counter[tuple[str, int]] = Counter()
        last: BaseException | None = None
        writers, self._writers = self._writers, []
        for client in writers:
            found = client.unwritten()
            counts += found.counts
            last = found.error or last
        if not counts:
            return None
        error = UnwrittenRecordsError(self._path, counts, last)
        error.__cause__ = last
        log.warning("%s", error)
        return error


class _Ends:
    """Ends clients one after the other, and keeps what they raise."""

    def __init__(self, deadline: float, orderly: bool) -> None:
        self._deadline, self._orderly = deadline, orderly
        self._errors: list[BaseException] = []

    def of(self, clients: list[StoreClient]) -> None:
        for client in clients:
            self.tried(partial(client.close_with_store, self._deadline, self._orderly))

    def tried(self, end: Callable[[], None]) -> None:
        try:
            end()
        except BaseException as error:  # raised by `told`
            if not isinstance(error, Exception):
                self._deadline = 0.0
            self._errors.append(error)

    def told(self) -> None:
        """Raise an interrupt, else the first error; the others are logged."""
        errors, self._errors = self._errors, []
        errors.sort(key=lambda error: isinstance(error, Exception))
        for error in errors[1:]:
            tell("a client of the store could not be closed in order", error)
        if errors:
            raise first_of(errors)
