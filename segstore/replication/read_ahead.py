"""`ReadAhead`: batches of a leader's log that are read before a follower fetches them. While a follower that
lags behind appends batches, another thread reads the batches after them.

Nothing is on disk. Threads: the reading thread of the leader's directory adds pieces (each is the result of
one read). This thread or the follower's own thread takes the pieces. No lock is needed, because each
operation on a deque is atomic. A leader does not truncate its log during its leader epoch, so the batches of
a piece stay valid until another leader epoch begins.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from segstore.replication.fetched import FetchedBatches

MOST = 4
"""The largest number of pieces in a `ReadAhead`."""
FETCHES = 2
"""The largest size of a piece, as a multiple of replica.fetch.max.bytes. By default two pieces fill a buffer
of the pool. If FETCHES was 1, a follower took a third more time to catch up, because it needs some 250 Python
calls per piece.
"""


class ReadAheadPosition(NamedTuple):
    """An offset in a leader's log, in a leader epoch. `leader` is any object that identifies the log."""

    leader: object
    leader_epoch: int
    offset: int


class ReadAhead:
    """The pieces (each is the result of one read) that were read ahead for one follower."""

    __slots__ = ("_end", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[ReadAheadPosition, FetchedBatches]] = deque()
        self._end: ReadAheadPosition | None = None
        """The position after the last piece that was added, None if `take` has found no piece after that."""

    @property
    def is_full(self) -> bool:
        """Return whether there are MOST pieces."""
        return len(self._pieces) >= MOST

    def add(self, place: ReadAheadPosition, found: FetchedBatches) -> None:
        """Append the batches `found`, which were read at `place`, to the batches that were read ahead."""
        self._end = place._replace(offset=found.fetched.next_offset)
        self._pieces.append((place, found))

    def take(self, place: ReadAheadPosition) -> FetchedBatches | None:
        """Remove the piece that begins at a position, and return it. Return None if there is no such piece.
        Remove the pieces before it, too.
        """
        while True:
            try:
                at, found = self._pieces.popleft()
            except IndexError:
                self._end = None
                return None
            if at == place:
                return found

    def next_from(self, place: ReadAheadPosition) -> ReadAheadPosition:
        """Return the position at which the next read begins. The follower needs the batches at `place` and
        after it.
        """
        end = self._end
        return place if end is None or end[:2] != place[:2] else max(end, place, key=itemgetter(2))

    def clear(self) -> None:
        """Remove all pieces."""
        self._pieces.clear()
        self._end = None
