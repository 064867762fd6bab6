"""Handles SIGTERM and SIGHUP. Both signals stop a measurement or a service as Ctrl-C does: files of a
measurement are removed, the store of a service is closed, and child processes end. A server does not stop at
SIGHUP, but reads its settings again.

Threads: only the main thread handles signals. If these functions are called in another thread, they change no
handler.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_ENDING)


class EndedError(KeyboardInterrupt):
    """Raised when SIGTERM or SIGHUP arrives. `EndedError` is a KeyboardInterrupt, so code that handles Ctrl-C
    handles it, too.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def status(error: BaseException | None) -> int:
    """Return the exit status that a shell shows for a process that a signal has ended: 143 for SIGTERM, 129
    for SIGHUP, and 130 for Ctrl-C.
    """
    return 128 + (error.number if isinstance(error, EndedError) else signal.SIGINT)


def signal_name(error: BaseException) -> str:
    """Return the name of the signal that caused the error: "SIGTERM", "SIGHUP" or "SIGINT"."""
    return signal.Signals(error.number if isinstance(error, EndedError) else signal.SIGINT).name


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A context manager: in its `with` block the first SIGTERM or SIGHUP raises `EndedError`. Later SIGTERMs
    and SIGHUPs are ignored, so that they do not disturb the cleanup. If a signal is ignored (nohup) or has a
    handler already, its handler is not changed.
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
def stopped_by_signals(*, unfinished: bool = False) -> Iterator[None]:
    """A context manager: in its `with` block SIGTERM and SIGHUP raise `EndedError`.

    The error of SIGHUP is passed on. The error of SIGTERM is suppressed at the end of the block, so that the
    exit status is 0: a supervisor stops a service with SIGTERM, and takes any other status as a failure. If
    `unfinished`, the error of SIGTERM is passed on too, because the block's task was not finished.
    """
    try:
        with ended_by_signals():
            yield
    except EndedError as error:
        if unfinished or error.number != signal.SIGTERM:
            raise


class _Noting:
    """A signal handler that only puts the number of the signal into the queue `came`."""

    def __init__(self) -> None:
        # A SimpleQueue allows a signal handler to call `put` during a `get` of the same thread.
        self.came: SimpleQueue[int] = SimpleQueue()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.came.put(number)


@contextmanager
def hangups() -> Iterator[SimpleQueue[int]]:
    """Yield a queue that gets an item at each SIGHUP during the `with` block. SIGHUP does not end the process
    during the block. The queue gets items even if the process ignored SIGHUP before the block (nohup). If two
    blocks are nested, the inner block yields the queue of the outer block.
    """
    before = {number: signal.getsignal(number) for number in _of_main_thread((signal.SIGHUP,))}
    outer = before.get(signal.SIGHUP)
    noting = outer if isinstance(outer, _Noting) else _Noting()
    for number in before:
        signal.signal(number, noting)
    try:
        yield noting.came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_later() -> Iterator[None]:
    """A context manager: SIGINT, SIGTERM and SIGHUP are delayed until the end of its `with` block, if Python
    code handles them. If such a signal came during Popen, a child process could be left that nobody ends.
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
