"""The in-sync replicas as their leader sees them: committed, or with one proposal in flight (rules R19 to
R21; Kafka: PartitionState, CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr; KIP-497).

`isr` is the ISR that the controller has committed. `maximal` also has the replicas of a proposal that the
controller may already have committed; the high watermark waits for all of `maximal`.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.replication.core.messages import AlterPartition


class Committed(NamedTuple):
    """The committed ISR, without a proposal in flight."""

    isr: frozenset[int]

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR."""
        return self.isr


class PendingExpand(NamedTuple):
    """The ISR with a proposal in flight to add `replica`. The high watermark already waits for this replica
    (R20).
    """

    isr: frozenset[int]
    sent: AlterPartition
    replica: int

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR and the proposed replica."""
        return self.isr | {self.replica}


class PendingShrink(NamedTuple):
    """The ISR with a proposal in flight to remove replicas. The high watermark waits for these replicas until
    the removal is committed (R19).
    """

    isr: frozenset[int]
    sent: AlterPartition

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR, because the removal may be refused."""
        return self.isr


IsrState = Committed | PendingExpand | PendingShrink
