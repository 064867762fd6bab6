"""Scans the batches of a `.log` file in bounded steps: for recovery, index rebuilds, check and look-ups.

Files on disk are only read. Threads: any; nothing is shared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.files import Files, Handle
from segstore.names import MAX_OFFSET
from segstore.records import BATCH_SIZE, LEAST_ENTRY, ScanEnd, batch_type, scan, scan_headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 4 << 20
LARGE = 16 << 10  # a sparse scan does not read the records of batches above this many bytes
AT_A_TIME = 4096
# The search for the next undamaged batch after damage reads at most so many bytes at once.
MOST_SEARCHED = 64 << 20
BAD = {
    lib.SEG_SHORT: "the file ends within the batch",
    lib.SEG_BAD_LENGTH: "impossible length",
    lib.SEG_BAD_MAGIC: "no magic of 0 to 2",
    lib.SEG_BAD_CRC: "CRC mismatch",
    lib.SEG_BAD_OFFSETS: "impossible offsets",
    lib.SEG_BAD_COUNT: "impossible record count",
}

_BASE_OFFSET_AT, _base_offset = ffi.offsetof("seg_batch", "base_offset"), struct.Struct("q").unpack_from


class ScanStep(NamedTuple):
    """The bytes that were read at `position`, the whole batches in them, and why the step ended."""

    position: int
    data: bytes
    headers: bytearray
    """A `seg_batch` for each batch."""
    stop: ScanEnd

    @property
    def batches(self) -> NDArray[np.void]:
        """Return the headers as an array of `batch_type`."""
        return np.frombuffer(self.headers, batch_type())

    @property
    def c(self) -> Any:
        """Return the headers as a C array, `seg_batch[]`."""
        return held("seg_batch[]", self.headers)

    @property
    def end_offset(self) -> int | None:
        """Return the offset after the last batch, None without a batch."""
        return self.stop.last_offset + 1 if self.headers else None


def walk(
    files: Files,
    handle: Handle,
    position: int,
    end: int,
    *,
    check_crcs: bool,
    chunk: int = CHUNK,
    sparse: bool = False,
    large: bool = False,
    least: int = -1,
) -> Iterator[ScanStep]:
    """Yield steps of whole batches from `position` to `end`, about `chunk` bytes each.

    A batch that begins below offset `least`, or below the end of the batch before, counts as damage. If
    `sparse`, the records of large batches are not read, and steps with such batches have no data. `large`:
    whether the caller expects that the first batches are large.

    If the last step's `stop.position` is `end`, the whole range was read. Otherwise the batch at that
    position is damaged, cut off or missing. A wrong CRC is found only if `check_crcs`.
    """
    size = chunk
    if large:
        yield (step := _headers_alone(files, handle, position, end, least))
        position, least = step.stop.position, max(least, step.stop.last_offset + 1)
    while position < end:
        length = min(size, end - position)
        data = files.pread(handle, length, position)
        headers, stop = scan_headers(data, position, check_crcs=check_crcs, least=least)
        # `scan_headers` does not compare the first base offset with `least`.
        if headers and _base_offset(headers, _BASE_OFFSET_AT)[0] < least:
            headers, stop = bytearray(), ScanEnd(position, 0, -1, lib.SEG_BAD_OFFSETS)
        step_start, least = position, max(least, stop.last_offset + 1) if stop.last_offset >= 0 else least
        yield ScanStep(position, data, headers, stop)
        if stop.status == lib.SEG_SHORT:
            missing = max(stop.need, LEAST_ENTRY)
            if stop.position + missing > end or len(data) < length:
                return
            size = max(chunk, missing)
        elif stop.status not in (lib.SEG_END, lib.SEG_FULL) or not data:  # the file is shorter than `end`
            return
        position = stop.position
        if sparse and headers and (position - step_start) * BATCH_SIZE // len(headers) > LARGE:
            step = _headers_alone(files, handle, position, end, least)
            if step.headers:
                yield step
                position, least = step.stop.position, step.stop.last_offset + 1


def _headers_alone(files: Files, handle: Handle, position: int, end: int, least: int) -> ScanStep:
    """Return a step with up to AT_A_TIME headers, each from a read of its own. The step ends before bytes
    that are no header.
    """
    room = min(AT_A_TIME, (end - position) // LARGE + 1)
    out = ffi.new("seg_batch[]", room)
    n = files.read_by(handle, lambda fd: lib.seg_read_headers(fd, position, end, least, out, room))
    at, last = (out[n - 1].position + out[n - 1].size, out[n - 1].last_offset) if n else (position, least - 1)
    return ScanStep(
        position, b"", bytearray(ffi.buffer(out, n * BATCH_SIZE)), ScanEnd(at, 0, last, lib.SEG_END)
    )


def next_whole(files: Files, handle: Handle, position: int, end: int, least_offset: int) -> int | None:
    """Return the position of the first whole, valid batch from byte `position` on with a base offset of at
    least `least_offset`; None if there is no such batch.

    This finds the next batch after damage. Every byte is tried, and only a batch with a matching CRC counts.
    """
    size = CHUNK
    while position < end:
        asked = min(size, end - position)
        data = files.pread(handle, asked, position)
        found = lib.seg_resync(ffi.from_buffer("uint8_t[]", data), len(data), 0, least_offset, MAX_OFFSET)
        if found >= 0:
            return position + int(found)
        # These were the last bytes of the range or the file.
        if position + len(data) >= end or len(data) < asked:
            return None
        # A batch may begin within these bytes and end after them. So next, more bytes are read from the same
        # position.
        if size < MOST_SEARCHED:
            size *= 4
        else:
            position += len(data) - MOST_SEARCHED // 2
    return None


def walk_past_damage(
    files: Files,
    handle: Handle,
    end: int,
    *,
    check_crcs: bool,
    sparse: bool = False,
    start: int = 0,
    chunk: int = CHUNK,
) -> Iterator[ScanStep]:
    """Yield steps of whole batches from byte `start` to `end`, and continue after damaged bytes. If a step
    does not begin where the step before stopped, the bytes between these two positions are damaged. `walk`
    explains `sparse` and `chunk`.
    """
    position, least = start, 0
    while position < end:
        last, before = position, None
        for step in walk(files, handle, position, end, check_crcs=check_crcs, chunk=chunk, sparse=sparse):
            yield step
            last = step.stop.position
            if step.headers:
                before, least = step, step.stop.last_offset + 1
        if last >= end:
            return
        if before is not None and not check_crcs and not _crc_holds(files, handle, before.batches[-1]):
            # The last offset in the header of the last batch may be wrong, too. So the search must also find
            # good batches below that offset.
            least = int(before.batches["base_offset"][-1]) + 1
            last -= 1
        found = next_whole(files, handle, last + 1, end, least)
        position = end if found is None else found


def _crc_holds(files: Files, handle: Handle, batch: np.void) -> bool:
    data = files.pread(handle, int(batch["size"]), int(batch["position"]))
    return len(scan(data, int(batch["position"]))[0]) == 1
