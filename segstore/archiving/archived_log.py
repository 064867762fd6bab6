"""`ArchivedLog`: reads a partition's log from an archive, in place.

Ranges of the archive's objects are read, and nothing is written. Every batch's CRC is checked before its
records are decoded. If an object was replaced after the state was read, the reader reads the newest state,
and goes on at the same offset. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from segstore.archiving.chain import Objects
from segstore.archiving.log_contents import Extent, LogContents
from segstore.archiving.log_windows import Ask, BatchWindow, LogWindows, ObjectGoneError
from segstore.archiving.open_transactions import TransactionsAhead
from segstore.archiving.segment_hints import SegmentHints
from segstore.arrays import np
from segstore.choices import ISOLATION_LEVELS
from segstore.closing import Closing
from segstore.config import arguments
from segstore.errors import (
    CorruptArchiveError,
    CorruptRecordError,
    DataLossError,
    OffsetOutOfRangeError,
)
from segstore.names import MAX_OFFSET
from segstore.records import CONTROL_FLAG, MAGIC, Records, decode, empty_records, stamped
from segstore.replication.observed_log import OffsetAndEpoch

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

PLAIN_TIMES, PLAIN_LEAST = 16, 64 << 20
"""A read ends when it has decompressed PLAIN_TIMES * `max_bytes` bytes, but not before PLAIN_LEAST bytes."""
TRIES = 10
"""The number of times that one read may look up the newest state."""
SMALL_PIECE = 4 << 20
"""`edge` reads an extent (a range of an object that has batches of the log) of at most this many bytes. Of a
larger extent it reads only the index.
"""


class ArchivedLog(Closing):
    """A partition's log in an archive. `newest` returns the log's contents in the newest state; it may raise
    UnknownTopicOrPartitionError, ArchiveError. If `read_ahead`, a thread reads the next bytes while the
    caller uses the bytes that were read before.
    """

    def __init__(
        self,
        objects: Objects,
        contents: LogContents,
        newest: Callable[[], LogContents],
        *,
        read_ahead: bool = False,
    ) -> None:
        self.contents, self._newest, self._reads_ahead = contents, newest, read_ahead
        self._hints = SegmentHints(objects, contents.key)
        self._windows = LogWindows(objects)
        self._last: BatchWindow | None = None
        self._transactions = TransactionsAhead(self._following)
        self._stable: int | None = None

    def close(self) -> None:
        """Stop the thread that reads ahead."""
        self._windows.close()

    @property
    def start_offset(self) -> int:
        """Return the first offset in the archive, which may be below the store's log start offset."""
        return self.contents.start

    @property
    def end_offset(self) -> int:
        """Return the offset at which the archive ends: the high watermark at the last archived moment."""
        return self.contents.end

    @property
    def log_end_offset(self) -> int:
        """Return `end_offset`, because no record from this offset on is archived."""
        return self.contents.end

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is completed. Raises the errors of `read`."""
        if self.contents.stable >= 0:
            return self.contents.stable
        if self._stable is None:
            self._stable = self._renewing(self._replayed_stable_offset)
        return self._stable

    # --- leader epochs --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Return the latest leader epoch of the log, or -1 if it has none."""
        return self.contents.epoch

    def position(self, offset: int) -> OffsetAndEpoch:
        """Return an offset with the leader epoch of the record before this offset, or with -1 if that epoch
        is not known.
        """
        return self.contents.position(offset)

    def agreed(self, position: OffsetAndEpoch) -> int:
        """Return the offset below which this log certainly has the same records as the log that `position`
        was taken from.
        """
        return self.contents.agreed(position)

    # --- reading --------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        isolation_level: str = ISOLATION_LEVELS[0],
        check_crcs: bool = True,
        times: tuple[int, int] | None = None,
        below: int = MAX_OFFSET,
    ) -> Records:
        """Return the records from `offset` on, in whole batches up to `max_bytes` (as stored), and at least
        one batch if there is any, as `PartitionLog.read` does. If `times` is given, only records with
        timestamps (ms) from `times[0]` to `times[1]` are returned.

        The result may be shorter, for example at the end of an object. CRCs are always checked. The caller
        does not need records from offset `below` on, so little of an object is read beyond that offset.

        Raises OffsetOutOfRangeError, ArchiveError; CorruptRecordError or CorruptArchiveError, which name the
        object; DataLossError if the archive's log has diverged after its contents were looked up.
        """
        level = arguments.one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
        committed = level != ISOLATION_LEVELS[0]
        return self._renewing(lambda: self._read(offset, max_bytes, committed, times, below))

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with a timestamp (ms) of `timestamp_ms` or later, or None if
        there is none. Raises the errors of `read`.
        """
        return self._renewing(lambda: self._offset_for_time(max(timestamp_ms, -1)))

    def edge(self, offset: int) -> int:
        """Return the base offset of a batch at or shortly before `offset`. Only indexes and small objects are
        read. Raises the errors of `read`.
        """
        return self._renewing(lambda: self._edge(offset))

    def _renewing(self, call: Callable[[], T]) -> T:
        for _ in range(TRIES):
            try:
                return call()
            except ObjectGoneError as gone:
                self._renew(gone.name)
        raise CorruptArchiveError(
            str(self.contents.key), f"its objects were replaced {TRIES} times in one read"
        )

    def _renew(self, name: str) -> None:
        """Replace the contents by the newest contents, because the object `name` is missing. Raises
        CorruptArchiveError if the newest contents still name that object, and DataLossError if the log has
        diverged from the old contents.
        """
        before, now = self.contents, self._newest()
        if now.has(name):
            raise CorruptArchiveError(name, "it is missing")
        agreed = now.agreed(before.position(before.end))
        if agreed < before.end:
            raise DataLossError(
                f"{before.key}: the archive goes another way from offset {agreed} on, since the store was "
                "restored from an older copy, or has lost records"
            )
        self.renew(now)

    def renew(self, contents: LogContents) -> None:
        """Read from newer contents of the same partition from now on."""
        self.contents, self._last, self._stable = contents, None, None
        self._transactions = TransactionsAhead(self._following)

    def _read(
        self, offset: int, max_bytes: int, committed: bool, times: tuple[int, int] | None, below: int
    ) -> Records:
        contents = self.contents
        if not contents.start <= offset <= contents.end:
            raise OffsetOutOfRangeError(offset, contents.start, contents.end, str(contents.key))
        visible = min(contents.end, self.last_stable_offset) if committed else contents.end
        limit = min(visible, below)
        while offset < limit:
            extent = self._extent(offset)
            if times is not None and extent.max_timestamp < times[0]:
                offset = extent.end
                continue
            window = self._window(extent, offset, limit)
            first, last = self._span(window, offset, limit, max_bytes)
            if first < last:
                self._look_ahead(window, limit if max_bytes else offset)
                return self._records(window, first, last, offset, max_bytes, committed, times)
            offset = window.end if first == len(window.batches) else limit
        return empty_records(offset)

    def _span(self, window: BatchWindow, offset: int, limit: int, max_bytes: int) -> tuple[int, int]:
        """Return (first, last): a read returns the batches of the window with indexes from `first` to `last`
        - 1. They end before a gap that compaction can't have made. Raises CorruptRecordError if that gap,
        or damage, is at `offset`.
        """
        batches = window.batches
        first = int(np.searchsorted(batches["last_offset"], offset))
        if first == len(batches):
            if window.damage is not None:
                raise window.damaged(offset)
            if not self._may_be_missing(offset):
                raise _missing(window, len(window.data), offset, window.end)
            return first, first
        last = int(np.searchsorted(batches["base_offset"], limit))
        position, base = int(batches["position"][first]), int(batches["base_offset"][first])
        ends = batches["position"][first:last] + batches["size"][first:last]
        last = first + max(int(np.searchsorted(ends, position + max_bytes, "right")), 1)
        if base > offset and not self._may_be_missing(offset):
            raise _missing(window, position - window.at, offset, base)
        return first, self._up_to_gap(batches, first, last) if base < limit else first

    def _up_to_gap(self, batches: NDArray[np.void], first: int, last: int) -> int:
        if self.contents.gaps_end < 0:
            return last
        after = batches["last_offset"][first : last - 1] + 1
        wrong = (batches["base_offset"][first + 1 : last] != after) & (after >= self.contents.gaps_end)
        return first + 1 + int(wrong.argmax()) if wrong.any() else last

    def _may_be_missing(self, offset: int) -> bool:
        return self.contents.gaps_end < 0 or offset < self.contents.gaps_end

    def _records(
        self,
        window: BatchWindow,
        first: int,
        last: int,
        offset: int,
        max_bytes: int,
        committed: bool,
        times: tuple[int, int] | None,
    ) -> Records:
        batches = window.batches[first:last]
        wanted = (batches["attributes"] & CONTROL_FLAG) == 0
        if committed:
            aborted, known = self._transactions.judged(window, first, last)
            batches, wanted = batches[:known], (wanted & ~aborted)[:known]
        after = int(batches["last_offset"][-1]) + 1
        if times is not None:
            wanted &= stamped(window.data, batches, window.at, *times)
        if not wanted.all():
            batches = batches[wanted]
        most = max(PLAIN_TIMES * max_bytes, PLAIN_LEAST)
        records = decode(
            window.data, batches, window.extent.object, window.at, after, from_offset=offset, most=most
        )
        if times is not None and len(records):
            stamps = records.timestamps
            records = records.take((stamps >= times[0]) & (stamps <= times[1]))
        return records

    # --- windows --------------------------------------------------------------------------

    def _extent(self, offset: int) -> Extent:
        """Return the extent that contains an offset, or the next extent if no extent contains the offset. If
        there is no next extent either, raises ObjectGoneError if the contents are only a part of the log,
        else CorruptArchiveError.
        """
        found = self.contents.after(offset)
        if found is None and self.contents.is_part:
            raise ObjectGoneError("")  # makes `_renewing` look up the contents of the whole log
        if found is None:
            raise CorruptArchiveError(
                str(self.contents.key), f"no object has offsets from {offset} to {self.contents.end}"
            )
        return found

    def _window(self, extent: Extent, offset: int, limit: int) -> BatchWindow:
        """Return the window of `extent` in which `offset` lies: in a batch, in a gap, or in damaged bytes."""
        window = self._last
        if window is None or window.extent != extent or not window.ask.begin <= offset <= window.end:
            window = self._first(extent, offset, limit)
        while window.end <= offset and (ask := window.next()) is not None:
            window = self._windows.get(ask)
        self._last = window
        return window

    def _first(self, extent: Extent, offset: int, limit: int) -> BatchWindow:
        """Return a window of `extent` that begins at or before `offset`. The window with `offset` is this
        window or a later one.
        """
        ask = self._beginning(extent, limit)
        hint = self._hints.position(extent, offset)
        if hint is not None and hint.position < extent.length:
            found = self._windows.get(ask._replace(position=hint.position, begin=hint.last_offset))
            batches = found.batches
            if len(batches) and _is_hinted(batches[0], hint.last_offset):
                return found
            self._hints.distrust(extent)
        return self._windows.get(ask)

    def _beginning(self, extent: Extent, limit: int) -> Ask:
        size = self._last.ask.size if self._last is not None else 0
        ask = Ask(extent, 0, extent.first, self._hints.end_position(extent, limit))
        # If the extents are read in order, the next extent begins with a window as large as the last window.
        goes_on = self._last is not None and self._last.end == extent.first and self._reads_ahead
        return ask._replace(size=max(ask.size, size)) if goes_on else ask

    def _look_ahead(self, window: BatchWindow, limit: int) -> None:
        if not self._reads_ahead or window.end >= limit:
            return
        ask = window.next()
        if ask is None and (after := self.contents.after(window.end)) is not None:
            ask = self._beginning(after, limit)
        if ask is not None:
            self._windows.read_ahead(ask)

    def _following(self, window: BatchWindow) -> BatchWindow | None:
        """Return the window after `window`, or None if `window` is the last window of the log."""
        ask = window.next()
        if ask is None:
            if window.extent.end >= self.contents.end:
                return None
            ask = self._beginning(self._extent(window.extent.end), MAX_OFFSET)
        return self._windows.get(ask)

    # --- looking up -----------------------------------------------------------------------

    def _offset_for_time(self, timestamp: int) -> int | None:
        offset, end = self.contents.start, self.contents.end
        while offset < end:
            extent = self._extent(offset)
            if extent.max_timestamp >= timestamp:
                found = self._late_in(extent, offset, timestamp)
                if found is not None:
                    return found if found < end else None
            offset = extent.end
        return None

    def _late_in(self, extent: Extent, offset: int, timestamp: int) -> int | None:
        hint = self._hints.position_for_time(extent, timestamp)
        start = offset if hint is None else max(offset, hint.last_offset)
        window = self._window(extent, start, MAX_OFFSET)
        while True:
            batches = window.batches
            late = (batches["max_timestamp"] >= timestamp) & (batches["last_offset"] >= offset)
            late &= (batches["attributes"] & CONTROL_FLAG) == 0
            for slot in np.flatnonzero(late).tolist():
                one = batches[slot : slot + 1]
                records = decode(window.data, one, extent.object, window.at, from_offset=offset)
                hits = np.flatnonzero(records.timestamps >= timestamp)
                if len(hits):
                    return int(records.offsets[hits[0]])
            if window.damage is not None:
                raise window.damaged(window.ask.begin)
            ask = window.next()
            if ask is None:
                return None
            window = self._windows.get(ask)

    def _edge(self, offset: int) -> int:
        if not self.contents.start < offset < self.contents.end:
            return offset
        extent = self._extent(offset)
        if extent.length > SMALL_PIECE:
            return self._hints.edge(extent, offset)
        window = self._window(extent, offset, offset + 1)
        slot = int(np.searchsorted(window.batches["last_offset"], offset))
        found = window.batches[slot : slot + 1]["base_offset"].tolist()
        return min(offset, *found) if found else offset

    def _replayed_stable_offset(self) -> int:
        contents, offset = self.contents, self.contents.start
        if offset >= contents.end:
            return contents.end
        window: BatchWindow | None = self._window(self._extent(offset), offset, MAX_OFFSET)
        assert window is not None
        state = self._transactions.begun(window)
        while (window := self._following(window)) is not None:
            self._transactions.take(window)
        return state.stable_offset(contents.start, contents.end)


def _is_hinted(batch: np.void, last_offset: int) -> bool:
    """Return whether an entry with offset `last_offset` of the offset index may be an entry of `batch`."""
    found = int(batch["last_offset"])
    return found == last_offset or (int(batch["magic"]) != MAGIC and found < last_offset)


def _missing(window: BatchWindow, position: int, offset: int, back: int) -> CorruptRecordError:
    return CorruptRecordError(
        window.extent.object, window.at + position, offset, f"offsets up to {back} are missing", back
    )
