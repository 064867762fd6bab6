"""`PartitionState` and `ReplicaState`: the result of `ReplicatedStore.describe_partition`.

Nothing is on disk. Threads: any. Both are immutable.
"""

from __future__ import annotations

from typing import NamedTuple


class ReplicaState(NamedTuple):
    """The state of a replica, as far as its leader knows it. `log_end_offset` is -1 if it is unknown. `lag`
    is in records. `lag_ms` is the time in ms since the replica last had all records, -1 if it never had all
    records.
    """

    id: int
    log_end_offset: int
    lag: int
    lag_ms: int
    directory: str


class PartitionState(NamedTuple):
    """The state of a partition in the metadata (Kafka: PartitionRegistration). `leader` is -1 if there is no
    leader. `offline` has the ids of the replicas whose directories have failed or are missing.
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
