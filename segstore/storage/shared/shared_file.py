"""The shared file, `.segstore/shared`, which all members of a shared store map into their memory.

The file has a header, a slot for each member, and a part for each log (`_native/contract/shared.h`). All
fields have fixed widths and host byte order, and no field is a pointer. The file is never synced.

- F1: all shared data is in this file.
- F2: the file is fully allocated before it is mapped. It grows in steps of 64 KiB, is never truncated, and is
  not unlinked while a member lives. A mapping stays until the object that made the mapping is freed.
- F3: the file is valid if its magic, format and size are right, if it was made after the last boot of the
  machine, and if it is no copy: a copy has another device, inode or birth time than its header says. A host
  that finds no living member rewrites an invalid file in place, because readers may have it mapped. The magic
  is written last.

A valid file is in use only while it is `live`. A joining guest first locks its byte (`member_locks`), then
reads `live`. A host that closes the store checks whether other members live, refuses new members by changing
`live`, and checks again. So either the host notices the guest, or the guest notices that it is refused.

Threads: any. Only the host makes the file larger.
"""

from __future__ import annotations

import errno
import mmap
import secrets
import time
from functools import partial
from typing import Any

from segstore import names
from segstore._native import ffi, held, lib
from segstore.errors import NotShareableError, StorageError, UnsupportedFormatError
from segstore.files import Files, Handle
from segstore.files.reserve import in_reserve
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta import shared_header
from segstore.storage.meta.shared_header import FORMAT, MAGIC, STEP
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.shared import file_systems, member_locks
from segstore.version import VERSION

MOST = 1 << 36  # the largest size of the file in bytes, with room for eight million logs
_LIVE, _CLOSED_TO_OTHERS = 1, 2
"""Values of the header's `live`. The third value, 0, means that the file's content is outdated."""
# The longest wait for a joining process, and the pause between two checks, in seconds.
_PATIENCE, _PAUSE = 10.0, 0.005
_LOGS, _LOG = lib.SEG_SHARED_LOGS, lib.SEG_SHARED_LOG


def path_of(root: str) -> str:
    """Return the path of a store's shared file."""
    return names.below(root, f"{names.OURS}/{names.SHARED}")


class SharedFile:
    """Maps `.segstore/shared`. `inode` is the inode of the mapped file, by which `is_there` notices that
    another file is at its path. `which` is (device, inode). `is_host_s`: whether `make` returned this object,
    for the host. `made`: whether `make` has rewritten the file.
    """

    def __init__(self, files: Files, root: str, *, write: bool = True) -> None:
        """Map the file, which must be valid. Raises OSError."""
        self._files, self._path, self._write = files, path_of(root), write
        self.made = self.is_host_s = False
        self._mutex = Mutex()
        self._mappings: list[Any] = []
        self._bound: Any = None
        with self._open() as handle:
            self.inode = files.inode(handle)
            self.which = files.which(self._path, or_change=False)[:2]
            self._map(handle)
        self.header: Any = self._part("seg_shared_header *", 0)
        """The header, a `seg_shared_header *`. It points into the first mapping; later mappings show the same
        page.
        """

    @classmethod
    def make(cls, files: Files, root: str, *, members: int, stopped_ms: int, answer_ms: int) -> SharedFile:
        """Map the file for a host, which holds `.lock`, and return the `SharedFile`.

        A valid and live file is kept, because it has the ends of the logs that the members left open. Any
        other file is rewritten, and is not `live` yet when this returns. If a member lives, the file is never
        rewritten: StorageError is raised if the file is invalid. Raises NotShareableError, StorageError, and
        UnsupportedFormatError if living members use another format.
        """
        with os_errors():
            in_place = file_systems.check(files, names.below(root, names.OURS))
            making = member_locks.take_making(files, root)
            try:
                made = not _is_kept(files, root)
                if made:
                    _make(files, path_of(root), in_place=in_place)
                shared = cls(files, root)
            finally:
                making.close()
        shared.made, shared.is_host_s = made, True
        header = shared.header
        header.members, header.stopped_ms, header.answer_ms = members, stopped_ms, answer_ms
        return shared

    @classmethod
    def join(cls, files: Files, root: str) -> SharedFile | None:
        """Map the file for a guest, writable, and return the `SharedFile`. Return None if the file is
        missing, not valid (F3) or not live. Raises UnsupportedFormatError, NotShareableError, StorageError.
        """
        with os_errors():
            if _look(files, root) is None:
                return None
            file_systems.check(files, names.below(root, names.OURS))
            return cls(files, root)

    @classmethod
    def view(cls, files: Files, root: str) -> SharedFile | None:
        """Map the file for a reader, read-only, and return the `SharedFile`. Return None if the file is
        missing, not valid (F3) or not live. Raises UnsupportedFormatError, StorageError.
        """
        with os_errors():
            return cls(files, root, write=False) if _look(files, root) is not None else None

    @staticmethod
    def is_live(files: Files, root: str) -> bool:
        """Return whether the store is shared, or was shared when its last member died. Raises
        UnsupportedFormatError, StorageError.
        """
        with os_errors():
            return _look(files, root) is not None and _is_of_one_store(files, root)

    def is_there(self) -> bool:
        """Return whether the mapped file is live, and no other file has replaced it at its path. Raises
        OSError.
        """
        try:
            return self.header.live == _LIVE and self._files.inode(self._path) == self.inode
        except FileNotFoundError:
            return False

    @property
    def live(self) -> bool:
        """Return whether the store is shared. If the store is not shared, the content of the file is
        outdated.
        """
        return bool(self.header.live)

    @live.setter
    def live(self, live: bool) -> None:
        self.header.live = live

    def close_to_others(self) -> None:
        """Refuse new members; readers continue to use the file."""
        self.header.live = _CLOSED_TO_OTHERS

    @property
    def memory(self) -> Any:
        """Return the newest mapping, a `uint8_t[]` for C. The memory stays mapped while something refers to
        this SharedFile or to the returned object.
        """
        return self._mappings[-1]

    @property
    def size(self) -> int:
        """Return the size of the mapping in bytes."""
        return len(self.memory)

    def bind(self, member: Any) -> None:
        """Write the newest mapping into the fields `map` and `len` of a `seg_member *`, now and each time the
        file is mapped again.
        """
        with self._mutex:
            self._bound = member
            self._show_bound()

    def _show_bound(self) -> None:
        if self._bound is not None:
            self._bound.map, self._bound.len = self.memory, self.size

    def member(self, slot: int) -> Any:
        """Return a member's slot in the file, a `seg_shared_member *`."""
        if not 0 <= slot < lib.SEG_MEMBERS:
            raise LookupError(f"no member has the slot {slot}: slots are 0 to {lib.SEG_MEMBERS - 1}")
        at = lib.SEG_SHARED_MEMBERS_AT + slot * ffi.sizeof("seg_shared_member")
        return self._part("seg_shared_member *", at)

    def _part(self, kind: str, at: int) -> Any:
        """Return a pointer into the newest mapping; the memory stays mapped while something refers to the
        pointer.
        """
        memory = self.memory
        return ffi.gc(ffi.cast(kind, memory + at), partial(_let_go, memory))

    def log(self, number: int, *, grow: bool = False) -> Any:
        """Return a log's part of the file, a `seg_shared_log *`. The memory stays mapped while something
        refers to the pointer.

        If the file is too small for this part, and `grow` is True, the file is made larger; only the host may
        pass `grow`. If `grow` is False, LookupError is raised. Raises StorageError.
        """
        part = self.log_if_there(number)
        if part is None and grow:
            with os_errors(), self._mutex, self._open() as handle:
                size = self._files.size(handle)
                wanted = _size_of(number)
                if wanted > MOST:
                    raise LookupError(
                        f"a store shares at most {(MOST - _LOGS) // _LOG} logs, and not log {number}"
                    )
                if wanted > size:
                    in_reserve(lambda: self._files.allocate(handle, size, wanted - size), wanted - size)
                self._map(handle)
            part = self.log_if_there(number)
        if part is None:
            raise LookupError(f"{self._path} has no part for log {number}")
        return part

    def log_if_there(self, number: int) -> Any | None:
        """Return a log's part of the file; None if the file is too small for this part. Raises
        StorageError.
        """
        at = _LOGS + number * _LOG
        if number < 0:
            return None
        if at + _LOG > self.size:
            with os_errors(), self._mutex, self._open() as handle:
                self._map(handle)
        return self._part("seg_shared_log *", at) if at + _LOG <= self.size else None

    def _open(self) -> Handle:
        if not self._write:
            return self._files.open(self._path)
        return member_locks.open_shared(self._files, self._path)

    def _map(self, handle: Handle) -> None:
        """Map the file with its present size, if it was not mapped yet, or has grown. Raises OSError."""
        size = self._files.size(handle) // STEP * STEP
        if self._mappings and (size <= self.size or self._files.inode(handle) != self.inode):
            return
        mapped: mmap.mmap = self._files.map(handle, size, write=self._write)
        self._mappings.append(held("uint8_t[]", mapped))
        self._show_bound()


def _let_go(memory: Any, pointer: Any) -> None:
    """Do nothing: until `pointer` is freed, `ffi.gc` refers to this function, and so to `memory`."""


def _size_of(number: int) -> int:
    """Return the smallest size of a file that has a part for this log."""
    return -(-int(_LOGS + (number + 1) * _LOG) // STEP) * STEP


def _boot(files: Files) -> tuple[int, int]:
    """Return the id of the machine's boot, and its complement, for the header. Raises NotShareableError."""
    boot = files.boot()
    if not boot:
        raise NotShareableError(
            "a store is shared in one start of the machine only, and /proc/sys/kernel/random/boot_id does "
            'not tell which this is: open it with shared=False, or with mode="r"'
        )
    return boot, ~boot


def _is_kept(files: Files, root: str) -> bool:
    """Return whether the file is valid and live; if not, no member lives, and the file may be rewritten.
    Raises UnsupportedFormatError, OSError; StorageError (EBUSY) if a member lives and the file is not valid.
    """
    end = time.monotonic() + _PATIENCE
    while has_living_members(files, root):
        if _look(files, root) is not None:
            return True
        # The living member may be a process that is joining: it takes a slot first, and releases the slot if
        # it finds no live file. So the check is repeated.
        if time.monotonic() > end:
            raise StorageError(
                errno.EBUSY, "Processes share the store by a file that is damaged", path_of(root)
            )
        time.sleep(_PAUSE)
    return _look(files, root, strict=False) is not None and _is_of_one_store(files, root)


def _is_of_one_store(files: Files, root: str) -> bool:
    """Return whether the file has only one hard link, because a second link would belong to a copy of the
    store.
    """
    return files.links(path_of(root)) == 1


def _look(files: Files, root: str, *, strict: bool = True) -> Any | None:
    """Return the header of the file if the file is live and valid (F3), else None. If `strict`, raise
    UnsupportedFormatError if the file has another format, and was made after the last boot of the machine.
    """
    path = path_of(root)
    header_and_size = shared_header.read(files, path)
    if header_and_size is None:
        return None
    header, size = header_and_size
    if header.format != FORMAT:
        if not strict:
            return None
        version = bytes(ffi.buffer(header.version)).partition(b"\0")[0].decode("ascii", "replace")
        raise UnsupportedFormatError.of_members(path, header.format, version, FORMAT)
    is_whole = size >= STEP and size % STEP == 0 and 1 <= header.members <= lib.SEG_MEMBERS
    is_itself = tuple(header.which) == files.which(path, or_change=False)
    return header if is_whole and is_itself and header.live else None


def _make(files: Files, path: str, *, in_place: bool) -> None:
    """Rewrite the file. The magic is written last. `in_place` is the result of `file_systems.check`. Raises
    NotShareableError, OSError.
    """
    boot = _boot(files)
    # A new file is made if a hard link of the present file may belong to another store. A new file is also
    # made on btrfs, where copying on write can only be forbidden for a new file.
    if files.exists(path) and (in_place or files.links(path) > 1 or files.size(path) > MOST):
        files.unlink(path)
    with member_locks.open_shared(files, path, create=True) as handle:
        if in_place:
            file_systems.write_in_place(files, handle)
        size = max(-(-files.size(handle) // STEP) * STEP, STEP)
        in_reserve(lambda: files.allocate(handle, 0, size), STEP)
        for at in range(0, size, STEP):
            files.pwrite(handle, bytes(STEP), at)
        files.pwrite(handle, _members(), lib.SEG_SHARED_MEMBERS_AT)
        files.pwrite(handle, _header(boot, files.which(path, or_change=False)), len(MAGIC))
        files.pwrite(handle, MAGIC, 0)


def _header(boot: tuple[int, int], which: tuple[int, int, int]) -> bytes:
    """Return the bytes of a new header, without the magic."""
    made = {"format": FORMAT, "members": lib.SEG_MEMBERS, "boot": boot, "which": which, "host_slot": -1}
    header = ffi.new("seg_shared_header *", {**made, "version": VERSION.encode()[:15]})
    return bytes(ffi.buffer(header))[len(MAGIC) :]


def _members() -> bytes:
    """Return the initial bytes of the members' slots."""
    # The first incarnations are random, so that no later member has the incarnation of a member of the old
    # file. A member of the old file may still run, although it counts as dead, because other code in its
    # process may have closed the file descriptor with its lock.
    slots = ffi.new(
        "seg_shared_member[]", [{"incarnation": secrets.randbits(31)} for _ in range(lib.SEG_MEMBERS)]
    )
    return bytes(ffi.buffer(slots))
