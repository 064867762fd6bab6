"""`TailOpenings`: decides when threads open the native tail of a leader. (While a leader's native tail is
open, one call of C code appends to all replicas.)

Nothing is on disk. Threads: the threads of the directories that have a replica of the partition. If two
threads call `are_due` at the same time, the number of skipped openings may be wrong by one, which is
harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.storage.segment.native_tail import NativeTail

MOST_SKIPPED = 63
"""The largest number of openings that are skipped in a row."""


class TailOpenings:
    """A backoff for the opening of a leader's native tail. If an open tail was closed before C code has
    appended through it, the next openings are skipped. Each time this happens, the number of skipped openings
    doubles, up to MOST_SKIPPED.
    """

    def __init__(self) -> None:
        self._last: NativeTail | None = None
        self._backoff = self._skips_left = 0

    def are_due(self) -> bool:
        """Return whether to open the leader's native tail now, or to skip this opening."""
        last, self._last = self._last, None
        if last is not None and not last.is_open:
            self._backoff = 0 if last.moved else min(2 * self._backoff + 1, MOST_SKIPPED)
            self._skips_left = self._backoff
        elif last is not None:
            self._last = last
        self._skips_left -= self._skips_left > 0
        return not self._skips_left

    def began(self, tail: NativeTail) -> None:
        """Record that the native tail was opened."""
        self._last = tail
