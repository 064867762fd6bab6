"""`Outgoing`: the unsent answers of one connection, which are bytes, and stretches of files for sendfile(2).

Threads: the loop's thread only.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lib
from segstore.protocol.codec import Slices
from segstore.sending.results import sent
from segstore.server.request import SHORT

from .memory import buffer

if TYPE_CHECKING:
    from .tls_wire import TlsWire

MOST_A_TURN = 4 << 20
"""When one connection has sent this number of bytes, the loop serves other connections first."""
_BYTES_ACKED = struct.Struct("=120xQ")
"""The field tcpi_bytes_acked of Linux' struct tcp_info."""
PIECE = 1 << 16
"""The size of the largest piece that is encrypted at once, in bytes."""


def taken(sock: socket.socket) -> int:
    """Return the number of bytes that the other end of a connection has acknowledged."""
    acked: int = _BYTES_ACKED.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size))[
        0
    ]
    return acked


class Outgoing:
    """Unsent parts of answers, in order: bytes and file stretches. A stretch is released when it was sent, or
    by `release`. If all stretches of an answer together have at most `segstore.server.request.SHORT` bytes,
    they are read into memory, and released at once.
    """

    def __init__(self) -> None:
        self._parts: deque[Any] = deque()
        self._at = 0  # the number of bytes of the first part that were sent

    def __bool__(self) -> bool:
        return bool(self._parts)

    def give(self, sock: socket.socket, out: bytearray, slices: Slices) -> int:
        """Send an answer, and store the bytes and stretches that the socket does not take. Return the number
        of sent bytes. Called only if no part of an earlier answer is unsent.
        """
        if slices and (size := _size(slices)) <= SHORT:
            out, slices = _whole(out, slices, size), []
        if slices:
            self.put(out, slices)
            return self.send(sock)
        try:  # this call sends most answers completely
            count = sock.send(out)
        except BlockingIOError:
            count = 0
        if count < len(out):
            self._parts.append(memoryview(out)[count:])
        return count

    def put(self, out: bytearray, slices: Slices) -> None:
        """Add an answer, without sending it. `out` and `slices` are the result of `write_response`."""
        view, begin = memoryview(out), 0
        for place, part in slices:
            if place > begin:
                self._parts.append(view[begin:place])
            self._parts.append(part)
            begin = place
        if begin < len(view):
            self._parts.append(view[begin:])

    def send(self, sock: socket.socket) -> int:
        """Send parts until the socket is full, or MOST_A_TURN bytes were sent. Return the number of sent
        bytes. Raises OSError, and EOFError if a file has become shorter than its stretch.
        """
        total = 0
        try:
            while self._parts and total < MOST_A_TURN:
                total += self._send_part(sock)
                # The part was not sent completely, so the socket is full.
                if self._at:
                    break
        except BlockingIOError:
            pass
        return total

    def _send_part(self, sock: socket.socket) -> int:
        part = self._parts[0]
        if isinstance(part, memoryview):
            left = part[self._at :] if self._at else part
            count = sock.send(left, socket.MSG_MORE if len(self._parts) > 1 else 0)
        else:
            count = self._send_file(sock, part)
        self._at += count
        if self._at == len(part):
            self._parts.popleft()
            self._at = 0
            if not isinstance(part, memoryview):
                part.release()
        return count

    def _send_file(self, sock: socket.socket, part: Any) -> int:
        left = len(part) - self._at
        if left == 0:
            return 0
        count = sent(
            lib.seg_sendfile(sock.fileno(), part.fileno(), part.position + self._at, min(left, MOST_A_TURN))
        )
        if count == 0:
            raise _cut(part)
        return count

    def release(self) -> None:
        """Drop all unsent parts, and release their stretches."""
        while self._parts:
            part = self._parts.popleft()
            if not isinstance(part, memoryview):
                part.release()


def _size(slices: Slices) -> int:
    size = 0
    for _, part in slices:
        size += len(part)
    return size


def _whole(out: bytearray, slices: Slices, size: int) -> bytearray:
    """Read the stretches of an answer, `size` bytes in total, and release the stretches. Return the complete
    answer.
    """
    whole, begin, more = bytearray(len(out) + size), 0, 0
    try:
        with ffi.from_buffer("uint8_t[]", whole, require_writable=True) as into:
            for place, part in slices:
                whole[begin + more : place + more] = out[begin:place]
                count = len(part)
                if sent(lib.seg_pread(part.fileno(), into + place + more, count, part.position)) < count:
                    raise _cut(part)
                begin, more = place, more + count
            whole[begin + more :] = out[begin:]
    finally:
        for _, part in slices:
            part.release()
    return whole


def _cut(part: Any) -> EOFError:
    return EOFError(f"a file ends before position {part.position + len(part)}, which is being sent")


class SealedOutgoing(Outgoing):
    """Sends by TLS, in pieces of at most PIECE bytes. A piece is encrypted when the socket has taken the
    preceding piece, so a slow client needs the memory of only one piece. Files are read into memory to be
    encrypted; sendfile(2) would send them unencrypted.
    """

    def __init__(self, wire: TlsWire, clear: memoryview | None = None) -> None:
        """`clear` is a buffer for a piece of a file. All connections of a loop may use the same buffer."""
        super().__init__()
        self._wire, self._sealed = wire, memoryview(b"")
        self._clear = buffer(PIECE) if clear is None else clear

    def __bool__(self) -> bool:
        return bool(self._sealed) or super().__bool__()

    def give(self, sock: socket.socket, out: bytearray, slices: Slices) -> int:
        """Add an answer, and send until the socket is full."""
        self.put(out, slices)
        return self.send(sock)

    def send(self, sock: socket.socket) -> int:
        """Send parts until the socket is full, or MOST_A_TURN bytes were sent. Return the number of sent
        bytes, after encryption.
        """
        total = 0
        try:
            while self and total < MOST_A_TURN:
                total += self._send_part(sock)
        except BlockingIOError:
            pass
        return total

    def _send_part(self, sock: socket.socket) -> int:
        if not self._sealed:
            self._seal()
        count = sock.send(self._sealed)
        self._sealed = self._sealed[count:]
        return count

    def _seal(self) -> None:
        """Encrypt the next piece of the first part. Raises EOFError, OSError."""
        part = self._parts[0]
        count = min(len(part) - self._at, PIECE)
        if isinstance(part, memoryview):
            self._wire.seal(part[self._at : self._at + count])
        elif count:
            with ffi.from_buffer("uint8_t[]", self._clear, require_writable=True) as into:
                came = sent(lib.seg_pread(part.fileno(), into, count, part.position + self._at))
            if came < count:
                raise _cut(part)
            self._wire.seal(self._clear[:count])
        self._at += count
        self._sealed = memoryview(self._wire.sealed())
        if self._at == len(part):
            self._parts.popleft()
            self._at = 0
            if not isinstance(part, memoryview):
                part.release()
