"""`PartitionState` and `ReplicaState`: what `ReplicatedStore.describe_partition` tells. Not on disk."""

from __future__ import annotations

from typing import NamedTuple


class ReplicaState(NamedTuple):
    """A replica as its leader sees it. `log_end_offset` is -1 where the leader does not know it; `lag` is in
    records, `lag_ms` the time since the replica had all records, -1 where it never had.
    """

    id: int
    log_end_offset: int
    lag: int
    lag_ms: int
    directory: str


class PartitionState(NamedTuple):
    """The state of a partition, as the controller has made it durable (Kafka: PartitionRegistration).
    `leader` is -1 where none leads; `offline` has the replicas whose directories have failed or are missing.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    offline: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    replica_states: tuple[ReplicaState, ...]
