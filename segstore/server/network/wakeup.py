"""`Wakeup`: how other threads end the loop's sleep: an eventfd, which is written only while the loop sleeps.

Threads: any; `close` and `reset` are the loop's.
"""

from __future__ import annotations

import os

from segstore.idle_files import with_descriptors
from segstore.mutex import nesting


class Wakeup:
    """`asleep` is set by the loop before it looks for calls a last time and sleeps: whoever adds a call and
    then finds it false knows that the loop finds that call by itself.
    """

    def __init__(self) -> None:
        self.fd = with_descriptors(lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.asleep = False
        self._lock = (
            nesting()
        )  # else the number of a closed descriptor, which is another file's, is written to

    def wake(self) -> None:
        """End the loop's sleep, where it sleeps."""
        if self.asleep:
            self.asleep = False
            with self._lock:
                if self.fd >= 0:
                    os.eventfd_write(self.fd, 1)

    def reset(self) -> None:
        """Take note that the loop is awake: without this the eventfd would end the next sleep too."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the eventfd; a `wake` after this does nothing."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def forget(self) -> None:
        """Do what `close` does, in the child of a fork: a thread that is not there may hold the lock."""
        self._lock = nesting()
        self.close()
