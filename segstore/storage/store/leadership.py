"""`Leadership`: a primary leads while it holds a lease, and takes no appends while it does not.

The leader epoch is the fencing token. The same token again is a renewal, also a late one: nobody else has
held the lease meanwhile. With another token somebody may have: where a standby is registered, the primary
leads only once that one has shown that it still follows. Nothing is on disk but the epochs.

Threads: that of the lease, and the store's scheduler; `begin` and `close` may be called by any.
"""

from __future__ import annotations

from segstore.errors import InvalidArgumentError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.log.lease_term import LeaseTerm, now
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.lease import Lease, LeaseWatch, check_above
from segstore.storage.store.primary import Primary
from segstore.threads import Latch

log = Logger("segstore")
_NOT_YET = "its lease was not given to it yet"


class Leadership:
    """That of one primary, which has no lease before `begin`."""

    def __init__(self, primary: Primary, scheduler: Scheduler) -> None:
        self._primary, self._scheduler = primary, scheduler
        self._done, self._lock = Latch(), Mutex()
        self._watch: LeaseWatch | None = None
        self._token: int | None = None
        """Under which this store leads, or led last; None before the first."""
        self._asked_for: int | None = None
        """The token for which the standby was asked to show that it follows."""
        self._leads = False

    @property
    def error(self) -> Exception | None:
        """Return what the last call of the lease has raised, or why its token was refused."""
        return None if self._watch is None else self._watch.error

    def begin(self, lease: Lease, interval: float, deadline: float) -> None:
        """Ask for the lease every `interval` seconds from now on; a token holds for `deadline` seconds. The
        first call is made before this returns. Raises InvalidArgumentError where there is another lease.
        """
        if self._watch is not None:
            if self._watch.lease is not lease:
                raise InvalidArgumentError("lease: this store has another one already, until it is closed")
            return
        self._deadline = deadline
        self._term = LeaseTerm(self._primary.closed_by(_NOT_YET))
        self._watch = LeaseWatch(lease, interval, self._use, self._miss, self._done)
        self._primary.lead_by(self._term, self._watch.soon)
        self._watch.ask()
        self._watch.start()
        self._scheduler.every(interval, self._look)

    def close(self, seconds: float = 5.0) -> None:
        """Ask no more. A call of the lease that is under way is waited for so long."""
        self._done.open()
        if self._watch is not None:
            self._watch.soon()
            self._watch.wait(seconds)

    def _use(self, token: int | None, asked_at: float) -> None:
        with self._lock:
            if token is None:
                self._let_go("its lease is not held")
            elif token == self._token or self._may_lead(token):
                self._lead(token, asked_at + self._deadline)

    def _lead(self, token: int, until: float) -> None:
        if now() >= until:
            return  # the lease has taken too long to answer: the next call may say more
        self._term.until = until
        if not self._leads:
            self._leads = True
            self._primary.go_on()
            log.warning("the lease is held: this store leads, fencing token %d", token)

    def _may_lead(self, token: int) -> bool:
        """Begin a term under another token, if nobody can have led before it. Raises InvalidArgumentError."""
        known = self._primary.largest_epoch()
        if token != known:  # else this store has led under it already
            check_above(token, known)
            if not self._follows(token):
                self._let_go(
                    "its lease was given anew, and its standby, which may have led meanwhile, has not come"
                    " since (`segstore demote --standby` is your word that it has not led)"
                )
                return False
        self._primary.begin_epochs(token)
        self._token, self._asked_for = token, None
        return True

    def _follows(self, token: int) -> bool:
        """Return whether the standby, if there is one, has shown that it follows behind this token."""
        if self._asked_for != token:
            self._asked_for = token
            self._primary.ask_standby()
        return self._primary.is_followed

    def _miss(self, error: Exception) -> None:
        with self._lock:
            self._let_go(f"its lease is not held: {error}")

    def _look(self) -> None:
        """Note that the term is over while the lease does not answer."""
        with self._lock:
            if self._leads and now() >= self._term.until:
                self._let_go(f"its lease was not renewed for {self._deadline:g} s")

    def _let_go(self, why: str) -> None:
        self._term.why, self._term.until = self._primary.closed_by(why), 0.0
        self._primary.let_go(self._term.why)
        if self._leads:
            log.error("%s", self._term.why)
        self._leads = False
