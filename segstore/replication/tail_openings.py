"""`TailOpenings`: when the native tail of a leader is opened by threads.

Nothing is on disk. Threads: the leader's directory's own, and those of its followers, which may see a
chance at the same time: one of them too many or too few is let go by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.storage.segment.native_tail import NativeTail

MOST_IN_VAIN = 63
"""Chances to open tails that are let go by at most, while nothing is appended by them."""


class TailOpenings:
    """How it went when a leader's tail was opened by threads. After one time in vain, by which nothing was
    appended as others paused it at once, so many chances are let go by; each time twice as many.
    """

    def __init__(self) -> None:
        self._last: NativeTail | None = None
        self._in_vain = self._left = 0

    def are_due(self) -> bool:
        """Return whether the tail is to be opened at this chance."""
        last, self._last = self._last, None
        if last is not None and not last.is_open:
            self._in_vain = 0 if last.moved else min(2 * self._in_vain + 1, MOST_IN_VAIN)
            self._left = self._in_vain
        elif last is not None:
            self._last = last
        self._left -= self._left > 0
        return not self._left

    def began(self, tail: NativeTail) -> None:
        """Note that the tail was to be opened."""
        self._last = tail
