"""`Service`: what runs in a server's thread: it takes connections until it is ended, or the store is closed.

Threads: `run` is the thread's; `end`, `wait` and what a store calls of its clients may be called in any.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from segstore.errors import IllegalStateError, SegstoreError
from segstore.files import forks
from segstore.logger import Logger
from segstore.storage.store.clients import Turn, Unwritten
from segstore.threads import Background, Latch

from .listener import Listener
from .request_metrics import Counted
from .secured import Secured
from .shared import Shared

if TYPE_CHECKING:
    from .certificate_watch import CertificateWatch

log = Logger("segstore")

CLOSE_TIMEOUT = 10.0
"""Seconds that answers may take at the end: also of those that the store has for all of its clients, so that
its producers have the others.
"""
_STALL = 1.0
"""Seconds of the end after which a connection is closed whose client takes nothing of an answer: it was
stopped, or is a stranger's, and others wait for the end.
"""
_LOOK = 0.5
"""Seconds after which a caller of the loop looks whether the loop has ended."""
_GRACE = 1.0
"""Seconds beyond the deadline that a call may take which is under way in the loop."""


class Service:
    """Implements `storage.store.clients.Client`. It lives as long as its thread."""

    turn = Turn.READER

    def __init__(self, shared: Shared, listener: Listener, address: str) -> None:
        """`address` is where clients connect to, "PROTOCOL://HOST:PORT"."""
        self._shared, self._listener, self._address = shared, listener, address
        self._here = forks.here()
        self._thread = Background(self._run, "segstore-server")
        self._ended = Latch()
        self._deadline = 0.0
        self._are_parts_closed = False
        self._certificate = self._watch() if shared.tls is not None else None

    def _watch(self) -> CertificateWatch:
        from .certificate_watch import CertificateWatch  # a listener without TLS starts without it

        shared = self._shared
        return CertificateWatch(shared.loop, shared.metrics.listener, lambda: shared.certificate_end)

    def start(self) -> None:
        """Begin to take connections. Raises IllegalStateError where no thread can be started, OSError; then
        all is closed.
        """
        try:
            self._listener.open()
            self._thread.start()
        except BaseException:
            self._shared.loop.end()
            self._thread.join()
            self._shared.loop.discard()
            raise

    def _run(self) -> None:
        self._announce(self._address)
        if self._certificate is not None:
            self._certificate.begin()
        try:
            self._shared.loop.run()
        finally:
            self._announce("")
            self._close_parts()
            self._ended.open()

    def _announce(self, address: str) -> None:
        """Tell the command line where to find this server; without that the server works all the same."""
        with suppress(SegstoreError, OSError):
            self._shared.node.store.announce(address)

    def soon(self, call: Callable[[], object]) -> None:
        """Have `call` called in the loop's thread, soon."""
        self._shared.loop.soon(call)

    def counted(self) -> Counted:
        """Return what the listener has counted; in any thread, and without a wait for the loop."""
        shared = self._shared
        return Counted(
            shared.metrics, len(self._listener.connections), shared.loop.age, shared.certificate_end
        )

    def resecure(self, secured: Secured) -> None:
        """Have connections go on with other certificates, users and rights; all change in one call of the
        loop. Raises IllegalStateError if the service has ended.
        """
        if self.is_within:
            self._resecure(secured)
            return
        done = Latch()

        def change() -> None:
            self._resecure(secured)
            done.open()

        self._shared.loop.soon(change)
        while not done.wait(_LOOK):
            if self._ended.is_open or not self._here[0]:
                raise IllegalStateError("the server has ended")

    def _resecure(self, secured: Secured) -> None:
        shared, node = self._shared, self._shared.node
        shared.tls, shared.sasl, shared.certificate_end = secured.tls, secured.sasl, secured.certificate_end
        if self._certificate is not None:
            self._certificate.look()
        node.config, node.authorizer = secured.config, secured.authorizer
        self._listener.connections.resecure(secured.sasl)

    # --- the end --------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Return whether no more requests are read."""
        return self._shared.is_ending

    @property
    def has_ended(self) -> bool:
        """Return whether the thread has ended."""
        return self._ended.is_open

    @property
    def is_within(self) -> bool:
        """Return whether the calling thread is the server's own."""
        return threading.get_ident() == self._thread.ident

    def begin_to_end(self, seconds: float) -> None:
        """Do what `end` does, and do not wait for it."""
        if self._here[0]:  # else this is the child of a fork, which has nothing to end
            self._shared.loop.soon(lambda: self._begin_to_end(time.monotonic() + seconds))

    def end(self, seconds: float) -> bool:
        """Take no more requests, answer those that have come, and end, after so many seconds at the latest.
        Return whether it has ended, which a call within a handler does not wait for, and which does not come
        where a handler does not return. An interrupt of the wait ends all connections at once.
        """
        if not self._here[0]:  # the child of a fork, which has nothing to end
            return True
        loop = self._shared.loop
        loop.soon(lambda: self._begin_to_end(time.monotonic() + seconds))
        if self.is_within:
            return False
        try:
            return self._ended.wait(seconds + _GRACE)
        except BaseException:
            loop.soon(lambda: self._begin_to_end(0.0))
            raise

    def _begin_to_end(self, deadline: float) -> None:
        """The first call decides; a later one may only shorten the time."""
        loop = self._shared.loop
        if not self._shared.is_ending:
            self._shared.is_ending, self._deadline = True, deadline
            self._listener.close()
            self._listener.connections.end_idle_now()
            loop.every_turn(self._go_on)
            self._end_stalled(loop.now)
        self._deadline = min(self._deadline, deadline)
        loop.later(max(self._deadline - time.monotonic(), 0.0), self._go_on)

    def _go_on(self) -> None:
        """Jobs of workers come first; then the handlers' parts end, which answer the requests that wait in
        them; then the answers go out.
        """
        connections, loop = self._listener.connections, self._shared.loop
        if time.monotonic() >= self._deadline:
            self._close_parts()
            connections.close()
            loop.end()
        elif loop.works:
            return
        elif not self._are_parts_closed:
            self._close_parts()
            loop.soon(self._go_on)  # after the calls that the parts have asked for
        else:
            connections.end_unanswered()
            if not len(connections):
                loop.end()

    def _end_stalled(self, since: float) -> None:
        """Close connections whose clients take nothing of their answers, and look again soon."""
        self._listener.connections.end_stalled(_STALL, since)
        self._shared.loop.later(_STALL / 4, lambda: self._end_stalled(since))

    def _close_parts(self) -> None:
        if self._are_parts_closed:
            return
        self._are_parts_closed = True
        try:
            self._shared.node.close()
        except Exception as error:
            log.error("a part of a server could not be closed", exc_info=error)

    # --- a client of its store ------------------------------------------------------------

    def entered(self) -> bool:
        """See `Client`."""
        return self.is_within

    def begin_to_close(self) -> None:
        """Do nothing: a server has no records that are to be written."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """End, since the store is about to be closed."""
        self.end(min(max(deadline - time.monotonic(), 0.0), CLOSE_TIMEOUT) if orderly else 0.0)

    def unwritten(self) -> Unwritten:
        """Return that nothing is unwritten."""
        return Unwritten(Counter(), None)
