"""Checks one partition: its segments, its other files, and whether the offsets of its segments follow each
other. Files on disk are only read.

Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from segstore import names
from segstore.errors import CorruptRecordError, SegstoreError
from segstore.files import Files
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.check.transactions import TransactionCheck
from segstore.storage.finding import Finding
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.meta.small_files import reason
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo
from segstore.storage.producers.producer_state import ProducerState
from segstore.storage.producers.state_manager import snapshots
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.metadata_snapshot import check_snapshot, list_snapshots
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import scan_directory

HALF_DONE = (names.CLEANED, names.SWAP)
"""Suffixes of files that a crash has left. `.deleted` files are no damage, because they only wait for the end
of file.delete.delay.ms.
"""
Look = Callable[[SegmentCheck], Iterator[Finding]]
"""A function that checks one segment and yields the findings, like `SegmentCheck.run`."""


class PartitionCheck:
    """Checks one partition, up to the log end offset. After `run`, which is called once, `end_offset` is the
    end of the log, `stable_offset` is Kafka's last stable offset (None if it is not known), and `epochs` is
    the content of the leader epoch file.

    `cleaned` is the partition's offset in the cleaner's checkpoint, None if the checkpoint has no such
    offset. `log_start` is the log start offset in the root's checkpoint. `look` checks each segment.
    """

    def __init__(
        self,
        files: Files,
        follower: ReadOnlyPartition,
        info: TopicInfo,
        partition: int,
        at_rest: bool,
        cleaned: int | None,
        log_start: int,
        look: Look = SegmentCheck.run,
    ) -> None:
        self._files, self.directory, self.info, self.at_rest = files, follower.directory, info, at_rest
        self._look = look
        self.key, self.name = (info.name, partition), names.partition_dir(info.name, partition)
        follower.refresh()
        self._view = follower.written()
        self._gaps_end = info.gaps_end(partition, cleaned)
        self._log_start = max(self._view.start_offset, log_start)
        self.epochs: LeaderEpochs | None = None
        self.end_offset = self._view.bases[0]
        self.stable_offset: int | None = None

    @property
    def bases(self) -> list[int]:
        """Return the base offsets of the segments."""
        return list(self._view.bases)

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""
        return self._view.start_offset

    @property
    def being_made(self) -> bool:
        """Return whether the partition has no log file yet, because a writer is making the partition now."""
        view = self._view
        empty = view.start_offset == view.end_offset and not self.at_rest
        return empty and not self._files.exists(view.segments[-1].path)

    def run(self, progress: Callable[[int], None]) -> Iterator[Finding]:
        """Yield the findings on the partition, up to the published log end offset."""
        self.epochs, findings = _epochs(self._files, self.directory)
        yield from findings
        yield from _check_metadata(self._files, self.directory, self.info, self.at_rest)
        yield from _check_snapshots(self._files, self.directory, self._view)
        if self.at_rest:
            yield from _check_files(self._files, self.directory)
        if self.info.name == CLUSTER_METADATA:
            yield from _check_metadata_snapshots(self._files, self.directory, self._view, self.at_rest)
        yield from self._check_segments(progress)
        yield from self._check_ends()
        unknown = self.epochs is not None and not self.epochs.entries and self.end_offset > self._log_start
        if self.at_rest and unknown and self.info.ours:
            path = os.path.join(self.directory, names.LEADER_EPOCHS)
            yield Finding(path, None, None, "no epoch is in it: made anew at the next open for writing")

    def _check_segments(self, progress: Callable[[int], None]) -> Iterator[Finding]:
        view = self._view
        transactions = TransactionCheck(self._files, self.directory, view.bases[0])
        cut_short = False
        for one in self.segments():
            segment, end = one.segment, one.end
            if not cut_short:
                yield from self._check_hole(segment)
            yield from self._look(one)
            one.gapped |= self.end_offset < segment.base_offset
            yield from transactions.check(one)
            if self.at_rest:
                yield from transactions.check_snapshot(one.next_offset)
            self.end_offset, cut_short = max(self.end_offset, one.next_offset), one.ends_in_damage
            progress(end)
        if cut_short:
            # The damage, which was reported, may hide the log's last batches, so the log counts as ending at
            # the published end.
            self.end_offset = max(self.end_offset, view.end_offset)
        if transactions.known:
            unstable = transactions.state.first_unstable_offset
            self.stable_offset = self.end_offset if unstable is None else max(unstable, view.start_offset)

    def segments(self) -> Iterator[SegmentCheck]:
        """Yield a SegmentCheck for each segment, in order. The caller runs the checks."""
        view, last = self._view, len(self._view.segments) - 1
        for slot, segment in enumerate(view.segments):
            below = view.end_offset if slot == last else view.bases[slot + 1]
            end = view.end_of(slot)
            yield SegmentCheck(segment, end, below, self.epochs, slot == last, self.at_rest, self._gaps_end)

    def _check_hole(self, segment: Segment) -> Iterator[Finding]:
        first, base = self.end_offset, segment.base_offset
        if 0 <= self._gaps_end <= first < base:
            yield Finding(segment.path, 0, first, f"offsets {first} to {base - 1} are missing in front of it")

    def _check_ends(self) -> Iterator[Finding]:
        view, end = self._view, self.end_offset
        if self.at_rest and end != view.end_offset:
            message = f"the log ends at {end}, but {view.end_offset} is published"
            yield Finding(self.directory, None, end, message)
        if self.at_rest and self._log_start < view.bases[0]:
            message = f"the log starts at {self._log_start}, but its first segment at {view.bases[0]}"
            yield Finding(self.directory, None, self._log_start, message)
        if view.start_offset > view.end_offset:
            message = f"log start offset above the end {view.end_offset}"
            yield Finding(self.directory, None, view.start_offset, message)


def _check_metadata(files: Files, directory: str, info: TopicInfo, at_rest: bool) -> Iterator[Finding]:
    path = os.path.join(directory, names.PARTITION_METADATA)
    try:
        data = files.read_file(path)
        held = names.parse_partition_metadata(data, path) if data else ""
    except FileNotFoundError:
        held = ""
    except (SegstoreError, OSError) as error:
        yield Finding(path, None, None, reason(error))
        return
    if held and held != info.topic_id:
        yield Finding(path, None, None, f"topic id {held}, but the topic's is {info.topic_id or 'none'}")
    elif at_rest and info.ours and not held and info.topic_id:
        yield Finding(path, None, None, "missing: made at the next open for writing")


def _epochs(files: Files, directory: str) -> tuple[LeaderEpochs | None, list[Finding]]:
    path = os.path.join(directory, names.LEADER_EPOCHS)
    try:
        return LeaderEpochs.load(files, path), []
    except (SegstoreError, OSError) as error:
        return None, [Finding(path, None, None, reason(error))]


def _check_snapshots(files: Files, directory: str, view: LogView) -> Iterator[Finding]:
    for offset in snapshots(files, directory):
        path = os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))
        try:
            ProducerState.load(files.read_file(path), offset, path)
        except FileNotFoundError:
            continue
        except (SegstoreError, OSError) as error:
            yield Finding(path, None, offset, reason(error))


def _check_metadata_snapshots(
    files: Files, directory: str, view: LogView, at_rest: bool
) -> Iterator[Finding]:
    """Yield the findings on the snapshots of the metadata (KIP-630). If the store is not `at_rest`, snapshots
    may have been made or removed after the log was read, and these have no findings.
    """
    bridged = view.start_offset == 0
    for snapshot in list_snapshots(files, directory)[0]:
        path, end = os.path.join(directory, snapshot.name), snapshot.end_offset
        try:
            check_snapshot(files, path)
        except FileNotFoundError:
            bridged |= not at_rest
            continue
        except CorruptRecordError as error:
            yield Finding(path, error.position, end, f"the snapshot is damaged: {error.reason}")
            continue
        except (SegstoreError, OSError) as error:
            yield Finding(path, None, end, reason(error))
            continue
        bridged |= end >= view.start_offset
        if at_rest and end > view.end_offset:
            yield Finding(
                path, None, end, f"the snapshot ends behind the log, which ends at {view.end_offset}"
            )
    if not bridged:
        message = f"the log begins at {view.start_offset}, and no sound snapshot reaches so far"
        yield Finding(directory, None, view.start_offset, message)


def _check_files(files: Files, directory: str) -> Iterator[Finding]:
    for base, suffixes in scan_directory(files, directory).items():
        for suffix in sorted(suffixes):
            path = os.path.join(directory, names.segment_file(base, suffix))
            if suffix.endswith(HALF_DONE):
                yield Finding(path, None, base, "left by a crash: an open for writing finishes or undoes it")
            elif suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX) and names.LOG not in suffixes:
                yield Finding(path, None, base, "an index without its log")
