"""`Stretch`: whole batches in one segment's file, which stays open until the `Stretch` is released.

Files on disk are only read. A file that retention or compaction removes stays readable by its descriptor, and
the bytes below a view's end never change. Threads: any, without locks, on an immutable view; a stretch
belongs to one thread at a time.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from segstore._native import Sendable, ffi
from segstore.files import Files, Handle
from segstore.records import TRANSACTIONAL_FLAG
from segstore.storage.log.read import MayBeMissing
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer.short_way import sendable
from segstore.storage.transfer.transfer import find

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.storage.context import StoreContext
    from segstore.storage.log.exchange import NativeExchange

_FOUND = ffi.typeof("seg_found *")


class StoredBatches(NamedTuple):
    """The place of batches: the bytes from `position` to `stop` of an open log. `next_offset` is the offset
    after the batches.
    """

    handle: Handle
    position: int
    stop: int
    next_offset: int


class Stretch:
    """Bytes of a file that hold whole batches. `len()` is the number of bytes, `position` the position of the
    first byte, and `next_offset` the offset to continue from. `high_watermark`, `last_stable_offset` and
    `log_start_offset` are the log's offsets at the time of the search. `aborted` has (producer id, first
    offset) of each aborted transaction to which batches of the stretch may belong; None if the isolation
    level was not `read_committed`, or if too many offsets would have to be searched (`max_searched`).
    """

    __slots__ = (
        "_handle",
        "aborted",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "next_offset",
        "position",
        "size",
    )

    def __init__(
        self,
        place: StoredBatches | None,
        offset: int,
        log_start_offset: int,
        high_watermark: int,
        last_stable_offset: int,
        aborted: list[tuple[int, int]] | None,
    ) -> None:
        """An empty stretch has no `place`; its next offset is `offset`."""
        self._handle = None if place is None else place.handle
        self.position = 0 if place is None else place.position
        self.size = 0 if place is None else place.stop - place.position
        self.next_offset = offset if place is None else place.next_offset
        self.log_start_offset, self.high_watermark = log_start_offset, high_watermark
        self.last_stable_offset, self.aborted = last_stable_offset, aborted

    def __len__(self) -> int:
        return self.size

    def fileno(self) -> int:
        """Return the descriptor of the file; -1 if the stretch is empty or was released."""
        return -1 if self._handle is None else self._handle.fd

    def read(self, files: Files) -> bytes:
        """Return the bytes. Raises OSError."""
        return b"" if self._handle is None else files.pread(self._handle, self.size, self.position)

    def release(self) -> None:
        """Release the file; a second call does nothing."""
        self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def find_stretch(
    view: LogView, offset: int, limit: int, most: int, min_one: bool, files: Files, gaps: MayBeMissing
) -> StoredBatches | None:
    """Find batches of one segment: from the batch that holds `offset` on, and below offset `limit`. Return
    their place in the segment. The batches have at most `most` bytes; if `min_one`, the first batch may be
    larger. Return None if there is no such batch. Raises OSError, CorruptRecordError.
    """
    if offset >= limit:
        return None
    found = ffi.new(_FOUND)
    for slot in range(view.slot(offset), len(view.segments)):
        # The visible offsets of a segment end below the base offset of the next segment.
        below = min(limit, view.next_base(slot))
        source = find(view, slot, below, offset, most, files, gaps, found)
        if source is not None:
            position, stop = found.position, found.stop
            if stop - position > most and not min_one:
                return None
            return StoredBatches(source[0], position, stop, int(found.next_offset))
        offset = max(offset, view.next_base(slot))
        if offset >= limit:
            return None
    return None


def exchange_at_once(
    view: LogView, sock: int, exchange: NativeExchange, context: StoreContext
) -> bool | None:
    """Receive a fetch request, and answer it with batches of one segment. Return True if the request was
    answered, False if the request was received and the caller must answer it. Return None if nothing was
    received, because `short_way.sendable` finds no open segment, or an open transaction limits the answer.
    """
    start, end, stable = view.start_offset, view.end_offset, view.stable_offset
    if stable < 0 or (stable != end and exchange.committed):
        return None
    known: Sendable | None = view.sendable
    if known is None or known.spent:
        known = sendable(view, end - 1, context)
    handle = None if known is None else known.handle()
    if known is None or handle is None:
        return None
    return context.files.exchange_fetch(sock, handle, exchange.c, known.segment, start, stable)


def has_transactions(place: StoredBatches, files: Files) -> bool:
    """Return whether any of the batches `place` belongs to a transaction. Only headers are read. Raises
    OSError.
    """
    return bool(files.attributes(place.handle, place.position, place.stop) & TRANSACTIONAL_FLAG)
