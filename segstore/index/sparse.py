"""The sparse indexes of a segment, the offset index and the time index: files of entries of a fixed size, in
rising order.

An active index is empty before its first entry. Then it grows in steps of 64 KiB. The blocks of each step are
allocated, because on a full disk a write through the mapping into a hole of the file would raise SIGBUS. The
bytes after the entries are zeros. A sealed index is truncated to its entries. A broker's index may be
preallocated, so the number of entries is never taken from the file's size.

Threads: one writer, and any number of look-ups at the same time, without locks. A look-up works on a `View`,
which the writer replaces whole. A view reads only the entries below its count. These entries never change,
and a file is only truncated after them. Only `truncate_to` removes entries, and leaves zeros in their place.
The mapping of an old view is unmapped when the last reference to the mapping is dropped. Other processes map
only sealed files, and read active files by pread.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from segstore._native import ffi, held, lib
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.files.reserve import NO_ROOM, in_reserve
from segstore.integers import INT32_MAX

if TYPE_CHECKING:
    from typing_extensions import Self

GROWTH = 65536
_LEAST_BATCH = 26  # the size in bytes of the smallest message of magic 0
MOST_RELATIVE = INT32_MAX
"""The largest relative offset and the largest position: both are int32."""
MOST = MOST_RELATIVE + 1


class View(NamedTuple):
    """The entries for look-ups: a C pointer to them, their number, and the memory that has them."""

    pointer: Any
    n: int
    memory: Any


_EMPTY = View(ffi.NULL, 0, b"")
# `_view` makes a `View` by one call of C
_view: Callable[[tuple[Any, ...]], View] = partial(tuple.__new__, View)


class SparseIndex:
    """Looks up entries of two fields. Subclasses define the fields and their order."""

    ENTRY: ClassVar[struct.Struct]
    OFFSET_FIELD: ClassVar[int]  # the index (0 or 1) of the field with the relative offset
    SPARE: ClassVar[int] = 0  # the number of entries that `is_full` leaves free
    _slot: ClassVar[Any]  # C's function for a binary search in the first field
    _valid: ClassVar[Any]  # C's function that counts the entries before the first invalid entry

    _view: View
    _count: Any = None
    """A pointer to the number of entries of an active index; None in a sealed index."""

    def __init__(self, files: Files, path: str | os.PathLike[str]) -> None:
        self._files, self.path = files, os.fspath(path)

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return self.view.n

    @property
    def view(self) -> View:
        """Return the view for C's look-ups, which is valid while it is referenced."""
        return self._view

    def entry(self, slot: int) -> tuple[int, int]:
        """Return both fields of the entry `slot`. Negative slots count from the end. Raises IndexError if
        there is no such entry.
        """
        view = self.view
        slot += view.n if slot < 0 else 0
        if not 0 <= slot < view.n:
            raise IndexError(f"no entry {slot} of {view.n} in {self.path}")
        return self.ENTRY.unpack_from(view.memory, slot * self.ENTRY.size)

    def lookup(self, key: int) -> tuple[int, int] | None:
        """Return the last entry whose first field is at most `key`, or None if there is no such entry."""
        pointer, count, memory = self._view if self._count is None else self.view
        slot = self._slot(pointer, count, key)
        if slot < 0:
            return None
        return self.ENTRY.unpack_from(memory, slot * self.ENTRY.size)

    @classmethod
    def valid_entries(cls, data: Any, end_relative: int, log_size: int) -> int:
        """Return the number of entries of `data` (bytes-like) before the first entry that is out of order or
        outside of the segment.

        The segment has offsets up to `end_relative` (end offset - base offset) and `log_size` bytes.
        """
        with ffi.from_buffer("uint8_t[]", data) as view:
            return int(cls._valid(view, len(view) // cls.ENTRY.size, end_relative, log_size))

    @classmethod
    def parse(cls, data: bytes) -> list[tuple[int, int]]:
        """Return all whole entries of `data`."""
        whole = len(data) - len(data) % cls.ENTRY.size
        return list(cls.ENTRY.iter_unpack(data[:whole]))

    @classmethod
    def format(cls, entries: Iterable[tuple[int, int]]) -> bytes:
        """Return the bytes of the entries."""
        return b"".join(cls.ENTRY.pack(*entry) for entry in entries)


def _mapping(memory: Any) -> tuple[Any, Any]:
    """Return (C pointer to the memory, the memory)."""
    return held("uint8_t[]", memory), memory


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE)


class ActiveIndex(SparseIndex):
    """The writable index of a partition's active segment. No descriptor stays open. C adds the entries of
    appended batches: the segment's `seg_active` points to the entries' memory, and its `seg_end` has their
    number.
    """

    FIELDS: ClassVar[tuple[str, str]]  # fields of `seg_end`: the number of entries, and how many have room
    MEMORY: ClassVar[str]  # the field of `seg_active` that points to the entries

    def __init__(
        self,
        files: Files,
        path: str | os.PathLike[str],
        max_bytes: int,
        end: Any,
        active: Any,
        entries: int = 0,
    ) -> None:
        """Open the file, or create it, and truncate it to its first `entries` entries, which are valid. From
        then on `end` has the number of entries, and `active` points to their memory. Raises OSError.

        `max_bytes` is `segment.index.bytes`.
        """
        super().__init__(files, path)
        self._view = _EMPTY  # the view that was made last
        self._mapped: tuple[Any, Any] = _EMPTY.pointer, _EMPTY.memory
        # The references are kept, because `_count` and `_most` point into `end`.
        self._end, self._active = end, active
        count, most = self.FIELDS
        self._count, self._most = ffi.addressof(end, count), ffi.addressof(end, most)
        self._looked_at = 0  # the largest number of entries that a view had before a `truncate_to`
        self.max_entries = max_bytes // self.ENTRY.size
        # The size of the file in bytes; the bytes after the entries are allocated. While the file grows or is
        # truncated, and after an interrupt during that, `_size` is the larger one of the old and the new
        # size, and `_room` the smaller one. Entries are only written below `_room`.
        self._size = self._room = entries * self.ENTRY.size
        with files.open(path, write=True, create=True) as handle:
            size = files.size(handle)
            if size < self._size:
                raise InvalidArgumentError(f"{self.path} has {size} bytes, too few for {entries} entries")
            if size > self._size:
                files.truncate(handle, self._size)
            if entries:
                self._map(_mapping(files.map(handle, self._size, write=True)))
        # there is no room for more entries before `reserve` is called
        self._count[0], self._most[0] = entries, entries - self.SPARE

    @property
    def view(self) -> View:
        """Return the view for C's look-ups, which is valid while it is referenced."""
        # The count is read before `_mapped`, whose memory then has all counted entries.
        count = self._count[0]
        view, (pointer, memory) = self._view, self._mapped
        if view.n != count or view.memory is not memory:
            view = self._view = _view((pointer, count, memory))
        return view

    def _map(self, mapped: tuple[Any, Any]) -> None:
        self._mapped = mapped  # the reference keeps the memory alive
        setattr(self._active, self.MEMORY, mapped[0])

    def _most_in(self, room: int) -> int:
        """Return the number of entries that fit in `room` bytes, if room for the entry that sealing adds is
        left free.
        """
        return min(room // self.ENTRY.size, self.max_entries - self.SPARE) - self.SPARE

    def is_full(self, n: int = 1) -> bool:
        """Return whether `max_bytes` has no room for `n` more entries."""
        return bool(self._count[0] + n > self.max_entries - self.SPARE)

    def reserve(self, n: int) -> None:
        """Reserve room on disk for `n` more entries. If this raises OSError (ENOSPC), nothing has changed."""
        need = (self._count[0] + n) * self.ENTRY.size
        if need > self._room:
            self._grow(need)

    def append(self, entries: bytes) -> None:
        """Add whole entries. Raises OSError if `reserve` has not made room for them before, and the file
        can't grow.
        """
        n = len(entries) // self.ENTRY.size
        if not n:
            return
        self.reserve(n)
        count = self._count[0]
        need = (count + n) * self.ENTRY.size
        self._mapped[1][need - len(entries) : need] = entries
        self._count[0] = count + n

    def truncate_to(self, relative_offset: int) -> None:
        """Remove the entries with offsets from `relative_offset` on. This needs no room on the disk."""
        n, memory = self._count[0], self._mapped[1]
        keep = n
        while keep and self.entry(keep - 1)[self.OFFSET_FIELD] >= relative_offset:
            keep -= 1
        if keep == n:
            return
        self._looked_at = max(self._looked_at, n)
        self._count[0] = keep
        # The removed entries become zeros. A look-up that is under way may find a zero entry, which stands
        # for the log's start. The search from the start is slow, but finds the right batch.
        size = self.ENTRY.size
        memory[keep * size : n * size] = bytes((n - keep) * size)

    def seal(self) -> None:
        """Truncate the file to its entries. Look-ups still work afterwards, and an append would make the file
        larger again. Raises OSError.
        """
        used = self._count[0] * self.ENTRY.size
        if used == self._size:
            return
        # `_most` is lowered before the file is truncated: C writes entries up to `_most`, and the file must
        # have room for them.
        self._room = used
        self._most[0] = self._most_in(used)
        # An older, longer view may still read a page that a truncation would cut off. In that case a new file
        # replaces the old file instead.
        if self._looked_at and _pages(self._looked_at * self.ENTRY.size) > _pages(used):
            replace_index(self._files, self.path, bytes(self._mapped[1][:used]))
        else:
            with self._files.open(self.path, write=True) as handle:
                self._files.truncate(handle, used)
        self._size = used

    def _grow(self, need: int) -> None:
        most = self.max_entries * self.ENTRY.size
        if need > most:
            raise InvalidArgumentError(f"{self.path} is full: {need} bytes of at most {most}")
        size = min(-(-need // GROWTH) * GROWTH, most)
        try:
            self._grow_to(size)
        except OSError as error:
            least = min(_pages(need) * mmap.PAGESIZE, size)
            if error.errno not in NO_ROOM or least == size:
                raise
            in_reserve(lambda: self._grow_to(least), least)

    def _grow_to(self, size: int) -> None:
        room, self._size = self._room, max(size, self._size)
        with self._files.open(self.path, write=True) as handle:
            try:
                self._files.allocate(handle, room, size - room)
                mapped = _mapping(self._files.map(handle, size, write=True))
            except OSError:
                # posix_fallocate, if it is emulated, may have allocated a part before it failed. That part is
                # cut off. An error of the truncation is ignored, so that the error of the allocation is
                # raised.
                with contextlib.suppress(OSError):
                    self._files.truncate(handle, room)
                    self._size = room
                raise
        self._map(mapped)
        self._most[0] = self._most_in(size)
        self._room = size


class SealedIndex(SparseIndex):
    """A read-only index, which is loaded from an index file, or made from bytes by `of`."""

    def __init__(
        self,
        files: Files,
        path: str | os.PathLike[str],
        *,
        log_size: int = MOST,
        end_relative: int = MOST,
        mapped: bool = True,
    ) -> None:
        """Map the file and count its valid entries. Raises OSError (FileNotFoundError).

        Entries outside the segment's `log_size` (bytes) and `end_relative` (end offset - base offset) are not
        valid. If `mapped` is False, the file is copied into memory, because it may still be written or
        truncated.
        """
        super().__init__(files, path)
        with files.open(path) as handle:
            # A batch has at most one entry, and at least the size of its header. So the log's size limits the
            # number of entries, even if the file has room for more.
            most = (log_size // _LEAST_BATCH + 2) * self.ENTRY.size
            size = min(files.size(handle), most)
            memory: Any = files.map(handle, size) if size and mapped else files.pread(handle, size, 0)
        self._adopt(memory, end_relative, log_size)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return an index with the entries in `data`, without a file."""
        index = cls.__new__(cls)
        SparseIndex.__init__(index, Files(), "memory")
        index._adopt(data, MOST, MOST)
        return index

    def _adopt(self, memory: Any, end_relative: int, log_size: int) -> None:
        n = self.valid_entries(memory, end_relative, log_size)
        pointer, _ = _mapping(memory)
        self._view = View(pointer, n, memory)
        next_entry = memory[n * self.ENTRY.size : (n + 1) * self.ENTRY.size]
        # Whether bytes other than zeros follow the valid entries. Allocated room has only zeros.
        self.damaged: bool = any(next_entry)


def replace_index(files: Files, path: str | os.PathLike[str], entries: bytes, *, sync: bool = False) -> None:
    """Write the entries into a new file, and rename it over the index, which may be missing. Raises OSError.

    Without `sync` a power cut may damage the file; the next load of the index detects this when it validates
    the entries.
    """
    files.write_atomic(path, entries, sync=sync)


# --- offset index ------------------------------------------------------------------------------

# `<base offset>.index`: entries of relative offset int32 and position int32, big-endian
# (org.apache.kafka.storage.internals.log.OffsetIndex). An entry has the last offset of a batch, relative to
# the segment's base offset, and the position at which that batch begins in the log.


class OffsetIndex(SparseIndex):
    """Entries (relative offset, position), which are looked up by relative offset."""

    ENTRY = struct.Struct(">ii")
    OFFSET_FIELD = 0
    _slot = lib.seg_offset_slot
    _valid = lib.seg_offset_valid


class ActiveOffsetIndex(OffsetIndex, ActiveIndex):
    """The offset index of a partition's active segment."""

    FIELDS, MEMORY = ("offset_entries", "offset_room"), "offset_index"


class SealedOffsetIndex(OffsetIndex, SealedIndex):
    """The offset index of a sealed segment, or of an active segment in a reader's process."""


# --- time index --------------------------------------------------------------------------------

# `<base offset>.timeindex`: entries of timestamp int64 and relative offset int32, big-endian
# (org.apache.kafka.storage.internals.log.TimeIndex). An entry has the largest timestamp (ms) of its segment
# so far, and the last offset, relative to the base offset, of the batch with this timestamp. No record up to
# that offset has a later timestamp.


class TimeIndex(SparseIndex):
    """Entries (timestamp, relative offset), which are looked up by timestamp."""

    ENTRY = struct.Struct(">qi")
    OFFSET_FIELD = 1
    SPARE = 1  # room for the entry that sealing adds (`IndexBuilder.last_time_entry`)
    _slot = lib.seg_time_slot

    @staticmethod
    def _valid(data: Any, n: int, end_relative: int, _log_size: int) -> int:
        return int(lib.seg_time_valid(data, n, end_relative))


class ActiveTimeIndex(TimeIndex, ActiveIndex):
    """The time index of a partition's active segment."""

    FIELDS, MEMORY = ("time_entries", "time_room"), "time_index"


class SealedTimeIndex(TimeIndex, SealedIndex):
    """The time index of a sealed segment, or of an active segment in a reader's process."""
