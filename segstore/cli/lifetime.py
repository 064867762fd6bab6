"""`Lifetime`: the lines of the log that tell how a service (`serve`, `follow`, `mirror`) starts and stops.

Nothing on disk. Threads: one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from segstore.cli.signals import signal_name
from segstore.logger import Logger
from segstore.version import VERSION

if TYPE_CHECKING:
    from typing_extensions import Self

log: Final = Logger("segstore")


class Lifetime:
    """The life of one service, whose store is at `path`. A context manager that closes nothing: what the
    service has is closed within its block.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._reason: BaseException | None = None
        self.is_closed: Callable[[], bool] = lambda: False
        """Whether the store is closed, though another signal has interrupted its close."""

    def started(self, what: str) -> None:
        """Log that the service runs; `what` is a sentence without its subject."""
        log.info("segstore %s, process %d: %s %s", VERSION, os.getpid(), self._path, what)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Run the service's block. The signal that ends it is logged, before anything is closed; an error is
        logged, or printed, where it ends the command.
        """
        try:
            yield
        except KeyboardInterrupt as error:
            self._stops(signal_name(error))
            self._reason = error
            raise
        else:
            self._stops("it has ended by itself")

    def _stops(self, why: str) -> None:
        self._began = time.monotonic()
        log.info("%s stops: %s", self._path, why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is self._reason or (isinstance(error, KeyboardInterrupt) and self.is_closed()):
            log.info("%s is closed, after %.1f s", self._path, time.monotonic() - self._began)
