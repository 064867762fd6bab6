"""A native thread for the followers whose logs are in one directory. It writes the batches that leaders in
other directories hand over to these followers (`_native/hand_over.c`). A disk that hangs blocks only this
thread.

On disk the thread writes to active segments, always after the end of the log, and only while C may append to
the log. Threads: the Python thread that serves the directory calls `job`; any thread may call `end`.
"""

from __future__ import annotations

from typing import Any

from segstore._native import ffi, lib

_SECOND = 10**9


class DiskThread:
    """The thread of one directory; the first `job` starts the thread."""

    def __init__(self) -> None:
        self._thread: Any = None
        self._over = False

    def job(self) -> Any:
        """Return a job (`seg_job`), with which this thread writes the batches of one follower. Return None if
        the thread can't be started or was stopped, or if there is no memory for the job.
        """
        if self._thread is None and not self._over:
            started = lib.seg_disk_thread_start()
            if started != ffi.NULL:
                self._thread = ffi.gc(started, lib.seg_disk_thread_free)
        made = ffi.NULL if self._thread is None else lib.seg_job_new(self._thread)
        return None if made == ffi.NULL else ffi.gc(made, lib.seg_job_free)

    def end(self, seconds: float) -> bool:
        """Stop the thread, and wait for at most `seconds`; return whether the thread has stopped. Batches
        that are handed over later are not written.
        """
        self._over = True
        thread = self._thread
        return thread is None or bool(lib.seg_disk_thread_end(thread, int(max(seconds, 0) * _SECOND)))
