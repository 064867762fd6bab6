"""`ConsumerEnding`: closes a consumer when its store is closed.

Threads: any. The thread that closes the store also closes the consumer, even if another thread is using the
consumer.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Protocol

from segstore.client.consumer.base import Guard
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.storage.store.clients import Turn, Unwritten
from segstore.storage.store.store import Store

log = Logger("segstore")


class ConsumerParts(Protocol):
    """The parts of a consumer that `ConsumerEnding` uses."""

    _guard: Guard
    _store: Store

    def _is_ended(self) -> bool:
        """Return whether `close` has finished."""

    def _end(self, autocommit: bool) -> None:
        """Give up all partitions. The caller holds the consumer's lock."""


class ConsumerEnding:
    """The consumer as a `storage.store.clients.Client` of its store. This object has only a weak reference to
    the consumer, so that a dropped consumer is freed.
    """

    turn = Turn.READER

    def __init__(self, consumer: ConsumerParts) -> None:
        self._consumer = weakref.ref(consumer)

    def entered(self) -> bool:
        """Return whether this thread is within a method of the consumer."""
        consumer = self._consumer()
        return consumer is not None and consumer._guard.entered

    def begin_to_close(self) -> None:
        """Do nothing: a consumer has no unwritten records."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close the consumer. If another thread is in a method, make the method return without a result. Wait
        until `deadline` (monotonic seconds) for the method to return; if it does not, log a warning and leave
        the consumer open. Commit the positions if the store's close is `orderly` and the application has
        processed all returned records.
        """
        consumer = self._consumer()
        if consumer is None or consumer._is_ended():
            return
        guard = consumer._guard
        if not guard.end(deadline, consumer._store.wake):
            log.warning("%r was in use when its store was closed: it is not closed in order", consumer)
            return
        with guard:
            try:
                consumer._end(orderly and guard.at_rest())
            except SegstoreError as error:
                log.warning("%r could not be closed in order: %s", consumer, error)

    def unwritten(self) -> Unwritten:
        """Return an empty `Unwritten`: a consumer has no unwritten records."""
        return Unwritten(Counter(), None)
