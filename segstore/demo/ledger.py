"""What was sent and what was read in the live part, and the proof that both are the same. Nothing on disk.

Threads: any; one lock for all of it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping

from segstore.client.consumer import ConsumerRecord
from segstore.client.producer import RecordMetadata

_MASK = (1 << 64) - 1


def fingerprint(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """64 bits of BLAKE2b over a record's place, time (ms), key and value."""
    key, value = key or b"", value or b""
    place = b"%d %d %d " % (offset, timestamp, len(key))
    return int.from_bytes(hashlib.blake2b(place + key + value, digest_size=8).digest(), "big")


class Tally:
    """Records of one partition: their number, and a checksum that does not depend on their order."""

    __slots__ = ("checksum", "count")

    def __init__(self) -> None:
        self.count = self.checksum = 0

    def add(self, print_: int) -> None:
        self.count += 1
        self.checksum = self.checksum + print_ & _MASK


class Ledger:
    """`sent` has what producers were told is in the log, `seen` what readers got, each record once, by
    partition. `again`: how often a record was read that had been read before. `refused`: what failed.
    """

    def __init__(self, partitions: int) -> None:
        self.sent = [Tally() for _ in range(partitions)]
        self.seen = [Tally() for _ in range(partitions)]
        self.again = 0
        self.refused: list[str] = []
        self._offsets: list[set[int]] = [set() for _ in range(partitions)]
        self._lock = threading.Lock()

    def acknowledge(self, key: bytes, value: bytes, metadata: RecordMetadata) -> None:
        """A producer's callback."""
        print_ = fingerprint(metadata.offset, metadata.timestamp, key, value)
        with self._lock:
            self.sent[metadata.partition].add(print_)

    def refuse(self, error: BaseException) -> None:
        """A producer's errback."""
        with self._lock:
            self.refused.append(str(error))

    def read(self, records: Iterable[ConsumerRecord]) -> None:
        """Records that a reader was given."""
        with self._lock:
            for record in records:
                if record.offset in self._offsets[record.partition]:
                    self.again += 1
                    continue
                self._offsets[record.partition].add(record.offset)
                self.seen[record.partition].add(
                    fingerprint(record.offset, record.timestamp, record.key, record.value)
                )

    def faults(self, committed: Mapping[int, int], ends: Mapping[int, int]) -> list[str]:
        """What is wrong, a sentence each: with the log, with what was read, with what was committed."""
        with self._lock:
            found = [f"{len(self.refused):,} records were refused: {self.refused[0]}"] if self.refused else []
            for p, (sent, seen) in enumerate(zip(self.sent, self.seen, strict=True)):
                if ends[p] != sent.count:
                    found.append(
                        f"partition {p} has {ends[p]:,} records, and {sent.count:,} were acknowledged"
                    )
                if seen.count != sent.count:
                    found.append(f"of the {sent.count:,} records of partition {p} {seen.count:,} were seen")
                elif seen.checksum != sent.checksum:
                    found.append(f"partition {p}: what was seen is not what was sent, by its checksum")
                if committed.get(p, 0) != ends[p]:
                    found.append(f"partition {p} ends at {ends[p]:,}, committed is {committed.get(p)}")
        return found


def total(tallies: Iterable[Tally]) -> tuple[int, int]:
    """Number and checksum of all partitions together."""
    each = list(tallies)
    return sum(t.count for t in each), sum(t.checksum for t in each) & _MASK
