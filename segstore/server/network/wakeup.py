"""`Wakeup`: an eventfd by which other threads end the loop's sleep. It is written only while the loop sleeps.

Threads: any; the loop calls `reset` and `close`.
"""

from __future__ import annotations

import os

from segstore.idle_files import with_descriptors
from segstore.mutex import nesting


class Wakeup:
    """The loop's eventfd. The loop sets `asleep` before its last check for queued calls. So a thread that
    queues a call, and then finds that `asleep` is False, need not write, because the loop finds the call
    before it sleeps.
    """

    def __init__(self) -> None:
        self.fd = with_descriptors(lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.asleep = False
        self._lock = nesting()  # keeps `wake` from writing to a closed descriptor, whose number may be reused

    def wake(self) -> None:
        """End the loop's sleep if it sleeps."""
        if self.asleep:
            self.asleep = False
            with self._lock:
                if self.fd >= 0:
                    os.eventfd_write(self.fd, 1)

    def reset(self) -> None:
        """Reset the eventfd after a sleep; otherwise it would end the next sleep too."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the eventfd; a `wake` after this does nothing."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def forget(self) -> None:
        """Close the eventfd in the child of a fork; the lock is replaced, because a thread of the parent may
        hold it.
        """
        self._lock = nesting()
        self.close()
