"""`download`: brings objects of an archive into files, several at a time, and checks their CRCs.

On disk: writes new files, each synced when its download is over. Memory: one buffer of BUFFER bytes for each
thread. Threads: one calls `download`; it has threads of its own, none of which is left when it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from typing_extensions import Buffer

from segstore._native import ffi, lib
from segstore.errors import CorruptArchiveError
from segstore.files import Files, Handle
from segstore.mutex import Mutex
from segstore.threads import Worker

THREADS = 8
BUFFER = 4 << 20
Progress = Callable[[int], object]


class Source(Protocol):
    """Where objects are read from; see `remote.RemoteFiles`."""

    def read_into(self, name: str, at: int, buffer: Buffer) -> int: ...


class Stretch(NamedTuple):
    """`length` bytes of an object from byte `at` on, and their CRC-32C."""

    object: str
    at: int
    length: int
    crc: int


class Download(NamedTuple):
    """A file to be made of stretches of objects, one behind the other; `counted` says whether `progress` is
    told of its bytes.
    """

    path: str
    stretches: tuple[Stretch, ...]
    counted: bool

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return sum(each.length for each in self.stretches)


def read_stretch(
    source: Source, stretch: Stretch, buffer: bytearray, take: Callable[[memoryview], object]
) -> None:
    """Read a stretch through a buffer, and give its bytes to `take`, from the first to the last. Raises
    CorruptArchiveError if the object is missing or too short, or the CRC is wrong: `take` has had all bytes
    then.
    """
    crc = done = 0
    while done < stretch.length:
        part = memoryview(buffer)[: min(len(buffer), stretch.length - done)]
        try:
            n = source.read_into(stretch.object, stretch.at + done, part)
        except FileNotFoundError:
            raise CorruptArchiveError(stretch.object, "it is missing") from None
        if not n:
            end = stretch.at + stretch.length
            raise CorruptArchiveError(
                stretch.object, f"it ends at byte {stretch.at + done}, not behind byte {end}"
            )
        crc = lib.seg_crc32c(crc, ffi.from_buffer("uint8_t[]", part), n)
        take(part[:n])
        done += n
    if crc != stretch.crc:
        where = f"of {stretch.length} bytes from byte {stretch.at} on"
        raise CorruptArchiveError(stretch.object, f"the CRC-32C {where} is {crc:08x}, not {stretch.crc:08x}")


def download(source: Source, files: Files, tasks: Iterable[Download], progress: Progress) -> None:
    """Make the files of all tasks. `progress` is called by this thread, with bytes that were written. Raises
    the first error of a task: ArchiveError, CorruptArchiveError, OSError; files may be incomplete then.
    """
    taken = _Tasks(source, files, iter(tasks))
    workers = [Worker(f"segstore-restore-{number}") for number in range(THREADS)]
    try:
        for each in workers:
            each.start()
            each.do(taken.work)
        for size in taken.progress():
            progress(size)
        for each in workers:
            each.result()
    finally:
        taken.stop()
        for each in workers:
            each.end()


class _Tasks:
    """The downloads that the threads share."""

    def __init__(self, source: Source, files: Files, tasks: Iterator[Download]) -> None:
        self._source, self._files, self._tasks = source, files, tasks
        self._taking, self._stopped = Mutex(), False
        self._told: SimpleQueue[int] = SimpleQueue()

    def stop(self) -> None:
        """Let no thread go on behind the buffer that it writes now."""
        self._stopped = True

    def progress(self) -> Iterator[int]:
        """Yield bytes that were written, until each thread has ended its work."""
        left = THREADS
        while left:
            size = self._told.get()
            if size:
                yield size
            else:
                left -= 1

    def work(self) -> None:
        """Do downloads until there are no more, or one has failed."""
        buffer = bytearray(BUFFER)
        try:
            with contextlib.suppress(_StoppedError):
                while (task := self._next()) is not None:
                    self._make(task, buffer)
        except BaseException:
            self.stop()
            raise
        finally:
            self._told.put(0)

    def _next(self) -> Download | None:
        with self._taking:
            return None if self._stopped else next(self._tasks, None)

    def _make(self, task: Download, buffer: bytearray) -> None:
        with self._files.open_anew(task.path) as out:
            writing = _Writing(self, out, task.counted)
            for stretch in task.stretches:
                read_stretch(self._source, stretch, buffer, writing.take)
            self._files.sync(out)

    def wrote(self, out: Handle, at: int, data: memoryview, counted: bool) -> None:
        """Write bytes to a file, and tell so. Raises OSError, _StoppedError."""
        if self._stopped:
            raise _StoppedError
        self._files.pwrite(out, data, at)
        self._files.start_sync(out, at, len(data))
        if counted:
            self._told.put(len(data))


class _Writing:
    def __init__(self, tasks: _Tasks, out: Handle, counted: bool) -> None:
        self._tasks, self._out, self._counted, self._at = tasks, out, counted, 0

    def take(self, data: memoryview) -> None:
        self._tasks.wrote(self._out, self._at, data, self._counted)
        self._at += len(data)


class _StoppedError(Exception):
    """Another download has failed."""
