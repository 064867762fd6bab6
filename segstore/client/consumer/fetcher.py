"""`Fetcher`: reads records of the assigned partitions, one partition after another. `Buffer`: the records
that were read, and not returned to the application yet. `Iteration`: yields single records.

On disk: nothing of its own. Threads: one, the consumer's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from segstore.client.consumer.config import ConsumerConfig, deserialize_with
from segstore.client.consumer.metrics import ConsumerMetrics
from segstore.client.consumer.positions import Positions
from segstore.client.consumer.records import (
    NO_DESERIALIZERS,
    ConsumerRecord,
    Deserializers,
    consumer_records,
)
from segstore.client.consumer.subscription import Subscription, TopicPartitionState
from segstore.coordinator.quotas import MOST_WAIT_MS, QuotaThrottle
from segstore.coordinator.structs import TopicPartition
from segstore.errors import OffsetOutOfRangeError, SegstoreError, StoreClosedError, copy_of
from segstore.records import Records
from segstore.storage.log.log_end import end_of
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.partition_log import PartitionLog

# --- buffer ------------------------------------------------------------------------------------

# `Buffer`: the records of one read of a partition, which are buffered until the application has all of them.


class Buffer:
    """The records of one read of a partition. `left` is the number of records that were not returned yet, and
    `at` is the position before the first such record. If the consumer's position differs from `at`, the
    buffer can't be used. `memory`: bytes in memory; `stored`: bytes read from the log; `start` and `end`: the
    log start offset, and the end of the readable records, at the time of the read. `leader_epoch` is the
    leader epoch of the last batch, even if that batch is a transaction marker. `charged`: whether the read
    was counted for the client's byte rate. `leader`: the leader epoch at the time of the read, or None for a
    log without replicas.
    """

    __slots__ = (
        *("_given", "_records", "at", "charged", "end", "leader", "leader_epoch", "left", "memory", "start"),
        "stored",
    )

    def __init__(
        self, records: Records, n: int, at: int, start: int, end: int, leader: int | None = None
    ) -> None:
        self._records, self._given, self.at, self.start, self.end = records, 0, at, start, end
        self.left, self.charged, self.leader = n, False, leader
        sizes = records.batches["size"]
        self.memory, self.stored = records.nbytes, int(sizes.item() if len(sizes) == 1 else sizes.sum())
        self.leader_epoch: int = records.batches["leader_epoch"].item(-1)

    def take(self, most: int | None = None) -> Records:
        """Return the next records, up to `most` records. The next `take` begins at the `next_offset` of the
        returned records.
        """
        given, left = self._given, self.left
        until = given + (left if most is None else min(most, left))
        taken = self._records if not given and until == left else self._records[given:until]
        self._given, self.left, self.at = until, given + left - until, taken.next_offset
        return taken

    def give_back(self, offset: int) -> None:
        """Make the next `take` begin at `offset` again."""
        given = int(self._records.offsets.searchsorted(offset))
        self.left += self._given - given
        self._given, self.at = given, offset


# --- fetcher ------------------------------------------------------------


class FetchedRecords(NamedTuple):
    """A partition's records for the application. `at` is the partition's position after these records, and
    `leader_epoch` is the leader epoch of the last batch before `at`.
    """

    tp: TopicPartition
    state: TopicPartitionState
    records: list[ConsumerRecord]
    at: int
    leader_epoch: int


# A function in C makes a FetchedRecords from a tuple.
_given: Callable[[tuple[Any, ...]], FetchedRecords] = partial(tuple.__new__, FetchedRecords)


class FetchedColumns(NamedTuple):
    """A partition's records for the application, as columns. After these records the partition's position is
    `records.next_offset`.
    """

    tp: TopicPartition
    state: TopicPartitionState
    records: Records


class _Kept(NamedTuple):
    """An error that came after other partitions, or earlier offsets, had records. The next call of `records`
    or `columns` raises the error if the partition's position is still `position`.
    """

    state: TopicPartitionState
    position: int | None
    error: Exception


class Fetcher:
    """The reader of a consumer's partitions. The fetcher reads more records than one poll returns, and
    buffers the surplus for later polls. All buffers together take about fetch_max_bytes.
    """

    def __init__(
        self,
        subscription: Subscription,
        positions: Positions,
        config: ConsumerConfig,
        metrics: ConsumerMetrics,
        throttle: QuotaThrottle,
    ) -> None:
        self._subscription, self._positions = subscription, positions
        self._config, self._metrics, self.throttle = config, metrics, throttle
        self._committed = config.isolation_level == "read_committed"
        # `_throttled`: whether a partition was not read because of the byte rate.
        self._throttled = False
        self._deserializers = Deserializers(
            deserialize_with(config.key_deserializer), deserialize_with(config.value_deserializer)
        )
        self._as_is = self._deserializers == NO_DESERIALIZERS and config.fetch_min_bytes <= 1
        self._buffers: dict[TopicPartitionState, Buffer] = {}
        self._memory = 0
        self._kept: _Kept | None = None
        self._some_since = math.nan
        self.began: list[tuple[TopicPartitionState, int, int]] = []
        """(partition, position, leader epoch) of the partitions whose records were returned last, by
        `records`, `columns` or a wait of `Tailing`. Position and leader epoch are those before the records.
        """

    # --- records for the application ---------------------------------------------------------

    def records(self, most: int) -> list[FetchedRecords]:
        """Return up to `most` records, beginning with the partition after the one that was read last. The
        caller must then set the positions.

        If a partition has an error, and no records were found before it, the error is raised at once. If
        there are such records, they are returned, and the next call raises the error.
        """
        if self._kept is not None:
            self._raise_kept()
        self.began.clear()
        given: list[FetchedRecords] = []
        if self._config.fetch_min_bytes > 1 and not self._enough():
            return given
        for tp, state in self._turns():
            position = state.position
            try:
                part = self._records_of(tp, state, most)
            except Exception as error:
                if not given:
                    raise
                self._kept = _Kept(state, position, copy_of(error))
                break
            if part is not None:
                given.append(part)
                most -= len(part.records)
            if most <= 0 or self._kept is not None:
                break
        return given

    def _records_of(self, tp: TopicPartition, state: TopicPartitionState, most: int) -> FetchedRecords | None:
        buffer = self._buffer(tp, state, self._config.max_partition_fetch_bytes)
        if buffer is None:
            return None
        if self.throttle.bound is not None:
            self._charge(buffer)
        self.began.append((state, buffer.at, state.leader_epoch))
        columns = buffer.take(most)
        records, error = consumer_records(tp, columns, self._deserializers)
        if error is not None:
            buffer.give_back(error.offset)
            try:
                if not records:
                    raise error
                self._kept = _Kept(state, buffer.at, error)
            finally:
                # The traceback of the error refers to this frame, which refers to the error: `del` breaks
                # this cycle.
                del error
        elif not buffer.left:
            self._drop(state)
        self._metrics.given(tp, buffer.at, buffer.start, buffer.end)
        epoch = records[-1].leader_epoch if buffer.left else buffer.leader_epoch
        return _given((tp, state, records, buffer.at, epoch))

    @property
    def has_nothing(self) -> bool:
        """Return whether a new record may be returned to the application as it is, because there are no
        buffers, no error for the next call, no byte rate, no deserializers and no fetch_min_bytes.
        """
        return self._as_is and self.throttle.bound is None and self._kept is None and not self._buffers

    def columns(self) -> list[FetchedColumns]:
        """Return the records of a fetch as columns: up to max_partition_fetch_bytes of each partition, and up
        to fetch_max_bytes in all. The caller must then set the positions.
        """
        if self._kept is not None:
            self._raise_kept()
        self.began.clear()
        found: list[FetchedColumns] = []
        if self._config.fetch_min_bytes > 1 and not self._enough():
            return found
        left = self._config.fetch_max_bytes
        for tp, state in self._turns():
            position = state.position
            try:
                buffer = self._buffer(tp, state, min(self._config.max_partition_fetch_bytes, left))
            except Exception as error:
                if not found:
                    raise
                self._kept = _Kept(state, position, copy_of(error))
                break
            if buffer is not None:
                if self.throttle.bound is not None:
                    self._charge(buffer)
                self.began.append((state, buffer.at, state.leader_epoch))
                found.append(FetchedColumns(tp, state, buffer.take()))
                self._drop(state)
                self._metrics.given(tp, buffer.at, buffer.start, buffer.end)
                left -= buffer.stored
            if left <= 0:
                break
        return found

    def _charge(self, buffer: Buffer) -> None:
        """For the client's byte rate, count the read that filled the buffer, unless it was counted before."""
        if not buffer.charged:
            buffer.charged = True
            self._metrics.throttled(self.throttle.charge(buffer.stored))

    def give_back(self) -> None:
        """Reset the positions, so that the next call of `records` or `columns` returns the same records
        again.
        """
        for state, position, leader_epoch in self.began:
            state.seek(position, leader_epoch)
        self.began.clear()

    def moved(self, states: Iterable[TopicPartitionState]) -> None:
        """Exclude partitions from `give_back`, because a seek has changed their positions after their records
        were returned.
        """
        left_out = set(states)
        self.began[:] = [each for each in self.began if each[0] not in left_out]

    def wait_ms(self) -> float:
        """Return how long, in ms, the consumer may wait for newly published log ends. The result is finite
        only if there are records that may not be returned yet because of fetch_min_bytes or the byte rate.
        """
        if self._throttled:
            self._throttled = False
            return min(self.throttle.wait_ms(), MOST_WAIT_MS)
        if math.isnan(self._some_since):
            return math.inf
        waited = (time.monotonic() - self._some_since) * 1000
        return max(self._config.fetch_max_wait_ms - waited, 0)

    # --- turns and errors --------------------------------------------------------------------

    def _turns(self) -> Iterator[tuple[TopicPartition, TopicPartitionState]]:
        """Yield all fetchable partitions, beginning after the partition that was yielded last."""
        subscription = self._subscription
        turns = subscription.turns
        for at in [*range(subscription.cursor, len(turns)), *range(subscription.cursor)]:
            tp, state = turns[at]
            if state.fetchable:
                subscription.cursor = (at + 1) % len(turns)
                yield tp, state

    def _raise_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and kept.state.fetchable and kept.state.position == kept.position:
            error = kept.error
            del kept
            try:
                raise error
            finally:
                del error

    # --- reading -----------------------------------------------------------------------------

    def _buffer(self, tp: TopicPartition, state: TopicPartitionState, max_bytes: int) -> Buffer | None:
        """Return a buffer with the records from the partition's position on. Return None if there are no such
        records, or if they can't be read now (for example, the buffers are full).
        """
        buffer = self._buffers.get(state)
        if buffer is not None:
            if buffer.left and buffer.at == state.position:
                log, leader = state.log, buffer.leader
                if leader is None or (log is not None and log.leader_epoch == leader):
                    return buffer
            self._drop(state)
        if self._memory and self._memory >= self._config.fetch_max_bytes and not self._make_room():
            return None
        buffer = self._read(tp, state, max_bytes)
        if buffer is not None:
            self._buffers[state] = buffer
            self._memory += buffer.memory
        return buffer

    def _drop(self, state: TopicPartitionState) -> None:
        memory = self._buffers[state].memory
        # No interrupt comes between the next two statements, because neither calls a Python function.
        del self._buffers[state]
        self._memory -= memory

    def _make_room(self) -> bool:
        """Drop the buffers that can't be used any more. Return whether the remaining buffers take less memory
        than fetch_max_bytes.
        """
        useless = [
            state
            for state, buffer in self._buffers.items()
            if not (state.fetchable and buffer.left and buffer.at == state.position)
        ]
        for state in useless:
            self._drop(state)
        return self._memory < self._config.fetch_max_bytes

    def _read(self, tp: TopicPartition, state: TopicPartitionState, max_bytes: int) -> Buffer | None:
        log = state.log or self._positions.log(tp, state)
        if log is None:
            return None
        leader = self._positions.validate(log, state) if log.has_replicas else None
        position = state.position
        if position is None:
            return None
        try:
            view = log.view
            if view.end_offset == position:
                if state.end is None or state.end.offset != position:
                    state.end = end_of(view)
                return None
            if self.throttle.bound is not None:
                if self.throttle.wait_ms():
                    self._throttled = True
                    return None
                max_bytes = min(max_bytes, self.throttle.most_at_once)
            began = time.perf_counter()
            records = self._fetch(log, leader, view, position, max_bytes)
        except OffsetOutOfRangeError:
            if leader is None or log.leader_epoch == leader:
                self._positions.out_of_range(state)
            return None
        except StoreClosedError:
            self._positions.gone(state)
            return None
        if leader is not None and log.leader_epoch != leader:
            # Another leader was elected after `validate` had compared the position with the earlier leader's
            # log.
            return None
        n = len(records)
        if not n:
            # The batches contain only markers and aborted records: set the position after the batches.
            state.seek(records.next_offset, log.epoch_of(records.next_offset - 1))
            return None
        if records.next_offset == view.end_offset:
            state.end = end_of(view)
        # The read may have used a view that is newer than `view`.
        end = max(view.end_offset, records.next_offset)
        buffer = Buffer(records, n, position, view.start_offset, end, leader)
        self._metrics.fetched(buffer.stored, n, (time.perf_counter() - began) * 1000)
        return buffer

    def _fetch(
        self, log: PartitionLog, leader: int | None, view: LogView, position: int, max_bytes: int
    ) -> Records:
        how = max_bytes, self._committed, self._config.check_crcs
        if leader is not None and self._config.client_rack:
            near = log.nearest(self._config.client_rack, position)
            if near is not log:
                with suppress(SegstoreError, OSError):
                    # If the nearest replica fails, the leader's log is read.
                    return near.read_view(None, position, *how)
        return log.read_view(view, position, *how)

    def _enough(self) -> bool:
        """Return whether the records may be returned: they have at least fetch_min_bytes, or
        fetch_max_wait_ms have passed after the first of them was found.
        """
        least = self._config.fetch_min_bytes
        stored = self._stored(least)
        now = time.monotonic()
        if not stored or stored >= least:
            self._some_since = math.nan
            return stored > 0
        if math.isnan(self._some_since):
            self._some_since = now
        if (now - self._some_since) * 1000 < self._config.fetch_max_wait_ms:
            # The buffers are dropped, because later reads return their records again, together with newer
            # records.
            self._buffers, self._memory = {}, 0
            return False
        self._some_since = math.nan
        return True

    def _stored(self, least: int) -> int:
        """Return the number of stored bytes whose records can be returned now. Counting stops at `least`, the
        number that the caller waits for. If a partition has an error, return `least` too: the caller then
        does not wait, and raises the error.
        """
        stored = 0
        for tp, state in self._subscription.turns:
            if state.fetchable and stored < least:
                try:
                    buffer = self._buffer(tp, state, self._config.max_partition_fetch_bytes)
                except Exception:
                    return least
                stored += buffer.stored if buffer is not None else 0
        return stored


# --- iteration ---------------------------------------------------------------------------------

# `Iteration` yields the single records of `for record in consumer`.


class _Part(NamedTuple):
    state: TopicPartitionState
    records: Iterator[ConsumerRecord]
    at: int
    leader_epoch: int


class Iteration:
    """The fetched records of an iterator. `take` returns a record and moves the position of the record's
    partition. Records that were not taken before a seek, a pause or a rebalance are read again, by this
    consumer or by another consumer.
    """

    def __init__(self) -> None:
        self.parts: deque[_Part] = deque()

    def put(self, given: FetchedRecords, records: Sequence[ConsumerRecord]) -> None:
        """Add `records` of one partition. After the last record the partition's position is set to
        `given.at`.
        """
        self.parts.append(_Part(given.state, iter(records), given.at, given.leader_epoch))

    def clear(self) -> None:
        """Drop the records that were not taken."""
        self.parts.clear()

    def take(self) -> ConsumerRecord | None:
        """Return the next record, or None if the iterator must poll for more."""
        while self.parts:
            state, records, at, leader_epoch = self.parts[0]
            if state.fetchable:
                record = next(records, None)
                if record is not None:
                    state.position, state.leader_epoch = record.offset + 1, record.leader_epoch
                    return record
                state.seek(at, leader_epoch)
            self.parts.popleft()
        return None
