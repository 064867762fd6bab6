"""`VoterLog`: one voter's copy of the metadata log, and the thread that writes to this copy.

On disk are the partition `__cluster_metadata-0` in the voter's directory, and in it `quorum-state` and the
snapshots. Either the log begins at offset 0, or its log start offset is not above the end offset of a
snapshot: the log and the snapshot together have the whole metadata. Threads: after `start` only the copy's
own thread appends to the log, and only the thread of its `SnapshotKeeper` writes snapshots and removes the
beginning of the log. If the disk of a copy has failed, no thread writes to this copy again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptRecordError, SegstoreError, copy_of
from segstore.files import Files
from segstore.files.reserve import in_reserve
from segstore.leader_epochs import LeaderEpochCache
from segstore.logger import Logger
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchRequest
from segstore.replication.core.truncation import divergence, truncation_offset
from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
from segstore.replication.metadata.quorum_state import QuorumState, read_state, write_state
from segstore.replication.metadata.snapshot_keeper import SnapshotKeeper
from segstore.replication.metadata.snapshots import MetadataSnapshot, MetadataSnapshots, no_snapshot
from segstore.storage.context import os_errors
from segstore.storage.log import read
from segstore.storage.log.read import FetchDataInfo
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.segment.metadata_snapshot import SnapshotId
from segstore.storage.store.writer import StoreWriter
from segstore.threads import Background, others_are_gone

log = Logger("segstore")

CHUNK = 1 << 20
"""The number of bytes that one read asks for."""

WriteAnswers = SimpleQueue[tuple[int, Exception | None]]
"""Answers to one write: (the voter's id, the error, or None if the write did not fail)."""


class Voter(NamedTuple):
    """A directory that has a copy of the metadata log. `id` is the broker id of the directory. The witness, a
    directory without replicas, has an id, too.
    """

    id: int
    writer: StoreWriter


class VoterLog:
    """A voter's copy of the metadata log. `known_epoch` is the largest epoch in the copy's files, -1 if they
    have no epoch. `quorum` is the content of its file `quorum-state`. `error` is None while the disk works.
    If `error` is set, no thread writes to the copy any more. Raises SegstoreError if the copy can't be
    opened.
    """

    def __init__(self, voter: Voter, config: MetadataLogConfig) -> None:
        self.id, self.writer = voter.id, voter.writer
        self.error: Exception | None = None
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Background | None = None
        with os_errors(), self.writer.context.reserve:
            self.writer.topic_admin.make(config.topic)
            self._partition = self.writer.partition(CLUSTER_METADATA, 0)
            end = self._partition.view.end_offset
            self._replica = self.writer.partitions.replica(CLUSTER_METADATA, 0, end)
            self.quorum = read_state(self.files, self._partition.directory)
            self.snapshots = MetadataSnapshots(self.files, self._partition.directory)
            self.known_epoch = max([self.quorum.epoch, *(epoch for epoch, _ in self._replica.epochs)])
            self._truncate(self.end_offset)
            self._go_on_from_snapshot()
        clock = self.writer.context.clock
        self._keeper = SnapshotKeeper(self.id, self.snapshots, self._replica, config, clock)

    def _go_on_from_snapshot(self) -> None:
        """If a crash has left a log whose `place` is below the newest snapshot's (epoch, end offset), empty
        the log, let it begin at this end offset, and remove older snapshots (Kafka:
        KafkaMetadataLog.truncateToLatestSnapshot).
        """
        self.snapshots.forget_before(self.start_offset)
        found = self.snapshots.newest(self.start_offset, names.MAX_OFFSET)
        if found is not None and (found.epoch, found.end_offset) > self.place:
            self._begin_at(found.end_offset)
            self.snapshots.forget_before(found.end_offset)

    @property
    def files(self) -> Files:
        """Return the `Files` object for the voter's disk."""
        return self.writer.context.files

    # --- offsets and batches ---------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Return the log end offset."""
        return self._partition.visible.log_end_offset

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""
        return self._partition.visible.start_offset

    @property
    def place(self) -> tuple[int, int]:
        """Return (epoch of the last batch, log end offset). The copy with the larger tuple has all committed
        records of the copy with the smaller tuple (Kafka: OffsetAndEpoch). If the log has no batch, the epoch
        is that of the snapshot that ends at the log start offset, or -1 if there is no such snapshot (Kafka:
        KafkaMetadataLog.lastFetchedEpoch).
        """
        epoch = self._replica.epoch_cache.current
        return (self._epoch_before(self.end_offset) if epoch < 0 else epoch), self.end_offset

    def _epoch_before(self, offset: int) -> int:
        """Return the epoch of the snapshot whose end offset is `offset`, -1 if there is no such snapshot."""
        return max((each.epoch for each in self.snapshots.ids if each.end_offset == offset), default=-1)

    @property
    def snapshot(self) -> SnapshotId | None:
        """Return the newest undamaged snapshot whose end offset is within this log, None if there is none."""
        return self.snapshots.newest(self.start_offset, self.end_offset)

    @property
    def is_whole(self) -> bool:
        """Return whether the log and the newest undamaged snapshot together have all metadata."""
        return self.start_offset == 0 or self.snapshot is not None

    @property
    def _log(self) -> ReplicaLog:
        return ReplicaLog(
            LeaderEpochCache(self._replica.epochs), self._partition.view.start_offset, self.end_offset
        )

    def fetch(self, offset: int, end_offset: int) -> Iterator[FetchDataInfo]:
        """Yield the batches from the offset `offset` up to `end_offset` (exclusive). Raises
        CorruptRecordError, StorageError.
        """
        with os_errors():
            while offset < end_offset:
                view = self._partition.visible.written
                found = read.fetch(view, offset, end_offset, CHUNK, True, _no_gaps)
                if not found:
                    path = view.segments[-1].path
                    raise CorruptRecordError(path, 0, offset, f"no batch, but the log ends at {end_offset}")
                for part in found:
                    yield part
                    offset = part.stop.last_offset + 1

    # --- before `start` --------------------------------------------------------------------------

    def follow(self, leader: VoterLog, others: Iterable[VoterLog] = ()) -> None:
        """Make this copy equal to the copy of `leader`: compare the leader epochs, truncate this log to the
        offset at which the logs diverge (R9, R10), and copy the leader's batches from that offset on. If the
        logs can't be compared because the beginning of one of them was removed, empty this log, and copy a
        snapshot of the leader or of `others` before the batches.

        Raises SegstoreError. Raises OffsetOutOfRangeError if this copy has later epochs than the leader's
        copy, and `UnreadableCopyError` if the leader's copy can't be read.
        """
        with os_errors():
            if self._is_behind(leader):
                self._begin_anew(leader, others)
        while self.place != leader.place and (diverging := divergence(leader._log, self._request())):
            offset = truncation_offset(self._log, diverging)
            with os_errors():
                if offset < self.start_offset:
                    self._begin_anew(leader, others)
                else:
                    self._truncate(offset)
                    self.snapshots.forget_after(offset)
        self._copy(leader)

    def _is_behind(self, leader: VoterLog) -> bool:
        """Return whether the leader's log begins above this log's end, or lacks the leader epochs that a
        comparison of the two logs needs (Kafka: ReplicatedLog.validateOffsetAndEpoch).
        """
        (epoch, end), start = self.place, leader.start_offset
        if start == 0 or epoch > leader.place[0]:
            return False
        if end == start:
            return epoch != leader._epoch_before(start)
        entries = leader._replica.epochs
        return end < start or not entries or epoch < entries[0][0]

    def _begin_anew(self, leader: VoterLog, others: Iterable[VoterLog]) -> None:
        """Empty the log, and begin it anew. If the leader's log begins at offset 0, this log begins at 0,
        too. If the leader's log begins at a higher offset, copy the newest snapshot that fits the leader's
        log, and begin this log at the snapshot's end offset. Raises UnreadableCopyError if there is no such
        snapshot.
        """
        if leader.start_offset == 0:
            self._begin_at(0)
            self.snapshots.forget_after(0)
            return
        for source in (leader, *others):
            found = source.snapshots.newest(leader.start_offset, leader.end_offset)
            if source is not self and found is not None and leader._has(found):
                break
        else:
            raise UnreadableCopyError from no_snapshot(
                leader.start_offset, *(each.snapshots for each in (leader, *others))
            )
        if self.start_offset < leader.start_offset < self.end_offset:
            # The truncation copies the removed batches to the quarantine.
            self._truncate(leader.start_offset)
        self.snapshots.receive(found, source.snapshots)
        self._begin_at(found.end_offset)
        self.snapshots.forget_before(found.end_offset)
        self.snapshots.forget_after(found.end_offset)

    def _has(self, snapshot: SnapshotId) -> bool:
        """Return whether this log has the record before the snapshot's end offset with the snapshot's epoch.
        If this log does not know an epoch for that offset, return True.
        """
        known = self._replica.epoch_cache.epoch_for_offset(snapshot.end_offset - 1)
        return known is None or known == snapshot.epoch

    def _begin_at(self, offset: int) -> None:
        self._replica.truncate_fully_and_start_at(offset)
        self._show()

    def _copy(self, leader: VoterLog) -> None:
        for data in _readable(leader, self.end_offset):
            with os_errors(), self.writer.context.reserve:
                in_reserve(partial(self._replica.append_as_follower, data), len(data))
        with os_errors():
            self._partition.flush()
        self._show()

    def complete(self, other: VoterLog) -> None:
        """Copy a snapshot from the copy `other`, because the snapshots of this copy are damaged or missing.
        If no snapshot of `other` fits this log, empty this log, and copy the snapshot and the log of `other`.
        Both logs must have the same log end offset, and `other.is_whole` must be True. Raises SegstoreError,
        `UnreadableCopyError`.
        """
        with os_errors():
            found = other.snapshots.newest(self.start_offset, self.end_offset)
            if found is not None:
                self.snapshots.receive(found, other.snapshots)
                return
            self._begin_anew(other, ())
        self._copy(other)

    def _request(self) -> FetchRequest:
        return FetchRequest(self.id, -1, 0, self.end_offset, self.place[0], 0)

    def _truncate(self, offset: int) -> None:
        """Truncate the log. Epochs without a batch are removed from the epoch cache, but `known_epoch` does
        not change.
        """
        self._replica.truncate_to(offset)
        self._show()

    def _show(self) -> None:
        """Set the high watermark to the log end offset, so that readers see the whole log, because a single
        copy can't know which records are committed.
        """
        self._partition.visible.set_high_watermark(self.end_offset)

    def begin_epoch(self, state: QuorumState) -> None:
        """Write `state` into `quorum-state`, durably, if its epoch is above the epoch in the file. Raises
        SegstoreError.
        """
        with os_errors(), self.writer.context.reserve:
            if state.epoch > self.quorum.epoch:
                write_state(self.files, self._partition.directory, self.id, state)
                self.quorum, self.known_epoch = state, max(state.epoch, self.known_epoch)

    # --- writing ---------------------------------------------------------------------------------

    def start(
        self,
        lost: Callable[[int, Exception], object],
        kept: Callable[[int, SnapshotId], object],
        covered: Callable[[], int],
    ) -> None:
        """Start the thread that writes to this copy. If the disk fails, this thread calls `lost` once. The
        thread of the `SnapshotKeeper` calls `kept` after each durable snapshot. It removes snapshots only
        below the offset that `covered` returns. Raises IllegalStateError.
        """
        self._lost = lost
        self._keeper.listen(lambda snapshot: kept(self.id, snapshot), covered)
        self._thread = Background(self._run, f"segstore-metadata-{self.id}")
        self._thread.start()

    def post(self, data: bytes, answers: WriteAnswers) -> None:
        """Queue complete batches. The thread appends them in the order of the calls, syncs them, and puts the
        result into `answers`.
        """
        if others_are_gone():
            self._do(data, answers)
        else:
            self._asked.put(partial(self._do, data, answers))

    def keep(self, snapshot: MetadataSnapshot) -> None:
        """Queue a snapshot, which is written after the batches that were queued before this call."""
        self._asked.put(partial(self._keep, snapshot))

    def _keep(self, snapshot: MetadataSnapshot) -> None:
        if self.error is None:
            self._keeper.keep(snapshot)

    def clean(self) -> None:
        """Ask the `SnapshotKeeper` to remove old snapshots, and the beginning of the log."""
        self._asked.put(self._clean)

    def _clean(self) -> None:
        if self.error is None:
            self._keeper.clean()

    def stop(self) -> None:
        """Ask the writing thread to stop after the queued batches, and the `SnapshotKeeper` to stop without
        writing a queued snapshot. Return at once.
        """
        self._asked.put(None)
        self._keeper.stop()

    def ended(self, seconds: float) -> bool:
        """Wait for the end of each of the two threads for at most `seconds`. Return whether both have
        ended.
        """
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
        return self.kept(seconds)

    def kept(self, seconds: float) -> bool:
        """Wait for the end of the `SnapshotKeeper`'s thread for at most `seconds`. Return whether it has
        ended.
        """
        return self._keeper.ended(seconds)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            work()
            del work

    def _do(self, data: bytes, answers: WriteAnswers) -> None:
        failed = self._write(data) if self.error is None else None
        # If `error` is set already, `MetadataLog.lose` has set it and reported the loss.
        is_new = failed is not None and self.error is None
        self.error = self.error or failed
        answers.put((self.id, self.error))
        if is_new and failed is not None:
            log.warning("voter %d is lost to the metadata log: %s", self.id, failed)
            self._lost(self.id, failed)

    def _write(self, data: bytes) -> Exception | None:
        """Append batches and sync them. Return None, or the error of the disk. After an error nobody knows
        which bytes are on disk.
        """
        try:
            # The write may use the space that is reserved for a full disk. Without this space, a full disk
            # would prevent elections, and even deletions of topics, which free space.
            with os_errors(), self.writer.context.reserve:
                in_reserve(lambda: self._replica.append_as_follower(data), len(data))
                self._partition.flush()
                self._show()
        except Exception as error:
            return copy_of(error)
        return None


class UnreadableCopyError(Exception):
    """Raised if the copy that the other voters copy from can't be read. `__cause__` is the error of the
    read.
    """


def _readable(leader: VoterLog, offset: int) -> Iterator[bytes]:
    parts = leader.fetch(offset, leader.end_offset)
    while True:
        try:
            part = next(parts, None)
        except SegstoreError as error:
            raise UnreadableCopyError from error
        if part is None:
            return
        yield part.data[: int(part.batches["size"].sum())]


def _no_gaps(offset: int) -> bool:
    return False
