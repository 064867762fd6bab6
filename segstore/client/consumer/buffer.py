"""What was read of a partition and not given yet. Nothing on disk. Threads: one, the consumer's."""

from __future__ import annotations

from segstore.records import Records


class Buffer:
    """Records of one read. `at` is the offset where the first one left goes on: a consumer whose position is
    another has no use for them. `memory` is the bytes that they keep, `stored` what was read for them,
    `start` and `end` the log's offsets then; `charged`: whether the client's byte rate has paid for them.
    """

    __slots__ = ("_given", "_records", "at", "charged", "end", "memory", "start", "stored")

    def __init__(self, records: Records, at: int, start: int, end: int) -> None:
        self._records, self._given, self.at, self.start, self.end = records, 0, at, start, end
        self.charged = False
        sizes = records.batches["size"]
        self.memory, self.stored = records.nbytes, int(sizes.item() if len(sizes) == 1 else sizes.sum())

    def __len__(self) -> int:
        return len(self._records) - self._given

    def take(self, most: int | None = None) -> Records:
        """The next records, up to `most`; `next_offset` of them is where the next `take` goes on."""
        given, n = self._given, len(self._records)
        until = n if most is None else min(given + most, n)
        taken = self._records if until - given == n else self._records[given:until]
        self._given, self.at = until, taken.next_offset
        return taken

    def give_back(self, offset: int) -> None:
        """Let the next `take` begin at `offset` again."""
        self._given = int(self._records.offsets.searchsorted(offset))
        self.at = offset
