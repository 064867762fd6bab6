"""Loads and checks a segment's `.index` and `.timeindex` files, and rebuilds them from the log.

On disk a rebuild replaces the two index files, by rename. Threads: `load` and `rebuild` are called with the
segment's loading lock held.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any, Protocol

from segstore import names
from segstore._native import held, lib
from segstore.files import Files, Handle
from segstore.files.reserve import NO_ROOM
from segstore.index import IndexBuilder, SealedOffsetIndex, SealedTimeIndex, replace_index
from segstore.index.sparse import MOST_RELATIVE
from segstore.logger import Logger
from segstore.records import BATCH_SIZE, MAGIC
from segstore.storage.handle_pool import HandlePool
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.segment.batch_scan import walk, walk_past_damage

log = Logger("segstore")

DEFAULT_INTERVAL = 4096
_TAIL = 65536
Indexes = tuple[SealedOffsetIndex, SealedTimeIndex]
_NO_ENTRIES = SealedOffsetIndex.of(b""), SealedTimeIndex.of(b"")


class Indexed(Protocol):
    """The attributes of a segment that are needed to make its indexes."""

    pool: HandlePool
    path: str
    base_offset: int
    size: int
    interval: int
    visible: int
    sealed: bool
    writable: bool

    @property
    def handle(self) -> Handle:
        """Return the open log."""

    def file(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""


def load(segment: Indexed) -> Indexes:
    """Return the segment's indexes. The indexes are rebuilt first if a file is missing or too short, or if
    entries are out of order or point outside of the log.
    """
    found = _from_files(segment)
    return rebuild(segment) if found is None else found


def _from_files(segment: Indexed) -> Indexes | None:
    files, paths = segment.pool.files, (segment.file(names.INDEX), segment.file(names.TIME_INDEX))
    try:
        # The writer may have appended since the reader's view was made, so entries of batches after the
        # view's end are skipped.
        most = min(segment.visible - segment.base_offset, MOST_RELATIVE + 1)
        bounds = {"log_size": segment.size, "end_relative": most}
        offsets = SealedOffsetIndex(files, paths[0], mapped=segment.sealed, **bounds)
        times = SealedTimeIndex(files, paths[1], mapped=segment.sealed, **bounds)
    except OSError as error:
        # Indexes are only hints, so an index that can't be read, for example on a bad sector, counts as
        # missing. Other errors, for example a lack of descriptors, are raised, because they are no damage.
        if error.errno not in NOT_A_FILE | {errno.ENOENT, errno.EIO}:
            raise
        return None
    later = segment.visible < names.MAX_OFFSET
    if (not later and (offsets.damaged or times.damaged)) or not _whole(segment, offsets, times):
        return None
    if segment.sealed and segment.size and not times.entries and not _timeless(segment):
        return None
    return offsets, times


def _whole(segment: Indexed, offsets: SealedOffsetIndex, times: SealedTimeIndex) -> bool:
    """Return whether the last entry of each index is right, and no entry is missing for the batches after the
    last entry.
    """
    last, position = offsets.entry(-1) if offsets.entries else (-1, 0)
    end = last  # `end` is the relative offset of the last batch that was seen
    builder = IndexBuilder(segment.base_offset, segment.interval)
    for step in walk(
        segment.pool.files, segment.handle, position, segment.size, check_crcs=False, chunk=_TAIL
    ):
        if not step.headers and step.stop.status == lib.SEG_SHORT:
            continue  # the next step is larger, and will have the whole batch
        if not step.headers:
            return last < 0  # the entry points to damage, which a read will report
        headers = step.c
        if (
            last >= 0
            and step.position == position
            and not is_of_entry(headers[0], segment.base_offset + last)
        ):
            return False
        fitting = _fitting(segment, step.headers, headers)
        if builder.add(fitting)[0] and all(header.magic == MAGIC for header in held("seg_batch[]", fitting)):
            return False
        end = headers[len(headers) - 1].last_offset - segment.base_offset
    # Entries of the offset index were checked against the log's size. A time index entry has no position, so
    # its offset is compared with the log's last offset.
    return not times.entries or (times.entry(-1)[1] <= end and _is_right(segment, offsets, *times.entry(-1)))


def is_of_entry(header: Any, last_offset: int) -> bool:
    """Return whether an offset index entry with this last offset may point to this header (`seg_batch *`). A
    batch of magic 2 must end at the entry's offset. For messages of magic 0 and 1 brokers made one entry for
    a whole append: the entry points to the first message, and has the offset of the last message.
    """
    return bool(
        header.last_offset == last_offset or (header.magic != MAGIC and header.last_offset < last_offset)
    )


def _is_right(segment: Indexed, offsets: SealedOffsetIndex, stamp: int, relative: int) -> bool:
    """Return whether a time index entry is right: the batch that holds offset `relative` ends with that
    offset, and has `stamp` as its largest timestamp. Return True if damage prevents the check. Offset and
    timestamp are both checked, because a power cut may leave half of an entry.
    """
    hint = offsets.lookup(relative)
    position, target = hint[1] if hint else 0, segment.base_offset + relative
    files, handle = segment.pool.files, segment.handle
    for step in walk(files, handle, position, segment.size, check_crcs=False, chunk=_TAIL):
        for header in step.c:
            if header.last_offset >= target:
                # Some brokers write the offset of the record with the timestamp, not the last offset of its
                # batch.
                ends_there = header.last_offset == target or not segment.writable
                return ends_there and header.max_timestamp == stamp
    return True


def _fitting(segment: Indexed, memory: bytearray, headers: Any) -> bytearray:
    """Return the memory of the leading headers with offsets in this segment's range."""
    most = min(segment.base_offset + MOST_RELATIVE, segment.visible - 1)
    n = lib.seg_index_fitting(headers, len(headers), segment.base_offset, most)
    return memory if n == len(headers) else memory[: n * BATCH_SIZE]


def _timeless(segment: Indexed) -> bool:
    """Return whether no batch of the segment has a timestamp."""
    for step in walk(segment.pool.files, segment.handle, 0, segment.size, check_crcs=False):
        first = step.c[0] if step.headers else None
        if first is not None and first.count > 0 and first.max_timestamp >= 0:
            return False  # this check needs no numpy, whose import would delay a new host
        if (step.batches["max_timestamp"][step.batches["count"] > 0] >= 0).any():
            return False
    return True


def build(files: Files, segment: Indexed, end: int) -> tuple[bytes, bytes]:
    """Return (offset index entries, time index entries) for the first `end` bytes of the log, including the
    time index entry that sealing adds.
    """
    builder = IndexBuilder(segment.base_offset, segment.interval)
    made = [
        builder.add(_fitting(segment, step.headers, step.c))
        for step in walk_past_damage(files, segment.handle, end, check_crcs=False, sparse=True)
    ]
    times = b"".join(t for _, t in made) + builder.last_time_entry()
    return b"".join(o for o, _ in made), times


def begin_anew(segment: Indexed) -> Indexes:
    """Remove a segment's index files, and return indexes without entries. The files are not cut, because
    other processes may have mapped them. Raises OSError.
    """
    for suffix in (names.INDEX, names.TIME_INDEX):
        path = segment.file(suffix)
        if segment.pool.files.exists(path):
            segment.pool.files.unlink(path)
    return _NO_ENTRIES


def sync(segment: Indexed) -> None:
    """Make a sealed segment's indexes durable. Raises OSError."""
    for suffix in (names.INDEX, names.TIME_INDEX):
        with (
            suppress(FileNotFoundError),  # the segment was deleted
            segment.pool.files.open(segment.file(suffix), write=True) as handle,
        ):
            segment.pool.files.sync(handle)


def rebuild(segment: Indexed) -> Indexes:
    """Build both indexes from the log, and return them. If this process writes the segment, also replace the
    index files, unless the disk is full.
    """
    files = segment.pool.files
    offset_entries, time_entries = build(files, segment, segment.size)
    if segment.writable:
        try:
            replace_index(files, segment.file(names.INDEX), offset_entries, sync=segment.sealed)
            replace_index(files, segment.file(names.TIME_INDEX), time_entries, sync=segment.sealed)
        except OSError as error:
            if error.errno not in NO_ROOM or not segment.sealed:
                raise  # the index files of an active segment get more entries, so these files must be whole
            log.warning("%s: no room for its indexes: they are rebuilt at the next open", segment.path)
    return SealedOffsetIndex.of(offset_entries), SealedTimeIndex.of(time_entries)
