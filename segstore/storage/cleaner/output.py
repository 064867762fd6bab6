"""Owns the `.cleaned` files of a group of segments while they are written: log, both indexes, .txnindex.

Threads: the cleaning thread; nobody else knows of these files before the swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from segstore import names
from segstore.files import Handle
from segstore.index import IndexBuilder, SealedOffsetIndex, SealedTimeIndex, txn_index
from segstore.index.txn_index import AbortedTxn
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from segstore.storage.log.partition import Partition


class _Growing:
    """One new segment."""

    def __init__(self, partition: Partition, base_offset: int) -> None:
        pool, interval = partition.context.pool, partition.config.index_interval_bytes
        self.segment = segment = Segment(
            pool, partition.directory, base_offset, 0, writable=False, interval=interval
        )
        self._partition, self._files = partition, pool.files
        with partition.names_held():  # else the directory may be a new topic's of that name
            self.handle: Handle = self._create(names.LOG)
        self._builder = IndexBuilder(segment.base_offset, segment.interval)
        self._offsets, self._times = bytearray(), bytearray()

    def _create(self, suffix: str) -> Handle:
        return self._files.open_anew(self.segment.file(suffix + names.CLEANED))

    def add(self, data: Buffer, batches: NDArray[np.void]) -> None:
        segment = self.segment
        batches["position"] += segment.size - batches["position"][0]
        self._files.pwrite(self.handle, data, segment.size)
        offsets, times = self._builder.add(batches)
        self._offsets += offsets
        self._times += times
        segment.size += len(memoryview(data))

    def finish(self, aborted: Sequence[AbortedTxn], modified: int) -> None:
        """Make it durable under its `.cleaned` names, and readable, whatever its names become. `modified`: by
        that, ns since the epoch, its age is known where no record has a timestamp.
        """
        files = self._files
        self._times += self._builder.last_time_entry()
        offsets, times = bytes(self._offsets), bytes(self._times)
        contents = {names.INDEX: offsets, names.TIME_INDEX: times}
        if aborted:
            contents[names.TXN_INDEX] = txn_index.format_entries(aborted)
        files.set_modified(self.handle, modified)
        files.sync(self.handle)
        with self._partition.names_held():
            for suffix, content in contents.items():
                with self._create(suffix) as handle:
                    files.pwrite(handle, content, 0)
                    files.set_modified(handle, modified)
                    files.sync(handle)
        self.segment.hold(self.handle, (SealedOffsetIndex.of(offsets), SealedTimeIndex.of(times)))


class Output:
    """What a group of segments becomes: one segment, or several where `most` bytes are exceeded."""

    def __init__(self, partition: Partition, base_offset: int, most: int) -> None:
        """OSError, StoreClosedError."""
        self._partition, self._most = partition, most
        self._growing = [_Growing(partition, base_offset)]

    @property
    def segments(self) -> list[Segment]:
        return [one.segment for one in self._growing]

    def add(self, data: memoryview, batches: NDArray[np.void]) -> None:
        """Append whole batches, which lie one after the other in `data`. OSError."""
        while len(batches):
            one = self._growing[-1]
            ends = batches["size"].cumsum(dtype=np.int64)
            n = int(ends.searchsorted(self._most - one.segment.size, side="right"))
            if not n and one.segment.size:
                self._growing.append(_Growing(self._partition, int(batches["base_offset"][0])))
                continue
            n = max(n, 1)
            size = int(ends[n - 1])
            one.add(data[:size], batches[:n])
            data, batches = data[size:], batches[n:]

    def finish(self, aborted: Sequence[AbortedTxn], last: Segment) -> list[Segment]:
        """All durable: the new segments, as old as the file of the `last` that they are made of (Kafka:
        Cleaner.cleanSegments). OSError.
        """
        modified = self._partition.context.files.modified(last.path)
        bases = [*(s.base_offset for s in self.segments[1:]), 2**63]
        for one, below in zip(self._growing, bases, strict=True):
            base = one.segment.base_offset
            one.finish([txn for txn in aborted if base <= txn.last_offset < below], modified)
        return self.segments
