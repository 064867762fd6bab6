"""Counts the leader elections and ISR changes after a replicated store was opened. The counts are metrics of
the store.

Nothing is on disk. Threads: the docstring of each method names the thread that calls it.
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
    """Counters of ISR changes and elections, and of the time from an election until the leader takes
    appends.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._elected: dict[PartitionKey, float] = {}
        self.isr_shrinks = self.isr_expands = self.failed_isr_updates = 0
        self.elections = self.unclean_elections = 0
        self.election_ms = self.longest_election_ms = 0.0

    def changed(self, key: PartitionKey, before: PartitionRegistration, now: PartitionRegistration) -> None:
        """Count a change of a partition's state. The controller's thread calls this method before it
        publishes the change to replicas.
        """
        self.isr_shrinks += not {*before.isr} <= {*now.isr}
        self.isr_expands += not {*now.isr} <= {*before.isr}
        if now.leader in (NO_LEADER, before.leader):
            return
        with self._lock:
            self.elections += 1
            self.unclean_elections += now.leader not in (*before.isr, *before.elr)
            self._elected[key] = time.monotonic()

    def leads(self, key: PartitionKey) -> None:
        """Record that a partition's elected leader takes appends now. Called in any thread."""
        with self._lock:
            began = self._elected.pop(key, None)
            if began is not None:
                took = (time.monotonic() - began) * 1000
                self.election_ms += took
                self.longest_election_ms = max(self.longest_election_ms, took)

    def answered(self, reply: AlterPartitionReply) -> None:
        """Count an answer to an AlterPartition request if it has an error. Called in the controller's
        thread.
        """
        self.failed_isr_updates += reply.error is not None
