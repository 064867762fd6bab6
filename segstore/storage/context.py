"""`StoreContext`: the objects that all parts of one open store use. Nothing is on disk.

Threads: one thread makes the context when the store is opened; each of these objects documents its own
threads.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore._native import held
from segstore.errors import (
    DemotedError,
    ForkedError,
    ReadOnlyError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    is_refusal,
)
from segstore.files import Files, forks
from segstore.files.reserve import NO_ROOM, Reserve
from segstore.logger import Logger
from segstore.storage.delayed_delete import Graveyard
from segstore.storage.finding import Repaired
from segstore.storage.full_disk import FullDisk
from segstore.storage.handle_pool import HandlePool
from segstore.storage.meta.small_files import put_aside
from segstore.storage.scheduler import Scheduler

log = Logger("segstore")

Clock = Callable[[], int]


def wall_clock() -> int:
    """Return the milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def _ignored(error: Exception) -> None:
    """Ignore the error."""


class OsErrors:
    """A context manager: an OSError with an errno in its block becomes a StorageError with the same errno.

    This is a class, not a generator with `contextmanager`, because since Python 3.12 an OSError that passes
    such a generator gets into a reference cycle: a frame of contextlib in its traceback refers to the error.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, SegstoreError) and is_refusal(error):
            raise StorageError(error.errno, error.strerror, error.filename) from error


_os_errors = OsErrors()


def os_errors() -> OsErrors:
    """Return a context manager: an OSError in its block becomes a StorageError with the same errno."""
    return _os_errors


@dataclass
class StoreContext:
    """The context of an open store: its path, files, clock and scheduler, and whether it accepts changes."""

    root: str
    files: Files
    pool: HandlePool
    scheduler: Scheduler
    clock: Clock
    writable: bool
    pid: int
    closed: bool = False
    made: bool = False
    """Whether the root was made for this store."""
    demoted: str = ""
    """The reason why this store refuses changes, "" if it accepts changes."""
    on_background_error: Callable[[Exception], object] = _ignored
    """`on_background_error(error)` is called for each error of background work, such as an error of the disk.
    It must not wait.
    """

    def __post_init__(self) -> None:
        self.here = forks.here()
        self.here_for_c: Any = held("uint8_t[]", self.here) if isinstance(self.here, mmap.mmap) else None
        """A pointer to a byte that is 1 in the process that opened the store, and 0 in its children. None if
        the kernel can't provide such a byte.
        """
        self.graveyard = Graveyard(self.files, self.clock, self.scheduler)
        self.reserve = Reserve(self.files, names.below(self.root, f"{names.OURS}/{names.RESERVE}"))
        """Reserved disk space for small files that must be written even if the disk is full: by a change that
        frees space, and by an open or a close.
        """
        self.full = FullDisk(
            self.files,
            self.root,
            self.clock,
            self.scheduler,
            self.reserve,
            lambda: self.graveyard.clear(closing=True),
        )
        self.mended: list[Repaired] = []

    def report(self, path: str, message: str, done: str) -> None:
        """Report a damaged file at `path`: log `message` and the repair `done`, and add them to
        `Store.mended`.
        """
        self.mended.append(Repaired(path, None, None, message, done))
        log.warning("%s", self.mended[-1])

    def remake(self, path: str, data: bytes, message: str, source: str) -> None:
        """Replace a damaged file by a file with the content `data`, which comes from `source`. Report the
        damage, `message`, and the source. If a directory or special file is at `path`, it is moved to
        `.segstore/quarantine`. If the disk is full, the file is not replaced, and the next open tries again.
        Raises OSError.
        """
        try:
            aside = self.make_way(path)
            self.files.write_atomic(path, data)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("%s: %s; there is no room to make it anew from %s", path, message, source)
        else:
            self.report(path, message, f"made anew from {source}{aside}")

    def make_way(self, path: str) -> str:
        """Make sure that a regular file can be written at `path`: a directory or special file at `path`, or
        at the path of the temporary file, is moved to `.segstore/quarantine`. Return a clause for an error's
        text that names the new paths, or "" if nothing was moved. Raises OSError.
        """
        places = [place for place in (path, path + names.TEMPORARY) if self.files.exists(place)]
        moved = [put_aside(self.files, self.root, place) for place in places if not self.files.is_file(place)]
        return f"; what was there is in {' and '.join(moved)}" if moved else ""

    def check_leads(self) -> None:
        """Raise DemotedError if the store refuses changes (`demoted`). Raises the errors of `check_open`."""
        self.check_open()
        if self.demoted:
            raise DemotedError(self.demoted)

    @property
    def inherited(self) -> bool:
        """Return whether this process is a child of the process that opened the store."""
        return not self.here[0]

    @property
    def forked(self) -> bool:
        """Return whether this process is a child of the process that opened the store for writing."""
        return self.writable and self.inherited

    def check_open(self) -> None:
        """Raise StoreClosedError if the store is closed, and ForkedError if this process is a child of the
        process that opened the store for writing.
        """
        if self.closed:
            raise StoreClosedError(f"{self.root} is closed")
        if self.writable and not self.here[0]:
            raise ForkedError(
                f"{self.root} was opened by process {self.pid}; after a fork, open it again "
                f'in process {os.getpid()} with mode="r"'
            )

    def check_writable(self) -> None:
        """Raise ReadOnlyError if the store is open for reading. Raises the errors of `check_open`."""
        if self.writable and not self.closed and self.here[0]:
            return
        self.check_open()
        if not self.writable:
            raise ReadOnlyError(f'{self.root} was opened with mode="r": open it with mode="rw" to change it')
