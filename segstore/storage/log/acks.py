"""Acknowledgements: an append waits for replicas of its partition (R23; Kafka: ReplicaManager,
DelayedProduce).

Nothing is on disk. Threads: any. If a store has no replicas, and no standby in sync mode, its partitions have
no acknowledger, and their appends wait for no other log.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from segstore.errors import StorageError


class Acks(NamedTuple):
    """The acknowledgement that an append waits for. `acks` is Kafka's setting: -1 waits for all in-sync
    replicas, 1 for the leader, 0 for no replica. `timeout_ms` is the longest wait.
    """

    acks: int = -1
    timeout_ms: float = 30_000.0


ALL = Acks()


class Acknowledger(Protocol):
    """Makes appends to a partition wait for other replicas of the partition. The caller of these methods
    holds no lock of the partition.
    """

    def check(self, acks: int) -> None:
        """Check, before an append is written, that there are enough in-sync replicas for `acks`. Raises
        NotEnoughReplicasError or NotLeaderOrFollowerError; the caller does not write the append then.
        """

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Wait until the replicas that `acks` asks for (`Acks`) have all records below `end_offset`. The
        caller has written these records to the leader's log, and has applied flush.messages.

        Raises NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError. After such
        an error the records are still in the leader's log, and may stay there.
        """

    def shown(self) -> None:
        """Report an append that all replicas have written and that readers see."""

    def failed(self, error: StorageError) -> None:
        """Report that an append or its flush failed with `error`. The caller does not call this if the disk
        is full, unless the error has fenced the log.
        """
