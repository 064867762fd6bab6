"""`Logger`: logs the engine's messages by Python's `logging`. This module touches no files.

A handler of `logging` is the application's code: it may wait, call segstore, or raise. `logging` calls it
under the handler's lock. Other threads may be waiting for a thread of this package, or for a thread that has
a lock of this package. So threads of these two kinds never call a handler: a separate thread (`_Carrier`)
does it for them. A handler's exception is reported by `Handler.handleError`, as always, and has no effect on
the engine.

Threads: any. This module takes no lock, because a finalizer that logs a message may interrupt the logging of
another message.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from types import FrameType

from segstore.errors import IllegalStateError
from segstore.first_use import have_forks_wait
from segstore.mutex import holds_any
from segstore.threads import Background, Latch

PATIENCE = 1.0
"""The longest time, in seconds, that a thread of this package waits until the handlers have got its message.
It waits so that the message appears before messages about the consequences. The wait is limited, because a
handler may itself wait for this thread.
"""
_AT_ONCE = 1_000  # `Logger.warnings` makes at most so many log records before it passes them on


class Logger:
    """A logger that passes messages to `logging.getLogger(name)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, *args: object) -> None:
        """Log a message, like logging.Logger.debug. Each other public method, except `warnings`, also
        corresponds to the method of logging.Logger with its name.
        """
        self._log(logging.DEBUG, message, args)

    def info(self, message: str, *args: object) -> None:
        self._log(logging.INFO, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._log(logging.WARNING, message, args)

    def warnings(self, message: str, rows: Iterable[object]) -> None:
        """Log a warning for each of `rows`, the only argument of its message. If the iteration over `rows`
        raises an error, log the rows before it, and raise the error.
        """
        if not self._is_enabled(logging.WARNING):
            return
        caller, left, more = sys._getframe(1), iter(rows), True
        while more:
            records: list[logging.LogRecord] = []
            try:
                some = islice(left, _AT_ONCE)
                records.extend(self._record(caller, logging.WARNING, message, (row,)) for row in some)
            finally:
                if records:
                    self._pass_on(records)
            more = len(records) == _AT_ONCE

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._log(logging.ERROR, message, args, exc_info)

    def exception(self, message: str, *args: object) -> None:
        self._log(logging.ERROR, message, args, sys.exc_info()[1])

    def log(self, level: int, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._log(level, message, args, exc_info)

    def _is_enabled(self, level: int) -> bool:
        """Return whether messages of this level are logged."""
        # `logging.Logger.isEnabledFor` is not called, because it would wait for the lock of `logging`. An
        # interrupt of a call that the application or asyncio made may have left that lock taken.
        logger = self._logger
        return not logger.disabled and logger.manager.disable < level and level >= logger.getEffectiveLevel()

    def _log(
        self, level: int, message: str, args: tuple[object, ...], error: BaseException | None = None
    ) -> None:
        if self._is_enabled(level):
            self._pass_on([self._record(sys._getframe(2), level, message, args, error)])

    def _record(
        self,
        caller: FrameType,
        level: int,
        message: str,
        args: tuple[object, ...],
        error: BaseException | None = None,
    ) -> logging.LogRecord:
        code = caller.f_code
        info = None if error is None else (type(error), error, error.__traceback__)
        return self._logger.makeRecord(
            self._logger.name, level, code.co_filename, caller.f_lineno, message, args, info, code.co_name
        )

    def _pass_on(self, records: Sequence[logging.LogRecord]) -> None:
        """Call the handlers with at least one record, in a separate thread if this thread must not."""
        holding, ours = holds_any(), isinstance(threading.current_thread(), Background)
        if not holding and not ours:
            for record in records:
                _handle(self._logger, record)
            return
        for record in records:
            record.msg, record.args = record.getMessage(), None  # the arguments may change later
        handled = _carrier.take(self._logger, records)
        if not holding and not _carrier.is_this():
            handled.wait(PATIENCE)


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        logger.handle(record)
    except Exception:
        _failed.handleError(record)


_failed = logging.NullHandler()
"""Reports the exceptions of the application's handlers: its `handleError` prints them to stderr if
`logging.raiseExceptions` is set.
"""


class _Carrier:
    """Calls the handlers in a thread of its own, one message after another. The thread stops when there are
    no more messages; the next message starts another thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[logging.Logger, logging.LogRecord, Latch]] = deque()
        self._thread: Background | None = None

    def take(self, logger: logging.Logger, records: Sequence[logging.LogRecord]) -> Latch:
        """Queue records, and return a latch that opens when the last one was handled."""
        # The start of a thread may take 10 ms on a busy machine, so one thread handles all of `records`.
        queued = [(logger, record, Latch()) for record in records]
        self._waiting.extend(queued)
        if self._thread is None or not self._thread.is_alive():
            self._thread = Background(self._run, "segstore-log")
            try:
                self._thread.start()
            except IllegalStateError:
                self._run()
        return queued[-1][-1]

    def is_this(self) -> bool:
        """Return whether the calling thread is the one that calls the handlers."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while self._waiting:
            self._handle_all()
            self._thread = None  # From here on, a new message starts another thread.

    def _handle_all(self) -> None:
        while self._waiting:
            try:
                logger, record, handled = self._waiting.popleft()
            except IndexError:  # Another thread has taken the last message.
                return
            try:
                _handle(logger, record)
            finally:
                handled.open()

    def end(self) -> None:
        """Pass all queued messages to the handlers. Called by `deliver`, and at the interpreter's
        end, before threads stop.
        """
        thread = self._thread
        if thread is not None:
            thread.join(PATIENCE)
        self._handle_all()

    def forget(self) -> None:
        """Drop the queued messages in the child of a fork, because the parent logs them."""
        self._waiting.clear()
        self._thread = None


def deliver() -> None:
    """Pass all queued messages to the handlers. Call this before a handler is removed."""
    _carrier.end()


_carrier = _Carrier()
atexit.register(_carrier.end)
os.register_at_fork(after_in_child=_carrier.forget)
# This is called after `logging` has registered its fork hook, so that a fork waits for the end of an import
# before `logging` takes its locks: hooks that are registered later run earlier.
have_forks_wait()
