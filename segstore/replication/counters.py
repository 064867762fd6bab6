"""Counts the changes of a replicated store's partitions since it was opened: see `metrics`.

Nothing is on disk. Threads: each method says which.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from segstore.mutex import Mutex
from segstore.replication.core.registration import NO_LEADER, PartitionRegistration
from segstore.replication.metadata.image import PartitionKey

if TYPE_CHECKING:
    from segstore.replication.core.messages import AlterPartitionReply


class Counters:
    """What is counted of changes of partitions."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._elected: dict[PartitionKey, float] = {}
        self.isr_shrinks = self.isr_expands = self.failed_isr_updates = 0
        self.elections = self.unclean_elections = 0
        self.election_ms = self.longest_election_ms = 0.0

    def changed(self, key: PartitionKey, before: PartitionRegistration, now: PartitionRegistration) -> None:
        """Count a change of a partition's state; the controller's thread calls this before replicas hear."""
        self.isr_shrinks += not {*before.isr} <= {*now.isr}
        self.isr_expands += not {*now.isr} <= {*before.isr}
        if now.leader in (NO_LEADER, before.leader):
            return
        with self._lock:
            self.elections += 1
            self.unclean_elections += now.leader not in (*before.isr, *before.elr)
            self._elected[key] = time.monotonic()

    def leads(self, key: PartitionKey) -> None:
        """Note that the replica that was elected takes appends. Any thread."""
        with self._lock:
            began = self._elected.pop(key, None)
            if began is not None:
                took = (time.monotonic() - began) * 1000
                self.election_ms += took
                self.longest_election_ms = max(self.longest_election_ms, took)

    def answered(self, reply: AlterPartitionReply) -> None:
        """Count a proposal of in-sync replicas that the controller has refused; called in its thread."""
        self.failed_isr_updates += reply.error is not None
