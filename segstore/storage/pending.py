"""The queue in front of a partition's writer: it orders appends, and one thread writes for all.

On disk: nothing of its own.
Threads: any. `deque.append` gives the order; whoever holds the `token` writes what is queued, so that
a thread that waited for it mostly finds its records written. Encoding and compression happen
before an append is queued, fsync after: neither is ever done with the token held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from segstore.records import Encoded
from segstore.storage.judging import Claim


class Pending:
    """Encoded batches that wait to be written, and what became of them. `claim`: whose they are."""

    __slots__ = ("chunks", "claim", "error", "first")

    def __init__(self, chunks: list[Encoded], claim: Claim | None) -> None:
        self.chunks, self.claim = chunks, claim
        self.first = -1
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.first >= 0 or self.error is not None


class AppendQueue:
    """`write(pendings)` sets `first` or `error` of each."""

    def __init__(self, write: Callable[[list[Pending]], None]) -> None:
        self.token = threading.RLock()
        self._queue: deque[Pending] = deque()
        self._write = write

    def put(self, chunks: list[Encoded], claim: Claim | None = None) -> int:
        """Queue, and return the first offset when the chunks are written; raises what failed."""
        pending = Pending(chunks, claim)
        self._queue.append(pending)
        with self.token:
            if not pending.done:
                self.drain()
        if pending.error is not None:
            raise pending.error
        return pending.first

    def drain(self) -> None:
        """Write what is queued; with the token held."""
        while self._queue:
            group = []
            while self._queue:
                group.append(self._queue.popleft())
            self._write(group)
