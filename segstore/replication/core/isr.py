"""The in-sync replicas as their leader sees them: committed, or with one proposal in flight (rules R19 to
R21; Kafka: PartitionState, CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr; KIP-497).

`isr` is what the controller has committed. `maximal` has in addition all whom it may have committed
meanwhile; the high watermark waits for these.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.replication.core.messages import AlterPartition


class Committed(NamedTuple):
    """No proposal is in flight."""

    isr: frozenset[int]

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR."""
        return self.isr


class PendingExpand(NamedTuple):
    """The leader has asked to add `replica`, and waits for it as if it were a member (R20)."""

    isr: frozenset[int]
    sent: AlterPartition
    replica: int

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR with the replica that may have joined it."""
        return self.isr | {self.replica}


class PendingShrink(NamedTuple):
    """The leader has asked to remove replicas, and waits for them until that is committed (R19)."""

    isr: frozenset[int]
    sent: AlterPartition

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR: the removal may fail."""
        return self.isr


IsrState = Committed | PendingExpand | PendingShrink
