"""`ProducerLock`: the one lock that the parts of a producer share. Threads: any."""

from __future__ import annotations

import threading

from segstore.mutex import Mutex, check_apart, refused, under_way


class ProducerLock(Mutex):
    """`sender` is the thread in which outcomes become known, and which can't wait for one."""

    sender = 0

    def is_sender(self) -> bool:
        """Return whether the calling thread is the sender."""
        return self.sender == threading.get_ident()

    def check_wait(self, call: str) -> None:
        """Raise ReentrantCallError where a wait for an outcome would keep it from becoming known: in the
        sender's thread, or in a signal handler that interrupted a call which holds a lock.
        """
        if self.is_sender():
            raise refused(under_way(), call)
        check_apart(call)
