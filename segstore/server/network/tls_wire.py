"""`TlsWire`: the TLS of one connection. The library sees memory only: sockets are the loop's, so that a
handshake may go on in a worker while its connection ends.

Threads: the loop's only; `shake` runs in a worker, while the loop leaves the wire alone.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

from segstore.server.security.tls import subject

RECEIVED = 1 << 16
"""Bytes that are received at once; as many wait in memory at most."""
_MOST_A_TURN = 1 << 18
"""Bytes that are given at once, before others have their turn."""
_ALERT = 31
"""The size of the largest record that only tells the end of a connection: TLS 1.2 with AES-GCM; a request is
larger.
"""


class TlsWire:
    """`has_more`: there may be bytes at hand that no event of the socket will tell of."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock, self._in, self._out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._read_into: Any = self._tls.read  # its types don't know that it returns a count here
        self.has_more = False

    # --- the handshake --------------------------------------------------------------------

    def take_in(self) -> bool:
        """Receive what has come for the handshake; returns False at the end of the connection. Raises OSError
        as recv(2).
        """
        return self._receive() > 0

    def shake(self) -> bool:
        """Go on with the handshake, which may take milliseconds; returns whether it is done. Raises SSLError
        where it has failed; what tells the client so is in `sealed`.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.has_more = self._in.pending > 0  # what came with the handshake's end
        return True

    @property
    def subject(self) -> str | None:
        """Return the subject of the client's certificate, which was judged; None where it showed none."""
        return subject(self._tls.getpeercert())

    # --- bytes ----------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Receive into a view, as `socket.recv_into`; 0 is the end. Raises BlockingIOError, OSError."""
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
        """Encrypt bytes, which `sealed` has then. Raises SSLError."""
        at = 0
        while at < len(view):
            at += self._tls.write(view[at:])

    def sealed(self) -> bytes:
        """Take what is to be sent."""
        return self._out.read()

    # --- the end --------------------------------------------------------------------------

    def has_left(self) -> bool:
        """Return whether a client that sends no more has sent nothing but that it leaves. Raises OSError."""
        return len(self._sock.recv(_ALERT + 1, socket.MSG_PEEK)) <= _ALERT and not self._in.pending

    def farewell(self) -> bytes:
        """Return what tells the client that the connection ends in order."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        return self._out.read()
