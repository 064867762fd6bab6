"""`Frames`: requests out of the bytes of one connection. Threads: the loop's only.

A request is preceded by its size, an int32. What came at once lies in the buffer that all connections share;
a request of which only a part came has a buffer of its own.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from segstore.errors import InvalidRequestError

from .memory import Scratch, buffer

if TYPE_CHECKING:
    from .tls_wire import TlsWire

_SIZE = struct.Struct(">i")
_NOTHING = memoryview(b"")


class Frames:
    """`most` is the size of the largest request that is taken, in bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._rest = _NOTHING
        """Requests that have come, whole ones and behind them perhaps a part of one."""
        self._shared = False
        """Whether `_rest` lies in the shared buffer, where it stays only until another connection reads."""
        self.wanted = 0
        """Bytes of the buffer that `begin` makes; 0 where it has nothing to make. This holds while `take` has
        returned None last.
        """
        self._own: memoryview | None = None
        self._filled = 0

    def receive(self, sock: socket.socket | TlsWire, scratch: Scratch) -> int:
        """Receive bytes once, and return how many; 0: the other end sends no more. Called when `take` has
        returned None. Raises OSError as recv(2).
        """
        if self._own is not None:
            count = sock.recv_into(self._own[self._filled :])
            self._filled += count
            return count
        kept, view = len(self._rest), scratch.view
        if kept:
            view[:kept] = self._rest
        count = sock.recv_into(view[kept:] if kept else view)
        self._rest, self._shared = view[: kept + count], True
        return count

    def received(self, count: int, scratch: Scratch) -> None:
        """Take bytes that were received into the front of the shared buffer, by others than `receive`. Called
        when nothing has come of another request.
        """
        self._rest, self._shared = scratch.view[:count], True

    def take(self) -> memoryview | None:
        """Return the next whole request, without its size; None where none has come. Raises
        InvalidRequestError for a size that is not taken.
        """
        own = self._own
        if own is not None:
            if self._filled < len(own):
                return None
            self._own = None
            return own[_SIZE.size :]
        rest, self.wanted = self._rest, 0
        come = len(rest)
        if come < _SIZE.size:
            return None
        size: int = _SIZE.unpack_from(rest)[0]
        if not 0 <= size <= self.most:
            raise InvalidRequestError(f"a request of {size} bytes: 0 to {self.most} are allowed now")
        end = _SIZE.size + size
        if end > come:
            self.wanted = end
            return None
        self._rest = rest[end:] if end < come else _NOTHING
        return rest[_SIZE.size : end]

    @property
    def is_shared(self) -> bool:
        """Return whether the request that was taken last lies in the shared buffer."""
        return self._shared

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has come of another request."""
        return not self._rest and self._own is None

    def keep(self) -> None:
        """Copy what is left out of the shared buffer."""
        if self._shared:
            self._shared = False
            if self._rest:  # a copy that can be written, as requests' record batches are
                self._rest = memoryview(bytearray(self._rest))

    def begin(self) -> None:
        """Make a buffer for the request of which a part has come."""
        own = buffer(self.wanted)
        self._filled = len(self._rest)
        own[: self._filled] = self._rest
        self._own, self._rest, self._shared, self.wanted = own, _NOTHING, False, 0
