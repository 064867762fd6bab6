"""A segment as readers see it: `<base offset>.log` and the two sparse indexes beside it.

Threads: any, without locks. A reader's view has the end of the visible part of the segment, and bytes after
that end are never read. An index is only a hint. Each entry is checked against the batch that it points to;
if the entry is wrong, the index is rebuilt from the log and the search begins again.
"""

from __future__ import annotations

import errno
import os
import struct
import weakref
from itertools import count
from typing import Any

from segstore import names
from segstore._native import ffi, lib
from segstore.errors import CorruptRecordError, StorageError
from segstore.files import Handle
from segstore.index import OffsetIndex, TimeIndex
from segstore.index.sparse import View
from segstore.mutex import Mutex
from segstore.records import CODEC_MASK, MAGIC, bring_up, scan
from segstore.storage.handle_pool import HandlePool
from segstore.storage.segment import index_files
from segstore.storage.segment.batch_scan import BAD, next_whole, walk

_FIRST_BAD = -10100  # seg_seek returns -(10100 + SEG_SHORT or SEG_BAD_*)
_TIME_CHUNK = 1 << 20
_numbers = count(1)
_fill = struct.Struct("5q").pack_into  # this packs the fields of `seg_segment`, except the last field


class Segment:
    """One segment of a log. A reader in another process may see the active segment below offset `visible`."""

    def __init__(
        self,
        pool: HandlePool,
        directory: str,
        base_offset: int,
        size: int,
        *,
        writable: bool,
        sealed: bool = True,
        interval: int = index_files.DEFAULT_INTERVAL,
    ) -> None:
        self.pool, self.directory, self.base_offset = pool, directory, base_offset
        self.final_size = size
        """The size in bytes of a segment that this process does not append to. It equals `size`, but costs no
        function call.
        """
        self.end: Any = None
        """The record (`seg_end`) of the segment's end while the segment is open for appending."""
        self._stem = f"{directory}/{names.segment_file(base_offset, '')}"
        self.path = self._stem + names.LOG
        self._key = self.path, False
        self.writable, self.sealed, self.interval = writable, sealed, interval
        self.visible = names.MAX_OFFSET
        self.may_be_old = False
        """Whether the log may have messages of magic 0 or 1. Brokers have written such messages; segstore
        never writes them.
        """
        self.number = next(_numbers)
        """A number that no other segment of this process has; it is the key of cached data about the log's
        bytes.
        """
        self.dense: tuple[Any, ...] = ()
        """Ranges of offsets without gaps, which scans of headers have found (`storage.scans.dense`)."""
        self.durable = False  # whether the log was synced under another name, and has not changed after that
        self.unsynced_aborts = False  # whether the `.txnindex` has grown after its last sync
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._held: Handle | None = None
        self.identity: tuple[int, ...] = ()
        """If another process writes the log, the first numbers that `Files.identity` has returned for the
        log. They identify the file.
        """
        self._known: weakref.ref[Handle] | None = None
        self._largest: int | None = None
        self._loading = Mutex()

    @property
    def size(self) -> int:
        """Return the size in bytes of the log up to its last batch. After an assignment to this property,
        appends no longer change it.
        """
        end = self.end
        return self.final_size if end is None else int(end.position)

    @size.setter
    def size(self, size: int) -> None:
        self.final_size, self.end = size, None

    def file(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return self._stem + suffix

    @property
    def handle(self) -> Handle:
        """Return the open log, which stays open as long as a reference to the returned handle exists."""
        open_handle = self._held
        if open_handle is not None:
            return open_handle
        handle = self.pool.opened(self._key) or self.pool.get(self.path)
        if self.identity and (self._known is None or self._known() is not handle):
            handle = self._checked(handle)
        # If `hold` was called while the file was being opened, the opened file may belong to another segment,
        # and `_held` is the right file.
        return self._held or handle

    def ready(self) -> tuple[Handle, View] | None:
        """Return the log and the view of its offset index if the log is open and the index is loaded, else
        None.
        """
        indexes = self._indexes
        handle = self._held or self.pool.opened(self._key)
        if handle is None or indexes is None:
            return None
        if self.identity and self._held is None and (self._known is None or self._known() is not handle):
            return None
        return handle, indexes[0].view

    def fields(self, end: int, end_offset: int, index: View | None = None) -> tuple[Any, ...]:
        """Return the fields of C's struct (`seg_segment`) for a reader that may see the segment below byte
        `end` and offset `end_offset`. The last field keeps the memory of the offset index alive. `index` is a
        view of the offset index; None stands for the view of the segment's current index.

        Raises OSError or CorruptRecordError if the index can't be loaded.
        """
        view = self.indexes[0].view if index is None else index
        return self.number, view[1], self.base_offset, end, end_offset, view[0]

    def fill(self, c: Any, memory: Any, end: int, end_offset: int) -> View:
        """Set the values of `fields` in the struct `c`, through its bytes `memory`. This takes half the time
        of assignments by cffi. Return the view of the offset index, which the caller must keep as long as it
        uses the struct.
        """
        view = (self._indexes or self.indexes)[0].view
        _fill(memory, 0, self.number, view[1], self.base_offset, end, end_offset)
        c.index = view[0]
        return view

    def _checked(self, handle: Handle) -> Handle:
        """Return `handle` if it is a handle of this segment's file, else a new handle. Raises
        FileNotFoundError if the path has another file, because compaction has replaced the segment.
        """
        files, n = self.pool.files, len(self.identity)
        if files.identity(handle)[:n] != self.identity:
            self.pool.forget(self.path)
            handle = self.pool.get(self.path)
            if files.identity(handle)[:n] != self.identity:
                raise FileNotFoundError(errno.ENOENT, "The segment was replaced", self.path)
        self._known = weakref.ref(handle)
        return handle

    def hold(self, handle: Handle, indexes: tuple[OffsetIndex, TimeIndex]) -> None:
        """Keep `handle` and `indexes`: all reads before the call of `release` use them, even if other files
        get the names of these files.
        """
        with self._loading:
            self._held, self._indexes, self._largest = handle, indexes, None
            # Another segment's files may have this segment's names now, so rebuilt indexes must not be
            # written.
            self.writable = False

    def retire(self) -> None:
        """Continue with the files that are open now, because another segment's files are about to get the
        names of these files. Readers of this segment object read the old files from then on.
        """
        self.hold(self.handle, self.indexes)

    def release(self) -> None:
        """End `hold`, because the files with this segment's names are its own files now. The next read opens
        them anew. The caller has made the pool forget the path.
        """
        with self._loading:
            self.writable, self._held, self._indexes = True, None, None

    def attach(self, indexes: tuple[OffsetIndex, TimeIndex] | None, end: Any = None) -> None:
        """Use the writer's `indexes` from now on; None: load the indexes from their files on demand. If
        `end`, the writer's `seg_end`, is given, take the segment's end from it.
        """
        self._indexes, self._largest = indexes, None
        if end is not None:
            self.end = end
        self.number = next(_numbers)

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the offset index and the time index: the writer's indexes, or indexes that are loaded from
        the files.
        """
        found = self._indexes
        if found is None:
            with self._loading:
                found = self._indexes
                if found is None:
                    found = self._indexes = index_files.load(self)
        return found

    def distrust(self) -> None:
        """Rebuild the indexes of a sealed segment, because an entry pointed to a wrong position. In an active
        segment do nothing, because the writer's indexes are always right.
        """
        if self.sealed:
            with self._loading:
                self._indexes, self._largest = index_files.rebuild(self), None

    def locate(self, target: int, end: int, handle: Handle | None = None) -> Any:
        """Return the header (`seg_batch *`) of the batch that holds offset `target`, or of the next batch,
        below byte `end`; None if there is no such batch.

        Raises CorruptRecordError if `target` lies in bytes that are no batch.
        """
        out = ffi.new("seg_batch *")
        hint = (self._indexes or self.indexes)[0].lookup(target - self.base_offset)
        if hint is not None and hint[1] >= end:
            hint = None
        position = hint[1] if hint is not None else 0
        code = self.pool.files.seek_batch(handle or self.handle, position, end, target, out)
        if code < 0:
            self._check_read(code)
        wrong = code < 0 or (
            hint is not None and not index_files.is_of_entry(out, self.base_offset + hint[0])
        )
        if wrong and hint is not None and out.position == position:
            self.distrust()
            return self.locate_from(0, target, end, out)
        return (out if code else None) if code >= 0 else self.locate_from(position, target, end, out)

    def locate_from(self, position: int, target: int, end: int, out: Any) -> Any:
        """Do the work of `locate`, but search from byte `position`, where the wanted batch or an earlier
        batch starts.
        """
        while True:
            code = self._seek(self.handle, position, end, target, out)
            if code >= 0:
                return out if code else None
            bad, least = self._first_damage(position, int(out.position))
            # If this batch's offset does not follow the batch before, the damage may be in the batch before.
            reason = BAD[_FIRST_BAD - code if bad == out.position else lib.SEG_BAD_CRC]
            position = self.pass_by(bad, least, target, end, reason)

    def pass_by(self, bad: int, least: int, target: int, end: int, reason: str) -> int:
        """Return the position of the first whole batch that lies after the damaged batch at byte `bad` and
        has a base offset of at least `least`.

        Raises CorruptRecordError if `target` lies before that batch. If there is no such batch, the error has
        no `next_offset`.
        """
        found = next_whole(self.pool.files, self.handle, bad + 1, end, least)
        header = ffi.new("seg_batch *")
        if found is None or self.header_at(found, end, header) is None:
            raise CorruptRecordError(self.path, bad, target, reason)
        if target < header.base_offset:
            raise CorruptRecordError(self.path, bad, target, reason, int(header.base_offset))
        return found

    def check_before(self, position: int, target: int, back: int) -> None:
        """Raise CorruptRecordError if a batch fails its CRC between the index entry for `target` and byte
        `position`, because that batch may hold `target`. The error gives `back` as the offset at which a
        reader may continue.
        """
        hint = self.indexes[0].lookup(target - self.base_offset)
        start = 0 if hint is None or hint[1] >= position else hint[1]
        bad, _ = self._first_damage(start, position)
        if bad < position:
            raise CorruptRecordError(self.path, bad, target, BAD[lib.SEG_BAD_CRC], back)

    def _first_damage(self, start: int, position: int) -> tuple[int, int]:
        """Check the CRCs of the batches between bytes `start` and `position`. Return (byte at which the first
        damaged batch begins, least offset that a batch there may have); the byte is `position` if no batch
        is damaged.
        """
        at, least = start, self.base_offset
        for step in walk(self.pool.files, self.handle, start, position, check_crcs=True):
            least = step.end_offset or least
            at = step.stop.position
        return at, least

    def header_at(self, position: int, end: int, out: Any) -> int | None:
        """Put the header of the batch at `position` into `out`; return the batch's last offset, None if there
        is no batch. For a wrapper of messages the base offset is read from its first message.
        """
        if self._seek(self.handle, position, end, 0, out) != 1:
            return None
        if out.magic != MAGIC and out.attributes & CODEC_MASK:
            out.base_offset = self._wrapper_base(int(out.position), int(out.size), int(out.last_offset))
        return int(out.last_offset)

    def _wrapper_base(self, position: int, size: int, last_offset: int) -> int:
        """Return the offset of the first message in a wrapper; `last_offset` if the wrapper is damaged."""
        data = self.pool.files.pread(self.handle, size, position)
        try:
            _, batches = bring_up(data, scan(data, position)[0], self.path, position)
        except CorruptRecordError:
            return last_offset
        return int(batches["base_offset"][0]) if len(batches) else last_offset

    def _seek(self, handle: Handle, position: int, end: int, target: int, out: Any) -> int:
        code = self.pool.files.seek_batch(handle, position, end, target, out)
        if code < 0:
            self._check_read(code)
        return code

    def _check_read(self, code: int) -> None:
        """Raise StorageError if `code`, a result of `Files.seek_batch`, is an errno, because a failed read
        does not prove damage.
        """
        if _FIRST_BAD < code < 0:
            raise StorageError(-code, os.strerror(-code), self.path)

    def last_offset_before(self, position: int) -> int:
        """Return the last offset of the batches below a position; if there is no such batch, the segment's
        base offset minus one.
        """
        end = self.base_offset
        for step in walk(self.pool.files, self.handle, 0, position, check_crcs=False):
            end = step.end_offset or end
        return end - 1

    def largest_timestamp(self, end: int, below: int) -> int | None:
        """Return the largest timestamp (ms) of the batches below byte `end` and offset `below`, -1 if no
        batch has a timestamp, None if damage may hide the largest.
        """
        if self._largest is not None:
            return self._largest
        # The last time index entry has the largest timestamp up to its batch, so only later batches are read.
        last, position = self._last_time_entry(end)
        largest, offset = last, self.base_offset
        for step in walk(self.pool.files, self.handle, position, end, check_crcs=False, chunk=_TIME_CHUNK):
            position = step.stop.position
            if step.headers:
                # Bytes beyond the segment's end may look like batches, but do not belong to the log.
                of = [h.max_timestamp for h in step.c if h.count > 0 and h.base_offset < below]
                largest = max([largest, *of])
                offset = step.stop.last_offset + 1
        if position < end and offset < below:
            return None
        if self.sealed:
            if largest > last and self.indexes[1].entries and self.indexes[1].entry(-1)[0] < largest:
                # Sealing added an entry with the largest timestamp. That entry is missing, so the index was
                # cut.
                self.distrust()
            self._largest = largest
        return largest

    def _last_time_entry(self, end: int) -> tuple[int, int]:
        times = self.indexes[1]
        if not times.entries:
            return -1, 0
        timestamp, relative = times.entry(-1)
        found = self._of_entry(relative, end)
        if found is None or found.max_timestamp != timestamp:
            self.distrust()
            return -1, 0
        return timestamp, int(found.position)

    def position_for_time(self, timestamp: int, end: int) -> int:
        """Return a position before which no batch has a timestamp of at least `timestamp` (ms)."""
        hint = self.indexes[1].lookup(timestamp - 1)
        if hint is None:
            return 0
        found = self._of_entry(hint[1], end)
        return 0 if found is None or found.max_timestamp != hint[0] else int(found.position)

    def _of_entry(self, relative: int, end: int) -> Any:
        """Return the header of the batch that a time index entry points to, or of the next batch if that
        batch is missing; None if there is no next batch either, or a batch is damaged.
        """
        try:
            return self.locate(self.base_offset + relative, end)
        except CorruptRecordError:
            return None
