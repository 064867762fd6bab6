"""Puts verified staged files at the end of one partition's log: copied, or as segments of their own.

On disk: the partition's segment files. A staged file that becomes a segment gets a second name, and keeps its
first: until the adoption is settled, no byte of it may be cut, and names alone are taken back.
Threads: the holder of the partition's append token. Nothing is shown here.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

from segstore import names
from segstore.files import Handle
from segstore.index import replace_index
from segstore.records import Encoded
from segstore.records.encoded import pool
from segstore.storage.active import ActiveSegment
from segstore.storage.partition import Partition
from segstore.storage.segment import Segment
from segstore.storage.staging.intent import Place
from segstore.storage.staging.message import StagedFile
from segstore.storage.staging.verifying import Verified, chunks_of
from segstore.storage.writer import Restore, create_segment, remove_segment

_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


class PartitionAdoption:
    """Of one manifest; `topic` names the topic as the manifest does. First `place`, then `append`, then
    `put_back` or nothing.
    """

    def __init__(self, partition: Partition, work: Sequence[Verified]) -> None:
        self.partition, self.topic = partition, work[0].file
        self._work, self._writer = work, partition.writer
        self._pool, self._files = partition.context.pool, partition.context.files
        self._restore: Restore | None = None
        self._replaced = False  # the segment that was active, and empty, has a staged file's bytes

    def place(self) -> Place:
        """Where the log ends."""
        writer, topic = self._writer, self.topic
        writer.check()
        active = writer.active
        self._restore = Restore(len(writer.segments), active, active.mark(), None)
        segment = active.segment
        where = segment.base_offset, segment.size, active.next_offset
        return Place(topic.topic, topic.topic_id, topic.partition, *where)

    @property
    def offsets(self) -> tuple[int, int]:
        """First and end offset of what was appended."""
        assert self._restore is not None
        return self._restore.mark.next_offset, self._writer.next_offset

    def append(self) -> None:
        """StorageError, OSError: a part may be there."""
        for one in self._work:
            with self._files.open(one.path) as handle:
                if one.indexes is None or not self._take_whole(one, *one.indexes):
                    self._writer.write_staged(self._chunks(handle, one.file))

    def _chunks(self, handle: Handle, file: StagedFile) -> Iterator[Encoded]:
        for buffer, batches, size in chunks_of(self._files, handle, file.size, check_crcs=False):
            # A copy, since this chunk may still be written while the next one is read.
            held = pool.take(size)
            held[:size] = buffer[:size]
            yield Encoded(held, size, batches)

    # --- a staged file as a segment ------------------------------------------------------

    def _take_whole(self, one: Verified, offset_entries: bytes, time_entries: bytes) -> bool:
        """False where the file can't have a second name: nothing has changed then but for a roll."""
        writer, files = self._writer, self._files
        if writer.active.segment.size:
            writer.roll()
        empty, base = writer.active.segment, writer.next_offset
        if empty.base_offset != base:
            return False
        temporary = empty.file(names.LOG + names.TEMPORARY)
        with contextlib.suppress(FileNotFoundError):
            files.unlink(temporary)
        try:
            files.link(one.path, temporary)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        if one.place != (base, writer.epoch):
            with files.open(temporary, write=True) as handle:
                files.restamp(handle, one.file.size, base, writer.epoch)
        assert self._restore is not None
        self._replaced |= writer.active is self._restore.active
        replace_index(files, empty.file(names.INDEX), offset_entries)
        replace_index(files, empty.file(names.TIME_INDEX), time_entries)
        files.rename(temporary, empty.path)
        self._go_on(empty, one.file.size, base + one.file.records)
        return True

    def _go_on(self, empty: Segment, size: int, end: int) -> None:
        """The file has the segment's name: a new one, empty, is active behind it."""
        writer, config = self._writer, self.partition.config
        self._pool.forget(empty.path)
        writer.segments[-1] = Segment(
            self._pool, empty.directory, empty.base_offset, size, writable=True, interval=empty.interval
        )
        following = create_segment(self._pool, empty.directory, end, config)
        writer.segments.append(following)
        writer.active = ActiveSegment(following, config, end)
        writer.rolled(end)

    # --- back -----------------------------------------------------------------------------

    def put_back(self) -> None:
        """Take it all away again, and make that durable; where the disk refuses, the partition is fenced."""
        if self._restore is None:
            return
        if self._replaced:
            self._put_back_replaced(self._restore)
        else:
            self._writer.put_back(self._restore)
        try:
            self._drop_temporary()
            self.partition.sync_ahead()
        except OSError as error:
            self.fence(error)

    @property
    def undone(self) -> bool:
        """Whether `put_back` has done what it says."""
        return self._writer.fenced is None

    def fence(self, error: BaseException) -> None:
        """Nothing may be appended until the next open has settled what is there."""
        self._writer.fenced = self._writer.fenced or error

    def _put_back_replaced(self, restore: Restore) -> None:
        """In memory first, as `LogWriter.put_back`; then names go, and an empty log gets its own again."""
        writer, active = self._writer, restore.active
        gone = writer.segments[restore.segments - 1 :]
        writer.segments[restore.segments - 1 :] = [active.segment]
        writer.active = active
        active.recall(restore.mark)
        try:
            writer.producers.undo(None, [segment.base_offset for segment in gone[1:]])
            for segment in reversed(gone):
                remove_segment(segment)
            base = active.segment.base_offset
            segment = create_segment(self._pool, active.segment.directory, base, self.partition.config)
            writer.segments[-1] = segment
            writer.active = ActiveSegment(segment, self.partition.config, restore.mark.next_offset)
            self.partition.flusher.names_changed()
        except BaseException as error:
            writer.fenced = error

    def _drop_temporary(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._writer.active.segment.file(names.LOG + names.TEMPORARY))
