"""`CpuPlacement`: moves a thread to another processor if two threads that work at the same time run on one
processor.

If two threads wake each other again and again, the kernel may leave both on one processor, though another
processor is idle. If one of the two is a native thread that writes batches, native code replaces it by a new
thread (`_native/hand_over.c`). A Python thread takes much longer to start, so this class moves it instead.

Nothing is on disk. Threads: the thread that stays calls `note_other`, the thread that moves calls `keep`.
"""

from __future__ import annotations

from segstore._native import lib

MOST = 16
"""The limit of a `CpuPlacement` does not rise above this number."""


class CpuPlacement:
    """Two threads: the thread that stays, and the thread that moves. Each piece of work that the moving
    thread does on the processor of the staying thread is counted. If the count reaches a limit, the thread
    moves to another processor, and the limit doubles, so that useless moves become rare. A piece of work on a
    different processor sets the count to 0, and lowers the limit by one.
    """

    def __init__(self) -> None:
        self._other = -1
        self._together, self._limit = 0, 1

    def note_other(self) -> None:
        """Store the number of the processor that the calling thread runs on. Called only by the thread that
        is never moved.
        """
        self._other = lib.seg_processor()

    def keep(self) -> None:
        """Move the calling thread to another processor if the count has reached the limit. The thread that
        moves calls this method between two pieces of work. If the process may use only one processor, the
        thread stays.
        """
        here = lib.seg_processor()
        if here != self._other or here < 0:
            self._together, self._limit = 0, max(self._limit - 1, 1)
            return
        self._together += 1
        if self._together >= self._limit:
            self._together, self._limit = 0, min(2 * self._limit, MOST)
            lib.seg_leave_processor(here)
