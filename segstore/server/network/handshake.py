"""`Handshake`: the TLS handshake of one connection. Threads: the loop's thread only. A worker thread computes
each step of the handshake, because a step may take milliseconds.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from .loop import GONE, IN, OUT, Loop

if TYPE_CHECKING:
    from .tls_wire import TlsWire


class Handshake:
    """A TLS handshake. `done(None)` is called when the handshake is complete, and `done(error)` if the
    handshake fails. After a call of `abandon`, `done` is not called.
    """

    def __init__(
        self,
        sock: socket.socket,
        wire: TlsWire,
        loop: Loop,
        done: Callable[[BaseException | None], object],
    ) -> None:
        self._sock, self._wire, self._loop, self._done = sock, wire, loop, done
        self._left = b""
        self._works = self._is_over = False
        self._result: bool | BaseException = False

    def ready(self, events: int) -> None:
        """Handle epoll events of the socket."""
        if events & GONE and not events & IN:
            self._end(ConnectionResetError("the client has gone"))
        # Received bytes are not read before the worker has done its step.
        elif self._works:
            self._loop.change(self._sock, 0)
        elif events & OUT:
            self._send()
        elif events & IN:
            self._receive()

    def abandon(self) -> None:
        """Ignore all further events, and the result of a step that a worker computes."""
        self._is_over = True

    def _receive(self) -> None:
        try:
            came = self._wire.take_in()
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not came:
            self._end(ConnectionResetError("the client has left during the handshake"))
            return
        self._works = True
        self._loop.work(self._wire.shake, self._stepped)

    def _stepped(self, result: bool | BaseException) -> None:
        self._works = False
        if isinstance(result, BaseException):
            # This line breaks a reference cycle: frames of the error's traceback refer to the error and to
            # this handshake.
            result.__traceback__ = None
        if self._is_over:
            return
        self._result = result
        self._left += self._wire.sealed()
        self._send()

    def _send(self) -> None:
        """Send the bytes that the last step made. Then wait for the client's next bytes, or call `done` if
        the handshake is complete or has failed.
        """
        try:
            while self._left:
                self._left = self._left[self._sock.send(self._left) :]
        except BlockingIOError:
            self._loop.change(self._sock, OUT)
            return
        except OSError as error:
            self._end(error)
            return
        if isinstance(self._result, BaseException):
            self._end(self._result)
            return
        self._loop.change(self._sock, IN)
        if self._result:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._done(error)
