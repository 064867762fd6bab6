"""What the parts of one open store share. Nothing on disk of its own.

Threads: built once at open; its parts have contracts of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from segstore.errors import (
    ForkedError,
    ReadOnlyError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    is_refusal,
)
from segstore.files import Files
from segstore.storage.graveyard import Graveyard
from segstore.storage.handles import HandlePool
from segstore.storage.scheduler import Scheduler

Clock = Callable[[], int]


def wall_clock() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn what the system says into a StorageError with its errno."""
    try:
        yield
    except SegstoreError:
        raise
    except OSError as error:
        if not is_refusal(error):
            raise
        raise StorageError(error.errno, error.strerror, error.filename) from error


@dataclass
class Context:
    """Where the store lies, how it reaches files and time, and whether it may be used."""

    root: str
    files: Files
    pool: HandlePool
    scheduler: Scheduler
    clock: Clock
    writable: bool
    pid: int
    closed: bool = False

    def __post_init__(self) -> None:
        self.graveyard = Graveyard(self.files, self.clock, self.scheduler)

    @property
    def inherited(self) -> bool:
        """Whether this is a child of the process that opened the store."""
        return os.getpid() != self.pid

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the store for writing."""
        return self.writable and self.inherited

    def check_open(self) -> None:
        """StoreClosedError, ForkedError."""
        if self.closed:
            raise StoreClosedError(f"{self.root} is closed")
        if self.writable and os.getpid() != self.pid:
            raise ForkedError(
                f"{self.root} was opened by process {self.pid}; after a fork, open it again "
                f'in process {os.getpid()} with mode="r"'
            )

    def check_writable(self) -> None:
        """As `check_open`, and ReadOnlyError."""
        self.check_open()
        if not self.writable:
            raise ReadOnlyError(f'{self.root} was opened with mode="r": open it with mode="rw" to change it')
