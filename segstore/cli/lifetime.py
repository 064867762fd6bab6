"""`Lifetime`: logs a line when a service (`serve`, `follow`, `mirror`, `archive`) starts, and a line when it
stops.

Nothing is on disk. Threads: one.
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
    """A context manager for one service whose store is at `path`. The service opens and closes its resources
    within the `with` block.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._reason: BaseException | None = None
        self.is_closed: Callable[[], bool] = lambda: False
        """A function that returns whether the store is closed. The function is called if a second signal has
        interrupted the `with` block.
        """

    def started(self, what: str) -> None:
        """Log that the service runs. The message is a sentence: the store's path is its subject, and `what`
        follows it.
        """
        log.info("segstore %s, process %d: %s %s", VERSION, os.getpid(), self._path, what)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """A context manager: the service runs in its `with` block. At the end of the block, before the
        resources are closed, log that the service stops, and why: a signal, or the service has ended by
        itself. Errors are not logged here, because the caller logs or prints them.
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
