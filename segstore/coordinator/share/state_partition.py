"""`StatePartition`: one partition of `__share_group_state`, read and written under its lock.

On disk: appends records. Threads: any. A change is appended to the log before memory is changed. The thread
that gets the lock makes one append for its own requests and all other requests that wait for the lock. A
request gets OffsetNotAvailableError, and may be repeated, while the partition has no leader, or while its
leader does not yet show all committed records. A write waits under the lock for the replicas, at most
share.coordinator.write.timeout.ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from segstore.config import StoreConfig
from segstore.coordinator.loader import committed_now
from segstore.coordinator.retriable import may_be_written
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_requests import Ahead, StateRequest, StateTerms, ahead_of
from segstore.coordinator.share.state_schema import StateKind, snapshot_value, state_key, update_value
from segstore.coordinator.share.state_table import StateChange, StateTable, load
from segstore.coordinator.share.state_topic import TOPIC, StateTopic, TopicsSeen, too_large
from segstore.errors import (
    OffsetNotAvailableError,
    SegstoreError,
    StorageError,
    copy_of,
)
from segstore.mutex import BoundedLock, refused, under_way
from segstore.storage.context import Clock
from segstore.storage.store.partition_log import PartitionLog

T = TypeVar("T")


class _Drafted(NamedTuple):
    """A request, and the record that it needs."""

    request: StateRequest
    change: StateChange
    key: bytes
    value: bytes | None


# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_drafted: Callable[[tuple[Any, ...]], _Drafted] = partial(tuple.__new__, _Drafted)
_terms: Callable[[tuple[Any, ...]], StateTerms] = partial(tuple.__new__, StateTerms)


class StatePartition:
    """One partition of `__share_group_state`. `_is_sure` is False after an append that timed out or was
    interrupted, because its records may be committed later; it is True if readers see all appended records.
    """

    def __init__(self, number: int, topic: StateTopic, config: StoreConfig, clock: Clock) -> None:
        self.number, self._topic, self._config, self._clock = number, topic, config, clock
        self._updates_per_snapshot = config.share_coordinator_snapshot_update_records_per_snapshot
        self._lock = BoundedLock(self._late)
        self._queue: deque[Sequence[StateRequest]] = deque()
        self._table: StateTable | None = None
        self._is_sure, self._is_writing = True, False

    def _late(self) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(
            f"{TOPIC}-{self.number} is being read or written, which takes long: replicas, or a disk, do not "
            "answer"
        )

    def _interrupted(self) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(f"a write of {TOPIC}-{self.number} was interrupted")

    # --- read ----------------------------------------------------------------------------------

    def look(self, find: Callable[[StateTable], T]) -> T:
        """Call `find` with the table under the lock, and return the result. If the partition is not loaded,
        load it first. Raises CorruptRecordError, StorageError, OffsetNotAvailableError.
        """
        with self._lock:
            return find(self._loaded())

    def glance(self, find: Callable[[StateTable], T]) -> T | None:
        """Call `find` with the table under the lock, and return the result. If the partition is not loaded,
        return None.
        """
        with self._lock:
            return None if self._table is None else find(self._table)

    def _loaded(self) -> StateTable:
        if self._table is not None:
            return self._table
        source = self._topic.log(self.number)
        if source is None:
            # The partition does not exist, but may be created later. So its empty table is not stored.
            return StateTable(self._updates_per_snapshot)
        shows_all, table = committed_now(source, partial(load, source, self._updates_per_snapshot))
        if (self._is_sure or shows_all) and not self._is_writing:
            self._table, self._is_sure = table, True
        return table

    # --- write ---------------------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        """Return whether a write may wait for another write, a load of the log, replicas or a disk. Takes no
        lock.
        """
        if self._table is None or not self._is_sure:
            return True
        source = self._topic.log(self.number)
        return source is None or source.append_may_wait(-1)

    def write(self, requests: Sequence[StateRequest]) -> None:
        """Write the records of requests, and set the requests' outcomes. Raises OffsetNotAvailableError if
        this thread does not get the lock in time. Another thread may then have written some of the requests,
        which `is_done` shows, or may still be writing them.
        """
        if self._lock._is_owned():
            raise refused(under_way(), "write()")
        self._queue.append(requests)
        try:
            with self._lock:
                for request in requests:
                    if not request.is_done:
                        self._write_all()
        finally:
            # After an interrupt or a timeout, no other thread may begin to write these requests.
            if self._queue:
                with suppress(ValueError):
                    self._queue.remove(requests)

    def _write_all(self) -> None:
        """Write all queued requests: those of this thread, and those of threads that wait for the lock."""
        queued: list[StateRequest] = []
        try:
            while self._queue:
                queued += self._queue.popleft()
            self._serve(deque(queued))
        except SegstoreError as error:
            _end(queued, error)
        finally:
            for request in queued:
                if not request.is_done:
                    request.end(self._interrupted())

    def _serve(self, waiting: deque[StateRequest]) -> None:
        while waiting:
            if not self._is_sure:
                self._check_decided()
            table = self._table
            if table is None:
                table = self._loaded()
            now, seen = self._clock(), self._topic.seen()
            terms = _terms((now, self._updates_per_snapshot, seen.check_source))
            drafted = self._draft(table, waiting, terms)
            if drafted:
                self._append(table, drafted, seen, now)

    def _check_decided(self) -> None:
        source = self._topic.log(self.number)
        if source is not None and not source.shows_all:
            raise OffsetNotAvailableError(
                f"it is not known yet whether the last write of {TOPIC}-{self.number} is committed"
            )

    def _draft(self, table: StateTable, waiting: deque[StateRequest], terms: StateTerms) -> list[_Drafted]:
        """Remove requests from `waiting`, and return their records, for one append. Requests that need no
        record, or are refused, get their outcomes, and add no record.
        """
        drafted: list[_Drafted] = []
        ahead: dict[ShareKey, Ahead] = {}
        while waiting:
            request = waiting[0]
            try:
                current = table.find(request.key)
                before = ahead.get(request.key)
                if before is not None and not request.may_follow(current, before, terms):
                    break
                change = request.change(current, before, terms)
                if change is None:
                    request.end()
                else:
                    drafted.append(_encoded(request, change))
                    if len(waiting) > 1:
                        ahead[request.key] = ahead_of(current, before, change)
            except SegstoreError as error:
                request.end(error)
            waiting.popleft()
        return drafted

    def _append(self, table: StateTable, drafted: list[_Drafted], seen: TopicsSeen, now: int) -> None:
        """Append records, then apply them to the table. If it is unknown whether an append succeeded, the
        table is dropped, and the log is loaded before the next write.
        """
        try:
            if not seen.is_ours:
                seen = self._topic.make()
            writer = seen.writer(self.number, self._config)
            drafted = _fitting(drafted, writer.begin())
            end = writer.log.log_end_offset
        except SegstoreError as error:
            _end([each.request for each in drafted], error)
            return
        if not drafted:
            return
        self._table, self._is_sure, self._is_writing = None, False, True
        try:
            _, _, keys, values = zip(*drafted, strict=True)
            first = writer.append(keys, values, now)
        except SegstoreError as error:
            if _is_unwritten(error, writer.log, end):
                self._table, self._is_sure = table, True
            _end([each.request for each in drafted], error)
            return
        finally:
            self._is_writing = False
        for at, (request, change, _, _) in enumerate(drafted, first):
            table.apply(change, at)
            request.end()
        # The new records are committed, and so are all records before them.
        self._table, self._is_sure = table, True


def _end(requests: Sequence[StateRequest], error: SegstoreError) -> None:
    """Set `error` as the outcome of the requests that have no outcome yet."""
    for request in requests:
        if not request.is_done:
            request.end(copy_of(error))


def _encoded(request: StateRequest, change: StateChange) -> _Drafted:
    """Return a request with its change and encoded record. Raises InvalidArgumentError."""
    key, snapshot, delta = change
    if delta is not None:
        return _drafted((request, change, state_key(StateKind.UPDATE, key), update_value(delta)))
    value = None if snapshot is None else snapshot_value(snapshot)
    return _drafted((request, change, state_key(StateKind.SNAPSHOT, key), value))


def _fitting(drafted: list[_Drafted], most: int) -> list[_Drafted]:
    """Return the records whose key and value have at most `most` bytes, and end the requests of larger
    records with RecordTooLargeError.
    """
    fitting = []
    for each in drafted:
        size = len(each.key) + len(each.value or b"")
        if size > most:
            each.request.end(too_large(size, most))
        else:
            fitting.append(each)
    return fitting


def _is_unwritten(error: SegstoreError, target: PartitionLog, end: int) -> bool:
    """Return whether it is certain that a failed append has left no record in the log. `end` is the log end
    offset before the append.
    """
    # If the log has replicas, its records may survive a StorageError: perhaps only the sync has failed, or
    # another replica has the records.
    if may_be_written(error) or (target.has_replicas and isinstance(error, StorageError)):
        return False
    try:
        return target.log_end_offset == end
    except SegstoreError:
        return False
