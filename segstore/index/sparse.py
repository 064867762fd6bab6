"""The sparse indexes of a segment, the offset index and the time index: files of fixed-size, rising entries.

On disk an active index is empty until its first entry, then grows by 64 KiB of allocated blocks (a store
through the mapping of a hole on a full disk would be a SIGBUS) and ends in zeros; a sealed one is trimmed to
its entries. A broker's may be preallocated: the count of entries never comes from the file's size.

Threads: one writer, any number of look-ups at the same time, without locks: they work on a `View` that the
writer replaces whole. A view reads below its count only, and entries below it never change: a file is trimmed
behind them. Only `truncate_to` takes some back, and leaves zeros. An old view's mapping is unmapped with its
last reference. Other processes map sealed files only, and read active ones by pread.
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
_LEAST_BATCH = 26  # bytes, of a message of magic 0
MOST_RELATIVE = INT32_MAX
"""The largest relative offset, and the largest position: both are int32."""
MOST = MOST_RELATIVE + 1


class View(NamedTuple):
    """Entries that can be looked up: a C pointer, their number, and the memory they lie in."""

    pointer: Any
    n: int
    memory: Any


_EMPTY = View(ffi.NULL, 0, b"")
_view: Callable[[tuple[Any, ...]], View] = partial(tuple.__new__, View)  # a call of C


class SparseIndex:
    """Look-ups in entries of two fields; the subclass says which fields these are and how they are
    ordered.
    """

    ENTRY: ClassVar[struct.Struct]
    OFFSET_FIELD: ClassVar[int]  # which of the two is the relative offset
    SPARE: ClassVar[int] = 0  # entries that `is_full` leaves free
    _slot: ClassVar[Any]  # the binary search by the first field: a `seg_..._slot` of _native/index.c
    _valid: ClassVar[Any]  # the native count of leading valid entries

    _view: View
    _count: Any = None
    """Of an active index: a pointer to the number of its entries."""

    def __init__(self, files: Files, path: str | os.PathLike[str]) -> None:
        self._files, self.path = files, os.fspath(path)

    @property
    def entries(self) -> int:
        """Return how many entries there are."""
        return self.view.n

    @property
    def view(self) -> View:
        """Return the view that C looks up in, valid for as long as it is referred to."""
        return self._view

    def entry(self, slot: int) -> tuple[int, int]:
        """Return both fields of entry `slot`; negative slots count from the end. Raises IndexError where
        there is none.
        """
        view = self.view
        slot += view.n if slot < 0 else 0
        if not 0 <= slot < view.n:
            raise IndexError(f"no entry {slot} of {view.n} in {self.path}")
        return self.ENTRY.unpack_from(view.memory, slot * self.ENTRY.size)

    def lookup(self, key: int) -> tuple[int, int] | None:
        """Return the last entry whose first field is at most `key`; None where there is none."""
        pointer, count, memory = self._view if self._count is None else self.view
        slot = self._slot(pointer, count, key)
        if slot < 0:
            return None
        return self.ENTRY.unpack_from(memory, slot * self.ENTRY.size)

    @classmethod
    def valid_entries(cls, data: Any, end_relative: int, log_size: int) -> int:
        """Return how many leading entries of `data` (bytes-like) are in order and inside their segment.

        The segment has offsets up to `end_relative` (end offset - base offset) and `log_size` bytes.
        """
        with ffi.from_buffer("uint8_t[]", data) as view:
            return int(cls._valid(view, len(view) // cls.ENTRY.size, end_relative, log_size))

    @classmethod
    def parse(cls, data: bytes) -> list[tuple[int, int]]:
        """Return all entries of `data`, without a last one that is cut off."""
        whole = len(data) - len(data) % cls.ENTRY.size
        return list(cls.ENTRY.iter_unpack(data[:whole]))

    @classmethod
    def format(cls, entries: Iterable[tuple[int, int]]) -> bytes:
        """Return the bytes of entries."""
        return b"".join(cls.ENTRY.pack(*entry) for entry in entries)


def _mapping(memory: Any) -> tuple[Any, Any]:
    """Return a pointer to memory, and the memory."""
    return held("uint8_t[]", memory), memory


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE)


class ActiveIndex(SparseIndex):
    """The writable index of a partition's active segment; it keeps no descriptor open. C adds the entries of
    batches that are appended: the segment's `seg_active` says where, and its `seg_end` how many there are.
    """

    FIELDS: ClassVar[tuple[str, str]]  # of `seg_end`: how many entries there are, and may be
    MEMORY: ClassVar[str]  # of `seg_active`

    def __init__(
        self,
        files: Files,
        path: str | os.PathLike[str],
        max_bytes: int,
        end: Any,
        active: Any,
        entries: int = 0,
    ) -> None:
        """Open the file, create it if it is missing, and truncate it to its `entries` valid ones, as `end`
        and `active` say from then on. Raises OSError.

        `max_bytes` is `segment.index.bytes`.
        """
        super().__init__(files, path)
        self._view = _EMPTY  # the last one that was made
        self._mapped: tuple[Any, Any] = _EMPTY.pointer, _EMPTY.memory
        self._end, self._active = end, active  # kept for the pointers into them
        count, most = self.FIELDS
        self._count, self._most = ffi.addressof(end, count), ffi.addressof(end, most)
        self._looked_at = 0  # the most entries that a view had before some were dropped
        self.max_entries = max_bytes // self.ENTRY.size
        # Bytes of the file; those behind the entries are allocated. While the file grows or is trimmed, and
        # after an interrupt of that, `_size` is the larger and `_room` the smaller number: entries are only
        # written below `_room`.
        self._size = self._room = entries * self.ENTRY.size
        with files.open(path, write=True, create=True) as handle:
            size = files.size(handle)
            if size < self._size:
                raise InvalidArgumentError(f"{self.path} has {size} bytes, too few for {entries} entries")
            if size > self._size:
                files.truncate(handle, self._size)
            if entries:
                self._map(_mapping(files.map(handle, self._size, write=True)))
        self._count[0], self._most[0] = entries, entries - self.SPARE  # no room before `reserve`

    @property
    def view(self) -> View:
        """Return the view that C looks up in, valid for as long as it is referred to."""
        count = self._count[0]  # first: the memory that is seen then has all the entries that were counted
        view, (pointer, memory) = self._view, self._mapped
        if view.n != count or view.memory is not memory:
            view = self._view = _view((pointer, count, memory))
        return view

    def _map(self, mapped: tuple[Any, Any]) -> None:
        self._mapped = mapped  # which keeps the memory
        setattr(self._active, self.MEMORY, mapped[0])

    def _most_in(self, room: int) -> int:
        """Return how many entries `room` bytes take before the one that sealing adds."""
        return min(room // self.ENTRY.size, self.max_entries - self.SPARE) - self.SPARE

    def is_full(self, n: int = 1) -> bool:
        """Return whether `n` more entries would not fit `max_bytes`."""
        return bool(self._count[0] + n > self.max_entries - self.SPARE)

    def reserve(self, n: int) -> None:
        """Make room on disk for `n` more entries. Raises OSError (ENOSPC); nothing has changed then."""
        need = (self._count[0] + n) * self.ENTRY.size
        if need > self._room:
            self._grow(need)

    def append(self, entries: bytes) -> None:
        """Add whole entries; this can't fail where room was reserved. Raises OSError."""
        n = len(entries) // self.ENTRY.size
        if not n:
            return
        self.reserve(n)
        count = self._count[0]
        need = (count + n) * self.ENTRY.size
        self._mapped[1][need - len(entries) : need] = entries
        self._count[0] = count + n

    def truncate_to(self, relative_offset: int) -> None:
        """Drop the entries of offsets from `relative_offset` on; this needs no room on the disk."""
        n, memory = self._count[0], self._mapped[1]
        keep = n
        while keep and self.entry(keep - 1)[self.OFFSET_FIELD] >= relative_offset:
            keep -= 1
        if keep == n:
            return
        self._looked_at = max(self._looked_at, n)
        self._count[0] = keep
        # A look-up under way finds zeros now: a hint at the log's start, right if slow.
        size = self.ENTRY.size
        memory[keep * size : n * size] = bytes((n - keep) * size)

    def seal(self) -> None:
        """Trim the file to its entries; look-ups go on, the next append would grow it again. Raises
        OSError.
        """
        used = self._count[0] * self.ENTRY.size
        if used == self._size:
            return
        # In this order, as in `_grow_to`: between both, the file has the entries of the record's room.
        self._room = used
        self._most[0] = self._most_in(used)
        # A page that an older, longer view may still read must not be cut off.
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
                # An emulated posix_fallocate may have got half way; the first error is the one that is
                # raised.
                with contextlib.suppress(OSError):
                    self._files.truncate(handle, room)
                    self._size = room
                raise
        self._map(mapped)
        self._most[0] = self._most_in(size)
        self._room = size


class SealedIndex(SparseIndex):
    """The entries of an index file that nobody appends to through this object, or of memory (`of`)."""

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
        valid. Where the file may still be written or cut, `mapped=False` makes a copy instead.
        """
        super().__init__(files, path)
        with files.open(path) as handle:
            # A batch has at most one entry, whatever the file's size is; and no batch is smaller than its
            # header.
            most = (log_size // _LEAST_BATCH + 2) * self.ENTRY.size
            size = min(files.size(handle), most)
            memory: Any = files.map(handle, size) if size and mapped else files.pread(handle, size, 0)
        self._adopt(memory, end_relative, log_size)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return an index of these entries, without a file."""
        index = cls.__new__(cls)
        SparseIndex.__init__(index, Files(), "memory")
        index._adopt(data, MOST, MOST)
        return index

    def _adopt(self, memory: Any, end_relative: int, log_size: int) -> None:
        n = self.valid_entries(memory, end_relative, log_size)
        pointer, _ = _mapping(memory)
        self._view = View(pointer, n, memory)
        next_entry = memory[n * self.ENTRY.size : (n + 1) * self.ENTRY.size]
        #: Whether the entry behind the valid ones is anything but the zeros of allocated room.
        self.damaged: bool = any(next_entry)


def replace_index(files: Files, path: str | os.PathLike[str], entries: bytes, *, sync: bool = False) -> None:
    """Put a file with these entries in place of the index, if there is one, by rename. Raises OSError.

    Without `sync`, a file that a power loss has damaged is found out by validation, as always.
    """
    files.write_atomic(path, entries, sync=sync)


# --- offset index ------------------------------------------------------------------------------

# `<base offset>.index`: entries of relative offset int32 and position int32, big-endian
# (org.apache.kafka.storage.internals.log.OffsetIndex). An entry is the last offset of a batch, relative to
# the segment's base offset, and the position where that batch begins in the log.


class OffsetIndex(SparseIndex):
    """`lookup(relative_offset)` gives (relative offset, position)."""

    ENTRY = struct.Struct(">ii")
    OFFSET_FIELD = 0
    _slot = lib.seg_offset_slot
    _valid = lib.seg_offset_valid


class ActiveOffsetIndex(OffsetIndex, ActiveIndex):
    """The offset index of a partition's active segment."""

    FIELDS, MEMORY = ("offset_entries", "offset_room"), "offset_index"


class SealedOffsetIndex(OffsetIndex, SealedIndex):
    """The offset index of a sealed segment, or as a reader in another process sees it."""


# --- time index --------------------------------------------------------------------------------

# `<base offset>.timeindex`: entries of timestamp int64 and relative offset int32, big-endian
# (org.apache.kafka.storage.internals.log.TimeIndex). An entry is the largest timestamp (ms) of its segment
# so far and the last offset, relative to the base offset, of the batch that has it: no record below that
# offset is later.


class TimeIndex(SparseIndex):
    """`lookup(timestamp)` gives (timestamp, relative offset)."""

    ENTRY = struct.Struct(">qi")
    OFFSET_FIELD = 1
    SPARE = 1  # for the entry that sealing adds (`IndexBuilder.last_time_entry`)
    _slot = lib.seg_time_slot

    @staticmethod
    def _valid(data: Any, n: int, end_relative: int, _log_size: int) -> int:
        return int(lib.seg_time_valid(data, n, end_relative))


class ActiveTimeIndex(TimeIndex, ActiveIndex):
    """The time index of a partition's active segment."""

    FIELDS, MEMORY = ("time_entries", "time_room"), "time_index"


class SealedTimeIndex(TimeIndex, SealedIndex):
    """The time index of a sealed segment, or as a reader in another process sees it."""
