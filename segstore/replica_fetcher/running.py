"""`Running`: what follows another machine, or sends to one, in threads of its own until it is closed.
`Following` is one with a `Control`: a mirror, a standby. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from segstore.closing import Closing
from segstore.config import arguments
from segstore.errors import StoreClosedError, copy_of
from segstore.mutex import check_apart
from segstore.replica_fetcher.control import Control
from segstore.replica_fetcher.followed_log import FollowedLog
from segstore.replica_fetcher.source_end import Lag
from segstore.replica_fetcher.store import FollowingStore
from segstore.threads import Latch

_ENDING = 30.0
_LOOK = 0.05
"""Seconds between two looks whether what is waited for has come."""


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else arguments.milliseconds("timeout_ms", timeout_ms) / 1000


def deadline_in(timeout_ms: float | None) -> float | None:
    """Return when, by the monotonic clock, a wait is over; None for never. Raises InvalidArgumentError,
    InvalidTypeError.
    """
    seconds = _seconds(timeout_ms)
    return None if seconds is None else time.monotonic() + seconds


class Running(Closing, ABC):
    """A context manager, which closes it; `done` is opened where it ends."""

    def __init__(self, done: Latch) -> None:
        self._done = done

    @abstractmethod
    def close(self) -> None:
        """End all threads. A second call does nothing."""

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until it has ended; False where `timeout_ms` have passed. Raises what has ended it, such as
        StorageError, StaleDirectoryError.
        """
        ended = self._done.wait(_seconds(timeout_ms))
        self._check()
        return ended

    def _until(self, holds: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until something holds; False where the deadline has passed. Raises what has ended it."""
        while True:
            change = self._change()  # taken first: what comes behind the look ends the wait
            if holds():
                return True
            left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if left > 0:
                change.wait(left)
            if left <= 0 or self._done.is_open:
                self._check()
                return False

    def _change(self) -> Latch:
        """Return what is opened by the next change that may end a wait early."""
        return self._done

    @property
    def _failure(self) -> Exception | None:
        """Return what has ended it, None where nothing did, or `close`."""
        return None

    def _check(self) -> None:
        if (failure := self._failure) is not None:
            raise copy_of(failure)


C = TypeVar("C", bound=Control)


class Following(Running, Generic[C]):
    """Follows another machine's topics into `store`, which may be read. `http` is where metrics and health
    are, "HOST:PORT"; None without.
    """

    def __init__(self, store: FollowingStore, control: C) -> None:
        super().__init__(control.done)
        self.http: str | None = None
        self.store, self._control = store, control

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store.path} of {self._control.role.source}>"

    @property
    def error(self) -> Exception | None:
        """Return what has ended it; else why the source was not reached last; None where it was."""
        return self._control.failure or self._control.error

    def lag(self) -> dict[tuple[str, int], Lag]:
        """Return how far each partition is behind the source."""
        return {(each.topic, each.partition): each.source.lag(end) for each, end in self._ends_here()}

    def wait_caught_up(self, timeout_ms: float | None = None) -> bool:
        """Wait until each partition shows all that the source had when it was first fetched, and the source
        has been told so; False where `timeout_ms` have passed. Raises as `wait`.
        """
        return self._until(self._has_caught_up, deadline_in(timeout_ms))

    @property
    def problems(self) -> dict[str, str]:
        """Return what prevents topics from being followed, by name: they are missing at the source, may not
        be read, were made anew there, or are told of by names and numbers that can't be.
        """
        return dict(self._control.problems)

    def _has_caught_up(self) -> bool:
        for each in self._control.fetchers.logs.values():
            with suppress(StoreClosedError):  # a topic that was just deleted
                source = each.source
                if not (source.has_reached_target(each.replica.high_watermark) and source.is_told):
                    return False
        return self._control.rounds > 0

    def _ends_here(self) -> list[tuple[FollowedLog, int]]:
        """Return the logs that are followed, and where each ends here; not those of a topic that was just
        deleted.
        """
        found = []
        for each in self._control.fetchers.logs.values():
            with suppress(StoreClosedError):
                found.append((each, each.replica.log_end_offset))
        return found

    def _change(self) -> Latch:
        return self._control.fetchers.change

    @property
    def _failure(self) -> Exception | None:
        return self._control.failure

    def close(self) -> None:
        """End it: what it has is made durable, and the store is closed. A second call does nothing."""
        check_apart("close()")
        try:
            self._control.close(_ENDING)
        finally:
            self.store.close()
