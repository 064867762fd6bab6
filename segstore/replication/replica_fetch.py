"""`ReplicaFetch`: makes the fetches with which a follower copies its leader's log (Kafka:
ReplicaFetcherThread, for one partition).

On disk is the partition's log, which `storage.log.replica` writes. Threads: the thread of the replica's own
directory. Three methods run in other threads: `_read` and `_read_ahead` in the reading thread of the leader's
directory, and `_sync` in the reading thread of the replica's own directory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from segstore.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ReplicaOfflineError,
    SegstoreError,
    StorageError,
    UnknownLeaderEpochError,
    copy_of,
)
from segstore.logger import Logger
from segstore.records.encoded import pool
from segstore.replication.core.follower import Follower
from segstore.replication.core.messages import FetchAnswer, FetchRequest
from segstore.replication.fetched import NOTHING, FetchedBatches, Nothing, brought
from segstore.replication.read_ahead import FETCHES, ReadAhead, ReadAheadPosition

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from segstore.mutex import Mutex
    from segstore.replication.follower_log import FollowerLog
    from segstore.storage.log.partition import Partition
    from segstore.storage.log.replica import Replica

log = Logger("segstore")
NOT_YET = (FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError, ReplicaOfflineError)
"""Errors of a fetch if the leader or the follower does not have the newest metadata yet. The follower fetches
again later.
"""
Found = FetchedBatches | Nothing | SegstoreError | None
"""The result of `ReplicaFetch._read_at`."""


class LeaderRead(Protocol):
    """A function that reads batches of a leader's log."""

    def __call__(self) -> LeaderRead | None:
        """Read batches. Return the function that reads the next batches, None if none are to be read."""


class Reads(Protocol):
    """The reading threads of the directories. No method blocks."""

    def read(self, broker: int, read: LeaderRead) -> None:
        """Queue `read` for the reading thread of a directory, which calls it. If the disk hangs, only this
        thread hangs. `read` returns None, or another read, which the thread calls next if its queue is empty.
        """

    def failed(self, broker: int, error: Exception) -> None:
        """Take a directory offline after an error of its disk (R32)."""


class LeaderEndPoint(Protocol):
    """A leader's replica (Kafka: LeaderEndPoint): a `LocalReplica`, or a replica on another machine."""

    broker: int
    replica: Replica

    def fetch(self, request: FetchRequest, synced: int) -> FetchAnswer:
        """Return the answer to a follower's fetch. The follower's log is durable below `synced`."""

    def offsets(self, current_leader_epoch: int) -> tuple[int, int]:
        """Return (log start offset, log end offset)."""


class FetchingReplica(Protocol):
    """The attributes and methods of a `LocalReplica` that its fetches use."""

    broker: int
    partition: Partition
    replica: Replica
    lock: Mutex
    log: FollowerLog

    def note_start(self) -> None: ...

    def fetches(self) -> AbstractContextManager[None]: ...

    def resume(self, work: Callable[[], bool | None]) -> None: ...


class ReplicaFetch:
    """Makes the fetches for one replica, `own`."""

    def __init__(self, own: FetchingReplica, reads: Reads, max_bytes: int) -> None:
        self._own, self._reads, self._max_bytes = own, reads, max_bytes
        self.last_bytes = 0
        """The size in bytes of the batches that this follower appended last in the current leader epoch."""
        self._request: FetchRequest | None = None
        """The fetch whose records are being read, None if there is none."""
        self._syncing = False
        """Whether the log is being synced, so that the replica can join the ISR after that."""
        self._ahead = ReadAhead()

    @property
    def is_reading(self) -> bool:
        """Return whether a reading thread is reading records for a fetch of this replica."""
        return self._request is not None

    def forget(self) -> None:
        """Ignore the records of the fetch in flight when they arrive, because the log will be truncated."""
        self._request = None

    def begin_anew(self) -> None:
        """Ignore the records of the fetch in flight, and drop the batches that were read ahead, because the
        leader may have changed.
        """
        self._request = None
        self._ahead.clear()

    def once(self, role: Follower, leader: LeaderEndPoint, broker_epoch: int) -> bool | None:
        """Fetch once. Return True if the leader may have more records, and None if the leader can't answer
        yet. In all other cases return False. Raises the errors of `LocalReplica.step`.
        """
        with self._own.lock:
            self._own.note_start()
            request = role.fetch(broker_epoch)
        try:
            answer = leader.fetch(request, self._own.partition.recovery_point)
        except NOT_YET:
            return None
        except OffsetOutOfRangeError:
            return self._out_of_range(role, leader, request)
        if answer.sync_first and not self._syncing:
            self._syncing = True
            self._reads.read(self._own.broker, self._sync)
        if answer.diverging is None and answer.end_offset > request.fetch_offset:
            recent = leader.replica.recent.take(request.fetch_offset, answer.end_offset, self._max_bytes)
            if recent is not None:
                return self._take(role, request, answer, brought(recent.data))
            return self._take_read(role, leader, request, answer)
        return self._take(role, request, answer, None)

    def _sync(self) -> None:
        """Sync the log. Then ask for another fetch, after which the replica may join the ISR."""
        # The reading thread syncs. So the directory's own thread goes on with fetches during the sync, and
        # the high watermark goes on rising.
        failed: Exception | None = None
        try:
            self._own.replica.flush()
        except (SegstoreError, OSError) as error:
            failed = error
        self._own.resume(partial(self._synced, failed))

    def _synced(self, failed: Exception | None) -> bool:
        """Raise the error of a failed sync. If the sync did not fail, return True: the replica fetches
        again.
        """
        self._syncing = False
        if failed is not None:
            raise copy_of(failed)
        return True

    def _out_of_range(self, role: Follower, leader: LeaderEndPoint, request: FetchRequest) -> bool | None:
        try:
            start, end = leader.offsets(request.current_leader_epoch)
        except NOT_YET:
            return None
        return self._own.log.apply(role.log, partial(role.on_out_of_range, request, start, end)) or None

    def _take_read(
        self, role: Follower, leader: LeaderEndPoint, request: FetchRequest, answer: FetchAnswer
    ) -> bool:
        """Append batches that were read ahead, ask the reading thread for the batches after them, and return
        whether the leader may have more records. If no batches were read ahead, ask the reading thread for
        the answer's batches, and return False.
        """
        place = ReadAheadPosition(leader, request.current_leader_epoch, request.fetch_offset)
        found = self._ahead.take(place)
        if found is None:
            self._request = request
            self._reads.read(leader.broker, lambda: self._read(role, leader, request, answer))
            return False
        after = place._replace(offset=found.fetched.next_offset)
        self._reads.read(leader.broker, lambda: self._read_ahead(leader, after, answer.end_offset))
        return self._take(role, request, answer, found)

    def _read(
        self, role: Follower, leader: LeaderEndPoint, request: FetchRequest, answer: FetchAnswer
    ) -> LeaderRead | None:
        """Read the batches of a fetch answer. Return a function that reads the batches after them, None if
        no batches were read. Called in the reading thread of the leader's directory.
        """
        place = ReadAheadPosition(leader, request.current_leader_epoch, request.fetch_offset)
        found: Found = self._ahead.take(place)  # The batches may have been read ahead already.
        if found is None:
            found = self._read_at(leader, request.fetch_offset, answer.end_offset, self._max_bytes)
        self._own.resume(lambda: self._arrived(role, request, answer, found))
        if not isinstance(found, FetchedBatches):
            return None
        after = place._replace(offset=found.fetched.next_offset)
        return lambda: self._read_ahead(leader, after, answer.end_offset)

    def _read_ahead(
        self, leader: LeaderEndPoint, place: ReadAheadPosition, end_offset: int
    ) -> LeaderRead | None:
        """Read batches below `end_offset` ahead of a follower whose fetch offset is `place`. Return a
        function that reads the batches after them, None if no batches were read.
        """
        at = self._ahead.next_from(place)
        if self._ahead.is_full or at.offset >= end_offset:
            return None
        found = self._read_at(leader, at.offset, end_offset, FETCHES * self._max_bytes)
        if not isinstance(found, FetchedBatches):  # The fetch of these batches will report the error.
            return None
        self._ahead.add(at, found)
        return lambda: self._read_ahead(leader, place, end_offset)

    def _read_at(self, leader: LeaderEndPoint, offset: int, end_offset: int, max_bytes: int) -> Found:
        """Read batches from a leader's disk, and check their CRCs. Return NOTHING if the log has no batch
        between `offset` and `end_offset`. Return the CorruptRecordError if a batch is damaged, and None if
        the batches can't be read.
        """
        buffer = pool.take(max_bytes)
        try:
            data = leader.replica.read(offset, end_offset, max_bytes, buffer)
            found = brought(data, end_offset, buffer)
            if found is None and leader.replica.is_gap(offset, end_offset):
                return NOTHING
            return found
        except StorageError as error:
            self._reads.failed(leader.broker, error)
        except CorruptRecordError as error:
            return error
        except SegstoreError as error:  # The log was truncated or removed after the fetch was answered.
            log.warning("%r: %s", self._own, error)
        return None

    def _arrived(
        self,
        role: Follower,
        request: FetchRequest,
        answer: FetchAnswer,
        found: Found,
    ) -> bool | None:
        """Append the batches that were read for a fetch. Return True if the leader may have more records, and
        None if the leader's disk could not be read. In all other cases return False. Raises
        CorruptRecordError.
        """
        if self._request is not request:
            return False
        self._request = None
        if isinstance(found, SegstoreError):
            raise copy_of(found)
        if found is None:
            return None
        with self._own.fetches():
            if isinstance(found, Nothing):
                return self._own.log.go_on(role, request, answer)
            return self._take(role, request, answer, found)

    def _take(
        self, role: Follower, request: FetchRequest, answer: FetchAnswer, found: FetchedBatches | None
    ) -> bool:
        has_changed = self._own.log.take(role, request, answer, found)
        if found is not None:
            self.last_bytes = found.chunk.size if has_changed else self.last_bytes
            found.release()
        return has_changed
