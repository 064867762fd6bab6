"""The in-sync replicas that a leader knows: the committed ISR, perhaps with one proposal in flight (rules R19
to R21; Kafka: PartitionState, CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr; KIP-497).

`isr` is the ISR that the controller has committed. `maximal` has the members of `isr`, and the replica that a
proposal in flight adds, because the controller may have committed the proposal already. The high watermark
waits for all members of `maximal`.
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
    """The committed ISR, and a proposal in flight that adds `replica` to it. The high watermark already waits
    for `replica` (R20).
    """

    isr: frozenset[int]
    sent: AlterPartition
    replica: int

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR and the proposed replica."""
        return self.isr | {self.replica}


class PendingShrink(NamedTuple):
    """The committed ISR, and a proposal in flight that removes replicas from it. The high watermark waits for
    these replicas until the controller has committed the removal (R19).
    """

    isr: frozenset[int]
    sent: AlterPartition

    @property
    def maximal(self) -> frozenset[int]:
        """Return the committed ISR, because the controller may refuse the removal."""
        return self.isr


IsrState = Committed | PendingExpand | PendingShrink
