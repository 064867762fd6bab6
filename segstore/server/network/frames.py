"""`Frames`: splits the bytes of one connection into requests. Threads: the loop's thread only.

Each request is preceded by its size, an int32. Received bytes are in a buffer that all connections use. If a
request is incomplete, its bytes are moved to a buffer of its own.
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
    """The received bytes of one connection, split into requests. `most` is the size of the largest accepted
    request.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._rest = _NOTHING
        """Received bytes that `take` has not returned yet: complete requests, which an incomplete request may
        follow.
        """
        self._shared = False
        """Whether `_rest` is in the shared buffer, which the next read of any connection overwrites."""
        self.wanted = 0
        """The size of the buffer that `begin` must make, 0 if it need not be called. Valid after `take` has
        returned None.
        """
        self._own: memoryview | None = None
        self._filled = 0

    def receive(self, sock: socket.socket | TlsWire, scratch: Scratch) -> int:
        """Receive bytes once. Return the number of bytes, 0 at the end of the stream. Called after
        `take` has returned None. Raises OSError.
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
        """Accept `count` bytes that the C code has received into the start of the shared buffer. Called only
        if `is_empty` is True.
        """
        self._rest, self._shared = scratch.view[:count], True

    def take(self) -> memoryview | None:
        """Return the next request, without its size field, or None if the request is still incomplete. Raises
        InvalidRequestError if its size is not allowed.
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
        """Whether the request that the last call of `take` returned is in the shared buffer."""
        return self._shared

    @property
    def is_empty(self) -> bool:
        """Whether all received bytes belong to requests that `take` has returned."""
        return not self._rest and self._own is None

    def keep(self) -> None:
        """Copy from the shared buffer the bytes that `take` has not returned yet."""
        if self._shared:
            self._shared = False
            # The copy is a bytearray, because an append writes offsets into the batches.
            if self._rest:
                self._rest = memoryview(bytearray(self._rest))

    def begin(self) -> None:
        """Make a buffer for the incomplete request, and copy the bytes that were received of it into the
        buffer.
        """
        own = buffer(self.wanted)
        self._filled = len(self._rest)
        own[: self._filled] = self._rest
        self._own, self._rest, self._shared, self.wanted = own, _NOTHING, False, 0
