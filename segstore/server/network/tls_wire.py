"""`TlsWire`: the TLS of one connection. OpenSSL reads and writes memory buffers, not the socket, so that the
loop can close the socket while a worker computes a handshake step.

Threads: the loop's thread only; `shake` runs in a worker thread; during that time the loop's thread does not
use this object.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

from segstore.server.security.tls import subject

RECEIVED = 1 << 16
"""The maximum number of bytes that are received at once. So at most this number of bytes that are not
decrypted yet are in memory for a connection.
"""
_MOST_A_TURN = 1 << 18
"""When one call of `recv_into` has decrypted this number of bytes, it returns, so that other connections are
served.
"""
_ALERT = 31
"""The size, in bytes, of the largest TLS record that has only a close_notify alert (TLS 1.2 with AES-GCM). A
record with a request is larger.
"""


class TlsWire:
    """The TLS of one connection. If `has_more` is True, received bytes may be in memory; epoll does not
    report them.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock, self._in, self._out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        # The type is Any, because `read` returns an int, and not bytes, if it is given a buffer.
        self._read_into: Any = self._tls.read
        self.has_more = False

    # --- the handshake --------------------------------------------------------------------

    def take_in(self) -> bool:
        """Receive bytes of the handshake by one recv(2); return False at the end of the stream. Raises
        OSError.
        """
        return self._receive() > 0

    def shake(self) -> bool:
        """Compute the next handshake step; return whether the handshake is complete. Raises SSLError if the
        handshake fails; `sealed` then returns the alert for the client.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        # The bytes that were received last may include a request.
        self.has_more = self._in.pending > 0
        return True

    @property
    def subject(self) -> str | None:
        """The subject of the client's verified certificate, None if the client has sent no certificate."""
        return subject(self._tls.getpeercert())

    # --- bytes ----------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Receive bytes, and decrypt them into a view. Return the number of decrypted bytes, 0 at the end of
        the stream. Raises BlockingIOError, OSError.
        """
        total = 0
        self.has_more = False
        try:
            while total < min(len(view), _MOST_A_TURN):
                count = self._read(view[total:])
                if not count:
                    break
                total += count
            else:
                self.has_more = True
        except BlockingIOError:
            if not total:
                raise
        return total

    def _read(self, view: memoryview) -> int:
        while True:
            try:
                return int(self._read_into(len(view), view))
            except ssl.SSLWantReadError:
                if not self._receive():
                    return 0
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def _receive(self) -> int:
        data = self._sock.recv(RECEIVED)
        self._in.write(data)
        return len(data)

    def seal(self, view: memoryview) -> None:
        """Encrypt the bytes of a view; `sealed` returns the result. Raises SSLError."""
        at = 0
        while at < len(view):
            at += self._tls.write(view[at:])

    def sealed(self) -> bytes:
        """Return the encrypted bytes that no earlier call has returned."""
        return self._out.read()

    # --- the end --------------------------------------------------------------------------

    def has_left(self) -> bool:
        """Return whether the server has read all requests of a client that has closed the connection: at most
        a close_notify alert is unread. Raises OSError.
        """
        return len(self._sock.recv(_ALERT + 1, socket.MSG_PEEK)) <= _ALERT and not self._in.pending

    def farewell(self) -> bytes:
        """Return the encrypted bytes of the close_notify alert."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        return self._out.read()
