"""Signals that come while the main thread sleeps, or just before it sleeps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waiting import PATIENCE


def send_to_this_thread(number: int) -> None:
    """Send a signal to the calling thread. If that is not the main thread, no sleep of the main thread is
    interrupted, as if the signal had come after Python's last check, and before the sleep.
    """
    signal.pthread_kill(threading.get_ident(), number)


@contextmanager
def sent(send: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call `send`, which sends a signal, in another thread beside the block. If the signal's handler does not
    end the block in time, `end` must end it, and then this fails.
    """
    ended, late = threading.Event(), list[str]()

    def ring() -> None:
        send()
        if not ended.wait(PATIENCE):
            late.append("the handler has not run")
            end()

    ringing = threading.Thread(target=ring)
    ringing.start()
    try:
        yield
    finally:
        ended.set()
        ringing.join()
        assert late == []


@contextmanager
def handled(number: int, handler: Callable[..., object]) -> Iterator[None]:
    """Within the block `handler` handles the signal `number`."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
