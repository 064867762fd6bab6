"""`TailOpenings`: decides when threads open the native tail of a leader. While this tail is open, one native
call appends to all replicas.

Nothing is on disk. Threads: those of the leader's directory and of its followers' directories. If two threads
ask at the same time, the number of skipped openings may be wrong by one, which is harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.storage.segment.native_tail import NativeTail

MOST_SKIPPED = 63
"""The largest number of openings that are skipped in a row."""


class TailOpenings:
    """A backoff for opening a leader's tail. If an opened tail was closed again without an append, the next
    openings are skipped; the number of skipped openings doubles each time, up to MOST_SKIPPED.
    """

    def __init__(self) -> None:
        self._last: NativeTail | None = None
        self._backoff = self._skips_left = 0

    def are_due(self) -> bool:
        """Return whether the tail should be opened now."""
        last, self._last = self._last, None
        if last is not None and not last.is_open:
            self._backoff = 0 if last.moved else min(2 * self._backoff + 1, MOST_SKIPPED)
            self._skips_left = self._backoff
        elif last is not None:
            self._last = last
        self._skips_left -= self._skips_left > 0
        return not self._skips_left

    def began(self, tail: NativeTail) -> None:
        """Note that the tail was opened."""
        self._last = tail
