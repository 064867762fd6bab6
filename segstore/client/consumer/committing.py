"""A consumer's committed offsets, which belong to its group. Nothing on disk. Threads: one at a time."""

from __future__ import annotations

import math
import time
from typing import Any

from segstore.client.consumer.base import alone
from segstore.client.consumer.coordination import Offsets, OnCommit
from segstore.client.consumer.parts import Parts
from segstore.client.consumer.subscription import topic_partition
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalStateError, InvalidTypeError, KafkaTimeoutError


class Committing(Parts):
    """From where its group goes on."""

    @alone
    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit `offsets`, by default the positions of all partitions: all, or none.

        CommitFailedError: the member was taken for failed, or the group handed out its partitions anew, and
        what was read since the last commit may be read again, by another member too.
        RebalanceInProgressError: poll, then commit. FencedInstanceIdError, UnknownTopicOrPartitionError,
        OffsetMetadataTooLargeError, StorageError, InvalidTypeError; IllegalStateError without a group.
        """
        self._coordination.commit(self._subscription.consumed() if offsets is None else offsets)

    @alone
    def commit_async(self, offsets: Offsets | None = None, callback: OnCommit | None = None) -> Any:
        """As `commit`, but what fails is told to the future that is returned, and to `callback` (by default
        default_offset_commit_callback), which is called with (offsets, None or the error) in the next poll,
        commit or close. IllegalStateError without a group, InvalidTypeError.
        """
        committed = self._subscription.consumed() if offsets is None else offsets
        if callback is None:
            default: Any = self.config.default_offset_commit_callback
            callback = default
        elif not callable(callback):
            raise InvalidTypeError(f"callback must be a callable, or None, not {type(callback).__name__}")
        return self._coordination.commit_async(committed, callback)

    @alone
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """The committed offset, None where there is none. With read_committed it waits, up to `timeout_ms`,
        for a transaction that is about to commit another (KafkaTimeoutError). IllegalStateError without a
        group.
        """
        tp = topic_partition(partition)
        if self.config.group_id is None:
            raise IllegalStateError("committed offsets belong to a group, and group_id is None")
        self._decided(tp, math.inf if timeout_ms is None else timeout_ms)
        found = self._coordination.committed([tp]).get(tp)
        return found if found is None or metadata else found.offset

    def _decided(self, tp: TopicPartition, timeout_ms: float) -> None:
        end = time.monotonic() + timeout_ms / 1000
        while True:
            seen = self._store.publications
            self._guard.check()
            if self.config.isolation_level != "read_committed" or not self._coordination.undecided([tp]):
                return
            left = end - time.monotonic()
            if left <= 0:
                raise KafkaTimeoutError(f"a transaction over the offset of {tp} was open for {timeout_ms} ms")
            self._store.wait(seen, left * 1000)

    @alone
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership of a group, for a transaction's offsets."""
        return self._coordination.group_metadata()
