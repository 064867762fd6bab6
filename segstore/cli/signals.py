"""Makes SIGTERM and SIGHUP end a measurement as Ctrl-C does: its files are removed, and its processes end.

Threads: signals arrive in the main thread; in other threads this does nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_ENDING)


class EndedError(KeyboardInterrupt):
    """One of these signals came. What handles Ctrl-C handles it too."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def status(error: BaseException | None) -> int:
    """The exit status that shells have for what ended us: 130 of Ctrl-C, 143 of SIGTERM, 129 of SIGHUP."""
    return 128 + (error.number if isinstance(error, EndedError) else signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block the first of them is an `EndedError`, and those that follow do not disturb what it
    brings about. One that is ignored (nohup), or that somebody else handles, stays so.
    """
    heeded = _of_main_thread(number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in heeded:
            signal.signal(one, signal.SIG_IGN)
        raise EndedError(number)

    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def ended_later() -> Iterator[None]:
    """A signal that ends us meanwhile does so behind the block: within Popen it would leave a process that
    nobody knows.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _of_main_thread(_ALL)}
    heeded = {number: handler for number, handler in before.items() if callable(handler)}
    for number in heeded:
        signal.signal(number, lambda one, _: came.append(one))
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _of_main_thread(numbers: Iterable[signal.Signals]) -> tuple[signal.Signals, ...]:
    return tuple(numbers) if threading.current_thread() is threading.main_thread() else ()
