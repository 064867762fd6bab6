"""`Clients`: closes the producers and consumers of an open store, before `Store.close` closes the store
itself.

Nothing is on disk. The storage layer knows clients only by the `StoreClient` protocol. The references to
clients are weak, so that a dropped client is freed. Threads: any. A second thread that closes the store waits
for the first thread, unless the second thread runs a consumer's listener, because the first thread waits for
that listener.
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


def log_error(what: str, error: BaseException) -> None:
    """Log an error that is not raised. Log its traceback too, unless the error is a SegstoreError."""
    log.error("%s: %s", what, error, exc_info=None if isinstance(error, SegstoreError) else error)


class Turn(IntEnum):
    """The order in which clients are closed. Consumers (READER) are closed before producers (WRITER), because
    a consumer's listener may still send records.
    """

    READER = 0
    WRITER = 1


class Unwritten(NamedTuple):
    """The records that a client accepted and did not write: their number by (topic, partition), and the
    last error.
    """

    counts: Counter[tuple[str, int]]
    error: BaseException | None


class StoreClient(Protocol):
    """A producer or consumer of a store, which `Store.close` closes."""

    turn: Turn

    def entered(self) -> bool:
        """Return whether the calling thread is inside a call of this client, or runs one of its callbacks."""

    def begin_to_close(self) -> None:
        """Refuse further records. Return without waiting."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close the client by `deadline` (monotonic seconds). `orderly` is False if the store is closed
        because of an exception of the application. A second call does nothing.
        """

    def unwritten(self) -> Unwritten:
        """Return the number of records that could not be written, by partition, and the last error. `Clients`
        calls this after `close_with_store`.
        """


R = TypeVar("R")


class Clients:
    """Keeps the clients of the store at `path`, in the order in which they attached themselves."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._attached: dict[int, weakref.ref[StoreClient]] = {}
        self._lock = threading.RLock()  # the thread that closes the store holds this lock
        self._busy = self._refused = False
        self._writers: list[StoreClient] = []

    def attach(self, client: StoreClient) -> None:
        """Attach a client. Raises StoreClosedError if the store is being closed."""
        key = id(client)
        # The callback is `dict.pop`, a C function, because CPython drops a Ctrl-C that a Python callback of a
        # weak reference raises. `pop` takes the dead reference, its last argument, as the default value. No
        # lock is needed: either a closing thread finds the client, or this thread finds `_refused` set.
        self._attached[key] = weakref.ref(client, partial(self._attached.pop, key))
        if self._refused:
            del self._attached[key]
            raise StoreClosedError(f"{self._path} is being closed")

    def _live(self, turn: Turn) -> list[StoreClient]:
        found = [ref() for ref in list(self._attached.values())]
        return [client for client in found if client is not None and client.turn is turn]

    def once(self, close: Callable[[], R]) -> R | None:
        """Call `close`, and return its result. If another thread is in `close`, wait for that thread first.
        Return None, without a call, if this thread is already in `close`, or if this thread runs a consumer's
        listener while another thread is in `close`. Raises InvalidArgumentError in a producer's callback,
        because `close` would wait for that producer.
        """
        if any(client.entered() for client in self._live(Turn.WRITER)):
            raise InvalidArgumentError(
                f"close() of {self._path} in a producer's callback would wait for itself"
            )
        if others_are_gone() and not self._is_free():
            return None  # the interpreter stopped a thread in `close`, so the next open recovers the store
        # This thread runs a consumer's listener, and the closing thread waits for that listener, so this
        # thread must not wait for the closing thread.
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
        """Return whether no other thread closes the store."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return True
        return False

    def close(self, timeout: float, orderly: bool) -> None:
        """Close all clients within `timeout` seconds, even if some raise errors. After an interrupt the
        remaining clients are closed without waiting. Raises the first interrupt. Without an interrupt, raises
        the first error. All further errors are logged.
        """
        self._refused = True
        closer = _Closer(time.monotonic() + timeout, orderly)
        closer.close(self._live(Turn.READER))
        self._writers = self._live(Turn.WRITER)
        for client in self._writers:
            closer.attempt(client.begin_to_close)
        closer.close(self._writers)
        closer.raise_first()

    def unwritten(self) -> UnwrittenRecordsError | None:
        """Return and log an error with the number of records that producers accepted and could not write;
        None if all records were written. `Store` calls this after `close`.
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


class _Closer:
    """Closes clients one after the other, and collects the errors that they raise."""

    def __init__(self, deadline: float, orderly: bool) -> None:
        self._deadline, self._orderly = deadline, orderly
        self._errors: list[BaseException] = []

    def close(self, clients: list[StoreClient]) -> None:
        for client in clients:
            self.attempt(partial(client.close_with_store, self._deadline, self._orderly))

    def attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # `raise_first` raises this error later
            if not isinstance(error, Exception):
                self._deadline = 0.0
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the first interrupt. Without an interrupt, raise the first error. Log all further errors."""
        errors, self._errors = self._errors, []
        errors.sort(key=lambda error: isinstance(error, Exception))
        for error in errors[1:]:
            log_error("a client of the store could not be closed in order", error)
        if errors:
            raise first_of(errors)
