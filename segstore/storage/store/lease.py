"""`LeaseWatch`: calls the user's lease function at intervals, in a thread of its own. Nothing is on disk.
Threads: its own; any thread may use `soon`, `wait` and `error`.
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
"""The user's function that acquires or renews the lease. It returns the fencing token while the caller holds
the lease, else None.
"""


def interval_option() -> int:
    """Return the definition of the setting `lease.interval.ms`."""
    option: int = whole(1_000, 1, MAX_LONG, "ms", "how often the lease is asked for")
    return option


def token_of(lease: Lease) -> int | None:
    """Call the lease once, and return its token; None if the lease is not held. Raises the errors of the
    lease, and InvalidTypeError or InvalidArgumentError if the token is bad.
    """
    token = lease()
    return None if token is None else arguments.whole("lease() gave", token, 0, INT32_MAX)


def held_token(lease: Lease, known: int) -> int:
    """Call the lease once, and return its token. Raises InvalidArgumentError if the lease is not held, or if
    the token is not above `known`, the largest known leader epoch. Raises the errors of `token_of`.
    """
    token = token_of(lease)
    if token is None:
        raise InvalidArgumentError("the lease is not held: it gave no fencing token")
    check_above(token, known)
    return token


class LeaseWatch:
    """Calls a lease every `seconds`, until the latch `done` is opened. When the lease has returned,
    `use(token, called_at)` is called: `token` is None if the lease is not held, and `called_at` is the time
    (`lease_term.now`) at which the lease was called. `use` may raise InvalidArgumentError to refuse the
    token. `missed(error)` is called if the lease or `use` raises an error.
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
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._thread: Background | None = None
        self.error: Exception | None = None
        """The error that the lease or `use` raised at the last call; None if neither raised one."""

    def start(self) -> None:
        """Start the thread, if no earlier call has. To stop the thread at once, open `done`, then call
        `soon`. Raises IllegalStateError if no thread can be started.
        """
        if self._thread is None or not self._thread.settle():
            self._thread = Background(self._run, "segstore-lease")
            self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Return whether the thread calls the lease, or has called it."""
        return self._thread is not None and self._thread.has_begun

    def soon(self) -> None:
        """Make the thread call the lease function now."""
        self._wakeups.put(None)

    def ask(self) -> None:
        """Call the lease once, and pass the result to `use` or `missed`."""
        called_at = now()
        try:
            self._use(token_of(self.lease), called_at)
            self.error = None
        except Exception as error:
            if str(error) != str(self.error):
                log.warning("the lease can't be used: %s", error)
            self.error = error
            self._missed(error)

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the thread has stopped."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._done.is_open:
            self.ask()
            try:
                take(self._wakeups, self._seconds)
            except Empty:
                continue


def check_above(token: int, known: int) -> None:
    """Raise InvalidArgumentError unless the token is above `known`, the largest known leader epoch."""
    if token <= known:
        raise InvalidArgumentError(
            f"the lease gave the fencing token {token}: it must be above leader epoch {known}"
        )
