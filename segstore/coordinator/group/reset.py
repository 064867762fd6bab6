"""Where a group shall go on: the earliest or latest record, a time, an offset, some records on or back.

Nothing on disk. Threads: any; a `Reset` is immutable. (Kafka: ConsumerGroupCommand, --reset-offsets.)
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config import arguments
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import InvalidArgumentError
from segstore.storage.store.partition_log import PartitionLog


@dataclass(frozen=True)
class Reset:
    """Made by one of its class methods. `value`: an offset, offsets, ms since the epoch, or ms before now."""

    kind: str
    value: int = 0

    @classmethod
    def to_earliest(cls) -> Reset:
        """The log start offset."""
        return cls("earliest")

    @classmethod
    def to_latest(cls) -> Reset:
        """The log end offset."""
        return cls("latest")

    @classmethod
    def to_current(cls) -> Reset:
        """Where the group is; at the log end offset where it has committed nothing."""
        return cls("current")

    @classmethod
    def to_offset(cls, offset: int) -> Reset:
        """That offset, or the nearest that is there. InvalidArgumentError for a negative one."""
        return cls("offset", arguments.whole("offset", offset, 0))

    @classmethod
    def shift_by(cls, records: int) -> Reset:
        """So many offsets on from where the group is, or back if negative; no further than the log goes."""
        return cls("shift", arguments.whole("records", records, None))

    @classmethod
    def to_datetime(cls, timestamp_ms: int) -> Reset:
        """The first record that is stamped so or later; the log end offset where there is none."""
        return cls("datetime", arguments.whole("timestamp_ms", timestamp_ms, 0))

    @classmethod
    def by_duration(cls, duration_ms: int) -> Reset:
        """As `to_datetime`, so long before now."""
        return cls("duration", arguments.whole("duration_ms", duration_ms, 0))

    def target(self, log: PartitionLog, committed: OffsetAndMetadata | None, now_ms: int) -> int:
        """The offset in that log. InvalidArgumentError where `shift_by` has nothing to count from."""
        start, end = log.start_offset, log.end_offset
        if self.kind == "earliest":
            return start
        if self.kind == "latest":
            return end
        if self.kind in ("datetime", "duration"):
            found = log.offset_for_time(self.value if self.kind == "datetime" else now_ms - self.value)
            return end if found is None else found
        if self.kind == "current" and committed is None:
            return end
        return min(max(self._wanted(log, committed), start), end)

    def _wanted(self, log: PartitionLog, committed: OffsetAndMetadata | None) -> int:
        if self.kind == "offset":
            return self.value
        if committed is None:
            raise InvalidArgumentError(
                f"{log.topic}-{log.partition}: shift_by counts from a committed offset, and there is none"
            )
        return committed.offset + (self.value if self.kind == "shift" else 0)


@dataclass(frozen=True)
class Moved:
    """What a reset does to one partition; `before` is None where nothing was committed."""

    partition: TopicPartition
    before: int | None
    after: int
