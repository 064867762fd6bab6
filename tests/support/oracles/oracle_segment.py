"""A segment as the oracle of a log has it: the bytes of its log, and the entries of its indexes.

The rules of entries are those of org.apache.kafka.storage.internals.log.LogSegment (append,
onBecomeInactiveSegment), TimeIndex.maybeAppend, TransactionIndex.append and AbstractIndex.isFull; TimeIndex
keeps room for the entry that a close adds.
"""

from __future__ import annotations

import struct

from oracle import Batch
from oracle_producers import AbortedTransaction

INDEX, TIME_INDEX = struct.Struct(">ii"), struct.Struct(">qi")
ABORTED = struct.Struct(">hqqqq")


class OracleSegment:
    """A segment's files. Its interval and the room in its indexes stay as they were when it was opened."""

    def __init__(self, base: int, config: dict[str, object]) -> None:
        self.base, self.log = base, bytearray()
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.aborted: list[AbortedTransaction] = []
        self.largest = (-1, -1)  # timestamp, and the last offset of its batch
        self.first_stamp = -1  # Kafka: rollingBasedTimestamp
        self._since = 0  # bytes since the last entry's batch began
        self.open(config)

    def open(self, config: dict[str, object]) -> None:
        """Take the settings that an open segment keeps."""
        index_bytes = config["segment.index.bytes"]
        assert isinstance(index_bytes, int)
        self._interval = config["index.interval.bytes"]
        self._most = index_bytes // INDEX.size, index_bytes // TIME_INDEX.size

    @property
    def is_full(self) -> bool:
        """Return whether an index takes no entry more."""
        return len(self.offsets) >= self._most[0] or len(self.times) >= self._most[1] - 1

    def append(self, batch: Batch, data: bytes) -> None:
        """Append a batch, of which `data` are the bytes."""
        last = batch.base_offset + batch.last_offset_delta
        if batch.max_timestamp > self.largest[0]:
            self.largest = batch.max_timestamp, last
        if self._since > self._interval:
            self.offsets.append((last - self.base, len(self.log)))
            self._note_largest()
            self._since = 0
        if self.first_stamp < 0:
            self.first_stamp = batch.max_timestamp
        self._since += len(data)
        self.log += data

    def _note_largest(self) -> None:
        stamp, offset = self.largest
        if stamp > (self.times[-1][0] if self.times else -1):
            self.times.append((stamp, offset - self.base))

    def close(self) -> None:
        """Give the time index its last entry, as a roll or a clean shutdown does."""
        self._note_largest()

    def files(self) -> dict[str, bytes]:
        """Return the content of the files by suffix, without the room that is reserved in the indexes."""
        found = {
            "log": bytes(self.log),
            "index": b"".join(INDEX.pack(*entry) for entry in self.offsets),
            "timeindex": b"".join(TIME_INDEX.pack(*entry) for entry in self.times),
        }
        if self.aborted:
            found["txnindex"] = b"".join(ABORTED.pack(0, *entry) for entry in self.aborted)
        return found
