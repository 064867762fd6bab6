"""The shared file, `.segstore/shared`, for readers. Several processes, the members, append to a shared store,
and publish the ends of the store's logs in this file.

The file has a header, a slot for each member, and a part for each log (`_native/contract/shared.h`). The file
is used if its magic, format and size are right, and if it was made after the last boot of the machine (F3).
Its content is valid while `live` is set. While a member lives, the file is never truncated and never
unlinked, so it is always safe to map the file. Threads: any, without locks; a `SharedMap` never changes.
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
    """A memory mapping of `.segstore/shared`. The memory is unmapped when this object is freed. `logs` is the
    number of logs for which the mapping has room.
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
        """Return whether the store is shared. If the store is not shared, the content of the file is
        outdated.
        """
        return bool(self._header.live)

    def end(self) -> None:
        """Mark the store as not shared any more. The mapping must be writable."""
        self._header.live = 0

    def sealed(self, slot: int, key: int) -> dict[int, int]:
        """Return {base offset: end in bytes} of those sealed segments of the partition to which a process may
        still write. Bytes after this end are not part of the log (A5).
        """
        found = ffi.new("int64_t[]", _SEALED)
        n = lib.seg_shared_sealed(self.c.map, self.c.len, slot, key, found)
        return {found[2 * i]: found[2 * i + 1] for i in range(n)}


def read(files: Files, path: str) -> tuple[Any, int] | None:
    """Return (header as a `seg_shared_header *`, size of the file). Return None if the file is missing, is no
    shared file, or was made before the last boot of the machine. Raises OSError.
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
    """Return the size of `.segstore/shared` if the file is valid and live, else None. Raises OSError."""
    found = read(files, path)
    if found is None:
        return None
    header, size = found
    is_whole = size >= STEP and size % STEP == 0
    return size if header.format == FORMAT and is_whole and header.live else None


def end_old(files: Files, path: str) -> None:
    """Mark an outdated file `.segstore/shared` as not live, and remove it. The file is outdated if the store
    was copied while it was shared, or if the machine was booted after the file was made. The caller holds the
    store's lock, and no member lives. Raises OSError.
    """
    size = files.size(path)
    # The file is marked because readers may have it mapped. A file with several hard links is only unlinked,
    # because it may also belong to another store.
    if files.links(path) == 1 and size >= STEP:
        SharedMap(files, path, size // STEP * STEP, write=True).end()
    files.unlink(path)
