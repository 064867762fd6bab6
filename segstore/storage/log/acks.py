"""Acknowledgements: what an append asks of other replicas, and whom a partition asks (R23; Kafka:
ReplicaManager, DelayedProduce).

Nothing is on disk. Threads: any. A partition without replicas has no acknowledger, and nothing is waited for.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from segstore.errors import StorageError


class Acks(NamedTuple):
    """What is waited for: `acks` -1, all in-sync replicas have the records; 1, the leader has them; 0,
    nothing is promised. `timeout_ms` is the longest wait.
    """

    acks: int = -1
    timeout_ms: float = 30_000.0


ALL = Acks()


class Acknowledger(Protocol):
    """The other replicas of a partition, as its appends see them. No lock of the partition is held in any of
    these calls.
    """

    def check(self, acks: int) -> None:
        """Called before an append is written: nothing is, if it raises NotEnoughReplicasError or
        NotLeaderOrFollowerError.
        """

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Called when all below `end_offset` is written, and flushed as flush.messages asks. Raises
        NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError: the records are in
        this log then, and may stay.
        """

    def shown(self) -> None:
        """Called when an append has written all replicas, and readers see it."""

    def failed(self, error: StorageError) -> None:
        """Called when the disk has refused an append, but for want of room, or the log is fenced (R32);
        `error` is raised then.
        """
