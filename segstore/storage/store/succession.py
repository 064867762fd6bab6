"""`Succession`: when the host of a shared store dies or closes, a guest becomes the host (rules H1 and H2 of
docs/shared.md).

Each guest that may become the host has a thread with a connection to the host. When the host's process exits,
the kernel closes the connection, and each thread tries to take the store's lock. The first thread that tries
gets the lock, so a member whose process is stopped (SIGSTOP) delays nobody. Threads: one, its own.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from segstore.errors import HostUnavailableError, NotShareableError, SegstoreError, StoreLockedError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import StoreContext
from segstore.storage.shared.coherence import HostLine
from segstore.storage.shared.members import Members, SharedMember
from segstore.threads import Background, Latch, others_are_gone

log = Logger("segstore")
_PAUSE, _LONGEST = 0.001, 0.008  # the first and the longest pause between two tries, in seconds
_SOON, _LATE = 0.01, 1.0
"""The first and the largest wait, in seconds, for a host that does not accept connections, because it opens
or closes the store, or is stopped.
"""
_RETRY = 1.0
"""Seconds after which a member tries again to become the host, if an error stopped it."""


class Succession:
    """Waits until the host closes or dies, then calls `become()`, which makes this process the host. `become`
    raises StoreLockedError if another member became the host first.
    """

    def __init__(self, context: StoreContext, members: Members, become: Callable[[], None]) -> None:
        self._context, self._members, self._become = context, members, become
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._done, self._ended = Latch(), Latch()
        self._thread = Background(self._run, "segstore-succession")
        self._closing = Mutex()
        """Held while the eventfd is closed or written to: after the close another file may get the same file
        descriptor, and a write must not reach that file.
        """
        self._patience = _SOON
        self._last_call: Callable[[], object] | None = None

    def start(self) -> None:
        """Start the thread, which runs until this process is the host."""
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Stop the thread; the thread itself may call this. May be repeated."""
        with self._closing:
            if self._ended.is_open:
                return
            self._done.open()
            os.eventfd_write(self._event, 1)
        self._thread.join(seconds)
        if not self._thread.has_begun:  # after `join` it will not begin either
            self._end()

    def at_end(self, call: Callable[[], object]) -> None:
        """Call `call` now if the thread has ended. If not, because `stop` has not waited long enough, the
        thread calls it at its end, and logs its errors.
        """
        with self._closing:
            if not self._ended.is_open and not others_are_gone():
                self._last_call = call
                return
        call()

    def _run(self) -> None:
        try:
            while not self._done.is_open and not self._await_end():
                """Another member has become the host, so wait for the end of that host."""
        finally:
            self._end()

    def _end(self) -> None:
        with self._closing:
            if self._ended.is_open:
                return
            self._ended.open()
            os.close(self._event)
        if self._last_call is not None:
            try:
                self._last_call()
            except (SegstoreError, OSError):
                log.exception("%s: this process could not leave the store cleanly", self._context.root)

    def _await_end(self) -> bool:
        """Wait until the host has closed or died, then try to become the host. Return whether this process is
        the host now.
        """
        try:
            line = HostLine(self._context.files, self._context.root, self._members, self._patience)
        # NotShareableError is not expected here, because the open has checked that the host and this process
        # map the same memory.
        except (HostUnavailableError, NotShareableError):
            # The kernel closes a dying host's socket before it frees the host's lock, so `_try` waits for the
            # lock.
            self._patience = min(2 * self._patience, _LATE)
            return self._try()
        except SegstoreError as error:
            log.warning("%s: this process can't follow its host: %s", self._context.root, error)
            self._pause(_RETRY)
            return False
        self._patience = _SOON
        try:
            host = self._members.host()
            poll = select.poll()
            poll.register(line, select.POLLIN)
            poll.register(self._event, select.POLLIN)
            poll.poll()
        finally:
            line.close()
        return not self._done.is_open and self._try(host)

    def _try(self, gone: SharedMember | None = None) -> bool:
        """Try for `_patience` seconds to become the host, and return whether this process is the host now.
        Return False at once if another member has become the host. If `gone`, the former host, is given, try
        for `_LATE` seconds, because the kernel frees a dead host's lock some time after it has closed the
        host's socket.
        """
        patience = self._patience if gone is None else _LATE
        pause, end = _PAUSE, time.monotonic() + patience
        while not self._done.is_open and time.monotonic() < end:
            try:
                self._become()
                return True
            except StoreLockedError:
                host = self._members.host()
                if host is not None and host != gone:
                    return False
            except (SegstoreError, OSError):
                log.exception("%s: this process can't be the host", self._context.root)
                self._pause(_RETRY)
                return False
            self._pause(pause)
            pause = min(2 * pause, _LONGEST)
        return False

    def _pause(self, seconds: float) -> None:
        select.select([self._event], [], [], seconds)
