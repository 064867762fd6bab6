"""`Running`: the base class of mirrors and standbys, which run in their own threads until they are closed.
`Following`: the base class of mirrors and standbys that fetch from a source (the mirrored cluster, or the
standby's primary). Nothing is on disk. Threads: any.
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
"""The longest time in seconds from one check of a condition that is waited for to the next."""


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else arguments.milliseconds("timeout_ms", timeout_ms) / 1000


def deadline_in(timeout_ms: float | None) -> float | None:
    """Return the deadline of a wait, as a time of the monotonic clock. If `timeout_ms` is None, return None.
    Raises InvalidArgumentError, InvalidTypeError.
    """
    seconds = _seconds(timeout_ms)
    return None if seconds is None else time.monotonic() + seconds


class Running(Closing, ABC):
    """A running mirror or standby. `Running` is a context manager: the end of a `with` block closes the
    mirror or standby. `done` is a latch that is opened when the mirror or standby stops.
    """

    def __init__(self, done: Latch) -> None:
        self._done = done

    @abstractmethod
    def close(self) -> None:
        """Stop all threads. A second call does nothing."""

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until the mirror or standby has stopped, and return True. After `timeout_ms` return False. If
        an error has stopped the mirror or standby, raises this error, for example StorageError or
        StaleDirectoryError.
        """
        ended = self._done.wait(_seconds(timeout_ms))
        self._check()
        return ended

    def _until(self, holds: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until `holds` returns True, and return True. Return False after the deadline, or if the mirror
        or standby was closed. If an error has stopped the mirror or standby, raises this error.
        """
        while True:
            # The latch is read before `holds` is called, so that no change after the call is missed.
            change = self._change()
            if holds():
                return True
            left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if left > 0:
                change.wait(left)
            if left <= 0 or self._done.is_open:
                self._check()
                return False

    def _change(self) -> Latch:
        """Return a latch that is opened at the next change. A waiting thread then checks its condition at
        once.
        """
        return self._done

    @property
    def _failure(self) -> Exception | None:
        """Return the error that has stopped this mirror or standby. Return None if it runs, or was stopped by
        `close`.
        """
        return None

    def _check(self) -> None:
        if (failure := self._failure) is not None:
            raise copy_of(failure)


C = TypeVar("C", bound=Control)


class Following(Running, Generic[C]):
    """A mirror or standby, which replicates topics of another machine into `store`. Applications may read
    `store`. `http` is the address HOST:PORT at which metrics and health are served, None if they are not
    served.
    """

    def __init__(self, store: FollowingStore, control: C) -> None:
        super().__init__(control.done)
        self.http: str | None = None
        self.store, self._control = store, control

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store.path} of {self._control.role.source}>"

    @property
    def error(self) -> Exception | None:
        """If an error has stopped this mirror or standby, return this error. If no error has stopped it,
        return the error of the last metadata request to the source, None if that request succeeded.
        """
        return self._control.failure or self._control.error

    def lag(self) -> dict[tuple[str, int], Lag]:
        """Return the lag of each partition, by (topic, partition)."""
        return {(each.topic, each.partition): each.source.lag(end) for each, end in self._own_ends()}

    def wait_caught_up(self, timeout_ms: float | None = None) -> bool:
        """Wait until two conditions hold for each partition, and return True: readers can read all records
        that the source had at the partition's first fetch, and a later fetch has sent the log end offset to
        the source. Return False after `timeout_ms`, or if the mirror or standby was closed. Raises the errors
        of `wait`.
        """
        return self._until(self._has_caught_up, deadline_in(timeout_ms))

    @property
    def problems(self) -> dict[str, str]:
        """For each topic that can't be replicated, return its name and the reason. A topic may be missing at
        the source, this client may lack the right to read it, it may have been deleted and created again, or
        its metadata may be invalid.
        """
        return dict(self._control.problems)

    def _has_caught_up(self) -> bool:
        for each in self._control.fetchers.logs.values():
            with suppress(StoreClosedError):  # The topic was just deleted.
                source = each.source
                if not (source.has_reached_target(each.replica.high_watermark) and source.is_reported):
                    return False
        return self._control.rounds > 0

    def _own_ends(self) -> list[tuple[FollowedLog, int]]:
        """Return (followed log, its log end offset) for each followed log. Logs of a topic that was just
        deleted are left out.
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
        """Stop all threads, make the store durable, and close it. A second call does nothing."""
        check_apart("close()")
        try:
            self._control.close(_ENDING)
        finally:
            self.store.close()
