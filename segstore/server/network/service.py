"""`Service`: one listener's thread, which accepts connections until `end` is called or the store is closed.

Threads: the loop runs in the service's thread; `soon`, `counted`, `resecure`, `end` and the methods of
`StoreClient` may be called in any thread.
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
"""The longest time for the last answers, in seconds. A store that is being closed does not wait longer for a
server, because producers need some of the store's own timeout.
"""
_STALL = 1.0
"""A stopping service closes a connection if its client receives no byte of an answer for this number of
seconds.
"""
_LOOK = 0.5
"""A caller that waits for the loop checks at this interval, in seconds, whether the loop has stopped."""
_GRACE = 1.0
"""How long `end` waits after its deadline for the loop's current call, in seconds."""


class Service:
    """The thread of one listener, attached to the store as a `StoreClient`. The running thread has a
    reference to this object.
    """

    turn = Turn.READER

    def __init__(self, shared: Shared, listener: Listener, address: str) -> None:
        """`address` is the advertised address, "PROTOCOL://HOST:PORT"."""
        self._shared, self._listener, self._address = shared, listener, address
        self._here = forks.here()
        self._thread = Background(self._run, "segstore-server")
        self._ended = Latch()
        self._deadline = 0.0
        self._are_parts_closed = False
        self._certificate = self._watch() if shared.tls is not None else None

    def _watch(self) -> CertificateWatch:
        # The watch is imported here, because only TLS needs it.
        from .certificate_watch import CertificateWatch

        shared = self._shared
        return CertificateWatch(shared.loop, shared.metrics.listener, lambda: shared.certificate_end)

    def start(self) -> None:
        """Begin to accept connections. Raises OSError, and IllegalStateError if no thread can be started. If
        an error is raised, the sockets and the loop were closed.
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
        """Publish the server's address, which the command line shows. Errors are ignored."""
        with suppress(SegstoreError, OSError):
            self._shared.node.store.announce(address)

    def soon(self, call: Callable[[], object]) -> None:
        """Queue a call, which the loop's thread makes as soon as it can."""
        self._shared.loop.soon(call)

    def counted(self) -> Counted:
        """Return the listener's metrics. Any thread may call this method. It does not wait for the loop."""
        shared = self._shared
        return Counted(
            shared.metrics, len(self._listener.connections), shared.loop.age, shared.certificate_end
        )

    def resecure(self, secured: Secured) -> None:
        """Replace the certificates, users and rights of all connections, in one call of the loop's thread.
        Raises IllegalStateError if the service has stopped.
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

    # --- stopping -------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether the service has stopped reading requests."""
        return self._shared.is_ending

    @property
    def has_ended(self) -> bool:
        """Whether the thread has stopped."""
        return self._ended.is_open

    @property
    def is_within(self) -> bool:
        """Whether the calling thread is the service's thread."""
        return threading.get_ident() == self._thread.ident

    def begin_to_end(self, seconds: float) -> None:
        """Make the service stop within `seconds`; do not wait until it has stopped."""
        # In the child of a fork the service's thread does not exist, and this value is False.
        if self._here[0]:
            self._shared.loop.soon(lambda: self._begin_to_end(time.monotonic() + seconds))

    def end(self, seconds: float) -> bool:
        """Stop reading requests, answer the received requests, and stop the thread, within `seconds`.

        Return True if the thread has stopped. Return False if a handler does not return in time. Return False
        also if a handler calls this method: such a call does not wait. If an interrupt ends the wait, all
        connections are closed at once.
        """
        # In the child of a fork the service's thread does not exist.
        if not self._here[0]:
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
        """Begin to stop. The service must have stopped at `deadline`. If the service is already stopping, the
        earlier of the two deadlines counts.
        """
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
        """Do the next step of stopping. The steps are: wait for the workers' jobs, close the node's parts,
        wait for unsent answers.
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
            # This queues `_go_on` after the answers of parked requests, which are queued already.
            loop.soon(self._go_on)
        else:
            connections.end_unanswered()
            if not len(connections):
                loop.end()

    def _end_stalled(self, since: float) -> None:
        """Close connections whose clients receive no byte of an answer for `_STALL` seconds. Repeat this
        every `_STALL / 4` seconds.
        """
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

    # --- StoreClient ----------------------------------------------------------------------

    def entered(self) -> bool:
        """Return whether the calling thread is the service's thread."""
        return self.is_within

    def begin_to_close(self) -> None:
        """Do nothing, because a server has no unwritten records."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Stop the thread, because the store is being closed."""
        self.end(min(max(deadline - time.monotonic(), 0.0), CLOSE_TIMEOUT) if orderly else 0.0)

    def unwritten(self) -> Unwritten:
        """Return an empty `Unwritten`, because a server has no unwritten records."""
        return Unwritten(Counter(), None)
