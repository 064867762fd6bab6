"""`download`: copies objects of an archive into files, several at a time, and checks their CRCs.

Each new file is synced after its download. Memory: one buffer of BUFFER bytes for each thread. Threads: one
thread calls `download`, which starts other threads, and ends them before it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from segstore._native import ffi, lib
from segstore.errors import CorruptArchiveError
from segstore.files import Files, Handle
from segstore.mutex import Mutex
from segstore.threads import Worker

if TYPE_CHECKING:
    from typing_extensions import Buffer

THREADS = 8
BUFFER = 4 << 20
Progress = Callable[[int], object]
T = TypeVar("T")


class ReadableObjects(Protocol):
    """The methods of `remote.RemoteFiles` that downloads use."""

    def read_into(self, name: str, at: int, buffer: Buffer) -> int: ...


class ObjectRange(NamedTuple):
    """`length` bytes of an object from byte `at` on, and their CRC-32C."""

    object: str
    at: int
    length: int
    crc: int


class Download(NamedTuple):
    """A file that is made of ranges of objects, one after the other. If `counted`, the number of its bytes is
    reported to `progress`. `is_sealed` is True for a file of a sealed segment.
    """

    path: str
    ranges: tuple[ObjectRange, ...]
    counted: bool
    is_sealed: bool


def read_range(
    source: ReadableObjects, wanted: ObjectRange, buffer: bytearray, take: Callable[[memoryview], object]
) -> None:
    """Read a range through a buffer, and pass its bytes to `take` in order.

    Raises CorruptArchiveError if the object is missing or too short, or if the CRC is wrong. A wrong CRC is
    found only after `take` has got all bytes.
    """
    crc = done = 0
    while done < wanted.length:
        part = memoryview(buffer)[: min(len(buffer), wanted.length - done)]
        try:
            n = source.read_into(wanted.object, wanted.at + done, part)
        except FileNotFoundError:
            raise CorruptArchiveError(wanted.object, "it is missing") from None
        if not n:
            end = wanted.at + wanted.length
            raise CorruptArchiveError(
                wanted.object, f"it ends at byte {wanted.at + done}, not behind byte {end}"
            )
        crc = lib.seg_crc32c(crc, ffi.from_buffer("uint8_t[]", part), n)
        take(part[:n])
        done += n
    if crc != wanted.crc:
        where = f"of {wanted.length} bytes from byte {wanted.at} on"
        raise CorruptArchiveError(wanted.object, f"the CRC-32C {where} is {crc:08x}, not {wanted.crc:08x}")


def download(source: ReadableObjects, files: Files, tasks: Iterable[Download], progress: Progress) -> None:
    """Make the files of all tasks. The calling thread calls `progress` with numbers of written bytes. Raises
    the first error of a task: ArchiveError, CorruptArchiveError, OSError. After an error, files may be
    incomplete.
    """

    def make(task: Download, buffer: bytearray, report: Progress) -> None:
        with files.open_anew(task.path) as out:
            writing = _Writing(files, out, report, task.counted)
            for wanted in task.ranges:
                read_range(source, wanted, buffer, writing.take)
            files.sync(out)

    spread(tasks, make, progress)


class _Writing:
    """A file that is written from its first to its last byte."""

    def __init__(self, files: Files, out: Handle, report: Progress, counted: bool) -> None:
        self._files, self._out, self._report, self._counted, self._at = files, out, report, counted, 0

    def take(self, data: memoryview) -> None:
        self._files.pwrite(self._out, data, self._at)
        self._at += len(data)
        self._report(len(data) if self._counted else 0)


# --- threads -----------------------------------------------------------------------------------

Work = Callable[[T, bytearray, Progress], object]
"""A task's work, called with (task, buffer of the thread, progress). It calls `progress` with numbers of
written bytes, which may be 0. After another task has failed, `progress` raises an exception, which stops the
work.
"""


def spread(tasks: Iterable[T], work: Work[T], progress: Progress) -> None:
    """Do the work of all tasks, several tasks at the same time. The calling thread calls `progress`. Raises
    the first error of a task.
    """
    taken = _Tasks(iter(tasks), work)
    workers = [Worker(f"segstore-restore-{number}") for number in range(THREADS)]
    try:
        for each in workers:
            each.start()
            each.do(taken.run)
        for size in taken.progress():
            progress(size)
        for each in workers:
            each.result()
    finally:
        taken.stop()
        for each in workers:
            each.end()


class _Tasks(Generic[T]):
    """The tasks that the threads share."""

    def __init__(self, tasks: Iterator[T], work: Work[T]) -> None:
        self._tasks, self._work = tasks, work
        self._taking, self._stopped = Mutex(), False
        self._written: SimpleQueue[int] = SimpleQueue()

    def stop(self) -> None:
        """Stop each thread at its next report of progress."""
        self._stopped = True

    def progress(self) -> Iterator[int]:
        """Yield each number of written bytes that a thread reports, until all threads have finished."""
        left = THREADS
        while left:
            size = self._written.get()
            if size:
                yield size
            else:
                left -= 1

    def run(self) -> None:
        """Do tasks until all are done, or one has failed."""
        buffer = bytearray(BUFFER)
        try:
            with contextlib.suppress(_StoppedError):
                while (found := self._next()) is not None:
                    self._work(found[0], buffer, self._report)
        except BaseException:
            self.stop()
            raise
        finally:
            self._written.put(0)

    def _next(self) -> tuple[T] | None:
        with self._taking:
            return None if self._stopped else next(((each,) for each in self._tasks), None)

    def _report(self, size: int) -> None:
        if self._stopped:
            raise _StoppedError
        if size:
            self._written.put(size)


class _StoppedError(Exception):
    """An exception that stops a task after another task has failed."""
