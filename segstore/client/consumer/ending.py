"""`ConsumerEnding`: how a consumer is closed with its store.

Threads: any; the thread that closes the store ends the consumer, which another thread may be using.
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
    """The parts of a consumer that its end needs."""

    _guard: Guard
    _store: Store

    def _is_ended(self) -> bool:
        """Return whether nothing is left to do."""

    def _end(self, autocommit: bool) -> None:
        """Give up all partitions; the guard is held."""


class ConsumerEnding:
    """Implements `storage.store.clients.Client`; lives as long as its consumer, to which it has a weak
    reference.
    """

    turn = Turn.READER

    def __init__(self, consumer: ConsumerParts) -> None:
        self._consumer = weakref.ref(consumer)

    def entered(self) -> bool:
        """See `Client`."""
        consumer = self._consumer()
        return consumer is not None and consumer._guard.entered

    def begin_to_close(self) -> None:
        """Do nothing: a consumer has no records that are to be written."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close as `Consumer.close` does. A call that another thread is in returns soon, without a result.
        Positions are committed where the application is done with all that was returned.
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
        """Return that nothing is unwritten."""
        return Unwritten(Counter(), None)
