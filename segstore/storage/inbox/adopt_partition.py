"""Appends verified staged files to one partition's log: copies their batches into it, or turns a file into a
segment.

A staged file becomes a segment by a hard link, and keeps its path in the inbox. So the segment is never
truncated before its adoption is finished or undone; an undo unlinks the segment's path. Threads: `prepare` is
called before the partition's append token (the lock of its appends) is taken, and the other methods by the
token's holder. No method makes records visible.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from itertools import groupby

from segstore import names
from segstore.files import Handle
from segstore.index.sparse import MOST_RELATIVE
from segstore.records import Encoded
from segstore.storage.inbox.gatherer import Gatherer
from segstore.storage.inbox.intent import LogOffsetMetadata
from segstore.storage.inbox.joined import JoinedSegment
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.verify import VerifiedFile, chunks_of, verify
from segstore.storage.log.flushing import NEVER
from segstore.storage.log.partition import Partition
from segstore.storage.log.writer import AppendUndo
from segstore.storage.segment.active import ActiveSegment
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import create_segment, remove_segment

# --- adopt partition ------------------------------------------------------------

_OPEN = 64  # as soon as this many files are written, they are synced
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


class PartitionAdoption:
    """The append of one manifest's staged files to one partition. The caller calls `prepare`, `place` and
    `append` in this order, and `put_back` if the adoption fails. `topic` is the first staged file, which has
    the topic's name and the partition's number. A file of less than `segment_bytes` does not become a
    segment.
    """

    def __init__(
        self, partition: Partition, files: Sequence[StagedFile], folder: Folder, segment_bytes: int
    ) -> None:
        self.partition, self.topic = partition, files[0]
        self._staged, self._folder, self._segment_bytes = files, folder, segment_bytes
        self._work: list[VerifiedFile] = []
        self._indexes: dict[str, list[str]] = {}  # keys: paths of files; values: paths of their index files
        self._writer, self._segments = partition.writer, partition.segments
        self._pool, self._files = partition.context.pool, partition.context.files
        self._restore: AppendUndo | None = None
        self._last = 0  # the index in `_segments` of the segment that was active before the append
        self._replaced = False  # whether a staged file has replaced the active segment, which was empty
        self._temporary = ""  # path of a link before its rename to a segment's name
        # Keys: the paths of joined files that are synced after the adoption. Values: the staged files that
        # each was joined from.
        self._joined: dict[str, tuple[StagedFile, ...]] = {}

    # --- without the token ----------------------------------------------------------------

    def prepare(self, gatherer: Gatherer) -> None:
        """Check the staged files, flush the log, and join small files. Write the expected offsets into the
        files that will become segments, and sync these files.

        The expected offsets are right unless another append to the partition comes before `place`. Raises
        StagedFilesError, RecordTooLargeError, InvalidRecordError; StorageError, OSError.
        """
        with gatherer.looking():
            checked = [self._verified(file) for file in self._staged]
        self.partition.flush()
        base, epoch = self.partition.visible.log_end_offset, self._writer.epoch
        written: list[Handle] = []
        runs = list(self._runs(checked))
        later = self._may_sync_later(runs)
        for run in runs:
            together = self._is_joined(run)
            one = self._joined_of(run, gatherer, (base, epoch), later=later) if together else run[0]
            if one.indexes is not None:
                self._indexes[one.path] = gatherer.indexes(one.indexes)
                if one.place != (base, epoch):
                    written.append(self._restamped(one, base, epoch))
                    one = one._replace(place=(base, epoch))
            self._work.append(one)
            base += one.file.records
            if len(written) == _OPEN:
                self._sync(written)
        self._sync(written)

    def _is_joined(self, run: Sequence[VerifiedFile]) -> bool:
        return len(run) > 1 or (self._is_gathered(run[0]) and run[0].file.size >= self._segment_bytes)

    def _may_sync_later(self, runs: Sequence[Sequence[VerifiedFile]]) -> bool:
        """Return whether the new segments may be synced after the adoption is acknowledged. They may if all
        files are joined into segments and all staged files are on disk, because the segments can then be
        made again from the staged files after a crash.
        """
        # If flush.messages is set, the segments are synced before the acknowledgement: if they were synced
        # later, the next append would wait for their sync.
        return self.partition.config.flush_messages == NEVER and all(
            self._is_joined(run)
            and all(one.durable for one in run)
            and sum(one.file.size for one in run) >= self._segment_bytes
            for run in runs
        )

    def _joined_of(
        self, run: Sequence[VerifiedFile], gatherer: Gatherer, place: tuple[int, int], *, later: bool
    ) -> VerifiedFile:
        """Join the files of `run` into one file, check this file, and return its description. `place` is its
        (base offset, leader epoch). If `later`, the file is synced after the adoption; else it is synced here
        if it will become a segment.
        """
        parts = tuple(one.file for one in run)
        sync = not later and sum(part.size for part in parts) >= self._segment_bytes
        made = self._verified(gatherer.gather(parts, *place, sync=sync))
        if later:
            self._joined[made.path] = parts
        return made._replace(durable=sync)

    def _sync(self, written: list[Handle]) -> None:
        while written:
            with written.pop() as handle:
                self._files.sync(handle)

    def _verified(self, file: StagedFile) -> VerifiedFile:
        path = self._folder.staged(file)
        return verify(self._files, path, file, self.partition.config, self._segment_bytes)

    def _runs(self, checked: Sequence[VerifiedFile]) -> Iterator[list[VerifiedFile]]:
        """Yield groups of consecutive files. A file that can't be joined with other files is a group of its
        own. A group of several files is within the limits of a segment.
        """
        config = self.partition.config
        run: list[VerifiedFile] = []
        size = records = latest = 0
        for one in checked:
            first = run[0].stamps[0] if run else one.stamps[0]
            size, records = size + one.file.size, records + one.file.records
            latest = max(latest, one.stamps[1])
            fits = size <= config.segment_bytes and records <= MOST_RELATIVE
            fits &= first < 0 or latest - first <= config.max_segment_ms
            if run and not (fits and self._is_gathered(run[0]) and self._is_gathered(one)):
                yield run
                run = []
                size, records, latest = one.file.size, one.file.records, one.stamps[1]
            run.append(one)
        yield run

    def _is_gathered(self, one: VerifiedFile) -> bool:
        """Return whether a file may be joined with other files. It may if all of this is true: the topic
        keeps the batches' timestamps, the file has no indexes (so it can't become a segment), and the file is
        either not durable, or smaller than `segment_bytes`.
        """
        # With LogAppendTime the batches get new timestamps, so no file becomes a segment as it is.
        keeps_timestamps = self.partition.config.message_timestamp_type == "CreateTime"
        large = one.file.size >= self._segment_bytes
        return keeps_timestamps and one.indexes is None and not (large and one.durable)

    def _restamped(self, one: VerifiedFile, base: int, epoch: int) -> Handle:
        """Write offsets from `base` on and the leader epoch into a file, and begin its write-back. Return the
        open file; the caller must sync it.
        """
        handle = self._files.open(one.path, write=True)
        self._files.restamp(handle, one.file.size, base, epoch)
        self._files.start_sync(handle, 0, one.file.size)
        return handle

    # --- with the token -------------------------------------------------------------------

    def place(self) -> LogOffsetMetadata:
        """Return the present end of the log, to which an undo truncates the log. The caller holds the append
        token until the adoption has ended.
        """
        topic = self.topic
        self._writer.check_leads()
        active = self._segments.active
        self._restore, self._last = AppendUndo(self._segments), len(self._segments) - 1
        segment = active.segment
        where = segment.base_offset, segment.size, active.end.next_offset
        return LogOffsetMetadata(topic.topic, topic.topic_id, topic.partition, *where)

    @property
    def offsets(self) -> tuple[int, int]:
        """Return the offset of the first appended record, and the offset after the last appended record."""
        assert self._restore is not None
        return self._restore.mark.next_offset, self._segments.next_offset

    def append(self) -> None:
        """Append the files. Raises StorageError, OSError; after an error some files may be appended."""
        if self.joined:
            self.partition.flush()  # syncs records appended since `prepare`, because `sync` will do nothing
        for is_segment, run in groupby(self._work, lambda one: one.indexes is not None):
            copied = list(run)
            if is_segment:
                copied = copied[self._take_whole(copied) :]
            for one in copied:
                self._joined.pop(one.path, None)  # no sync of its own: its records were copied into the log
                self._copy(one)

    @property
    def joined(self) -> list[JoinedSegment]:
        """Return the joined segments if they are synced after the adoption, else an empty list."""
        topic, segments, base = self.topic, [], self.offsets[0]
        for one in self._work:
            if one.indexes is None or one.path not in self._joined:
                return []
            where = topic.topic, topic.topic_id, topic.partition, base, self._writer.epoch
            segments.append(JoinedSegment(*where, self._joined[one.path]))
            base += one.file.records
        return segments

    def sync(self) -> None:
        """Sync the appended records, unless they are in `joined` segments. If this raises StorageError, the
        partition is fenced: it takes no appends.
        """
        if not self.joined:
            self.partition.sync_ahead()

    def appended(self) -> None:
        """Report the appended records as durable, except those in `joined` segments. Called before the
        records become visible.
        """
        self.partition.flushing.adopted(self.offsets[0 if self.joined else 1])

    def _copy(self, one: VerifiedFile) -> None:
        with self._files.open(one.path) as handle:
            self._writer.write_staged(self._chunks(handle, one.file))

    def _chunks(self, handle: Handle, file: StagedFile) -> Iterator[Encoded]:
        for buffer, batches, size in chunks_of(self._files, handle, file.size, check_crcs=False):
            chunk = Encoded(buffer, size, batches)
            chunk.pooled = False  # the buffer does not return to the pool, because the next chunk reuses it
            yield chunk

    # --- staged files as segments ------------------------------------------------------------

    def _take_whole(self, run: Sequence[VerifiedFile]) -> int:
        """Turn the files of `run` into segments of the log, one after the other, until one can't be
        hard-linked. Return the number of new segments. If it is above 0, an empty active segment follows the
        last new segment.
        """
        segments, taken = self._segments, 0
        if segments.active.segment.size:
            self._writer.roll()
        end = segments.next_offset
        if segments.active.segment.base_offset != end:
            return 0
        for one in run:
            if not self._take(one, end):
                break
            end, taken = end + one.file.records, taken + 1
        if taken:
            following = create_segment(self._pool, segments.directory, end, self.partition.config)
            segments.append(following)
            segments.activate(ActiveSegment(following, self.partition.config, end))
            # A roll would call `sealed`, too, but would also begin a background flush, which would delay the
            # adoption.
            self.partition.sealed(end, taken)
        return taken

    def _take(self, one: VerifiedFile, base: int) -> bool:
        """Turn a file into the segment with base offset `base`. If the last segment has this base offset, it
        is empty, and the new segment replaces it. Return False if the file can't be hard-linked, else True.
        """
        segments, files, durable = self._segments, self._files, one.durable
        epoch = self._writer.epoch
        assert self._restore is not None
        if one.place != (base, epoch):
            with files.open(one.path, write=True) as handle:
                files.restamp(handle, one.file.size, base, epoch)
            durable = False
        empty = segments[-1]
        segment = Segment(
            self._pool, empty.directory, base, one.file.size, writable=True, interval=empty.interval
        )
        segment.durable = durable
        if not self._link(one.path, segment.file(names.LOG + names.TEMPORARY)):
            return False
        if empty.base_offset == base:
            self._replaced |= segments.active is self._restore.active
            self._pool.forget(empty.path)
            segments.replace_last(segment)
        else:
            segments.append(segment)
        for path, suffix in zip(self._indexes[one.path], (names.INDEX, names.TIME_INDEX), strict=True):
            files.rename(path, segment.file(suffix))
        files.rename(self._temporary, segment.path)
        self._pool.forget(segment.path)
        return True

    def _link(self, path: str, temporary: str) -> bool:
        """Hard-link a file to the path `temporary`. Return whether the file could be hard-linked."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(temporary)
        self._temporary = temporary
        try:
            self._files.link(path, temporary)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    # --- back -----------------------------------------------------------------------------

    def put_back(self) -> None:
        """Undo the append, durably. If the disk fails, the partition is fenced: it takes no appends."""
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
        """Return whether `put_back` succeeded."""
        return self._segments.fenced is None

    def fence(self, error: BaseException) -> None:
        """Refuse appends until the next open, which finishes or undoes the adoption."""
        if self._segments.fenced is None:
            self._segments.fence(error)

    def _put_back_replaced(self, restore: AppendUndo) -> None:
        """Undo the append if a staged file has replaced the active segment: first in memory, then on disk."""
        segments, active = self._segments, restore.active
        removed = segments.cut_from(self._last, active.segment)
        segments.activate(active)
        active.recall(restore.mark)

        # Segments are unlinked, not truncated, because they are hard links to staged files, which an undo
        # must keep.
        def put_back() -> None:
            for segment in removed[1:]:
                self.partition.producers.forget_snapshot(segment.base_offset)
            for segment in reversed(removed):
                remove_segment(segment)
            base = active.segment.base_offset
            segment = create_segment(self._pool, active.segment.directory, base, self.partition.config)
            segments.replace_last(segment)
            segments.activate(ActiveSegment(segment, self.partition.config, restore.mark.next_offset))
            self.partition.flusher.names_changed()

        try:
            self.partition.flusher.without_syncs(put_back)
        except BaseException as error:
            segments.fence(error)

    def _drop_temporary(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._temporary:
                self._files.unlink(self._temporary)
