"""`Uploads`: a few threads that make calls. `upload_segment`: uploads a sealed segment to an archive.

The `.log`, `.index`, `.timeindex`, `.txnindex` and `.snapshot` of a segment are written to the archive, under
new names. The store's files are only read. Threads: the archiver's thread calls `run` and `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from segstore import names
from segstore.archiving.claim import WritableObjects
from segstore.archiving.object_names import SEGMENT_SUFFIXES, TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment, Source, source_of
from segstore.archiving.stretches import STEP, LogFile, crc_of
from segstore.errors import ArchiveError, IllegalStateError, StoreClosedError, copy_of
from segstore.files import Files
from segstore.storage.segment.segment import Segment as LocalSegment
from segstore.threads import Background

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class Done(NamedTuple, Generic[T]):
    """The outcome of a call: its number, and its result or its error."""

    number: int
    result: T | None
    error: BaseException | None


class _AskedUpload(NamedTuple):
    number: int
    call: Callable[[], Any]
    outcomes: SimpleQueue[Done[Any]]


class Uploads:
    """At most `most` threads that make calls. Each `begin` starts a new thread, until there are `most`."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._waiting: SimpleQueue[_AskedUpload | None] = SimpleQueue()
        self._threads: list[Background] = []
        self._over = False

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make all calls, and return their results in order. If calls fail, the error of the first failed
        call is raised after all calls have ended.
        """
        if len(calls) == 1:
            return [calls[0]()]
        outcomes: SimpleQueue[Done[T]] = SimpleQueue()
        for number, call in enumerate(calls):
            self.begin(number, call, outcomes)
        found = sorted((outcomes.get() for _ in calls), key=lambda each: each.number)
        for each in found:
            if each.error is not None:
                raise copy_of(each.error)
        return [each.result for each in found]  # type: ignore[misc]

    def begin(self, number: int, call: Callable[[], T], outcomes: SimpleQueue[Done[T]]) -> None:
        """Queue a call for a thread, which makes the call and puts its outcome into `outcomes`. If there is
        no thread and none can be started, make the call now.
        """
        if len(self._threads) < self._most:
            self._start()
        asked = _AskedUpload(number, call, outcomes)
        if self._threads:
            self._waiting.put(asked)
        else:
            self._make(asked)

    def _start(self) -> None:
        thread = Background(self._run, self._name)
        try:
            thread.start()
        except IllegalStateError:
            return
        self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads. Calls that have not begun fail with StoreClosedError."""
        self._over = True
        for _ in self._threads:
            self._waiting.put(None)
        for each in self._threads:
            each.join()
        try:
            while True:
                if (asked := self._waiting.get_nowait()) is not None:
                    asked.outcomes.put(Done(asked.number, None, StoreClosedError("the archiver has ended")))
        except Empty:
            return

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            self._make(asked)
            del asked

    def _make(self, asked: _AskedUpload) -> None:
        try:
            if self._over:
                raise StoreClosedError("the archiver has ended")
            done = Done(asked.number, asked.call(), None)
        except BaseException as error:  # the archiver's thread raises the error
            done = Done(asked.number, None, error)
        asked.outcomes.put(done)
        # This breaks a reference cycle: the error's traceback refers to this frame, and `done` to the error.
        del asked, done


class SealedSegment(NamedTuple):
    """A segment to upload: the first `size` bytes of its log, with offsets below `end`."""

    key: TopicIdPartition
    local: LocalSegment
    end: int
    size: int

    @property
    def source(self) -> Source:
        """Return inode, size and modification time of the segment's log file (`ArchivedSegment.source`)."""
        return source_of(self.local.identity)


class _LogParts:
    """The bytes of a log, which can be iterated several times; `crc` is the CRC of the last iteration."""

    def __init__(self, log: LogFile, size: int) -> None:
        self._log, self._size = log, size
        self.crc = 0

    def __iter__(self) -> Iterator[Buffer]:
        at, crc = 0, 0
        while at < self._size:
            data = self._log.files.pread(self._log.handle, min(STEP, self._size - at), at)
            if not data:
                raise FileNotFoundError(2, "cut off meanwhile", self._log.path)
            crc, at = crc_of(data, crc), at + len(data)
            yield data
        self.crc = crc


def upload_segment(
    objects: WritableObjects, files: Files, sealed: SealedSegment, upload: str, since: int
) -> ArchivedSegment:
    """Upload all files of a segment, and return the segment's entry. Raises ArchiveError, and
    FileNotFoundError if compaction or retention has removed the segment.
    """
    local = sealed.local
    log = LogFile(files, local.handle, local.path)
    others = {suffix: _content(files, local.file(suffix)) for suffix in SEGMENT_SUFFIXES[1:]}
    latest = local.largest_timestamp(sealed.size, sealed.end)
    if files.identity(local.path) != local.identity:
        raise FileNotFoundError(2, "The segment was replaced", local.path)
    parts = _LogParts(log, sealed.size)
    made = ArchivedSegment(
        local.base_offset, sealed.end, upload, {}, -1 if latest is None else latest, since,
        source=sealed.source,
    )  # fmt: skip
    written = objects.write(made.object(sealed.key, names.LOG), parts)
    if written != sealed.size:
        raise ArchiveError(
            f"{objects.uri}: {made.object(sealed.key, names.LOG)}: {written} bytes were written"
        )
    found = {names.LOG: (sealed.size, parts.crc)}
    for suffix, data in others.items():
        if data is not None:
            objects.write(made.object(sealed.key, suffix), [data])
            found[suffix] = (len(data), crc_of(data))
    return made._replace(files=found)


def _content(files: Files, path: str) -> bytes | None:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return None
