"""`Operated`: the parts of a server, a standby or a mirror that an endpoint of HTTP shows.

Nothing is on disk. Threads: each field says which thread calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segstore.storage.store.stats import Family

Reasons = list[str]


class LoopHeartbeat:
    """When a loop has turned last. `soon` has the loop make a call; from any thread."""

    def __init__(self, soon: Callable[[Callable[[], object]], None]) -> None:
        self._soon = soon
        self._turned = time.monotonic()
        self._asked = False

    def ask(self) -> None:
        """Have the loop answer in its next turn, unless it has an older question to answer."""
        if not self._asked:
            self._asked = True
            self._soon(self._answer)

    def _answer(self) -> None:
        self._turned = time.monotonic()
        self._asked = False

    @property
    def age(self) -> float:
        """Return the seconds since the last answer."""
        return time.monotonic() - self._turned


@dataclass(frozen=True, eq=False)
class Operated:
    """`known` gives metrics from memory, in the endpoint's thread; `gathered` gives those of the store, in a
    thread of its own, and may wait for a disk. `unready` gives a line for each reason why no requests are
    served, from memory; `unhealthy` those why it should be started again.
    """

    known: Callable[[], Sequence[Family]]
    gathered: Callable[[], Sequence[Family]]
    unready: Callable[[], Reasons]
    unhealthy: Callable[[], Reasons] = list
    heartbeats: Sequence[LoopHeartbeat] = ()
