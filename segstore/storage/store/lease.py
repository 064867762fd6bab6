"""`LeaseWatch`: asks for a lease that the user brings, again and again, in a thread of its own. Nothing is on
disk. Threads: its own; `soon` and `error` may be used by any.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from segstore.config import arguments
from segstore.config.options import MAX_LONG, whole
from segstore.errors import InvalidArgumentError
from segstore.integers import INT32_MAX
from segstore.logger import Logger
from segstore.storage.log.lease_term import now
from segstore.threads import Background, Latch, take

log = Logger("segstore")
Lease = Callable[[], "int | None"]
"""Acquires the lease, or renews it; returns the fencing token while the caller holds the lease, else None."""


def interval_option() -> int:
    """Return the setting `lease.interval.ms`."""
    option: int = whole(1_000, 1, MAX_LONG, "ms", "how often the lease is asked for")
    return option


def token_of(lease: Lease) -> int | None:
    """Ask once. Raises InvalidTypeError, InvalidArgumentError for what is no token; what the lease raises."""
    token = lease()
    return None if token is None else arguments.whole("lease() gave", token, 0, INT32_MAX)


def held_token(lease: Lease, known: int) -> int:
    """Return the token of a lease that is held. Raises InvalidArgumentError where it is not, or the token is
    not above the largest leader epoch that is known; as `token_of`.
    """
    token = token_of(lease)
    if token is None:
        raise InvalidArgumentError("the lease is not held: it gave no fencing token")
    check_above(token, known)
    return token


class LeaseWatch:
    """`use` gets each token, None where the lease is not held, and when it was asked for, by
    `lease_term.now`; it raises InvalidArgumentError for a token that it refuses. `missed` gets what it or the
    lease has raised.
    """

    def __init__(
        self,
        lease: Lease,
        seconds: float,
        use: Callable[[int | None, float], None],
        missed: Callable[[Exception], None],
        done: Latch,
    ) -> None:
        self.lease, self._seconds, self._done = lease, seconds, done
        self._use, self._missed = use, missed
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._ended = Latch()
        self.error: Exception | None = None
        """What the last call has led to, where it has failed, or its token was refused."""

    def start(self) -> None:
        """Start the thread, which ends once `done` is open, and `soon` is called or an interval over."""
        Background(self._run, "segstore-lease").start()

    def soon(self) -> None:
        """Ask now."""
        self._asked.put(None)

    def ask(self) -> None:
        """Ask once."""
        asked_at = now()
        try:
            self._use(token_of(self.lease), asked_at)
            self.error = None
        except Exception as error:
            if str(error) != str(self.error):
                log.warning("the lease can't be used: %s", error)
            self.error = error
            self._missed(error)

    def wait(self, seconds: float) -> None:
        """Wait for the thread's end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._done.is_open:
                self.ask()
                try:
                    take(self._asked, self._seconds)
                except Empty:
                    continue
        finally:
            self._ended.open()


def check_above(token: int, known: int) -> None:
    """Raise InvalidArgumentError for a token that is not above the largest leader epoch that is known."""
    if token <= known:
        raise InvalidArgumentError(
            f"the lease gave the fencing token {token}: it must be above leader epoch {known}"
        )
