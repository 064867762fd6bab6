"""`logged`: writes the engine's log messages to standard error while a service (`serve`, `follow`, `mirror`,
`archive`) runs. Each message is a line of text or JSON. Nothing is on disk.

A separate thread writes the lines. So if standard error blocks (a full pipe, a stopped terminal), no other
thread waits. At most `MOST` lines are queued. Further lines are counted and dropped. Lines are also dropped
if standard error is closed, is a pipe without a reader, or is a file on a full disk. The service continues.

Threads: any thread may log. No lock is taken: a signal may interrupt a thread that is logging a message, and
the signal's handler may log another message in the same thread.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import click

from segstore.cli.app import one_line
from segstore.cli.places.locked import locked_text
from segstore.errors import SegstoreError, StoreLockedError
from segstore.logger import Logger, deliver
from segstore.threads import Background, Latch

F = TypeVar("F", bound=Callable[..., Any])
Format = Callable[[logging.LogRecord], str]

log: Final = Logger("segstore")
TEXT, JSON = "text", "json"
LEVELS = ("debug", "info", "warning", "error")
MOST = 10_000
"""The largest number of lines that wait to be written."""
PATIENCE = 1.0
"""The longest time in seconds that a stopping service waits until all lines are written."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
"""Escape sequences that replace characters which could end a line or control a terminal. Clients could use
such characters in names.
"""
_CUT: Final[set[int]] = set()
"""File descriptors whose last line is incomplete, because the disk was full. A line end is written before the
next line.
"""
_CONTROLS_OF_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Escape sequences for the control characters and line separators that `json` does not escape."""


def log_options(command: F) -> F:
    """Add --log-format and --log-level. The command gets their values as the arguments `log_format` and
    `log_level`.
    """
    of_format = click.option(
        "--log-format",
        type=click.Choice([TEXT, JSON]),
        default=TEXT,
        show_default=True,
        help="The form of the log on standard error: lines of text, or a JSON object a line.",
    )
    of_level = click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="The least level of messages that are logged.",
    )
    return of_format(of_level(command))


@contextmanager
def logged(log_format: str, log_level: str) -> Iterator[None]:
    """A context manager: during its `with` block, messages of the logger "segstore" are written to standard
    error. If the format is JSON and the block raises an error of the engine, the error is logged as a line,
    and the command's exit status is 1.
    """
    logger = logging.getLogger("segstore")
    handler, before = LineHandler(as_json if log_format == JSON else as_text), logger.level
    logger.addHandler(handler)
    logger.setLevel(log_level.upper())
    try:
        yield
    except (SegstoreError, OSError) as error:
        if log_format != JSON:
            raise
        log.error("%s", locked_text(error) if isinstance(error, StoreLockedError) else one_line(error))
        raise click.exceptions.Exit(1) from None
    finally:
        deliver()
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


# --- lines -------------------------------------------------------------------------------------------


def as_text(record: logging.LogRecord) -> str:
    """Return "TIME LEVEL COMPONENT: MESSAGE". If there is an exception, add its traceback, as indented
    lines.
    """
    error = _traceback(record)
    more = "".join(f"\n    {line.translate(_CONTROLS)}" for line in error.splitlines())
    message = record.getMessage().translate(_CONTROLS)
    return f"{_time(record)} {record.levelname} {_component(record)}: {message}{more}"


def as_json(record: logging.LogRecord) -> str:
    """Return a JSON object with time, level, logger, component and message. If there is an exception, it has
    exc_info, too.
    """
    row = {
        "time": _time(record),
        "level": record.levelname,
        "logger": record.name,
        "component": _component(record),
        "message": record.getMessage(),
    }
    error = _traceback(record)
    text = json.dumps({**row, "exc_info": error} if error else row, ensure_ascii=False)
    return text.translate(_CONTROLS_OF_JSON)


def _component(record: logging.LogRecord) -> str:
    """Return the package of the code that logged the message, such as "segstore.server"."""
    _, found, within = record.pathname.rpartition("/segstore/")
    return f"segstore.{within.partition('/')[0].removesuffix('.py')}" if found else record.name


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


# --- standard error ----------------------------------------------------------------------------------


class LineHandler(logging.Handler):
    """A logging handler with its own thread, which writes a line for each `LogRecord` to standard error."""

    def __init__(self, line: Format) -> None:
        super().__init__()
        self._line = line
        self._waiting: SimpleQueue[str | Latch | None] = SimpleQueue()
        self._lost, self._is_closed = 0, False
        self._thread = Background(self._run, "segstore-stderr")
        self._thread.start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Queue the record's line. Unlike `logging.Handler.handle`, take no lock."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line. If the queue is full, count the line as lost."""
        # A forked child does not have the thread, so the line is written at once.
        if not self._thread.is_alive():
            write(self._line(record))
        elif self._lost or self._waiting.qsize() >= MOST:
            self._lost += 1  # After a lost line, all lines are lost until the thread has emptied the queue.
            if self._lost == 1:
                # The latch wakes the thread, which then reports the number of lost lines.
                self._waiting.put(Latch())
        else:
            self._waiting.put(self._line(record))

    def flush(self) -> None:
        """Wait until all queued lines are written, for at most `PATIENCE` seconds."""
        if not self._is_closed and self._thread.is_alive():
            written = Latch()
            self._waiting.put(written)
            written.wait(PATIENCE)

    def close(self) -> None:
        """Write the queued lines, and stop the thread. When the interpreter exits, `logging` calls `flush`
        and `close` once more. These calls do nothing.
        """
        self.flush()
        if not self._is_closed:
            self._is_closed = True
            self._waiting.put(None)
        super().close()

    def _run(self) -> None:
        while (next_ := self._waiting.get()) is not None:
            if isinstance(next_, Latch):
                next_.open()
            else:
                write(next_)
            if self._lost and self._waiting.empty():
                lost, self._lost = self._lost, 0
                write(self._line(_note("%d lines are lost: standard error took nothing", lost)))


def _note(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("segstore", logging.WARNING, __file__, 0, message, args, None)


def write(line: str) -> None:
    """Write a line to standard error. Errors are ignored."""
    stream = sys.stderr
    with suppress(OSError, ValueError):
        if not isinstance(stream, io.TextIOWrapper) or stream is not sys.__stderr__:
            if stream is not None:  # The stream belongs to a progress bar or a test.
                stream.write(f"{line}\n")
                stream.flush()
            return
        # The line is written without Python's buffer: if bytes in this buffer can't be written, the
        # interpreter reports an error at exit.
        begin = "\n" if stream.fileno() in _CUT else ""
        _write_all(stream.fileno(), f"{begin}{line}\n".encode("utf-8", "backslashreplace"))


def _write_all(fd: int, data: bytes) -> None:
    left = data
    try:
        while left:
            try:
                left = left[os.write(fd, left) :]
            # Standard error is shared with another process, which has set O_NONBLOCK.
            except BlockingIOError:
                ready = select.poll()
                ready.register(fd, select.POLLOUT)
                ready.poll()
        _CUT.discard(fd)
    except OSError:
        if len(left) < len(data):
            _CUT.add(fd)
        raise
