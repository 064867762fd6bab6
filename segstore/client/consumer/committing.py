"""A consumer's committed offsets, which belong to its group. Nothing on disk. Threads: one at a time."""

from __future__ import annotations

from typing import Any

from segstore.client.consumer.coordination import Offsets, OnCommit
from segstore.client.consumer.guard import alone
from segstore.client.consumer.parts import Parts
from segstore.client.consumer.subscription import topic_partition
from segstore.client.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalStateError


class Committing(Parts):
    """From where its group goes on."""

    @alone
    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit `offsets`, by default the positions of all partitions. IllegalStateError without a group."""
        committed = self._subscription.consumed() if offsets is None else offsets
        self._coordination.commit(committed)
        self._interceptors.on_commit(committed)

    @alone
    def commit_async(self, offsets: Offsets | None = None, callback: OnCommit | None = None) -> Any:
        """Commit without waiting: a future. IllegalStateError without a group."""
        committed = self._subscription.consumed() if offsets is None else offsets
        default: Any = self.config.default_offset_commit_callback
        return self._coordination.commit_async(committed, callback or default)

    @alone
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """The committed offset, None where there is none. IllegalStateError without a group."""
        tp = topic_partition(partition)
        if self.config.group_id is None:
            raise IllegalStateError("committed offsets belong to a group, and group_id is None")
        found = self._coordination.committed([tp]).get(tp)
        return found if found is None or metadata else found.offset

    @alone
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership of a group, for a transaction's offsets."""
        return self._coordination.group_metadata()
