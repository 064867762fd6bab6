"""`LogComparison`: one log beside that of its leader, before anything is taken from there: whether both have
the same records where both have any. Offsets and leader epochs alone don't tell: a leader that was restored
from an older copy, and has gone on, may have other records under them (a broker of Kafka's begins no epoch
then).

The look begins a few offsets before this log's end. Compaction may have removed batches there from either
log, or written them anew with fewer records: so equal offsets must have equal records, and where the logs
share none, or not the same, the look goes further back, by steps that grow. From where they agree it goes on
to the end of this log. Behind the newest batch that both have, below the first that differs, this log is cut.

On disk files are only read. Threads: that of the leader's fetcher.
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
"""Offsets before the log's end at which the look begins, and how many times as many it goes back then."""
_WINDOW = 1 << 16
"""The most bytes of this log that are compared at once, but for a larger batch."""


class ComparedWindow(NamedTuple):
    """Whole batches of this log as they are stored: from `at` on, up to `end`."""

    at: int
    end: int
    data: bytes
    batches: NDArray[np.void]


class LogComparison:
    """`question` is the fetch that would come next; `alone` says that the leader has to be asked for this log
    alone, because an answer for several had no whole batch.
    """

    def __init__(self, followed: FollowedLog, question: Question) -> None:
        self.followed, self.question, self.alone = followed, question, False
        self._floor, self._end = question.follower.log.start_offset, question.position.offset
        self._back = _FIRST
        self._on = -1
        """Where to go on towards the end, once the logs agree below; -1 before."""
        self._agreed = self._floor
        """Behind the newest batch that both have."""
        self._asked_epochs = False
        """Whether an ordinary fetch has said that leader epochs, which tell where logs part, tell nothing."""
        self.window = self._read()

    def _read(self) -> ComparedWindow | None:
        """Return what is compared next, None if there is nothing left."""
        while True:
            at = self._on if self._on >= 0 else max(self._floor, self._end - self._back)
            if at >= self._end:
                return None
            try:
                data = bytes(self.followed.replica.read(at, self._end, _WINDOW))
            except (CorruptRecordError, OffsetOutOfRangeError):
                return None  # `check` tells of a damaged log; one that was cut meanwhile is compared anew
            batches, _ = scan(data, check_crcs=False)
            if len(batches):
                end = min(int(batches["last_offset"][-1]) + 1, self._end)
                return ComparedWindow(at, end, data, batches)
            if self._on >= 0 or at == self._floor:
                return None
            self._back *= _STEP  # this log ends in a gap

    @property
    def at(self) -> int:
        """Return the offset from which on is compared next; the end of this log, if nothing is."""
        return self._end if self.window is None else self.window.at

    @property
    def most_bytes(self) -> int:
        """Return how many bytes the leader is asked for: those that this log has there."""
        return 0 if self.window is None else len(self.window.data)

    def begins_at(self, start: int) -> None:
        """Compare nothing below `start`, at which the leader's log begins."""
        self._floor, self._on, self._back = start, -1, _FIRST
        self.window = self._read()

    def take(self, data: FetchedData, *, was_alone: bool) -> bool:
        """Take what the leader has from the window's offset on; return whether to ask again at once: else the
        leader does not show it yet, or all is compared. Raises CorruptRecordError for damaged bytes.
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
            # What lies between may be the leader's, and compacted away there, or not.
            self.followed.cut_unlike(self.question, self._agreed)
            return True
        self._on = covered
        self.window = self._read()
        if self.window is None:
            self.followed.compared(self.question)
        return True


class Divergence(NamedTuple):
    """`agreed` is the offset behind this log's newest batch, below the first unlike one, with a record that
    both logs have; `other` where this log's first batch begins that has another record than the leader's at
    the same offset. None without one.
    """

    agreed: int | None
    other: int | None


def compare(window: ComparedWindow, theirs: bytes, batches: NDArray[np.void], where: str) -> Divergence:
    """Compare the batches of a window with the leader's. Raises CorruptRecordError."""
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
    """Return whether the records of a batch are the leader's where both have any; None if they share none."""
    found: bool | None = None
    try:
        for record in decode(window.data, window.batches[n : n + 1], where):
            other = held.get(record.offset)
            if other is not None and other != record:
                return False
            found = found or (True if other is not None else None)
    except CorruptRecordError:  # damaged on this disk: what the leader has there takes its place
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
