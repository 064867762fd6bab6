"""`Arriving`: the records of a long answer while it arrives, so that what has come can be appended while more
is on its way. Nothing is on disk. Threads: one, and one of its own, which takes pieces.
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
"""Bytes that are taken together; fewer where the answer ends, more where one batch has more."""


class Arriving:
    """Receives answers of one connection, one after the other, into room that is kept. A context manager,
    which ends the thread.
    """

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._room = self._other = memoryview(b"")
        self._have = self._left = 0  # bytes of records in the room, and those to come
        self._worker: Worker | None = None

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()

    def take(self, coming: Coming, begun: MatchedStart, take: Callable[[memoryview], None]) -> None:
        """Call `take` with the records as they come, whole batches at a time; each piece is good until `take`
        returns. One piece is taken while the next one is received, the last one in this thread. A batch that
        the answer ends within is left out, and behind damage comes what there is. Raises as
        `BrokerConnection.ask`, and what `take` raises.
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
            self._worker = Worker("segstore-follow-append")  # first: its end also ends one that has not begun
            self._worker.start()
        return self._worker

    def _pieces(self, coming: Coming, begun: MatchedStart) -> Iterator[memoryview]:
        """Yield the pieces; each is good until the next but one."""
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
        """Go on in the other room, of which nothing is taken any more, with the bytes from `cut` on."""
        rest = self._room[cut : self._have]
        if len(self._other) < max(len(rest), 2 * _PIECE):
            self._other = memoryview(bytearray(max(len(rest), 2 * _PIECE)))
        self._other[: len(rest)] = rest
        self._room, self._other, self._have = self._other, self._room, len(rest)

    def behind(self, coming: Coming, begun: MatchedStart) -> memoryview:
        """Return what comes behind the records, once these have come. Raises as `BrokerConnection.ask`."""
        self._begin(coming.here[begun.stop :], coming.size - begun.stop)
        self._receive(coming, self._left + self._have)
        return self._room[: self._have]

    def _begin(self, here: memoryview, size: int) -> None:
        """Begin with so many bytes, of which some are here."""
        if not self._room:
            self._room = memoryview(bytearray(2 * _PIECE))
        self._have, self._left = len(here), size - len(here)
        self._room[: self._have] = here

    def _receive(self, coming: Coming, wanted: int) -> None:
        """Have so many bytes here, or all that there are."""
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
    """Return the bytes of the whole batches in `data`, or all of them where damage comes first; and how many
    are wanted behind these.
    """
    _, stop = scan(data, check_crcs=False)
    if stop.status in (lib.SEG_END, lib.SEG_SHORT):
        return stop.position, max(stop.need, _PIECE)
    return stop.position or len(data), _PIECE
