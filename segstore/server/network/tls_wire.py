"""`TlsWire`: the TLS of one connection. OpenSSL reads and writes memory buffers, not the socket, so that the
loop can close the socket while a worker computes a handshake step.

Threads: the loop's thread only; `shake` runs in a worker, while the loop does not use the wire.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

from segstore.server.security.tls import subject

RECEIVED = 1 << 16
"""Most bytes that are received at once, and thus most encrypted bytes in memory."""
_MOST_A_TURN = 1 << 18
"""Most bytes that one `recv_into` decrypts before other connections get their turn."""
_ALERT = 31
"""Largest size of a TLS record with a close_notify alert (TLS 1.2 with AES-GCM); a record with a request is
larger.
"""


class TlsWire:
    """The TLS of one connection. If `has_more`, received bytes may be in memory, which epoll does not
    report.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock, self._in, self._out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._read_into: Any = self._tls.read  # given a buffer, `read` returns an int, not bytes
        self.has_more = False

    # --- the handshake --------------------------------------------------------------------

    def take_in(self) -> bool:
        """Receive handshake bytes; return False at the end of the stream. Raises OSError like recv(2)."""
        return self._receive() > 0

    def shake(self) -> bool:
        """Compute the next handshake step; return whether the handshake is done. Raises SSLError if it fails;
        then `sealed` returns the alert for the client.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.has_more = self._in.pending > 0  # a request may have come with the last handshake message
        return True

    @property
    def subject(self) -> str | None:
        """The subject of the client's verified certificate, None if it has sent none."""
        return subject(self._tls.getpeercert())

    # --- bytes ----------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Receive and decrypt into a view; return the number of bytes, 0 at the end of the stream. Raises
        BlockingIOError, OSError.
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
        """Encrypt bytes, which `sealed` then returns. Raises SSLError."""
        at = 0
        while at < len(view):
            at += self._tls.write(view[at:])

    def sealed(self) -> bytes:
        """Return the encrypted bytes to send, and forget them."""
        return self._out.read()

    # --- the end --------------------------------------------------------------------------

    def has_left(self) -> bool:
        """Return whether a client that has closed the connection has left no request unread: at most a
        close_notify alert is unread. Raises OSError.
        """
        return len(self._sock.recv(_ALERT + 1, socket.MSG_PEEK)) <= _ALERT and not self._in.pending

    def farewell(self) -> bytes:
        """Return the bytes of the close_notify alert."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        return self._out.read()
