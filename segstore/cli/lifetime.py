"""`Lifetime`: writes the log lines for start and stop of a service (`serve`, `follow`, `mirror`, `archive`).

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
    """The lifetime of one service with a store at `path`. It is a context manager. The service's resources
    are opened and closed in its block.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._reason: BaseException | None = None
        self.is_closed: Callable[[], bool] = lambda: False
        """Returns whether the store is closed. It is called if a second signal has interrupted the block."""

    def started(self, what: str) -> None:
        """Log that the service runs; `what` is a sentence without its subject, the store's path."""
        log.info("segstore %s, process %d: %s %s", VERSION, os.getpid(), self._path, what)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Run the block in which the service runs. Before the resources are closed, log that the service
        stops, with the reason: a signal, or its own end. An error is not logged here, because the caller logs
        or prints the error.
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
