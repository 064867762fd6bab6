"""`Leadership`: makes a primary accept appends only while it holds a lease.

The fencing token is used as the leader epoch. If the lease function returns the same token again, the lease
is renewed, even after it has expired, because no other process has held the lease in between. If the function
returns a new token, the standby may have led. So a primary with a registered standby leads under a new token
only after the standby has registered anew and fetched. On disk only leader epochs are written.

Threads: the lease's thread, and the store's scheduler; any thread may call `begin` and `close`.
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
    """Allows the appends of one primary only while the lease is held. Before `begin` the primary needs no
    lease.
    """

    def __init__(self, primary: Primary, scheduler: Scheduler) -> None:
        self._primary, self._scheduler = primary, scheduler
        self._done, self._lock = Latch(), Mutex()
        self._beginning = Mutex()
        """A lock that `begin` holds, so that two threads that serve the store do not both call the lease."""
        self._watch: LeaseWatch | None = None
        self._token: int | None = None
        """The token under which this store leads, or led last; None if it has not led yet."""
        self._requested_token: int | None = None
        """The new token for which the standby was asked to register anew and fetch; None if there is no such
        token.
        """
        self._leads = False

    @property
    def error(self) -> Exception | None:
        """Return the error of the lease's last call, or the refusal of its token; None if there was none."""
        return None if self._watch is None else self._watch.error

    def begin(self, lease: Lease, interval: float, deadline: float) -> None:
        """Call `lease` now, then every `interval` seconds in another thread. A token is valid for `deadline`
        seconds after the call that returned it. A second `begin` with the same lease does nothing, or
        continues if the first was interrupted or has failed. Raises InvalidArgumentError if a different lease
        was begun before, and IllegalStateError if no thread can be started.
        """
        with self._beginning:
            watch = self._watch or self._watched(lease, interval, deadline)
            if watch.lease is not lease:
                raise InvalidArgumentError("lease: this store has another one already, until it is closed")
            if not watch.has_begun:
                watch.ask()
                watch.start()

    def _watched(self, lease: Lease, interval: float, deadline: float) -> LeaseWatch:
        """Refuse appends until `lease` returns a token. The lease is not called yet."""
        self._deadline = deadline
        self._term = LeaseTerm(self._primary.closed_by(_NOT_YET))
        watch = LeaseWatch(lease, interval, self._use, self._miss, self._done)
        self._primary.lead_by(self._term, watch.soon)
        self._scheduler.every(interval, self._look)
        self._watch = watch
        return watch

    def close(self, seconds: float = 5.0) -> None:
        """Stop calling the lease. Wait at most `seconds` for a call of the lease that has not returned."""
        self._done.open()
        if self._watch is not None:
            self._watch.soon()
            self._watch.wait(seconds)

    def _use(self, token: int | None, called_at: float) -> None:
        with self._lock:
            if token is None:
                self._let_go("its lease is not held")
            elif token == self._token or self._may_lead(token):
                self._lead(token, called_at + self._deadline)

    def _lead(self, token: int, until: float) -> None:
        if now() >= until:
            return  # the lease function took too long; its next call may return a token that is still valid
        self._term.until = until
        if not self._leads:
            self._primary.go_on()
            self._leads = True  # after `go_on`: if Ctrl-C ends that, the next call repeats it
            log.warning("the lease is held: this store leads, fencing token %d", token)

    def _may_lead(self, token: int) -> bool:
        """Begin the leader epoch of a new token in all partitions, and return True. Return False, and stop
        leading, if a registered standby has not fetched after the lease returned this token. Raises
        InvalidArgumentError if the token is below the largest known epoch.
        """
        known = self._primary.largest_epoch()
        if token != known:  # with an equal token this store has led before
            check_above(token, known)
            if not self._follows(token):
                self._let_go(
                    "its lease was given anew, and its standby, which may have led meanwhile, has not come"
                    " since (`segstore demote --standby` is your word that it has not led)"
                )
                return False
        self._primary.begin_epochs(token)
        self._token, self._requested_token = token, None
        return True

    def _follows(self, token: int) -> bool:
        """Return whether the standby has fetched after the lease returned this token; True if there is no
        standby.
        """
        if self._requested_token != token:
            self._requested_token = token
            self._primary.ask_standby()
        return self._primary.is_followed

    def _miss(self, error: Exception) -> None:
        with self._lock:
            self._let_go(f"its lease is not held: {error}")

    def _look(self) -> None:
        """Stop leading if the term has expired, because the lease was not renewed."""
        with self._lock:
            if self._leads and now() >= self._term.until:
                self._let_go(f"its lease was not renewed for {self._deadline:g} s")

    def _let_go(self, why: str) -> None:
        self._term.why, self._term.until = self._primary.closed_by(why), 0.0
        self._primary.let_go(self._term.why)
        if self._leads:
            log.error("%s", self._term.why)
        self._leads = False
