"""`ProducerLock`: the one lock that the parts of a producer share. Threads: any."""

from __future__ import annotations

import threading

from segstore.mutex import Mutex, check_apart, refused, under_way


class ProducerLock(Mutex):
    """The lock of a producer. `sender` is the id of the sender's thread. The sender's thread completes
    records, so it must not wait for the outcome of a record.
    """

    sender = 0

    def is_sender(self) -> bool:
        """Return whether the calling thread is the sender."""
        return self.sender == threading.get_ident()

    def check_wait(self, call: str) -> None:
        """Raise ReentrantCallError in the sender's thread, and in a signal handler that interrupted a call
        which holds a lock, because a wait for a record's outcome would never end there.
        """
        if self.is_sender():
            raise refused(under_way(), call)
        check_apart(call)
