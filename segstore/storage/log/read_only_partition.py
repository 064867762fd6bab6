"""`ReadOnlyPartition`: a partition in a process that only reads it. Its views end at the log's published end.

Files on disk are only read; nothing is created, changed or repaired. Threads: any; a view is replaced by one
assignment. If no end is published, as in a broker's directory, views go up to the end of the last whole,
valid batch.
"""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from typing import Protocol

from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError, StoreClosedError
from segstore.index.sparse import MOST
from segstore.mutex import Mutex
from segstore.names import MAX_OFFSET
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.open import read_only_segments
from segstore.storage.meta.published_ends import Ends
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import list_segments

_TRIES = 100
_TICK_NS = 2_000_000_000  # this is longer than one step of any file system's clock
_REFRESH_INDEX = 1 << 20  # the index is read again after the active log has grown by this many bytes


class PublishedLog(Protocol):
    """The facts about a log that a store's reader does not find in the log's own files."""

    def ends(self) -> Ends | None:
        """Return the published ends; None if the log has no valid published ends."""

    def log_start(self) -> int:
        """Return the log start offset of a log without published ends."""

    def ends_count(self) -> bool:
        """Return whether the store's writer publishes ends. If so, a log without published ends was deleted,
        or a new writer has not opened it yet.
        """

    def exists(self) -> bool:
        """Return whether the partition still exists in the topic with the same id. A new writer may not have
        opened the partition yet.
        """

    def has_directory(self) -> bool:
        """Return whether the directory still belongs to this topic, not to a new topic of the same name."""

    def sealed(self) -> dict[int, int]:
        """Return the ends, in bytes by base offset, of the sealed segments to which another process may still
        write (rule A5 of shared stores).
        """


class ReadOnlyPartition:
    """Reads a partition that another process writes."""

    def __init__(
        self,
        pool: HandlePool,
        directory: str,
        config: TopicConfig,
        published: PublishedLog,
        may_be_old: bool = True,
    ) -> None:
        """`may_be_old` is passed to each `Segment`."""
        self._pool, self.directory, self._config = pool, directory, config
        self._published, self._may_be_old = published, may_be_old
        self.lock = Mutex()
        self._seen: Ends | None = None
        self._view: LogView | None = None
        # `_written` is the view of the published log up to its log end offset.
        self._written: LogView | None = None
        self._was_published = False
        self._stamp = -1

    @property
    def view(self) -> LogView:
        """Return the view that readers may see now."""
        ends, view = self._published.ends(), self._view
        if view is not None and ends is not None and (ends is self._seen or ends == self._seen):
            return view
        with self.lock, suppress(FileNotFoundError):
            return self._refresh(ends)
        return self.refresh()

    @property
    def is_published(self) -> bool:
        """Return whether `view` ends at a published end, and not at the last whole batch of the log."""
        _ = self.view
        return self._was_published

    def written(self) -> LogView:
        """Return the view up to the log end offset. In a replica `view` may end earlier, at the high
        watermark.
        """
        view = self.view
        with self.lock:
            return view if self._seen is None or self._written is None else self._written

    def refresh(self) -> LogView:
        """List the files anew after an expected file was missing, and return the view. Raises
        StoreClosedError if all files are gone.
        """
        with self.lock:
            # Some open files may have been removed from disk, so all open files and known segments are
            # forgotten.
            self._pool.forget_directory(self.directory)
            for _ in range(_TRIES):
                self._seen = self._view = self._written = None
                try:
                    return self._refresh(self._published.ends())
                except FileNotFoundError:
                    if not self._pool.files.exists(self.directory):
                        break
                    # If the directory exists, a segment was removed after the listing, and the next try lists
                    # the directory again.
        raise StoreClosedError(f"{self.directory} is not there: its topic is only being made, or was deleted")

    def _refresh(self, ends: Ends | None) -> LogView:
        view, seen = self._view, self._seen
        if ends is None and self._was_published and self._published.ends_count():
            if not self._published.exists():
                raise self._deleted()
            if view is not None:
                return view
        listed = self._listed(ends, seen)
        if listed and view is not None:
            segments = view.segments
        else:
            segments, ends = self._looked_at(view, ends)
        self._grow(segments[-1], ends)
        if ends is None:
            after = self._unpublished(segments, view if seen is None else None)
        else:
            written = _view(segments, ends.start, ends.end, ends.stable)
            if self._written is None or seen is None or self._written.end_offset != seen.end:
                written = self._within(written, ends)
            self._written, after = written, _shown(written, ends.high_watermark)
        self._seen, self._view, self._was_published = ends, after, ends is not None
        return after

    def _looked_at(self, view: LogView | None, ends: Ends | None) -> tuple[tuple[Segment, ...], Ends | None]:
        """List the directory. Return its segments, and the published ends, or None in place of the ends if
        `ends` is None.
        """
        segments = self._segments(view)
        # The ends are read after the listing. With ends from before the listing, a segment that was compacted
        # before the listing would look truncated.
        for _ in range(_TRIES):
            later = self._published.ends() if ends is not None else None
            # If only `later` is None, the topic was deleted during this call. The next refresh reports that.
            if ends is None or later is None:
                break
            known, ends = ends.layout, later
            if known == later.layout:
                break
            segments = self._segments(view)
        return segments, ends

    def _deleted(self) -> StoreClosedError:
        return StoreClosedError(f"{self.directory}: the topic was deleted")

    def _listed(self, ends: Ends | None, seen: Ends | None) -> bool:
        """Return whether the directory certainly still has the segments that were listed last."""
        if ends is not None:
            return seen is not None and ends.layout == seen.layout
        stamp = self._pool.files.modified(self.directory)
        if seen is None and stamp == self._stamp and time.time_ns() - stamp > _TICK_NS:
            return True
        # The time is read before the listing, so that the next call notices a change during the listing.
        self._stamp = stamp
        return False

    def _within(self, view: LogView, ends: Ends) -> LogView:
        """Return the view without the offsets that were published, but whose records were lost in a power cut
        before a sync. Readers must not see these offsets, because a writer will assign them again.

        Synced offsets stay visible even if their bytes are gone, so that a reader gets an error.
        """
        if view.end_offset <= ends.synced:
            return view
        end = max(self._unpublished(view.segments, None).end_offset, ends.synced)
        if end >= view.end_offset:
            return view
        return view._replace(
            start_offset=min(view.start_offset, end),
            end_offset=end,
            stable_offset=min(view.stable_offset, end),
        )

    def _segments(self, view: LogView | None) -> tuple[Segment, ...]:
        """Return the segments of the directory. A segment that `view` has too keeps its loaded indexes."""
        known = {s.base_offset: s for s in view.segments} if view else {}
        sealed = self._published.sealed()
        found = read_only_segments(self._pool, self.directory, self._config, self._may_be_old)
        # While a process can write beyond a sealed segment's end, the published list has that segment. The
        # list is read before and after the sizes, so if a size is too large, one of the two lists has the
        # segment's end.
        _end_sealed(found[:-1], sealed | self._published.sealed())
        if [s.base_offset for s in found] != list_segments(self._pool.files, self.directory):
            raise FileNotFoundError(errno.ENOENT, "Segments were replaced meanwhile", self.directory)
        # This is checked after the listing, because the directory may have been replaced before the listing.
        if not self._published.has_directory():
            raise self._deleted()
        if not found:
            start = self._published.log_start()
            found = [Segment(self._pool, self.directory, start, 0, writable=False, sealed=False)]
        inodes = {s.base_offset: s.identity[:1] for s in found}
        for base, segment in known.items():
            if inodes.get(base) != segment.identity[:1]:
                self._pool.forget(segment.path)  # a removed file takes disk space while it is open
        for s in found:
            if s.sealed and s.base_offset in known and not known[s.base_offset].sealed:
                self._pool.forget(s.path)  # a file from the inbox may have replaced an empty log
        return tuple(
            known[s.base_offset]
            if s.base_offset in known
            and known[s.base_offset].size == s.size
            and known[s.base_offset].identity == s.identity
            else s
            for s in found
        )

    def _grow(self, active: Segment, ends: Ends | None) -> None:
        """Set the active segment's size to its file's size. After much growth, or a new leader epoch, the
        segment's index is loaded again at the next use. Raises FileNotFoundError if the segment was sealed
        and compacted into another segment.
        """
        try:
            size = min(self._pool.files.size(active.path), MOST)
        except FileNotFoundError:
            if active.identity:
                raise
            size = 0  # the directory has no segment
        anew = ends is not None and self._seen is not None and ends.epoch != self._seen.epoch
        if anew or size // _REFRESH_INDEX != active.size // _REFRESH_INDEX or size < active.size:
            active.attach(None)  # a new leader may have cut the log before the new epoch began
        active.size, active.visible = size, MAX_OFFSET if ends is None else ends.end

    def _unpublished(self, segments: tuple[Segment, ...], before: LogView | None) -> LogView:
        """Return a view up to the last whole, valid batch; batches that were checked for the view `before`
        are not read again.
        """
        last = segments[-1]
        position, end = 0, last.base_offset
        if before is not None and before.bases[-1] == last.base_offset and before.end_position <= last.size:
            position, end = before.end_position, before.end_offset
        elif last.size:
            position, end = self._first_look(last)
        if position < last.size:
            for step in walk(self._pool.files, last.handle, position, last.size, check_crcs=True):
                end = step.end_offset or end
                position = step.stop.position
        start = min(max(segments[0].base_offset, self._published.log_start()), end)
        return LogView(segments, tuple(s.base_offset for s in segments), start, end, position, -1)

    def _first_look(self, last: Segment) -> tuple[int, int]:
        """Return the position and offset from which CRCs are checked: the last index entry, or the start of
        the segment.
        """
        offsets = last.indexes[0]
        if not offsets.entries:
            return 0, last.base_offset
        relative, position = offsets.entry(-1)
        try:
            found = last.locate(last.base_offset + relative, last.size)
        except CorruptRecordError:  # a power cut has left the index entry, but only a part of its batch
            found = None
        # If one index entry stands for several messages of magic 0 or 1, `locate` may find an earlier
        # message.
        if found is None or found.position < position:
            return 0, last.base_offset
        return position, int(found.base_offset)


def _end_sealed(segments: list[Segment], sealed: dict[int, int]) -> None:
    """If a segment has an end in `sealed` (in bytes, by base offset), lower its size to that end."""
    for segment in segments:
        position = sealed.get(segment.base_offset)
        if position is not None:
            segment.final_size = min(position, segment.final_size)


def _shown(written: LogView, high_watermark: int) -> LogView:
    """Return the part of `written` that readers see: the part below the high watermark."""
    if high_watermark >= written.end_offset:
        return written
    stable = min(written.stable_offset, high_watermark)
    return written._replace(end_offset=high_watermark, stable_offset=stable)


def _view(segments: tuple[Segment, ...], start: int, end: int, stable: int) -> LogView:
    return LogView(segments, tuple(s.base_offset for s in segments), start, end, segments[-1].size, stable)
