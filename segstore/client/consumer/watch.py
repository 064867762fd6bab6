"""`TopicWatch`: looks at the topics of a store, neither too often nor too late. Nothing on disk.

Threads: one, the consumer's.
"""

from __future__ import annotations

import math
import time

from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.store import Store

_SHARE = 100
"""Looking at the topics takes at most one part in so many of a consumer's time."""
_LEAST_AGE_MS = 10
"""A consumer that waits must sleep: what is published wakes it anyway."""


class TopicWatch:
    """New topics and partitions are found within moments, at the latest `max_age_ms` after the last look:
    whoever makes or deletes some publishes that, which wakes a consumer that waits too. In a directory where
    nothing is published (a broker's) there is a look as often as may be.
    """

    def __init__(self, store: Store, max_age_ms: float) -> None:
        self._store, self._max_age = store, max(max_age_ms, _LEAST_AGE_MS) / 1000
        self._may_look = self._must_look = -math.inf
        self._seen = -1
        self._looked = -1, -math.inf, -math.inf

    def look(self) -> dict[str, TopicInfo] | None:
        """The topics; None where nothing was published since the last look, or it is too early for one. A
        look counts when `done` is called: where an interrupt comes before, there is another one.
        """
        now, seen = time.monotonic(), self._store.publications
        if now < self._may_look or (self._told_nothing(seen) and now < self._must_look):
            return None
        found = self._store.topics()
        done = time.monotonic()
        self._looked = seen, done + self._max_age, done + min(_SHARE * (done - now), self._max_age)
        return found

    def done(self) -> None:
        """What follows from the last look was done."""
        self._seen, self._must_look, self._may_look = self._looked

    def stale(self) -> None:
        """Let the next `look` be one, whenever the last was."""
        self._may_look = self._must_look = -math.inf

    def wait_ms(self) -> float:
        """When to look again, if nothing is published before."""
        # A look that came too early for what woke the consumer is taken as soon as it may be.
        at = self._must_look if self._told_nothing(self._store.publications) else self._may_look
        return max(at - time.monotonic(), 0) * 1000

    def _told_nothing(self, publications: int) -> bool:
        return publications == self._seen and publications > 0
