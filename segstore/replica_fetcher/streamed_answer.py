"""`Arriving`: receives a long answer in pieces, so that one piece is appended while the next piece arrives.

Nothing is on disk. Threads: the caller's thread receives pieces, and a second thread appends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from segstore._native import lib
from segstore.protocol.template import MatchedStart
from segstore.records import scan
from segstore.threads import Worker
from segstore.wire.connection import BrokerConnection, Coming

_PIECE = 1 << 20
"""The size of a piece in bytes. The last piece may be smaller. If a batch is larger than this size, a piece
may be larger, too.
"""


class Arriving:
    """Receives long answers from one connection, one answer after another. `Arriving` is a context manager:
    the end of its `with` block stops the second thread.
    """

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._room = self._other = memoryview(b"")
        # `_have` is the number of bytes that are in `_room`, `_left` the number of bytes that have not
        # arrived yet.
        self._have = self._left = 0
        self._worker: Worker | None = None

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()

    def take(self, coming: Coming, begun: MatchedStart, take: Callable[[memoryview], None]) -> None:
        """Receive the records of an answer, and call `take` with each piece of them. A piece has complete
        batches, and is valid until `take` returns. `take` runs in the second thread, while the calling thread
        receives the next piece. Only for the last piece `take` runs in the calling thread. An incomplete
        batch at the end of the records is dropped. From a damaged batch on, a piece may begin or end within a
        batch. Raises the errors of `BrokerConnection.ask` and of `take`.
        """
        taken: Worker | None = None
        try:
            for piece in self._pieces(coming, begun):
                if taken is not None:
                    taken.result()
                    taken = None
                if not self._left:
                    take(piece)
                    continue
                taken = self._beside()
                taken.do(partial(take, piece))
        finally:
            if taken is not None:
                taken.result()

    def _beside(self) -> Worker:
        if self._worker is None:
            # `_worker` is set before the worker is started, so that `__exit__` can stop the worker in any
            # case.
            self._worker = Worker("segstore-follow-append")
            self._worker.start()
        return self._worker

    def _pieces(self, coming: Coming, begun: MatchedStart) -> Iterator[memoryview]:
        """Yield the records in pieces. Successive pieces are in different buffers (there are two), so a piece
        stays valid while the next piece is received.
        """
        self._begin(coming.here[begun.at : begun.stop], begun.stop - begun.at)
        wanted = _PIECE
        while self._have or self._left:
            self._receive(coming, wanted)
            cut, wanted = _whole(self._room[: self._have])
            if not cut and not self._left:
                return
            if cut:
                yield self._room[:cut]
                self._go_on(cut)

    def _go_on(self, cut: int) -> None:
        """Copy the received bytes after the first `cut` bytes to the beginning of the buffer `_other`, and
        swap `_room` and `_other`.
        """
        tail = self._room[cut : self._have]
        if len(self._other) < max(len(tail), 2 * _PIECE):
            self._other = memoryview(bytearray(max(len(tail), 2 * _PIECE)))
        self._other[: len(tail)] = tail
        self._room, self._other, self._have = self._other, self._room, len(tail)

    def behind(self, coming: Coming, begun: MatchedStart) -> memoryview:
        """Receive the bytes after the records of an answer, and return them. Raises the errors of
        `BrokerConnection.ask`.
        """
        self._begin(coming.here[begun.stop :], coming.size - begun.stop)
        self._receive(coming, self._left + self._have)
        return self._room[: self._have]

    def _begin(self, received: memoryview, size: int) -> None:
        """Begin to receive a part of the answer. The part has `size` bytes; `received` are those of them that
        have arrived already.
        """
        if not self._room:
            self._room = memoryview(bytearray(2 * _PIECE))
        self._have, self._left = len(received), size - len(received)
        self._room[: self._have] = received

    def _receive(self, coming: Coming, wanted: int) -> None:
        """Receive bytes until the buffer has `wanted` bytes. If the current part of the answer has fewer
        bytes, receive all of them.
        """
        wanted = min(wanted, self._have + self._left)
        if wanted > len(self._room):
            larger = memoryview(bytearray(wanted))
            larger[: self._have] = self._room[: self._have]
            self._room = larger
        while self._have < wanted:
            most = min(len(self._room), self._have + self._left)
            got = self._connection.more(coming, self._room[self._have : most])
            self._have, self._left = self._have + got, self._left - got


def _whole(data: memoryview) -> tuple[int, int]:
    """Return (number of bytes in the next piece, number of bytes to receive for the piece after it). A piece
    has the complete batches at the beginning of `data`. If `data` begins with a damaged batch, the piece is
    all of `data`.
    """
    _, stop = scan(data, check_crcs=False)
    if stop.status in (lib.SEG_END, lib.SEG_SHORT):
        return stop.position, max(stop.need, _PIECE)
    return stop.position or len(data), _PIECE
