"""What the offset index and the time index have in common: files of fixed-size, rising entries.

On disk: one index file. An active one is empty until its first entry, then grows by 64 KiB of allocated
blocks (a store through the mapping of a hole on a full disk would be a SIGBUS) and ends in zeros; a
sealed one is trimmed to its entries. A broker's may be preallocated: the count of entries never comes
from the file's size.

Threads: one writer, any number of look-ups at the same time, without locks: they work on a `View` that
the writer replaces whole. A view reads below its count only, and entries below it never change: a file
is trimmed behind them, and what must go (`truncate_to`) goes by replacing the file. So an old view stays
right, and its mapping goes with its last reference.
Other processes map sealed files only, and read active ones by pread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from segstore._native import ffi
from segstore.errors import InvalidArgumentError
from segstore.files import Files

GROWTH = 65536


class View(NamedTuple):
    """Entries that can be looked up: a C pointer, how many they are, and the memory they lie in."""

    pointer: Any
    n: int
    memory: Any


_EMPTY = View(ffi.NULL, 0, b"")


class SparseIndex:
    """Look-ups in entries of two fields; which and how ordered comes from the subclass."""

    ENTRY: ClassVar[struct.Struct]
    OFFSET_FIELD: ClassVar[int]  # which of the two is the relative offset
    SPARE: ClassVar[int] = 0  # entries that `is_full` leaves free
    _slot: ClassVar[Any]  # the native binary search by the first field
    _valid: ClassVar[Any]  # the native count of leading valid entries

    _view: View

    def __init__(self, files: Files, path: str | os.PathLike[str]) -> None:
        self._files, self.path = files, os.fspath(path)

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return self._view.n

    def entry(self, slot: int) -> tuple[int, int]:
        """Both fields of entry `slot`, negative ones from the end. IndexError where there is none."""
        view = self._view
        slot += view.n if slot < 0 else 0
        if not 0 <= slot < view.n:
            raise IndexError(f"no entry {slot} of {view.n} in {self.path}")
        return self.ENTRY.unpack_from(view.memory, slot * self.ENTRY.size)

    def lookup(self, key: int) -> tuple[int, int] | None:
        """The last entry whose first field is at most `key`; None where there is none."""
        pointer, count, memory = self._view
        slot = self._slot(pointer, count, key)
        if slot < 0:
            return None
        return self.ENTRY.unpack_from(memory, slot * self.ENTRY.size)

    @classmethod
    def valid_entries(cls, data: Any, end_relative: int, log_size: int) -> int:
        """How many leading entries of `data` (bytes-like) are in order and inside their segment.

        That has offsets up to `end_relative` (end offset - base offset) and `log_size` bytes.
        """
        view = ffi.from_buffer("uint8_t[]", data)
        return int(cls._valid(view, len(view) // cls.ENTRY.size, end_relative, log_size))

    @classmethod
    def parse(cls, data: bytes) -> list[tuple[int, int]]:
        """All entries of `data`, a tail of less than one left out."""
        whole = len(data) - len(data) % cls.ENTRY.size
        return list(cls.ENTRY.iter_unpack(data[:whole]))

    @classmethod
    def format(cls, entries: Iterable[tuple[int, int]]) -> bytes:
        """The bytes of entries."""
        return b"".join(cls.ENTRY.pack(*entry) for entry in entries)


def _view_of(memory: Any, count: int) -> View:
    return View(ffi.from_buffer("uint8_t[]", memory), count, memory)


class ActiveIndex(SparseIndex):
    """The writable index of a partition's active segment; it keeps no descriptor open."""

    def __init__(self, files: Files, path: str | os.PathLike[str], max_bytes: int, entries: int = 0) -> None:
        """Open the file, made where missing, and cut it to its `entries` valid ones. OSError.

        `max_bytes` is `segment.index.bytes`.
        """
        super().__init__(files, path)
        self._view = _EMPTY
        self.max_entries = max_bytes // self.ENTRY.size
        self._size = entries * self.ENTRY.size  # of the file: what is behind the entries is allocated
        with files.open(path, write=True, create=True) as handle:
            size = files.size(handle)
            if size < self._size:
                raise InvalidArgumentError(f"{self.path} has {size} bytes, too few for {entries} entries")
            if size > self._size:
                files.truncate(handle, self._size)
            if entries:
                self._view = _view_of(files.map(handle, self._size, write=True), entries)

    def is_full(self, n: int = 1) -> bool:
        """Whether `n` more entries would not fit `max_bytes`."""
        return self._view.n + n > self.max_entries - self.SPARE

    def reserve(self, n: int) -> None:
        """Make room on disk for `n` more entries. OSError (ENOSPC): nothing has changed then."""
        need = (self._view.n + n) * self.ENTRY.size
        if need > self._size:
            self._grow(need)

    def append(self, entries: bytes) -> None:
        """Add whole entries, as `IndexBuilder` made them; can't fail where room was reserved. OSError."""
        n = len(entries) // self.ENTRY.size
        if not n:
            return
        self.reserve(n)
        pointer, count, memory = self._view
        at = count * self.ENTRY.size
        memory[at : at + len(entries)] = entries
        self._view = View(pointer, count + n, memory)

    def truncate_to(self, relative_offset: int) -> None:
        """Drop the entries of offsets from `relative_offset` on, by replacing the file. OSError."""
        view, size = self._view, self.ENTRY.size
        keep = view.n
        while keep and self.entry(keep - 1)[self.OFFSET_FIELD] >= relative_offset:
            keep -= 1
        if keep == view.n:
            return
        rebuild(self._files, self.path, bytes(view.memory[: keep * size]))
        self._size = keep * size
        self._view = _EMPTY
        if keep:
            with self._files.open(self.path, write=True) as handle:
                self._view = _view_of(self._files.map(handle, self._size, write=True), keep)

    def seal(self) -> None:
        """Trim the file to its entries; look-ups go on, the next append would grow it again. OSError."""
        used = self._view.n * self.ENTRY.size
        if used < self._size:
            with self._files.open(self.path, write=True) as handle:
                self._files.truncate(handle, used)
            self._size = used

    def close(self) -> None:
        """Seal, and let go of the mapping: look-ups find nothing from then on. OSError."""
        try:
            self.seal()
        finally:
            self._view = _EMPTY

    def _grow(self, need: int) -> None:
        most = self.max_entries * self.ENTRY.size
        if need > most:
            raise InvalidArgumentError(f"{self.path} is full: {need} bytes of at most {most}")
        size = min(-(-need // GROWTH) * GROWTH, most)
        with self._files.open(self.path, write=True) as handle:
            try:
                self._files.allocate(handle, self._size, size - self._size)
                view = _view_of(self._files.map(handle, size, write=True), self._view.n)
            except OSError:
                # An emulated posix_fallocate may have got half way; the first error is the one to tell.
                with contextlib.suppress(OSError):
                    self._files.truncate(handle, self._size)
                raise
        self._view, self._size = view, size


class SealedIndex(SparseIndex):
    """The index of a sealed segment, read and validated at its first use; a missing file has no entries.

    `end_relative` (end offset - base offset) and `log_size` (bytes) of the segment bound what is believed.
    Where other processes may still write the file, `mapped=False` takes a copy instead. OSError at use.
    """

    def __init__(
        self,
        files: Files,
        path: str | os.PathLike[str],
        end_relative: int,
        log_size: int,
        *,
        mapped: bool = True,
    ) -> None:
        super().__init__(files, path)
        self._bounds, self._is_mapped = (end_relative, log_size), mapped

    @functools.cached_property
    def _view(self) -> View:  # type: ignore[override]
        try:
            handle = self._files.open(self.path)
        except FileNotFoundError:
            return _EMPTY
        with handle:
            size = self._files.size(handle) // self.ENTRY.size * self.ENTRY.size
            if not size:
                return _EMPTY
            memory: Any = (
                self._files.map(handle, size) if self._is_mapped else self._files.pread(handle, size, 0)
            )
        return _view_of(memory, self.valid_entries(memory, *self._bounds))


def rebuild(files: Files, path: str | os.PathLike[str], entries: bytes, *, sync: bool = False) -> None:
    """Put a file with these entries in place of the index, or of none, by rename. OSError.

    Without `sync`, what is there after a power loss is found out by validation, as ever.
    """
    files.write_atomic(path, entries, sync=sync)
