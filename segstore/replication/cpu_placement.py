"""`CpuPlacement`: moves a thread off the processor of another thread that works at the same time.

If two threads wake each other again and again, the kernel may leave both on one processor, though another
processor is idle. A native thread that writes batches is then replaced by a new thread
(`_native/hand_over.c`); a Python thread takes much longer to start, so it is moved.

Nothing is on disk. Threads: the thread that stays calls `note_other`, the thread that moves calls `keep`.
"""

from __future__ import annotations

from segstore._native import lib

MOST = 16
"""The largest limit of a `CpuPlacement`."""


class CpuPlacement:
    """Two threads: the thread that stays, and the thread that moves. The moving thread counts its pieces of
    work in a row on the processor of the staying thread. At the limit it moves, and the limit doubles, so
    useless moves become rare. Each piece of work on a different processor lowers the limit by one.
    """

    def __init__(self) -> None:
        self._other = -1
        self._together, self._limit = 0, 1

    def note_other(self) -> None:
        """Note the processor of the calling thread, which is the thread that stays."""
        self._other = lib.seg_processor()

    def keep(self) -> None:
        """Move the calling thread to another processor if the limit is reached. Called between two pieces of
        work. If the process may use only one processor, nothing moves.
        """
        here = lib.seg_processor()
        if here != self._other or here < 0:
            self._together, self._limit = 0, max(self._limit - 1, 1)
            return
        self._together += 1
        if self._together >= self._limit:
            self._together, self._limit = 0, min(2 * self._limit, MOST)
            lib.seg_leave_processor(here)
