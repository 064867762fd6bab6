"""`ConsumerRebalanceListener`: what an application is told of its consumer's partitions. Nothing on disk.

Threads: called by the thread that polls, within `poll`, `unsubscribe` or `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from segstore.coordinator.structs import TopicPartition
from segstore.mutex import calls_out


class ConsumerRebalanceListener(ABC):
    """Base of listeners given to `subscribe`; kafka-python's own will do as well."""

    @abstractmethod
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Called before partitions are given up; their positions may still be asked and committed."""

    @abstractmethod
    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called after partitions were assigned and before anything is read of them: `seek` works."""

    @calls_out
    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Called in place of `on_partitions_revoked` where the partitions are another's, or gone, already."""
        self.on_partitions_revoked(lost)
