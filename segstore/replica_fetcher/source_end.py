"""`SourceEnd`: the leader's high watermark, and the lag of the log that replicates the leader's log. Nothing
is on disk. Threads: only one thread calls `note_answer`. Any thread may call the other methods.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Lag(NamedTuple):
    """The lag of a log: the number of missing records (counted in offsets), their size in bytes (estimated
    from the mean size of fetched records), and the time in ms since the log last had all records below the
    leader's high watermark. A value of -1 is unknown.
    """

    records: int
    bytes: int
    ms: int


UNKNOWN = Lag(-1, -1, -1)


class SourceEnd:
    """The leader's high watermark in the last fetch answer (`end`), and the numbers from which the lag is
    computed.
    """

    def __init__(self) -> None:
        self.end = -1
        self.target = -1
        """The leader's high watermark in the first fetch answer, -1 before the first answer."""
        self.is_reported = False
        """Whether this log has reached `target`, and a later fetch has reported that to the leader."""
        self.fetched_bytes = self.fetched_offsets = 0
        self._reached_at = time.monotonic()
        self._own_end = -1

    def note_answer(self, end: int, own_end: int, size: int) -> None:
        """Store the numbers of an answer. `end` is the leader's high watermark. `own_end` is this log's end
        offset after the append. `size` is the number of bytes of the answer's records.
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
        """Return whether `own_end` is not below the leader's high watermark in the first answer."""
        return 0 <= self.target <= own_end

    def lag(self, own_end: int) -> Lag:
        """Return the lag of this log, whose end offset is `own_end`."""
        if self.end < 0:
            return UNKNOWN
        records = max(self.end - own_end, 0)
        size = self.fetched_bytes * records // self.fetched_offsets if self.fetched_offsets else 0
        ms = int((time.monotonic() - self._reached_at) * 1000) if records else 0
        return Lag(records, size, ms)
