"""Reads the headers of record batches for a share group's fetch, to find the offsets and file positions of
the batches (Kafka: ReplicaManager.readFromLog, ShareFetchUtils).

On disk: reads whole chunks of the log if batches are small, else only their headers. Threads: any, without
locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from segstore.arrays import np
from segstore.coordinator.share.core.values import OffsetRange, ReadBatch
from segstore.errors import CorruptRecordError
from segstore.files import Handle
from segstore.records.header import CONTROL_FLAG, NO_PRODUCER_ID, TRANSACTIONAL_FLAG
from segstore.storage.context import StoreContext, os_errors
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.segment.batch_scan import LARGE, walk
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import StoredBatches, Stretch

_LEAST, _MOST = 4 << 10, 64 << 10
_OF_ONE = 256
"""A read has `_OF_ONE` bytes for each wanted record, but at least `_LEAST` and at most `_MOST` bytes."""


class BatchesRead(NamedTuple):
    """Record batches of one segment, in order. `positions` has the file position of each batch, and the
    position after the last batch. `end` is the offset after the last batch. If the group reads only
    committed records, `aborted` has the offsets of aborted transactions; else it is empty.
    """

    batches: Sequence[ReadBatch]
    positions: Sequence[int]
    end: int
    aborted: Sequence[OffsetRange]
    handle: Handle | None
    stretch: Stretch

    @property
    def are_large(self) -> bool:
        """Return whether the batches are so large that it is faster to read each header by itself than to
        read whole batches.
        """
        return self.positions[-1] - self.positions[0] > LARGE * len(self.batches)

    def of(self, first: int, last: int) -> Stretch:
        """Return a Stretch of whole batches: from the batch with offset `first` to the batch with offset
        `last`.
        """
        lasts = [batch.last for batch in self.batches]
        begin, end = bisect_left(lasts, first), bisect_left(lasts, last) + 1
        assert self.handle is not None
        place = StoredBatches(self.handle, self.positions[begin], self.positions[end], lasts[end - 1] + 1)
        found = self.stretch
        ends = found.log_start_offset, found.high_watermark, found.last_stable_offset
        return Stretch(place, first, *ends, [])


def read_batches(
    context: StoreContext,
    source: PartitionLog,
    offset: int,
    enough: int,
    max_bytes: int,
    *,
    committed: bool,
    min_one: bool,
    large: bool,
) -> BatchesRead | None:
    """Return batches with at most `max_bytes` bytes in total: the first has the offset `offset`, and none
    follows the batch with the offset `enough`. If `min_one` is True, the first batch may be larger than
    `max_bytes`. Return None if there is no batch to return. `large` is `are_large` of the last read of this
    log.

    Raises OffsetOutOfRangeError, CorruptRecordError, StorageError, StoreClosedError.
    """
    with os_errors():
        level = "read_committed" if committed else "read_uncommitted"
        stretch = source.stretch(offset, max_bytes, isolation_level=level, min_one=min_one)
        if not len(stretch):
            return None
        return _headers(context, source, stretch, offset, enough, committed, large)


def _headers(
    context: StoreContext,
    source: PartitionLog,
    stretch: Stretch,
    offset: int,
    enough: int,
    committed: bool,
    large: bool,
) -> BatchesRead:
    handle = stretch._handle
    assert handle is not None
    at, stop = stretch.position, stretch.position + len(stretch)
    chunk = min(max(_LEAST, _OF_ONE * (enough - offset + 1)), _MOST)
    batches: list[ReadBatch] = []
    positions = [at]
    for step in walk(
        context.files, handle, at, stop, check_crcs=False, chunk=chunk, sparse=True, large=large
    ):
        if step.headers:
            found = step.batches
            kinds = found["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
            columns = [found["base_offset"].tolist(), found["last_offset"].tolist()]
            if kinds.any():
                producers = np.where(kinds & TRANSACTIONAL_FLAG != 0, found["producer_id"], NO_PRODUCER_ID)
                columns += [producers.tolist(), (kinds & CONTROL_FLAG != 0).tolist()]
            batches += map(ReadBatch, *columns)
            positions += (found["position"] + found["size"]).tolist()
            if batches[-1].last >= enough:
                break
    if not batches:
        path = getattr(handle, "path", source.topic)
        raise CorruptRecordError(str(path), at, offset, "no valid batch header")
    while len(batches) > 1 and batches[-2].last >= enough:
        del batches[-1], positions[-1]
    aborted = _aborted(source, batches) if committed and stretch.aborted else ()
    return BatchesRead(batches, positions, batches[-1].last + 1, aborted, handle, stretch)


def _aborted(source: PartitionLog, batches: Sequence[ReadBatch]) -> list[OffsetRange]:
    """Return the offsets of those of `batches` that belong to aborted transactions (rule Q44)."""
    rows = outcomes(source).aborted
    overlapping = rows[(rows[:, 2] >= batches[0].base) & (rows[:, 1] <= batches[-1].last)].tolist()
    return [
        OffsetRange(each.base, each.last)
        for each in batches
        if not each.is_control
        and any(
            each.producer_id == producer and first <= each.base <= last
            for producer, first, last, _ in overlapping
        )
    ]
