"""`ShareFetcher`: acquires and reads records for a share consumer. It is used in the process that writes the
store (Kafka: ShareFetchCollector, ShareCompletedFetch).

On disk: reads logs. Threads: one, the consumer's. If an acquired offset has no record for the application
(control records, compacted records), it is at once acknowledged as GAP. An offset in a damaged batch is at
once acknowledged as REJECT. These acknowledgements are sent in requests of their own, without the
application's acknowledgements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from segstore.arrays import np
from segstore.client.consumer.records import Counts
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.deliveries import At, DeliveredColumns, PendingError, Waiting
from segstore.client.share.metrics import ShareConsumerMetrics
from segstore.coordinator.quotas import MOST_WAIT_MS, QuotaThrottle
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType, Acquired, AcquireMode
from segstore.coordinator.share.share import AcquiredPartition, AcquireTerms, ShareCoordinator
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    CorruptRecordError,
    IllegalStateError,
    OffsetOutOfRangeError,
    RetriableError,
    SegstoreError,
    copy_of,
)
from segstore.logger import Logger
from segstore.records import Records

GAP, REJECT = AcknowledgeType.GAP, AcknowledgeType.REJECT
log = Logger("segstore")


class ShareFetcher:
    """The fetcher of one share consumer. `lock_timeout_ms`: for how long, in ms, the last acquired records
    stay acquired; None before the first acquisition. `has_acquired`: whether the last `fetch` has acquired
    offsets, even if all were gaps. `is_refused`: whether the last `fetch` got a temporary error, so that the
    consumer calls `fetch` again soon. `touched`: the partitions in which this member may have acquired
    records.
    """

    def __init__(
        self,
        coordinator: ShareCoordinator,
        member: str,
        config: ShareConsumerConfig,
        metrics: ShareConsumerMetrics,
        throttle: QuotaThrottle,
    ) -> None:
        self._coordinator, self._group, self._member = coordinator, config.group_id, member
        self._config, self._metrics = config, metrics
        self._mode = AcquireMode.RECORD_LIMIT if config.is_strict else AcquireMode.BATCH_OPTIMIZED
        self._throttle, self._is_throttled = throttle, False
        self._turn = 0
        self._some_since = math.nan
        self.lock_timeout_ms: int | None = None
        self.is_refused = self.has_acquired = False
        self.touched: set[At] = set()

    def fetch(self, partitions: Sequence[At], most: int) -> list[Waiting | PendingError]:
        """Acquire about `most` records of the partitions, and read these records. Each call begins with the
        partition after the one with which the last call began. Raises StoreClosedError, ForkedError.
        """
        self.is_refused = self.has_acquired = False
        if not partitions or self._must_wait():
            return []
        self._turn = (self._turn + 1) % len(partitions)
        wanted = [*partitions[self._turn :], *partitions[: self._turn]]
        self.touched.update(wanted)
        began = time.monotonic()
        max_bytes = min(self._config.fetch_max_bytes, self._throttle.most_at_once)
        terms = AcquireTerms(most, self._config.max_poll_records, self._mode, max_bytes)
        acquisitions = self._coordinator.acquire(self._group, self._member, wanted, terms)
        lock_ms = self.lock_timeout_ms = self._coordinator.lock_timeout_ms(self._group)
        if not acquisitions or not self._are_enough(acquisitions, began):
            return []
        self.has_acquired = any(each.error is None for each in acquisitions)
        return self._read_all(acquisitions, began, began + lock_ms / 1000)

    @property
    def is_holding_back(self) -> bool:
        """Return whether the available records are not returned yet because they have less than
        fetch_min_bytes.
        """
        return not math.isnan(self._some_since)

    def wait_ms(self) -> float:
        """Return how long, in ms, the consumer may wait for newly published log ends. The result is finite
        only if there are records that may not be returned yet because of fetch_min_bytes or the byte rate.
        """
        if self._is_throttled:
            return min(self._throttle.wait_ms(), MOST_WAIT_MS)
        if not self.is_holding_back:
            return math.inf
        waited = (time.monotonic() - self._some_since) * 1000
        return max(self._config.fetch_max_wait_ms - waited, 0)

    def _must_wait(self) -> bool:
        """Return whether the client's byte rate forbids a fetch now."""
        self._is_throttled = self._throttle.bound is not None and self._throttle.wait_ms() > 0
        return self._is_throttled

    def _are_enough(self, found: Sequence[AcquiredPartition], now: float) -> bool:
        """Return True if the acquired records may be returned: they have at least fetch_min_bytes,
        fetch_max_wait_ms have passed after the first of them was found, or a partition has an error. If not,
        cancel the acquisition of these records, and return False.
        """
        if self._config.fetch_min_bytes <= 1:
            return True
        stored = sum(len(each.stretch) for each in found if each.stretch is not None)
        if not self.is_holding_back:
            self._some_since = now
        is_over = (now - self._some_since) * 1000 >= self._config.fetch_max_wait_ms
        if stored >= self._config.fetch_min_bytes or is_over or any(each.error for each in found):
            self._some_since = math.nan
            return True
        for each in found:
            self._coordinator.cancel(each)
        return False

    # --- reading -----------------------------------------------------------------------------------

    def _read_all(
        self, found: Sequence[AcquiredPartition], began: float, until: float
    ) -> list[Waiting | PendingError]:
        parts: list[Waiting | PendingError] = []
        damage: list[PendingError] = []
        done: dict[At, list[AckBatch]] = {}
        for each in found:
            if each.error is not None:
                self._take_error(each.error, damage)
                continue
            reading = _Reading(each, until, self._config.check_crcs)
            parts += reading.parts()
            if reading.done:
                done[reading.at] = reading.done
            self._metrics.fetched(reading.stored, reading.n, (time.monotonic() - began) * 1000)
            if self._throttle.bound is not None:
                self._metrics.throttled(self._throttle.charge(reading.stored))
        if done:
            self._acknowledge(done)
        return [*parts, *damage]

    def _take_error(self, error: SegstoreError, damage: list[PendingError]) -> None:
        """If `error` is temporary, set `is_refused`. If not, add it to `damage`, so that a poll raises it."""
        if isinstance(error, RetriableError):
            self.is_refused = True
        else:
            damage.append(PendingError(copy_of(error)))

    def _acknowledge(self, done: dict[At, list[AckBatch]]) -> None:
        """Acknowledge the offsets that have no record for the application. If that fails, log a warning; the
        offsets are acquired again after their locks have expired.
        """
        results = self._coordinator.acknowledge(self._group, self._member, done)
        for at, error in results.items():
            if error is not None:
                log.warning("share group %s: gaps of %s are not acknowledged: %s", self._group, at, error)


class _Reading:
    """Reads the records of one acquisition. `done` has the acknowledgements of offsets that have no record
    for the application. `stored` is the number of bytes, and `n` is the number of records.
    """

    def __init__(self, acquisition: AcquiredPartition, until: float, check_crcs: bool) -> None:
        assert acquisition.log is not None
        assert acquisition.stretch is not None
        self.at = acquisition.topic_id, acquisition.partition
        self._tp = TopicPartition(acquisition.topic, acquisition.partition)
        self._log, self._runs = acquisition.log, acquisition.acquired
        self._until, self._check_crcs = until, check_crcs
        self.stored, self.n = len(acquisition.stretch), 0
        self.done: list[AckBatch] = []

    def parts(self) -> Iterator[Waiting | PendingError]:
        """Yield records and errors, in offset order."""
        at, last = self._runs[0].first, self._runs[-1].last
        while at <= last:
            try:
                records = self._log.read_view(None, at, self.stored, False, self._check_crcs)
            except OffsetOutOfRangeError as error:
                begin = min(self._log.start_offset, last + 1)
                if begin <= at:
                    yield PendingError(copy_of(error))
                    return
                # Retention has deleted the records from `at` to `begin` - 1.
                self._finish(at, begin - 1, GAP)
                at = begin
            except CorruptRecordError as error:
                begin = last + 1 if error.next_offset is None else min(error.next_offset, last + 1)
                begin = max(begin, at + 1)
                self._finish(at, begin - 1, REJECT)
                yield PendingError(copy_of(error))
                at = begin
            else:
                end = max(min(records.next_offset - 1, last), at)
                part = self._part(records, at, end)
                if part is not None:
                    yield part
                at = end + 1

    def _finish(self, first: int, last: int, kind: AcknowledgeType) -> None:
        self.done += [AckBatch(begin, end, (kind,)) for begin, end, _ in clipped(self._runs, first, last)]

    def _part(self, records: Records, first: int, last: int) -> Waiting | None:
        """Return the acquired records from offset `first` to `last`, or None if there are none. If an
        acquired offset has no record, add it to `done`, as GAP.
        """
        runs = clipped(self._runs, first, last)
        kept, counts = acquired(records, runs)
        self.n += len(kept)
        if len(kept) < sum(end - begin + 1 for begin, end, _ in runs):
            self.done += [AckBatch(begin, end, (GAP,)) for begin, end in gaps(kept, runs)]
        return DeliveredColumns(self._tp, self.at, kept, counts, self._until) if len(kept) else None


def clipped(runs: Sequence[Acquired], first: int, last: int) -> list[Acquired]:
    """Return the runs without the offsets below `first` or above `last`. Raises IllegalStateError if the runs
    are not in offset order, or overlap: an offset in two runs would be acknowledged as GAP.
    """
    parts, before = [], -1
    for begin, end, count in runs:
        if begin <= before or end < begin:
            raise IllegalStateError(f"offsets {begin}-{end} were acquired behind {before}: they must rise")
        before = end
        if begin <= last and end >= first:
            parts.append(Acquired(max(begin, first), min(end, last), count))
    return parts


def acquired(records: Records, runs: Sequence[Acquired]) -> tuple[Records, Counts]:
    """Return the records whose offsets are in the runs, and their delivery counts."""
    offsets = records.offsets
    if len(runs) == 1 and len(offsets):
        first, last, count = runs[0]
        if offsets[0] >= first and offsets[-1] <= last:
            return records, count
    if not runs or not len(offsets):
        return records[:0], 0
    firsts, lasts, counts = (np.array(column, dtype=np.int64) for column in zip(*runs, strict=True))
    of = np.searchsorted(firsts, offsets, "right") - 1
    mask = (of >= 0) & (offsets <= lasts[of])
    if (counts == counts[0]).all():
        return records.take(mask), int(counts[0])
    return records.take(mask), counts[of[mask]].tolist()


def gaps(records: Records, runs: Sequence[Acquired]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets in the runs that have no record, as (first offset, last offset)."""
    offsets = records.offsets
    for first, last, _ in runs:
        begin, end = np.searchsorted(offsets, (first, last + 1)).tolist()
        at = first
        if end - begin == last - first + 1:
            continue
        for offset in [*offsets[begin:end].tolist(), last + 1]:
            if offset > at:
                yield at, offset - 1
            at = offset + 1
