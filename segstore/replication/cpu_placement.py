"""`Separation`: how a thread stays off the processor of another one that works while it does.

The kernel may leave two threads on one processor for long, though another one is idle, where each of them
wakes the other again and again. A thread that writes for appends goes on as a new one then
(`_native/hand_over.c`); one of Python, which would take much longer to begin, is moved.

Nothing is on disk. Threads: `told` the other one, `keep` the one that is to move.
"""

from __future__ import annotations

from segstore._native import lib

MOST = 16
"""Pieces of work on the other one's processor, in a row, of which the thread bears no more."""


class Separation:
    """Where two threads run. After so many pieces of work beside the other one the thread moves, and bears
    twice as many before it moves again; each piece elsewhere takes one of these away: so moves in vain become
    rare.
    """

    def __init__(self) -> None:
        self._other = -1
        self._together, self._bears = 0, 1

    def told(self) -> None:
        """Note where the other thread is, which calls this."""
        self._other = lib.seg_processor()

    def keep(self) -> None:
        """Leave the other one's processor, if it is time for that; called between two pieces of work. A
        process that may use one processor only stays there.
        """
        here = lib.seg_processor()
        if here != self._other or here < 0:
            self._together, self._bears = 0, max(self._bears - 1, 1)
            return
        self._together += 1
        if self._together >= self._bears:
            self._together, self._bears = 0, min(2 * self._bears, MOST)
            lib.seg_leave_processor(here)
