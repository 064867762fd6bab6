"""`SourceEnd`: how far the leader's log reaches, and how far this one is behind it. Nothing is on disk.
Threads: one tells; any asks.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Lag(NamedTuple):
    """How far a log is behind the one that it follows: in records, by offsets; in bytes, estimated by the
    mean size of the records that came; in ms since it had all that the leader showed. -1: not known yet.
    """

    records: int
    bytes: int
    ms: int


UNKNOWN = Lag(-1, -1, -1)


class SourceEnd:
    """What answers have told."""

    def __init__(self) -> None:
        self.end = -1
        self.target = -1
        """Where the leader's log ended in its first answer."""
        self.is_told = False
        """Whether the leader has been told, by a later fetch, that this log has all of that."""
        self.fetched_bytes = self.fetched_offsets = 0
        self._reached_at = time.monotonic()
        self._own_end = -1

    def told(self, end: int, own_end: int, size: int) -> None:
        """Take the end of the leader's log, that of this one, and the bytes that came."""
        if self.target < 0:
            self.target = end
        if size and self._own_end >= 0:
            self.fetched_bytes += size
            self.fetched_offsets += max(own_end - self._own_end, 0)
        self.end, self._own_end = end, own_end
        if own_end >= end:
            self._reached_at = time.monotonic()

    def has_reached_target(self, own_end: int) -> bool:
        """Return whether this log has all that the leader showed in its first answer."""
        return 0 <= self.target <= own_end

    def lag(self, own_end: int) -> Lag:
        """Return how far behind this log is, which ends at `own_end`."""
        if self.end < 0:
            return UNKNOWN
        records = max(self.end - own_end, 0)
        size = self.fetched_bytes * records // self.fetched_offsets if self.fetched_offsets else 0
        ms = int((time.monotonic() - self._reached_at) * 1000) if records else 0
        return Lag(records, size, ms)
