"""One voter's copy of the metadata log, and the thread that writes it.

On disk are the partition `__cluster_metadata-0` in the voter's directory, and `quorum-state` in it. Threads:
once started, the copy is written by a thread of its own; a copy whose disk has failed is never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError, SegstoreError, copy_of
from segstore.files import Files
from segstore.leader_epochs import LeaderEpochCache
from segstore.logger import Logger
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchRequest
from segstore.replication.core.truncation import divergence, truncation_offset
from segstore.replication.metadata.quorum_state import read_epoch, write_epoch
from segstore.storage.context import os_errors
from segstore.storage.log import read
from segstore.storage.log.read import Fetched
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo
from segstore.storage.store.writer import StoreWriter
from segstore.threads import Background, Latch, others_are_gone

log = Logger("segstore")

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The id of the metadata's topic (Kafka: Uuid.METADATA_TOPIC_ID)."""
TOPIC = TopicInfo(
    CLUSTER_METADATA, (0,), TOPIC_ID, TopicConfig.parse({"retention.ms": -1, "retention.bytes": -1})
)
CHUNK = 1 << 20
"""Bytes that are read at a time."""

Told = SimpleQueue[tuple[int, Exception | None]]
"""Answers to one write: a voter's id, and the error where it failed."""


class Voter(NamedTuple):
    """A directory that has a copy of the metadata log. Ids are those of brokers, and the witness's."""

    id: int
    writer: StoreWriter


class _Written(NamedTuple):
    data: bytes
    told: Told


class VoterLog:
    """A voter's copy. `known_epoch` is the largest epoch that the voter has heard of, -1 for none. `error` is
    why it doesn't count any more. Raises SegstoreError where it can't be opened.
    """

    def __init__(self, voter: Voter) -> None:
        self.id, self.writer = voter.id, voter.writer
        self.error: Exception | None = None
        self._asked: SimpleQueue[_Written | None] = SimpleQueue()
        self._ended = Latch()
        with os_errors():
            self.writer.topic_admin.make(TOPIC)
            self._partition = self.writer.partition(CLUSTER_METADATA, 0)
            end = self._partition.view.end_offset
            self._replica = self.writer.partitions.replica(CLUSTER_METADATA, 0, end)
            self._durable_epoch = read_epoch(self._files, self._partition.directory)
            self.known_epoch = max([self._durable_epoch, *(epoch for epoch, _ in self._replica.epochs)])
            self._truncate(self.end_offset)

    @property
    def _files(self) -> Files:
        return self.writer.context.files

    # --- what it holds ---------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Return the log end offset."""
        return self._partition.visible.log_end_offset

    @property
    def place(self) -> tuple[int, int]:
        """Return the epoch of the last batch, -1 in an empty log, and the log end offset: of two copies the
        larger one has all that the other one has and that counts (Kafka: OffsetAndEpoch).
        """
        return self._log.epochs.current, self.end_offset

    @property
    def _log(self) -> ReplicaLog:
        return ReplicaLog(
            LeaderEpochCache(self._replica.epochs), self._partition.view.start_offset, self.end_offset
        )

    def fetch(self, offset: int, end_offset: int) -> Iterator[Fetched]:
        """Yield the batches from `offset` on, below `end_offset`. Raises CorruptRecordError, StorageError."""
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

    # --- before it is started --------------------------------------------------------------------

    def follow(self, leader: VoterLog) -> None:
        """Cut what the leader's copy does not have, by leader epochs (R9, R10), and copy what it has more.

        Raises OffsetOutOfRangeError where the epochs are above the leader's; SegstoreError, `Unreadable`
        where it is the leader's copy that fails.
        """
        while (diverging := divergence(leader._log, self._request())) is not None:
            self._truncate(truncation_offset(self._log, diverging))
        for data in _readable(leader, self.end_offset):
            with os_errors():
                self._replica.append_as_follower(data)
        with os_errors():
            self._partition.flush()
        self._show()

    def _request(self) -> FetchRequest:
        return FetchRequest(self.id, -1, 0, self.end_offset, self._log.epochs.current, 0)

    def _truncate(self, offset: int) -> None:
        """Cut the log, and forget epochs without a batch: of these `known_epoch` alone must know."""
        self._replica.truncate_to(offset)
        self._show()

    def _show(self) -> None:
        """Let readers see all: what a majority has is not known to a copy by itself."""
        self._partition.visible.set_high_watermark(self.end_offset)

    def begin_epoch(self, epoch: int) -> None:
        """Make durable that this epoch has begun. Raises SegstoreError."""
        with os_errors():
            if epoch > self._durable_epoch:
                write_epoch(self._files, self._partition.directory, self.id, epoch)
                self._durable_epoch, self.known_epoch = epoch, max(epoch, self.known_epoch)

    # --- writing ---------------------------------------------------------------------------------

    def start(self, lost: Callable[[int, Exception], object]) -> None:
        """Begin the thread; `lost` is called in it, once, where the disk fails. Raises IllegalStateError."""
        self._lost = lost
        Background(self._run, f"segstore-metadata-{self.id}").start()

    def post(self, data: bytes, told: Told) -> None:
        """Have whole batches written behind those that were posted before, and synced; `told` gets the
        outcome.
        """
        if others_are_gone():
            self._do(_Written(data, told))
        else:
            self._asked.put(_Written(data, told))

    def stop(self) -> None:
        """Let the thread end when all that was posted is written."""
        self._asked.put(None)

    def ended(self, seconds: float) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        return others_are_gone() or self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while (written := self._asked.get()) is not None:
                self._do(written)
        finally:
            self._ended.open()

    def _do(self, written: _Written) -> None:
        failed = self._write(written.data) if self.error is None else None
        news = failed is not None and self.error is None  # else it was given up meanwhile
        self.error = self.error or failed
        written.told.put((self.id, self.error))
        if news and failed is not None:
            log.warning("voter %d is lost to the metadata log: %s", self.id, failed)
            self._lost(self.id, failed)

    def _write(self, data: bytes) -> Exception | None:
        """Append and sync. Any error ends this copy: what it has on disk is not known."""
        try:
            with os_errors():
                self._replica.append_as_follower(data)
                self._partition.flush()
                self._show()
        except Exception as error:
            return copy_of(error)
        return None


class Unreadable(Exception):
    """A copy that others were to follow can't be read; the cause says why."""


def _readable(leader: VoterLog, offset: int) -> Iterator[bytes]:
    parts = leader.fetch(offset, leader.end_offset)
    while True:
        try:
            part = next(parts, None)
        except SegstoreError as error:
            raise Unreadable from error
        if part is None:
            return
        yield part.data[: int(part.batches["size"].sum())]


def _no_gaps(offset: int) -> bool:
    return False
