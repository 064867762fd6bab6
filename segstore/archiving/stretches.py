"""`measure`: reads whole batches of a segment's log, up to an offset, and computes the fields of the piece
that the batches become.

The file is only read. C functions scan the bytes, some MiB at each call, so that Python has no loop over
batches. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from segstore._native import ffi, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files, Handle
from segstore.records import batch_type, scan_headers
from segstore.storage.segment.batch_scan import BAD

if TYPE_CHECKING:
    from typing_extensions import Buffer

STEP = 4 << 20
"""Bytes of one read, unless a batch is larger."""
MOST_STEP = 1 << 30


class LogFile(NamedTuple):
    """The open log of a segment. The handle stays on this file, even if another file gets its name."""

    files: Files
    handle: Handle
    path: str


class LogStretch(NamedTuple):
    """Whole batches of a log: `length` bytes from byte `position` on, with offsets from `first` on, below
    `end`. `data` has the bytes. If `data` is None, `parts` reads the bytes from the file again.
    """

    log: LogFile
    position: int
    length: int
    crc: int
    first: int
    end: int
    max_timestamp: int
    data: tuple[Buffer, ...] | None

    def parts(self) -> Iterator[Buffer]:
        """Yield the bytes. Raises OSError, and CorruptRecordError if the file's bytes have changed."""
        if self.data is not None:
            yield from self.data
            return
        crc, at, end = 0, self.position, self.position + self.length
        while at < end:
            data = self.log.files.pread(self.log.handle, min(STEP, end - at), at)
            crc, at = crc_of(data, crc), at + len(data)
            if not data or (at == end and crc != self.crc):
                raise CorruptRecordError(self.log.path, at, self.first, "it was changed while it was read")
            yield data


def crc_of(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`. If `crc` is given, it is the CRC-32C of the bytes before `data`, and the
    result is the CRC-32C of all these bytes.
    """
    with ffi.from_buffer("uint8_t[]", data) as view:
        return int(lib.seg_crc32c(crc, view, len(view)))


def crc_of_file(log: LogFile, position: int, length: int) -> int | None:
    """Return the CRC-32C of bytes of a file, or None if the file is too short. Raises OSError."""
    crc, at, end = 0, position, position + length
    while at < end:
        data = log.files.pread(log.handle, min(STEP, end - at), at)
        if not data:
            return None
        crc, at = crc_of(data, crc), at + len(data)
    return crc


def measure(
    log: LogFile, position: int, size: int, offset: int, end_offset: int, keep: int
) -> LogStretch | None:
    """Return the whole batches from byte `position` on, below byte `size` and offset `end_offset`, and before
    invalid bytes. Return None if there is no batch. The result has the batches' bytes if these are at most
    `keep` bytes. Raises OSError, and CorruptRecordError, which names `offset`, if the first bytes are
    invalid.
    """
    found, at, step = _FoundStretch(), position, STEP
    while at < size and found.end < end_offset:
        data = log.files.pread(log.handle, min(step, size - at), at)
        headers, stop = scan_headers(data, at, end_offset=end_offset, check_crcs=False)
        batches = np.frombuffer(headers, batch_type())
        whole = int(np.searchsorted(batches["last_offset"], end_offset))
        if not whole:
            if len(batches) or stop.status not in BAD or not data:
                break
            if stop.status != lib.SEG_SHORT and found.first < 0:
                raise CorruptRecordError(log.path, at, offset, BAD[stop.status])
            if stop.status != lib.SEG_SHORT or len(data) == size - at or step >= MOST_STEP:
                break
            step = max(step * 2, stop.need)
            continue
        last = batches[whole - 1]
        length = int(last["position"]) + int(last["size"]) - at
        found.add(data, length, batches[:whole], keep)
        at += length
        if whole < len(batches):
            break
    return found.stretch(log, position, at)


class _FoundStretch:
    def __init__(self) -> None:
        self.first = self.end = self.max_timestamp = -1
        self._crc = self._size = 0
        self._data: list[Buffer] | None = []

    def add(self, data: bytes, length: int, batches: np.ndarray, keep: int) -> None:
        part = memoryview(data)[:length]
        self._crc = crc_of(part, self._crc)
        self._size += length
        if self.first < 0:
            self.first = int(batches["base_offset"][0])
        self.end = int(batches["last_offset"][-1]) + 1
        self.max_timestamp = max(self.max_timestamp, int(batches["max_timestamp"].max()))
        if self._size > keep:
            self._data = None
        if self._data is not None:
            self._data.append(part)

    def stretch(self, log: LogFile, position: int, at: int) -> LogStretch | None:
        if self.first < 0:
            return None
        data = None if self._data is None else tuple(self._data)
        return LogStretch(
            log, position, at - position, self._crc, self.first, self.end, self.max_timestamp, data
        )
