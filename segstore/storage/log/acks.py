"""Acknowledgements: which replicas an append waits for (R23; Kafka: ReplicaManager, DelayedProduce).

Nothing is on disk. Threads: any. A partition without replicas has no acknowledger, and its appends wait for
no other log.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from segstore.errors import StorageError


class Acks(NamedTuple):
    """The acknowledgement that an append waits for. With `acks` -1 an append waits until all in-sync replicas
    have the records, with 1 until the leader has them, with 0 for nothing. `timeout_ms` is the longest wait.
    """

    acks: int = -1
    timeout_ms: float = 30_000.0


ALL = Acks()


class Acknowledger(Protocol):
    """Makes appends to a partition wait for its other replicas. The caller of these methods holds no lock of
    the partition.
    """

    def check(self, acks: int) -> None:
        """Check, before an append is written, that there are enough in-sync replicas for `acks`. Raises
        NotEnoughReplicasError or NotLeaderOrFollowerError; the caller does not write the append then.
        """

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Wait until the replicas that `acks` names have all records below `end_offset`. The caller has
        written these records to the leader's log, and has applied flush.messages.

        Raises NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError; in each case
        this log has the records, and may keep them.
        """

    def shown(self) -> None:
        """Report an append that all replicas have written and that readers see."""

    def failed(self, error: StorageError) -> None:
        """Report that an append failed with `error`: the log is fenced, or the disk refused the append for a
        reason other than a lack of room (R32).
        """
