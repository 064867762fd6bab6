"""`Wakeup`: an eventfd by which other threads end the loop's sleep. The eventfd is written only while the
loop sleeps. Threads: any thread may call `wake`; the loop's thread calls `reset` and `close`.
"""

from __future__ import annotations

import os

from segstore.idle_files import with_descriptors
from segstore.mutex import nesting


class Wakeup:
    """The loop's eventfd. Before it sleeps, the loop sets `asleep`, and then checks for queued calls. A
    thread first queues a call, and then reads `asleep`. If it reads False, it need not write: the loop's
    check comes later, and finds the call.
    """

    def __init__(self) -> None:
        self.fd = with_descriptors(lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.asleep = False
        # The lock prevents `wake` from writing to a closed descriptor.
        self._lock = nesting()

    def wake(self) -> None:
        """End the loop's sleep, if the loop sleeps."""
        if self.asleep:
            self.asleep = False
            with self._lock:
                if self.fd >= 0:
                    os.eventfd_write(self.fd, 1)

    def reset(self) -> None:
        """Read the eventfd after a sleep, because an unread eventfd would end the next sleep at once."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the eventfd. Later calls of `wake` do nothing."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def forget(self) -> None:
        """Close the eventfd in the child of a fork. First replace the lock, because a thread of the parent
        may have acquired it before the fork.
        """
        self._lock = nesting()
        self.close()
