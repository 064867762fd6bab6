"""`SourceEnd`: the end of the leader's log, and the lag of a followed log. Nothing is on disk. Threads: one
calls `note_answer`; any may call the other methods.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Lag(NamedTuple):
    """The lag of a log: in records (by offsets), in bytes (estimated by the mean size of fetched records),
    and in ms since the log last had all records below the leader's high watermark. -1 is unknown.
    """

    records: int
    bytes: int
    ms: int


UNKNOWN = Lag(-1, -1, -1)


class SourceEnd:
    """The leader's high watermark by the last fetch answer (`end`), and the statistics for the lag."""

    def __init__(self) -> None:
        self.end = -1
        self.target = -1
        """The leader's high watermark in its first answer, -1 before."""
        self.is_reported = False
        """Whether a later fetch has reported to the leader that this log has reached `target`."""
        self.fetched_bytes = self.fetched_offsets = 0
        self._reached_at = time.monotonic()
        self._own_end = -1

    def note_answer(self, end: int, own_end: int, size: int) -> None:
        """Note an answer: `end` is the leader's high watermark, `own_end` this log's end offset after the
        append, `size` the number of bytes of the answer's records.
        """
        if self.target < 0:
            self.target = end
        if size and self._own_end >= 0:
            self.fetched_bytes += size
            self.fetched_offsets += max(own_end - self._own_end, 0)
        self.end, self._own_end = end, own_end
        if own_end >= end:
            self._reached_at = time.monotonic()

    def has_reached_target(self, own_end: int) -> bool:
        """Return whether `own_end` has reached the leader's high watermark of the first answer."""
        return 0 <= self.target <= own_end

    def lag(self, own_end: int) -> Lag:
        """Return the lag of the log, which ends at `own_end`."""
        if self.end < 0:
            return UNKNOWN
        records = max(self.end - own_end, 0)
        size = self.fetched_bytes * records // self.fetched_offsets if self.fetched_offsets else 0
        ms = int((time.monotonic() - self._reached_at) * 1000) if records else 0
        return Lag(records, size, ms)
