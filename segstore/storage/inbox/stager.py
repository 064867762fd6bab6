"""The stager: it writes record batches for any partitions into its own files, without the writer's lock.

In `.segstore/inbox/<stager's name>/` there are `owner`, which is locked until the stager is closed or its
process ends, and files <8 digits>.batches. Each of these files has whole batches for one partition, with
contiguous offsets, and at most `segment.bytes`.

The batches of a file get the offsets and the leader epoch that the adoption (the append of the file to the
log) is expected to assign. The stager's first file for a partition is expected to follow the log end that the
store's writer has published, and each later file the file before it. If nobody else appends before the
adoption, the offsets are right, and a large file is adopted without a write into it.

Threads: one at a time; a thread of the stager's own writes to the disk. Processes: any number of stagers run
beside each other and beside the store's writer; a stager belongs to the process that made it.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from segstore import names
from segstore._native import lib
from segstore.closing import Closing
from segstore.config import arguments
from segstore.errors import ForkedError, IllegalStateError, StorageError
from segstore.files import Files, Handle
from segstore.files.locks import boot_id
from segstore.files.overlapped_write import Pipeline
from segstore.index.sparse import MOST_RELATIVE
from segstore.records import Encoded, batch_ptr
from segstore.records.encoded import checked
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import Staged, StagedFile
from segstore.storage.inbox.topic_files import StagersTopics
from segstore.storage.log.append import encode_columns, table_columns
from segstore.storage.log.validator import LogValidator
from segstore.storage.meta.directory_safety import kept_mode
from segstore.storage.meta.published_ends import EndsReader, open_reader, slot_key
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topics import TopicInfo

# --- kernel ------------------------------------------------------------------------------------

# Before Linux 6.13 the kernel takes file times from a clock that moves in ticks, so two changes of a file may
# get the same time.

_TICK = 0.001  # seconds: the shortest tick of a kernel; `_LOOKS` of them are longer than the longest, 10 ms
_LOOKS = 16


def wait_until_past(files: Files, probe: Handle, ns: int) -> bool:
    """Wait until a change of a file would get a ctime above `ns`, and return True. Return False if that takes
    more than some ms, because the file system may count whole seconds, or the clock may have been set back.

    `probe` is a file that is changed to read the present time; `ns` is a ctime of a file on the same file
    system. Raises OSError.
    """
    for look in range(_LOOKS):
        if look > 1:  # Linux 6.13 needs no sleep: it gives a new ctime after each read of the old ctime
            time.sleep(_TICK)
        if files.has_passed(probe, ns):
            return True
    return False


# --- stager ------------------------------------------------------------

BATCH_BYTES = 1 << 19
"""The default size of a batch in uncompressed bytes. It is large because the adoption writes 12 bytes into
each batch.
"""
_AHEAD_BYTES = 1 << 22
"""Each time that this many more bytes are staged, the kernel begins to write them to disk. More records can
be encoded at the same time.
"""
_OVERLAPPED_BYTES = 1 << 20
"""A call that stages at least this many bytes returns before its last bytes are written."""
_MOST_GUESSED = 1 << 62
_MOST_OFFSETS = MOST_RELATIVE  # a staged file may become a segment, whose relative offsets are int32


class _Output:
    """A staged file that is being written."""

    def __init__(
        self, info: TopicInfo, partition: int, name: str, handle: Handle, place: tuple[int, int]
    ) -> None:
        """`place`: the expected base offset and leader epoch of the file."""
        self.info, self.partition, self.name, self.handle = info, partition, name, handle
        self.base, self.epoch = place
        self.size = self.records = self.batches = self.changed = self.begun = 0

    def room(self, part: Any) -> int:
        """Return the number of batches of `part`, from the first on, that still fit into the file."""
        sizes, spans = part["size"].cumsum(dtype="int64"), part["count"].cumsum(dtype="int64")
        fit = int(sizes.searchsorted(self.info.settings.segment_bytes - self.size, side="right"))
        return min(fit, int(spans.searchsorted(_MOST_OFFSETS - self.records, side="right")))

    def file(self, stager: str) -> StagedFile:
        info, sizes = self.info, (self.batches, self.records, self.size)
        synced = self.changed, boot_id(), "compact" in info.settings.cleanup_policy
        return StagedFile(stager, self.name, info.name, info.topic_id, self.partition, *sizes, *synced)


class Stager(Closing):
    """Stages record batches: writes them into files that `seal` appends to the log later. A context manager:
    `__exit__` removes the files unless `finish` was called.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Clock = wall_clock, files: Files | None = None
    ) -> None:
        """Make a stager for the existing store at `path`. For a replicated store `path` is any of its
        directories; the stager takes records for all partitions. Raises StorageError, InvalidTypeError.
        """
        self._root = arguments.path("path", path)
        self._files, self._clock = files or Files(), clock
        self.name = secrets.token_hex(16)
        self._folder = Folder(self._files, self._root)
        self._topics: StagersTopics | None = None
        self._open: dict[tuple[str, int], _Output] = {}
        self._done: list[_Output] = []
        self._count = 0
        self._owner: Handle | None = None
        self._ends: EndsReader | None = None
        self._pipe = Pipeline(self._files)
        self._pid = os.getpid()
        self._finished = False
        with os_errors():
            self._begin()

    def _begin(self) -> None:
        if not self._files.exists(self._root):
            raise StorageError(
                errno.ENOENT, 'No such store (segstore.open with mode="rw" makes it)', self._root
            )
        self._files.file_mode = kept_mode(self._files, self._root)
        self._folder.prepare()
        try:
            self._files.mkdir(self._folder.stager(self.name))
            self._owner = self._files.lock(self._folder.owner(self.name))
        except BaseException:
            with suppress(OSError):
                self._folder.remove_stager(self.name)
            raise

    # --- writing --------------------------------------------------------------

    def append_batch(
        self,
        topic: str,
        partition: int,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> int:
        """Stage records for a partition, after the records staged before. Return the number of new records.

        Columns, `compression` (by default the topic's), `batch_bytes` (except its default) and errors are
        those of `PartitionLog.append_batch`. Raises also UnknownTopicOrPartitionError; InvalidTopicError for
        an internal topic; IllegalStateError if the stager is finished or closed; ForkedError in a child of
        the process that made the stager.

        When this returns, the columns may be changed, but the write of the last bytes may still be under way.
        If that write fails, the next call, or `finish`, raises the error. After a StorageError the stager can
        only be closed.
        """
        self._check_open()
        number = arguments.whole("partition", partition, 0, names.MAX_PARTITION)
        with os_errors():
            info = self._topic(topic, number)
            validator, now = LogValidator(info.settings), self._clock()
            n, chunks = encode_columns(
                validator, now, values, keys, timestamps, headers, compression, batch_bytes
            )
            self._write_all(info, number, chunks)
        return n

    def append_table(
        self,
        topic: str,
        partition: int,
        table: Any,
        *,
        compression: str | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> int:
        """Stage the rows of a table, after the records staged before. Return the number of rows.

        The table and its columns are as in `PartitionLog.append_table`. Raises the errors of that method and
        of `append_batch`. After any error but StorageError no row of the table is staged.
        """
        return self.append_batch(topic, partition, *table_columns(table), compression, batch_bytes)

    def append_encoded(self, info: TopicInfo, partition: int, chunks: Iterable[Encoded]) -> None:
        """Stage encoded records for a partition of the topic `info`. Raises the errors of `append_batch`."""
        self._check_open()
        with os_errors():
            self._write_all(info, partition, chunks)

    def _write_all(self, info: TopicInfo, number: int, chunks: Iterable[Encoded]) -> None:
        size = 0
        try:
            for chunk in chunks:
                size += chunk.size
                self._write(info, number, chunk)
            if size < _OVERLAPPED_BYTES:  # passing so few bytes to the other thread takes longer than a write
                self._pipe.drain()
        except BaseException:
            self.close()  # it is unknown which part was written, so none of the records may be sealed
            raise

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"stager {self.name} is of process {self._pid}: make one in {os.getpid()}")
        if self._owner is None or self._finished:
            raise IllegalStateError(f"stager {self.name} is {'finished' if self._finished else 'closed'}")

    def _topic(self, name: str, partition: int) -> TopicInfo:
        """Return the topic. It is read from disk once, and cached."""
        check_not_internal(name, "nothing is staged for it")
        if self._topics is None:
            self._topics = StagersTopics(self._files, self._root)
        return self._topics.find(name, partition)

    def _write(self, info: TopicInfo, partition: int, chunk: Encoded) -> None:
        batches, at = chunk.batches, 0
        while len(batches):
            output = self._open.get((info.name, partition)) or self._create(info, partition)
            fit = output.room(batches)
            if not fit:
                self._done.append(self._open.pop((info.name, partition)))
                continue
            part, batches = batches[:fit], batches[fit:]
            size = int(part["size"].sum())
            first = output.base + output.records
            after = lib.seg_assign(
                chunk.ptr + at, size, batch_ptr(part), fit, first, output.epoch, -1, output.size
            )
            checked(after)
            records = int(after) - output.base
            self._pipe.append((output.handle, chunk.data[at : at + size], output.size))
            self._begin_sync(output, output.size + size)
            output.size, output.records, output.batches = output.size + size, records, output.batches + fit
            at += size
        self._pipe.then(chunk.release)

    def _begin_sync(self, output: _Output, end: int) -> None:
        """Begin the write-back if enough new bytes lie below `end`, so that `finish` syncs few bytes."""
        begun, size = output.begun, end - output.begun
        if size >= _AHEAD_BYTES:
            output.begun = end
            self._pipe.then(lambda: self._files.start_sync(output.handle, begun, size))

    def _create(self, info: TopicInfo, partition: int) -> _Output:
        name = names.staged_file(self._count)
        self._count += 1
        path = os.path.join(self._folder.stager(self.name), name)
        handle = self._files.open_anew(path)
        output = _Output(info, partition, name, handle, self._place(info, partition))
        self._open[info.name, partition] = output
        return output

    def _place(self, info: TopicInfo, partition: int) -> tuple[int, int]:
        """Return the base offset and leader epoch that the next staged file will get from its adoption, if
        nobody else appends to the partition before the adoption.
        """
        for output in reversed(self._done):
            if (output.info.name, output.partition) == (info.name, partition):
                return output.base + output.records, output.epoch
        if self._ends is None:
            self._ends = open_reader(self._files, os.path.join(self._folder.ours, names.ENDS))
        key = slot_key(info.topic_id, info.name, partition)
        ends = None if self._ends is None else self._ends.get(key)
        # If a Kafka broker has appended after the end was published, this end is too low. The adoption
        # corrects wrong offsets.
        return (0, 0) if ends is None else (max(0, min(ends.end, _MOST_GUESSED)), max(ends.epoch, 0))

    # --- the end --------------------------------------------------------------

    def finish(self) -> Staged:
        """Make all staged records durable, and close the stager. Return a description of the staged files;
        any process may pass it to `seal`. If this raises StorageError, the staged files are removed.
        """
        self._check_open()
        outputs = [*self._done, *self._open.values()]
        outputs.sort(key=lambda output: output.name)
        with os_errors():
            try:
                self._pipe.drain()
                for output in outputs:
                    self._files.sync(output.handle)
                    output.changed = self._files.changed(output.handle)
                self._files.sync_dir(self._folder.stager(self.name))
                self._files.sync_dir(self._folder.path)
                self._date(outputs)
            except BaseException:
                self.close()
                raise
            self._finished = True
            message = Staged.of(self._root, self.name, [o.file(self.name) for o in outputs if o.size])
            self.close()
        return message

    def _date(self, outputs: Sequence[_Output]) -> None:
        """Set `changed` of all files to 0, unless every later change of the files is certain to get a later
        ctime.
        """
        assert self._owner is not None
        latest = max((output.changed for output in outputs), default=0)
        if not wait_until_past(self._files, self._owner, latest):
            for output in outputs:
                output.changed = 0

    def close(self) -> None:
        """Close the stager, and remove its files unless `finish` has succeeded. In a forked child do nothing.
        May be repeated. Raises StorageError.
        """
        if os.getpid() != self._pid:
            return
        self._pipe.end()  # ends the writing thread, which may be writing to the files that are closed below
        owner, self._owner = self._owner, None
        for output in (*self._done, *self._open.values()):
            output.handle.close()
        self._done, self._open = ([], {})
        if owner is None:
            return
        try:
            if not self._finished:
                with os_errors():
                    self._folder.remove_stager(self.name)
        finally:
            owner.close()
