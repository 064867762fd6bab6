"""`cut_log`: truncates a segment's log at a timestamp or at an offset, which may lie within a batch.

On disk the file is truncated. If the cut is within a batch, the batch's records before the cut are written as
a batch at the end of the file, with the base offset, base timestamp, codec, producer, sequence and leader
epoch of the whole batch. Then the file is synced. Threads: one for each file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files, Handle
from segstore.records import CODEC_MASK, MAGIC, Records, batch_ptr, batch_type, decode
from segstore.records.bring_up import bring_up
from segstore.records.header import DELETE_HORIZON_FLAG
from segstore.storage.cleaner.offset_map import checked, columns
from segstore.storage.cleaner.rewrite import compressed
from segstore.storage.segment.batch_scan import BAD, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROWTH = 16
"""Bytes by which a rewritten record may grow, because its varints may become longer."""
_LEVELS = dict.fromkeys(range(CODEC_MASK + 1))


class Limit(NamedTuple):
    """The limit of a log. The first record whose timestamp is above `time` (ms; None: no limit), or whose
    offset is at least `end`, is cut off, and so are all records after it.
    """

    time: int | None
    end: int

    def passed(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return a mask of the batches that may have records beyond the limit."""
        found: NDArray[np.bool_] = batches["last_offset"] >= self.end
        if self.time is not None:
            found |= batches["max_timestamp"] > self.time
        return found

    def kept(self, records: Records) -> int:
        """Return the number of records before the first record beyond the limit."""
        late: NDArray[np.bool_] = records.offsets >= self.end
        if self.time is not None:
            late |= records.timestamps > self.time
        return int(late.argmax()) if late.any() else len(records)


def cut_log(files: Files, path: str, base_offset: int, limit: Limit) -> int | None:
    """Truncate the log of a segment at the limit. Return the offset after the last record that remains, or
    the segment's base offset if no record remains. Return None, and change nothing, if all records of the log
    are within the limit. Raises CorruptRecordError, OSError.
    """
    with files.open(path, write=True) as handle:
        found = _find(files, handle, base_offset, limit)
        if found is None:
            return None
        files.truncate(handle, found.position)
        if found.rest:
            files.pwrite(handle, found.rest, found.position)
        files.sync(handle)
    return found.end


def drop_below(files: Files, path: str, base_offset: int, first: int) -> None:
    """Remove the batches with offsets below `first` from the beginning of a segment's log. No batch may have
    records on both sides of `first`. Raises CorruptRecordError, OSError.
    """
    with files.open(path) as handle:
        size = files.size(handle)
        at = _position_of(files, handle, base_offset, first)
        with files.open_anew(path + names.TEMPORARY) as out:
            files.copy_range(handle, at, out, 0, size - at)
            files.sync(out)
    files.rename(path + names.TEMPORARY, path)


def _position_of(files: Files, handle: Handle, base_offset: int, first: int) -> int:
    """Return the position of the first batch with offsets from `first` on."""
    size, at = files.size(handle), 0
    for step in walk(files, handle, 0, size, check_crcs=False, least=base_offset):
        behind = np.flatnonzero(step.batches["last_offset"] >= first)
        if len(behind):
            return int(step.batches["position"][behind[0]])
        at = step.stop.position
    if at < size:
        raise CorruptRecordError(handle.path, at, first, "no valid batch")
    return size


class _Cut(NamedTuple):
    """The cut of a log: the bytes `rest` are written at `position`, and the log then ends at offset `end`."""

    position: int
    rest: bytes
    end: int


def _find(files: Files, handle: Handle, base_offset: int, limit: Limit) -> _Cut | None:
    size, end, at, reason = files.size(handle), base_offset, 0, ""
    for step in walk(files, handle, 0, size, check_crcs=False, least=base_offset):
        batches = step.batches
        for i in np.flatnonzero(limit.passed(batches)).tolist():
            least = int(batches["last_offset"][i - 1]) + 1 if i else end
            batch = batches[i : i + 1]
            position = int(batch["position"][0])
            data = step.data[position - step.position :][: int(batch["size"][0])]
            rest = _first_of(data, batch, handle.path, least, limit)
            if rest is not None:
                return _Cut(position, *rest)
        if len(batches):
            end = step.stop.last_offset + 1
        at, reason = step.stop.position, BAD.get(step.stop.status, "")
    if at < size:
        raise CorruptRecordError(handle.path, at, end, reason or "the file was cut")
    return None


def _first_of(
    data: bytes, batch: NDArray[np.void], where: str, least: int, limit: Limit
) -> tuple[bytes, int] | None:
    """Cut a batch at the limit. Return (bytes of a batch with only the records within the limit, offset after
    the last of them), or None if all records of the batch are within the limit.
    """
    at, codec = int(batch["position"][0]), int(batch["attributes"][0]) & CODEC_MASK
    if batch["magic"][0] != MAGIC:
        data, batch = bring_up(data, batch, where, at, least=least)
        at = 0
    records = decode(data, batch, where, at)
    kept = limit.kept(records)
    if kept == len(records):
        return None
    if not kept:
        return b"", least
    return _encoded(data, at, batch, records, kept, codec), int(records.offsets[kept - 1]) + 1


def _encoded(data: bytes, at: int, batch: NDArray[np.void], records: Records, kept: int, codec: int) -> bytes:
    """Return the bytes of batches with the first `kept` of `records`, compressed by `codec`."""
    n, before = len(batch), batch["attributes"].copy()
    source = batch.copy()
    # `seg_compact` gives a batch with a tombstone a delete horizon, unless the batch has this flag.
    source["attributes"] |= DELETE_HORIZON_FLAG
    keep: NDArray[np.uint8] = np.full(max(len(records), 1), lib.SEG_DROP, np.uint8)
    keep[:kept] = lib.SEG_KEEP
    room = len(data) + len(records.arena) + _GROWTH * (len(records) + 8 * n)
    out, batches, made = np.empty(room, np.uint8), np.empty(n, batch_type()), np.empty(n, np.uint8)
    how: Any = ffi.new("seg_cleaning *")
    used = lib.seg_compact(
        data, len(data), at, records.arena, len(records.arena), batch_ptr(source),
        bytes(n), bytes([codec] * n), n, columns(records), how,
        held("uint8_t *", keep), held("uint8_t *", out), room, batch_ptr(batches), held("uint8_t *", made),
    )  # fmt: skip
    checked(used)
    batches = batches[: how.batches]
    batches["attributes"] = (before[: how.batches] & ~CODEC_MASK) | codec
    batches["last_offset"][-1] = int(records.offsets[kept - 1])
    if codec:
        return bytes(compressed(out.data[:used], batches, np.ones(len(batches), np.bool_), _LEVELS)[0])
    return _sealed(out, batches)


def _sealed(out: NDArray[np.uint8], batches: NDArray[np.void]) -> bytes:
    headers = batch_ptr(batches)
    for i, (at, size) in enumerate(zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)):
        checked(lib.seg_seal(held("uint8_t *", out) + at, size, headers + i))
    return out[: int(batches["size"].sum())].tobytes()
