"""Outcomes of records, from the sender's thread to those who await them in the event loop. Nothing on disk.

Threads: the loop's and the sender's. The loop is woken once for all outcomes that come before it gets to
them, those of a batch or more, never once a record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from segstore.client.producer import FutureRecordMetadata, RecordMetadata
from segstore.errors import copy_of

Awaited = asyncio.Future[RecordMetadata]


class Bridge:
    """`settled` is called in the loop after outcomes were handed over: memory has become free."""

    def __init__(self, settled: Callable[[], None]) -> None:
        self._settled = settled
        self._known: deque[tuple[Awaited, RecordMetadata | BaseException]] = deque()
        self._woken = False

    def future(self, loop: asyncio.AbstractEventLoop, sent: FutureRecordMetadata) -> Awaited:
        """What becomes of a record. Cancelling it changes nothing for the record."""
        awaited: Awaited = loop.create_future()
        known = partial(self._tell, awaited)
        sent._when_done(known, known)
        return awaited

    def _tell(self, awaited: Awaited, outcome: RecordMetadata | BaseException) -> None:
        self._known.append((awaited, outcome))
        if self._woken:
            return
        self._woken = True
        try:
            awaited.get_loop().call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop was closed, and nobody is left who awaits
            self._known.clear()
            self._woken = False

    def _settle(self) -> None:
        # First: what comes from now on wakes the loop again.
        self._woken = False
        for _ in range(len(self._known)):
            awaited, outcome = self._known.popleft()
            if awaited.done():
                continue
            if isinstance(outcome, BaseException):
                awaited.set_exception(copy_of(outcome))  # each gets a traceback of its own
            else:
                awaited.set_result(outcome)
        self._settled()
