"""`LogComparison`: compares one log of this store with its leader's log. The comparison is made before
batches of the leader are appended. At offsets that both logs have, the records must be the same. Equal
offsets and leader epochs don't prove that they are: if a leader was restored from an older copy and has taken
appends after that, it may have other records with the same offsets and leader epochs, because a Kafka broker
does not begin a new epoch in this case.

A window is a few batches of this log. Its records are compared with the leader's records at the same offsets.
Only records with equal offsets are compared, because compaction may have removed records from each of the
logs. The first window begins a few offsets before this log's end. If a window has a difference or no common
record, a window at a lower offset is compared, in growing steps. After a window with common records and
without a difference, the windows after it are compared, up to the end of this log. At the first difference
this log is truncated after the last batch that both logs have.

On disk this class only reads the log, and `FollowedLog` truncates the log. Threads: only the thread of the
leader's fetcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from segstore.errors import CorruptRecordError, OffsetOutOfRangeError
from segstore.records import Record, decode, scan
from segstore.storage.log.replica import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from segstore.replica_fetcher.fetched_data import FetchedData
    from segstore.replica_fetcher.followed_log import FollowedLog, Question

_FIRST, _STEP = 8, 16
"""The comparison begins `_FIRST` offsets before the log's end. Each step to a lower offset multiplies this
distance by `_STEP`.
"""
_WINDOW = 1 << 16
"""The largest size of a window in bytes. A window of a single batch may be larger."""


class ComparedWindow(NamedTuple):
    """Stored batches of this log, from the offset `at` up to `end` (exclusive)."""

    at: int
    end: int
    data: bytes
    batches: NDArray[np.void]


class LogComparison:
    """The comparison of one log. `question` is the log's next fetch. If `alone`, the next request must be for
    this log only, because an answer for several logs had no complete batch of this log.
    """

    def __init__(self, followed: FollowedLog, question: Question) -> None:
        self.followed, self.question, self.alone = followed, question, False
        self._floor, self._end = question.follower.log.start_offset, question.position.offset
        self._back = _FIRST
        self._on = -1
        """The offset of the next window after a window with common records and without a difference, -1
        before there is such a window.
        """
        self._agreed = self._floor
        """The offset after the last batch that both logs have."""
        self._asked_epochs = False
        """True after the first difference. At this difference the comparison waits for an ordinary fetch,
        whose answer may have a diverging epoch.
        """
        self.window = self._read()

    def _read(self) -> ComparedWindow | None:
        """Return the next window. Return None if the comparison is complete or this log can't be read."""
        while True:
            at = self._on if self._on >= 0 else max(self._floor, self._end - self._back)
            if at >= self._end:
                return None
            try:
                data = bytes(self.followed.replica.read(at, self._end, _WINDOW))
            except (CorruptRecordError, OffsetOutOfRangeError):
                # The log was just truncated, or it is damaged (`segstore check` reports the damage).
                return None
            batches, _ = scan(data, check_crcs=False)
            if len(batches):
                end = min(int(batches["last_offset"][-1]) + 1, self._end)
                return ComparedWindow(at, end, data, batches)
            if self._on >= 0 or at == self._floor:
                return None
            self._back *= _STEP  # This log has no batch at offset `at` or above: try a lower offset.

    @property
    def at(self) -> int:
        """Return the offset of the next window, or the end of this log if there is no next window."""
        return self._end if self.window is None else self.window.at

    @property
    def most_bytes(self) -> int:
        """Return the number of bytes to fetch from the leader, which is the size of the window in bytes."""
        return 0 if self.window is None else len(self.window.data)

    def begins_at(self, start: int) -> None:
        """Begin the comparison anew. `start` is the leader's log start offset: no record below it is
        compared.
        """
        self._floor, self._on, self._back = start, -1, _FIRST
        self.window = self._read()

    def take(self, data: FetchedData, *, was_alone: bool) -> bool:
        """Compare the window with the leader's batches in `data`, which begin at the window's offset.
        `was_alone` says that the request was for this log only. Return True if the comparison can continue at
        once, and False if it can continue only after an ordinary fetch. Raises CorruptRecordError if batches
        in `data` are damaged.
        """
        window = self.window
        assert window is not None
        chunk = checked(data.records)
        if chunk is None and not was_alone:
            self.alone = True
            return True
        self.alone = False
        if chunk is not None:
            found = compare(window, bytes(chunk.data), chunk.batches, repr(self.followed))
            end = min(int(chunk.batches["last_offset"][-1]) + 1, window.end)
            return self._decide(window, found, end)
        if data.high_watermark < window.end:
            return False
        return self._decide(window, Divergence(None, None), window.end)

    def _decide(self, window: ComparedWindow, found: Divergence, covered: int) -> bool:
        is_unlike = found.other is not None
        if is_unlike and not self._asked_epochs:
            self._asked_epochs = True
            return False
        if self._on < 0 and window.at > self._floor and (is_unlike or found.agreed is None):
            self._back *= _STEP
            self.window = self._read()
            return True
        self._agreed = self._agreed if found.agreed is None else found.agreed
        if is_unlike:
            # The batches between `_agreed` and the first difference are removed, too. The leader has no
            # records at these offsets now, but it may have had other records, which compaction has removed.
            self.followed.cut_unlike(self.question, self._agreed)
            return True
        self._on = covered
        self.window = self._read()
        if self.window is None:
            self.followed.compared(self.question)
        return True


class Divergence(NamedTuple):
    """The result of a window's comparison. `other` is the base offset of this log's first batch with a record
    that differs from the leader's record at the same offset, None if no record differs. The comparison ends
    at `other`. `agreed` is the offset after the last batch that was found to have a record in common with the
    leader's log, None if no batch was found.
    """

    agreed: int | None
    other: int | None


def compare(window: ComparedWindow, theirs: bytes, batches: NDArray[np.void], where: str) -> Divergence:
    """Compare the batches of a window with batches of the leader. Raises CorruptRecordError if the leader's
    batches are damaged.
    """
    same = frozenset(_marks(batches))
    held: dict[int, Record] | None = None
    agreed = None
    for n, mark in enumerate(_marks(window.batches)):
        base, _, last = mark
        if mark not in same:
            if held is None:
                held = {each.offset: each for each in decode(theirs, batches, f"{where} at the leader")}
            is_like = _is_like(window, n, held, where)
            if is_like is False:
                return Divergence(agreed, base)
            if is_like is None:
                continue
        agreed = last + 1
    return Divergence(agreed, None)


def _is_like(window: ComparedWindow, n: int, held: Mapping[int, Record], where: str) -> bool | None:
    """Return whether the records of a batch equal the leader's records at the same offsets. Return None if
    the leader has no record at these offsets.
    """
    found: bool | None = None
    try:
        for record in decode(window.data, window.batches[n : n + 1], where):
            other = held.get(record.offset)
            if other is not None and other != record:
                return False
            found = found or (True if other is not None else None)
    except CorruptRecordError:  # If a batch is damaged in this log, it counts as different.
        return False
    return found


def _marks(batches: NDArray[np.void]) -> list[tuple[int, int, int]]:
    return list(
        zip(
            batches["base_offset"].tolist(),
            batches["crc"].tolist(),
            batches["last_offset"].tolist(),
            strict=True,
        )
    )
