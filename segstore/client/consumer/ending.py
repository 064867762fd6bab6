"""`Ending`: how a consumer ends with its store. Nothing on disk of its own.

Threads: any; the one that closes the store ends the consumer, which another one may use.
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


class Ended(Protocol):
    """What of a consumer its end needs."""

    _guard: Guard
    _store: Store

    def _is_ended(self) -> bool:
        """Whether nothing is left to do."""

    def _end(self, autocommit: bool) -> None:
        """Give all up; the guard is held."""


class Ending:
    """Implements `storage.clients.Client`; lives as long as its consumer, which it does not keep."""

    turn = Turn.READER

    def __init__(self, consumer: Ended) -> None:
        self._consumer = weakref.ref(consumer)

    def entered(self) -> bool:
        """See `Client`."""
        consumer = self._consumer()
        return consumer is not None and consumer._guard.entered

    def begin_to_close(self) -> None:
        """Nothing: a consumer holds no records that are to be written."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """As `Consumer.close`. A call that another thread is in returns soon, and gives nothing. Positions
        are committed where all that was given has been seen to.
        """
        consumer = self._consumer()
        if consumer is None or consumer._is_ended():
            return
        guard = consumer._guard
        if not guard.end(deadline, consumer._store._wake):
            log.warning("%r was in use when its store was closed: it is not closed in order", consumer)
            return
        with guard:
            try:
                consumer._end(orderly and guard.at_rest())
            except SegstoreError as error:  # as a member's that another one has fenced
                log.warning("%r could not be closed in order: %s", consumer, error)

    def unwritten(self) -> Unwritten:
        """Nothing."""
        return Unwritten(Counter(), None)
