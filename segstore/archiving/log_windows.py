"""`LogWindows`: reads extents of an archived log in windows of whole batches. The next window is read while
the caller decodes the last window.

Ranges of the archive's objects are read, and nothing is written. Threads: one thread uses a `LogWindows`,
which has another thread that reads ahead. A window does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore._native import ffi, lib
from segstore.archiving.chain import Objects
from segstore.archiving.log_contents import Extent
from segstore.arrays import np
from segstore.closing import Closing
from segstore.errors import ArchiveError, CorruptArchiveError, CorruptRecordError
from segstore.names import MAX_OFFSET
from segstore.records import LEAST_ENTRY, ScanEnd, batch_type, scan_headers
from segstore.storage.segment.batch_scan import BAD
from segstore.threads import Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_BYTES, MOST_BYTES, GROWTH = 1 << 20, 1 << 24, 4
"""The bytes of the first and of the largest read, and the factor between one read and the next. Small first
reads suit callers that need few records.
"""
MOST_SEARCHED = 64 << 20
"""At most this many bytes after damage are searched for a whole batch."""
KEPT = 4
"""The number of windows that are kept in memory. The search for the end of a transaction needs earlier
windows again.
"""


class ObjectGoneError(Exception):
    """An object is missing: it was replaced after the state was read, or it was lost."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ObjectDamage(NamedTuple):
    """Bytes that are not a batch, at byte `position` of an object. The next whole batch begins at offset
    `next_offset`.
    """

    position: int
    reason: str
    next_offset: int


class Ask(NamedTuple):
    """A request for a window. The window begins at byte `position` of an extent, at offset `begin`. At most
    `size` bytes are read for it. The window ends at byte `until` at most, or at the end of a batch that
    crosses `until`.
    """

    extent: Extent
    position: int
    begin: int
    until: int
    size: int = FIRST_BYTES

    @property
    def key(self) -> tuple[str, int]:
        return self.extent.object, self.extent.at + self.position


class BatchWindow(NamedTuple):
    """Whole batches of offsets from `begin` on, below `end`. `data` begins at byte `at` of the object.
    `batches` has the headers of these batches, and `headers` the same headers as C structs. The next window
    begins at byte `after` of the extent. `damage`, if not None, is between these batches and the next window.
    """

    ask: Ask
    data: bytes
    headers: bytearray
    after: int
    end: int
    damage: ObjectDamage | None

    @property
    def extent(self) -> Extent:
        return self.ask.extent

    @property
    def at(self) -> int:
        return self.ask.extent.at + self.ask.position

    @property
    def batches(self) -> NDArray[np.void]:
        return np.frombuffer(self.headers, batch_type())

    def damaged(self, offset: int) -> CorruptRecordError:
        """Return the error for a read of an offset within the damage."""
        assert self.damage is not None
        position, reason, back = self.damage
        return CorruptRecordError(self.extent.object, position, offset, reason, back)

    def next(self) -> Ask | None:
        """Return the request for the next window of the extent, or None at the extent's end."""
        extent, until = self.extent, self.ask.until
        if self.after >= extent.length:
            return None
        size = min(self.ask.size * GROWTH, MOST_BYTES)
        return Ask(extent, self.after, self.end, until if self.after < until else extent.length, size)


class LogWindows(Closing):
    """Reads windows of a log for one reader, and keeps the last `KEPT` windows in memory."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._kept: dict[tuple[str, int], BatchWindow] = {}
        self._worker: Worker | None = None
        self._ahead: Ask | None = None
        self._read: BatchWindow | None = None

    def close(self) -> None:
        """Stop the thread that reads ahead, without waiting for it."""
        if self._worker is not None:
            self._worker.leave()
        self._worker, self._ahead = None, None

    def get(self, ask: Ask) -> BatchWindow:
        """Return the requested window. Raises ObjectGoneError, ArchiveError, and CorruptArchiveError for a
        truncated object.
        """
        found = self._kept.pop(ask.key, None) or self._arrived(ask) or self._fetched(ask)
        while len(self._kept) >= KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[ask.key] = found
        return found

    def read_ahead(self, ask: Ask) -> None:
        """Begin to read the window that the caller will need next, unless this window is in memory, or
        another window is being read ahead.
        """
        if self._ahead is not None or ask.key in self._kept:
            return
        if self._worker is None:
            self._worker = Worker("segstore archive reader")
            self._worker.start()
        self._ahead, self._read = ask, None
        self._worker.do(lambda: self._keep_read(ask))

    def _keep_read(self, ask: Ask) -> None:
        self._read = self._fetched(ask)

    def _arrived(self, ask: Ask) -> BatchWindow | None:
        """Return the requested window if it was read ahead, else None."""
        if self._ahead is None or self._worker is None:
            return None
        wanted = self._ahead.key == ask.key
        self._ahead = None
        try:
            self._worker.result()
        except (ObjectGoneError, ArchiveError):
            return None
        found, self._read = self._read, None
        return found if wanted else None

    def _fetched(self, ask: Ask) -> BatchWindow:
        while True:
            data = self._bytes(ask)
            headers, stop = scan_headers(data, ask.extent.at + ask.position, least=ask.begin)
            larger = _larger(ask, data, headers, stop)
            if larger is None:
                return _window(ask, data, headers, stop)
            ask = larger

    def _bytes(self, ask: Ask) -> bytes:
        extent, at = ask.extent, ask.extent.at + ask.position
        size = min(ask.size, ask.until - ask.position)
        try:
            data = self._objects.read_range(extent.object, at, size)
        except FileNotFoundError:
            raise ObjectGoneError(extent.object) from None
        if len(data) < size:
            raise CorruptArchiveError(
                extent.object,
                f"it has {at + len(data)} bytes, at least {extent.at + extent.length} are expected",
            )
        return data


def _larger(ask: Ask, data: bytes, headers: bytearray, stop: ScanEnd) -> Ask | None:
    """Return a request for a larger window if the window of `ask` has no batch, and more bytes of the extent
    may complete the first batch, or may contain a whole batch after damage. If not, return None.
    """
    left = ask.extent.length - ask.position
    if headers or len(data) >= left:
        return None
    if stop.status == lib.SEG_SHORT and stop.need <= left:
        return ask._replace(size=max(stop.need, LEAST_ENTRY, 2 * len(data)), until=ask.extent.length)
    if len(data) >= MOST_SEARCHED or _next_whole_batch(ask, data, 0, ask.begin) is not None:
        return None
    return ask._replace(size=MOST_SEARCHED, until=ask.extent.length)


def _window(ask: Ask, data: bytes, headers: bytearray, stop: ScanEnd) -> BatchWindow:
    extent, used = ask.extent, stop.position - ask.extent.at - ask.position
    after, end = ask.position + used, stop.last_offset + 1 if headers else ask.begin
    if stop.status in (lib.SEG_END, lib.SEG_FULL) or (stop.status == lib.SEG_SHORT and headers):
        return BatchWindow(ask, data, headers, after, extent.end if after >= extent.length else end, None)
    found = _next_whole_batch(ask, data, used, end)
    if found is None and headers:  # the damage is left to the next window
        return BatchWindow(ask, data, headers, after, end, None)
    after, end = (extent.length, extent.end) if found is None else found
    damage = ObjectDamage(stop.position, BAD.get(stop.status, "the object was cut"), end)
    return BatchWindow(ask, data, headers, after, end, damage)


def _next_whole_batch(ask: Ask, data: bytes, bad: int, least: int) -> tuple[int, int] | None:
    """Return (byte of the extent, base offset) of the first whole batch after the damage at byte `bad` of
    `data`, or None if there is no whole batch.
    """
    found = lib.seg_resync(ffi.from_buffer("uint8_t[]", data), len(data), bad + 1, least, MAX_OFFSET)
    if found < 0:
        return None
    return ask.position + int(found), int.from_bytes(data[found : found + 8], "big")
