"""`TopicWatch`: looks at the topics of a store, neither too often nor too late. Nothing on disk.

Threads: one, the consumer's.
"""

from __future__ import annotations

import math
import time

from segstore.storage.store import Store
from segstore.storage.topics import TopicInfo

_SHARE = 100
"""Looking at the topics takes at most one part in so many of a consumer's time."""


class TopicWatch:
    """New topics and partitions are found within moments, at the latest `max_age_ms` after the last look;
    their creation wakes a consumer that waits.
    """

    def __init__(self, store: Store, max_age_ms: float) -> None:
        self._store, self._max_age = store, max_age_ms / 1000
        self._may_look = -math.inf

    def look(self) -> dict[str, TopicInfo] | None:
        """The topics; None where it is too early to look again."""
        now = time.monotonic()
        if now < self._may_look:
            return None
        found = self._store.topics()
        done = time.monotonic()
        self._may_look = done + min(_SHARE * (done - now), self._max_age)
        return found

    def stale(self) -> None:
        """Let the next `look` be one, whenever the last was."""
        self._may_look = -math.inf

    def wait_ms(self) -> float:
        """When to look again, if nothing is published before."""
        # A look that came too early for what woke the consumer is taken as soon as it may be.
        left = self._may_look - time.monotonic()
        return left * 1000 if left > 0 else self._max_age * 1000
