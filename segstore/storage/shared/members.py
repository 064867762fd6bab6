"""`Members`: makes this process a member of a shared store, and finds the other members.

Each member has a slot in `.segstore/shared`, and holds a lock on the slot's byte of `.segstore/members` while
the member lives (`member_locks`). Each new owner of a slot raises the slot's incarnation number.

- L2: a member is dead if its byte is unlocked, or if its slot has a later incarnation.
- H3: a process that takes `.lock` without sharing the store checks that no member lives
  (`has_living_members`).

Threads: any; one thread calls `close`.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
from typing import Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.errors import NotShareableError
from segstore.files import Files, forks
from segstore.storage.context import os_errors
from segstore.storage.shared import member_locks
from segstore.storage.shared.shared_file import SharedFile
from segstore.version import VERSION

LOOK_MS = 2
"""Milliseconds that a thread waits for a log's lock before it checks whether the lock's owner is dead."""
SPINS = 100
"""Number of attempts to take a log's lock before a thread sleeps."""


class SharedMember(NamedTuple):
    """A living member. `pid` is the member's process id in the member's own pid namespace, for
    display only.
    """

    slot: int
    pid: int
    version: str
    since_ms: int
    is_host: bool
    may_host: bool


class Members:
    """Makes this process a member, and finds all members. `c` is the `seg_member` of this process; `slot` and
    `incarnation` identify this member. A forked child is no member, because the file descriptor with the lock
    is closed in the child (`forks`).
    """

    def __init__(self, files: Files, root: str, shared: SharedFile, *, may_host: bool) -> None:
        """Become a member, in a free slot. Raises StorageError, and NotShareableError if no slot is free.
        Raises LookupError if the store is no longer shared, or has another shared file now: the caller must
        begin again.
        """
        self._files, self.shared = files, shared
        here = self._here = forks.here()
        page = held("uint8_t[]", here) if isinstance(here, mmap.mmap) else ffi.new("uint8_t[1]", b"\1")
        self._page = page
        path = member_locks.path_of(root)
        with os_errors():
            self._handle = member_locks.open_shared(files, path, create=True)
            try:
                how = {"members_fd": self._handle.fd, "slot": -1, "here": page}
                self.c: Any = ffi.new("seg_member *", {**how, "look_ms": LOOK_MS, "spins": SPINS})
                forks.close_in_children(self)
                shared.bind(self.c)
                self.slot = self._take_slot(path)
                is_there = shared.is_host_s or shared.is_there()
                if not is_there or files.inode(path) != files.inode(self._handle):
                    raise LookupError(f"{root} was shared when this process came, and is not by now")
            except BaseException:
                self._handle.close()
                raise
        self.incarnation = int(self.c.incarnation)
        self._introduce(may_host)

    def _take_slot(self, path: str) -> int:
        most = self.shared.header.members
        slot: int = lib.seg_member_join(self.c, most)
        if slot == -errno.EUSERS:
            raise NotShareableError(
                f"{path} has no free slot: shared.members allows {most} processes at a time, and all of them "
                "live. Let one of them close the store, or set shared.members at the host, up to "
                f"{member_locks.MOST}"
            )
        if slot < 0:
            raise OSError(-slot, os.strerror(-slot), path)
        return slot

    def _introduce(self, may_host: bool) -> None:
        """Write the pid, the version and other data of this process into this member's slot."""
        own = self.shared.member(self.slot)
        own.pid, own.since_ms, own.may_host = os.getpid(), time.time_ns() // 1_000_000, may_host
        own.version, own.number = VERSION.encode()[:15], secrets.randbits(32)

    def lead(self, *, leads: bool) -> None:
        """Set whether this process holds `.lock`. A process that holds `.lock` may take the log locks of a
        dead host [L7].
        """
        self.c.is_host = leads

    def become_host(self) -> None:
        """Write into `.segstore/shared` that this member is the host, and wake all members that wait for a
        host. The caller holds `.lock`.
        """
        header = self.shared.header
        header.host_slot, header.host_incarnation = self.slot, self.incarnation
        header.host_since_ms = time.time_ns() // 1_000_000
        self.lead(leads=True)
        lib.seg_shared_ring(ffi.addressof(header, "hosts"))

    def others_alive(self) -> bool:
        """Return whether another member lives. Raises StorageError."""
        with os_errors():
            return self._files.has_locked_byte(self._handle, 0, member_locks.MOST)

    def is_alive(self, slot: int) -> bool:
        """Return whether a living member has the slot. Raises StorageError."""
        with os_errors():
            return slot == self.slot or self._files.has_locked_byte(self._handle, slot)

    def host(self) -> SharedMember | None:
        """Return the living host, or None. Raises StorageError."""
        return next((member for member in self.all() if member.is_host), None)

    def last_host_pid(self) -> int:
        """Return the pid of the last host, even if that host is dead; 0 if there was no host, or if the slot
        of the last host has a new owner. The pid is for display only.
        """
        header = self.shared.header
        if header.host_slot < 0:
            return 0
        its = self.shared.member(header.host_slot)
        return int(its.pid) if its.incarnation == header.host_incarnation else 0

    def all(self) -> list[SharedMember]:
        """Return the living members, this member included. Raises StorageError."""
        return [_member(self.shared, slot) for slot in range(member_locks.MOST) if self.is_alive(slot)]

    @property
    def fd(self) -> int:
        """Return the file descriptor of `.segstore/members` that holds this member's lock; -1 after
        `close`.
        """
        return self._handle.fd

    def close(self) -> None:
        """Leave the store: release the slot. Further calls do nothing. A call in a forked child does not
        release the parent's slot.
        """
        self.c.members_fd = -1
        self._handle.close()


def living(files: Files, root: str) -> list[SharedMember]:
    """Return the living members of a store; an empty list if the store is not shared. The caller need not be
    a member. Raises UnsupportedFormatError, StorageError.
    """
    shared = SharedFile.view(files, root)
    if shared is None:
        return []
    with os_errors(), files.open(member_locks.path_of(root)) as handle:
        slots = [slot for slot in range(member_locks.MOST) if files.has_locked_byte(handle, slot)]
    return [_member(shared, slot) for slot in slots]


def _member(shared: SharedFile, slot: int) -> SharedMember:
    header, its = shared.header, shared.member(slot)
    version = bytes(ffi.buffer(its.version)).partition(b"\0")[0].decode("ascii", "replace")
    is_host = header.host_slot == slot and header.host_incarnation == its.incarnation
    return SharedMember(slot, its.pid, version, its.since_ms, is_host, bool(its.may_host))
