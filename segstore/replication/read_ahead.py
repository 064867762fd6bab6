"""Batches of a leader's log that its directory's reading thread has read before a follower asks for them: so
a follower that catches up writes while the next batches are read.

Nothing is on disk. Threads: the reading thread adds, and either it or the follower's own thread takes,
without a lock: each step of a deque is atomic. Under one leader epoch a leader cuts nothing of its log, so
what was read of it may be handed out as long as that leads.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from segstore.replication.fetched import FetchedBatches

MOST = 4
"""Pieces that are kept at most."""
FETCHES = 2
"""How many times replica.fetch.max.bytes a piece has: as much as a buffer of the pool by default. With pieces
of once that a catch-up took a third more time, as each takes the follower some 250 calls of Python.
"""


class ReadAheadPosition(NamedTuple):
    """Where batches lie: in the log of a leader, an object that stands for it, from an offset on."""

    leader: object
    leader_epoch: int
    offset: int


class ReadAhead:
    """What was read ahead for one follower."""

    __slots__ = ("_end", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[ReadAheadPosition, FetchedBatches]] = deque()
        self._end: ReadAheadPosition | None = None
        """Where the last piece ends, None since something else was asked for."""

    @property
    def is_full(self) -> bool:
        """Return whether no more is to be read before some is taken."""
        return len(self._pieces) >= MOST

    def add(self, place: ReadAheadPosition, found: FetchedBatches) -> None:
        """Keep what was found in a place."""
        self._end = place._replace(offset=found.fetched.next_offset)
        self._pieces.append((place, found))

    def take(self, place: ReadAheadPosition) -> FetchedBatches | None:
        """Return what was read there, None where that was not; pieces before it are dropped."""
        while True:
            try:
                at, found = self._pieces.popleft()
            except IndexError:
                self._end = None
                return None
            if at == place:
                return found

    def next_from(self, place: ReadAheadPosition) -> ReadAheadPosition:
        """Return the place to read next, where what comes from `place` on is needed."""
        end = self._end
        return place if end is None or end[:2] != place[:2] else max(end, place, key=itemgetter(2))

    def clear(self) -> None:
        """Drop all."""
        self._pieces.clear()
        self._end = None
