"""`CommitDraft`: collects the entries of a commit's partitions, and makes the new pieces of these partitions.

The logs that have grown are read from disk. Threads: one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from errno import ENOENT
from typing import NamedTuple

from segstore.archiving.committing import CommitWriter
from segstore.archiving.merging import merges
from segstore.archiving.moment import Moments
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.partition_archive import PartitionArchive
from segstore.archiving.pieces import ArchivedPiece, Source
from segstore.archiving.plan import PartitionPlan, SegmentRead, readings
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition, ArchivedTopic, ArchiveState, Way
from segstore.archiving.stretches import STEP, LogFile, LogStretch, crc_of, crc_of_file, measure
from segstore.errors import CorruptRecordError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.storage.meta.published_ends import Ends
from segstore.storage.segment.log_view import LogView

BUFFERED = 64 << 20
"""Bytes of pieces that a commit keeps in memory. Further pieces are read from the logs again during the
upload.
"""


class NewList(NamedTuple):
    """A list of segments, and the name of its object."""

    listed: SegmentList
    name: str


class Carried(NamedTuple):
    """What the archiver stores in memory about a partition when the commit is written.

    `ends` are the archived ends, or None if a part of the log below these ends could not be archived.
    `inodes` maps the base offset of each segment to the inode of its log file. `least` is the base offset of
    the first segment with pieces. `marks` are (base offset, source) of the log's sealed segments. `problem`
    is the reason why the log is not archived up to its ends, or None.
    """

    ends: Ends | None
    inodes: dict[int, int]
    least: int
    marks: frozenset[tuple[int, Source]]
    problem: str | None


class CommitDraft:
    """Adds the entries of partitions to a commit. `lists` has the changed lists of segments."""

    def __init__(
        self,
        moments: Moments,
        commit: CommitWriter,
        state: ArchiveState,
        partitions: Mapping[TopicIdPartition, PartitionArchive],
        lists: Mapping[TopicIdPartition, NewList],
        time: int,
    ) -> None:
        self._moments, self._commit, self._state, self._partitions = moments, commit, state, partitions
        self.lists, self._time = lists, time
        self.carried: dict[TopicIdPartition, Carried] = {}
        self._pieces: dict[
            TopicIdPartition,
            tuple[ArchivedPartition, tuple[ArchivedPiece, ...], tuple[ArchivedPiece, ...], int],
        ] = {}
        self._buffered = 0

    def take(self, plan: PartitionPlan, whole: bool) -> None:
        """Add the entry of a changed partition. If `whole` is False, further segments are uploaded and
        committed first, and the entry gets no new pieces. Raises OSError, which is FileNotFoundError if a
        segment was removed.
        """
        key, each = plan.key, self._partitions[plan.key]
        had, new = self._state.partitions.get(key), self.lists.get(key)
        listed = new.listed if new is not None else each.listed
        current = listed.current
        reached = current[-1].end if current else plan.view.bases[0]
        if plan.lost and reached < plan.lost[-1].end:
            # Compaction removed the pieces' segment before its replacement was uploaded. The pieces stay
            # until an uploaded segment has their offsets.
            raise FileNotFoundError(ENOENT, "no segment takes the place of lost pieces", str(key))
        least = max(current[-1].end if current else 0, plan.lost[-1].base + 1 if plan.lost else 0)
        kept = tuple(piece for piece in (had.pieces if had is not None else ()) if piece.base >= least)
        reached = max(reached, kept[-1].end if kept else 0)
        added: list[ArchivedPiece] = []
        inodes, problem = dict(each.inodes), None
        try:
            for reading in readings(plan, listed, kept) if whole else ():
                reached = max(reached, reading.local.base_offset, added[-1].end if added else 0)
                piece = self._read(reading, reached, plan)
                if piece is not None:
                    added.append(piece)
                    inodes[piece.base] = reading.local.identity[0]
        except CorruptRecordError as error:
            problem = str(error)
        pieces = (*kept, *added)
        reached = max(reached, pieces[-1].end if pieces else 0, self._empty_tail(plan, whole and not problem))
        if whole and problem is None and reached < plan.ends.high_watermark:
            problem = f"{key}: the log has no records from offset {reached} on"
        end = min(reached, plan.ends.high_watermark)
        entry = self._entry(plan, had, new, end)
        if had is None or added or kept != had.pieces or replace(had, pieces=(), moment=self._time) != entry:
            self._pieces[key] = entry, kept, tuple(added), least
        done = whole and problem is None
        marks = frozenset((one.local.base_offset, one.source) for one in plan.sealed)
        self.carried[key] = Carried(plan.ends if done else None, inodes, least, marks, problem)

    def _empty_tail(self, plan: PartitionPlan, counts: bool) -> int:
        """Return the base offset of the active segment: the log reaches at least this offset, even if the
        segment is empty. Return 0 if the offset is above the high watermark, or if `counts` is False because
        a part of the log was not read.
        """
        base = plan.view.bases[-1]
        return base if counts and base <= plan.ends.high_watermark else 0

    def _read(self, reading: SegmentRead, offset: int, plan: PartitionPlan) -> ArchivedPiece | None:
        local, keep = reading.local, BUFFERED - self._buffered
        log = LogFile(self._moments.files, local.handle, local.path)
        end = plan.ends.high_watermark
        stretch = measure(log, reading.position, reading.size, offset, end, keep)
        if stretch is None:
            return None
        self._buffered += stretch.length if stretch.data is not None else 0
        return self._commit.piece(local.base_offset, stretch)

    def _entry(
        self, plan: PartitionPlan, had: ArchivedPartition | None, new: NewList | None, end: int
    ) -> ArchivedPartition:
        key, stable = plan.key, plan.ends.stable
        cleaned = self._moments.cleaned().get((key.topic, key.partition))
        name = new.name if new is not None else (had.segments if had is not None else None)
        epochs = tuple(each for each in self._partitions[key].epochs if each[1] <= end)
        return ArchivedPartition(
            key, name, (), min(plan.start, end), end, min(stable, end), epochs,
            None if cleaned is None else min(cleaned, end), self._time,
        )  # fmt: skip

    @property
    def has_entries(self) -> bool:
        """Return whether any partition has changed."""
        return bool(self._pieces)

    def keep(self, key: TopicIdPartition) -> None:
        """Add the entry of a partition in which only the list of segments has changed."""
        had = self._state.partitions[key]
        entry = replace(had, segments=self.lists[key].name)
        self._pieces[key] = entry, had.pieces, (), 0

    def finish(self) -> None:
        """Write the partitions' entries into the commit."""
        for entry, _, added, least in self._pieces.values():
            self._commit.partition(entry, added, least)

    def finish_state(
        self, files: Mapping[str, bytes] | None, ways: tuple[Way, ...], forgotten: Iterable[tuple[str, str]]
    ) -> None:
        """Write all partitions, topics and files into a state. `files` are the files that the store's
        `.segstore` has now; archived files with other names are dropped. If None, no file is dropped.
        """
        commit, gone = self._commit, set(forgotten)
        for key, each in self._state.partitions.items():
            if key not in self._pieces:
                self._pieces[key] = each, each.pieces, (), 0
        for key, (entry, kept, added, _) in self._pieces.items():
            if key[:2] not in gone:
                commit.partition(entry, (*self._merged(key, kept), *added), 0)
        topics: dict[tuple[str, str], ArchivedTopic] = dict(self._state.topics)
        topics.update(((each.name, each.topic_id), each) for each in commit.topics)
        commit.topics = [each for name, each in topics.items() if name not in gone]
        commit.forgotten = []
        known = {**self._state.files, **commit.files}
        commit.files = {name: each for name, each in known.items() if files is None or name in files}
        commit.ways = ways

    # --- merged pieces ----------------------------------------------------------------------------

    def _merged(self, key: TopicIdPartition, pieces: tuple[ArchivedPiece, ...]) -> Iterable[ArchivedPiece]:
        """Return the pieces. Runs of small pieces are merged if the log still has their bytes."""
        runs = merges(pieces)
        if not runs:
            return pieces
        try:
            view = self._moments.view(key)
        except (StoreClosedError, UnknownTopicOrPartitionError, OSError):
            return pieces
        found = list(pieces)
        for run in runs:
            merged = self._merge(key, view, run)
            if merged is not None:
                at = found.index(run[0])
                found[at : at + len(run)] = [merged]
        return found

    def _merge(
        self, key: TopicIdPartition, view: LogView, run: tuple[ArchivedPiece, ...]
    ) -> ArchivedPiece | None:
        local = next((each for each in view.segments if each.base_offset == run[0].base), None)
        inode = self._partitions[key].inodes.get(run[0].base)
        if local is None or not local.identity or local.identity[0] != inode:
            return None
        try:
            log = LogFile(self._moments.files, local.handle, local.path)
        except OSError:  # the segment was removed just now
            return None
        if any(crc_of_file(log, each.position, each.length) != each.crc for each in run):
            return None
        position, length = run[0].position, sum(each.length for each in run)
        data = log.files.pread(log.handle, length, position) if length <= STEP else None
        crc = crc_of_file(log, position, length) if data is None else crc_of(data)
        if crc is None or (data is not None and len(data) < length):
            return None
        latest = max(each.max_timestamp for each in run)
        kept = None if data is None else (data,)
        stretch = LogStretch(log, position, length, crc, run[0].first, run[-1].end, latest, kept)
        return self._commit.piece(run[0].base, stretch)
