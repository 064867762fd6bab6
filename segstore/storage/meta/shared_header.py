"""The shared file of a store's members, `.segstore/shared`, as readers see it.

On disk a header, the members, and a part for each log, as `_native/contract/shared.h` has them. The file is
believed if magic, format, size and the boot of the machine are right (F3), and valid as long as it is `live`.
While a member lives, the file is never cut and never unlinked, so a mapping of it is always safe. Threads:
any, without locks; a `SharedMap` never changes.
"""

from __future__ import annotations

from typing import Any

from segstore._native import ffi, held, lib
from segstore.files import Files

MAGIC = b"segshare"
FORMAT: int = lib.SEG_SHARED_FORMAT
STEP = 65536
_HEADER = ffi.sizeof("seg_shared_header")
_SEALED = 2 * lib.SEG_SEALED


class SharedMap:
    """A mapping of the file; the memory is unmapped when this object is freed. `logs` is the number of logs
    for which it has room.
    """

    def __init__(self, files: Files, path: str, size: int, *, write: bool = False) -> None:
        """Map the first `size` bytes. Raises OSError."""
        with files.open(path, write=write) as handle:
            self._memory = held("uint8_t[]", files.map(handle, size, write=write))
        self._header = ffi.cast("seg_shared_header *", self._memory)
        self.logs: int = (size - lib.SEG_SHARED_LOGS) // lib.SEG_SHARED_LOG
        self.c: Any = ffi.new("seg_shared_map *", {"map": self._memory, "len": size})
        """The mapping for C (`seg_shared_map *`)."""

    @property
    def live(self) -> bool:
        """Return whether the store is shared; if not, the content of the file is outdated."""
        return bool(self._header.live)

    def end(self) -> None:
        """Mark the store as not shared any more. The mapping must be writable."""
        self._header.live = 0

    def sealed(self, slot: int, key: int) -> dict[int, int]:
        """Return the ends of sealed segments, in bytes, by base offset, for the partition with this slot and
        key. Only segments are listed that were sealed while a process might still write to their files (A5).
        """
        found = ffi.new("int64_t[]", _SEALED)
        n = lib.seg_shared_sealed(self.c.map, self.c.len, slot, key, found)
        return {found[2 * i]: found[2 * i + 1] for i in range(n)}


def read(files: Files, path: str) -> tuple[Any, int] | None:
    """Return the header (`seg_shared_header *`) of a file that was made since the last boot, and the file's
    size; None if there is no such file. Raises OSError.
    """
    try:
        with files.open(path) as handle:
            data, size = files.pread(handle, _HEADER, 0), files.size(handle)
    except FileNotFoundError:
        return None
    if len(data) < _HEADER:
        return None
    header, boot = held("seg_shared_header *", data), files.boot()
    is_of_now = bytes(ffi.buffer(header.magic)) == MAGIC and boot and tuple(header.boot) == (boot, ~boot)
    return (header, size) if is_of_now else None


def look(files: Files, path: str) -> int | None:
    """Return the size of the file if it is live and believed, else None. Raises OSError."""
    found = read(files, path)
    if found is None:
        return None
    header, size = found
    is_whole = size >= STEP and size % STEP == 0
    return size if header.format == FORMAT and is_whole and header.live else None


def end_old(files: Files, path: str) -> None:
    """Mark a shared file without members as not live, and remove it. Such a file is left if the store was
    copied while it was shared, or if the machine has booted again. The caller holds the store's lock, and no
    member lives. Raises OSError.
    """
    size = files.size(path)
    # Readers may have the file mapped, so it is marked. A file with several hard links may also belong to
    # another store, so that file is only unlinked here.
    if files.links(path) == 1 and size >= STEP:
        SharedMap(files, path, size // STEP * STEP, write=True).end()
    files.unlink(path)
