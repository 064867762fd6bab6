"""`ReadAhead`: batches of a leader's log, read before a follower fetches them. While a follower that catches
up writes some batches, another thread reads the next ones.

Nothing is on disk. Threads: the reading thread of the leader's directory adds pieces; that thread or the
follower's own thread takes them. No lock is needed, because each operation on a deque is atomic. A leader
does not truncate its log in its leader epoch, so batches stay valid until another leader epoch begins.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from segstore.replication.fetched import FetchedBatches

MOST = 4
"""The largest number of pieces that are kept."""
FETCHES = 2
"""The size of a piece, as a multiple of replica.fetch.max.bytes; by default two pieces fill a buffer of the
pool. With 1 a catch-up took a third more time, because a follower needs some 250 Python calls per piece.
"""


class ReadAheadPosition(NamedTuple):
    """A position in a leader's log. `leader` is any object that identifies the log."""

    leader: object
    leader_epoch: int
    offset: int


class ReadAhead:
    """The pieces that were read ahead for one follower."""

    __slots__ = ("_end", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[ReadAheadPosition, FetchedBatches]] = deque()
        self._end: ReadAheadPosition | None = None
        """The end of the last piece, None after `take` found no piece."""

    @property
    def is_full(self) -> bool:
        """Return whether the largest number of pieces is kept."""
        return len(self._pieces) >= MOST

    def add(self, place: ReadAheadPosition, found: FetchedBatches) -> None:
        """Keep the batches that were read at a position."""
        self._end = place._replace(offset=found.fetched.next_offset)
        self._pieces.append((place, found))

    def take(self, place: ReadAheadPosition) -> FetchedBatches | None:
        """Return the piece that begins at a position, and drop earlier pieces; None without such a piece."""
        while True:
            try:
                at, found = self._pieces.popleft()
            except IndexError:
                self._end = None
                return None
            if at == place:
                return found

    def next_from(self, place: ReadAheadPosition) -> ReadAheadPosition:
        """Return the position to read next, for a follower that needs the batches from `place` on."""
        end = self._end
        return place if end is None or end[:2] != place[:2] else max(end, place, key=itemgetter(2))

    def clear(self) -> None:
        """Drop all pieces."""
        self._pieces.clear()
        self._end = None
