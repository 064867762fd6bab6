"""`Operated`: the functions that an HTTP endpoint calls to get the metrics and the health of a server, a
standby, a mirror or an archive.

Nothing is on disk. Threads: the docstring of `Operated` names each function's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segstore.storage.store.stats import Family

Reasons = list[str]


class LoopHeartbeat:
    """The time since an event loop has last answered `ask`. `soon(call)` lets the loop make a call; any
    thread may call `soon`.
    """

    def __init__(self, soon: Callable[[Callable[[], object]], None]) -> None:
        self._soon = soon
        self._turned = time.monotonic()
        self._asked = False

    def ask(self) -> None:
        """Ask the loop to answer in its next iteration. If the loop has not answered the preceding `ask`, do
        nothing.
        """
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
    """The functions that an endpoint calls. `known` returns metrics from memory; it is called in the
    endpoint's thread. `gathered` returns metrics of the store; it is called in a separate thread, because it
    may wait for a disk. `unready` returns the reasons why no requests are served. `unhealthy` returns the
    reasons to restart the process. `unready` and `unhealthy` are called in the endpoint's thread, and read
    only memory.
    """

    known: Callable[[], Sequence[Family]]
    gathered: Callable[[], Sequence[Family]]
    unready: Callable[[], Reasons]
    unhealthy: Callable[[], Reasons] = list
    heartbeats: Sequence[LoopHeartbeat] = ()
