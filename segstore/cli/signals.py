"""Lets SIGTERM and SIGHUP stop a measurement or a service as Ctrl-C does: files of a measurement are removed,
the store of a service is closed, and child processes end. A server reads its settings again at SIGHUP.

Threads: signals arrive in the main thread; in other threads this module does nothing.
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
    """Raised by SIGTERM or SIGHUP. Code that handles Ctrl-C handles this error too."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def status(error: BaseException | None) -> int:
    """Return the exit status that shells show for a process that a signal has ended: 130 for Ctrl-C, 143 for
    SIGTERM, 129 for SIGHUP.
    """
    return 128 + (error.number if isinstance(error, EndedError) else signal.SIGINT)


def signal_name(error: BaseException) -> str:
    """Return the name of the signal that caused the error: "SIGTERM", "SIGHUP" or "SIGINT"."""
    return signal.Signals(error.number if isinstance(error, EndedError) else signal.SIGINT).name


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Run a block in which the first SIGTERM or SIGHUP raises `EndedError`; later ones are ignored, so that
    they do not disturb the cleanup. A signal that is ignored (nohup), or that has another handler, is left as
    it is.
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
    """Run a block in which SIGTERM and SIGHUP raise `EndedError`. After SIGTERM return without the error,
    because a supervisor stops a service by SIGTERM, and takes any exit status except 0 for a failure. If
    `unfinished`, the block has a task to finish, so the error is raised after SIGTERM, too.
    """
    try:
        with ended_by_signals():
            yield
    except EndedError as error:
        if unfinished or error.number != signal.SIGTERM:
            raise


class _Noting:
    """A signal handler that only notes the signal."""

    def __init__(self) -> None:
        self.came: SimpleQueue[int] = SimpleQueue()  # safe if `put` interrupts `get`

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.came.put(number)


@contextmanager
def hangups() -> Iterator[SimpleQueue[int]]:
    """Yield a queue that gets an entry for each SIGHUP during the block. SIGHUP does not end the process
    during the block. SIGHUP is noted even if the process ignored it before the block (nohup). A nested block
    yields the outer block's queue.
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
    """Delay signals that would end this process until the block is over. During Popen such a signal could
    leave behind a child process that nobody ends.
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
