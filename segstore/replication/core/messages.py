"""What replicas, leaders and the controller tell each other: immutable tuples with the fields of Kafka's
requests. Offsets are int64; -1 stands for an epoch that is not known.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.errors import SegstoreError
from segstore.leader_epochs import EpochEnd


class FetchRequest(NamedTuple):
    """A follower's fetch (R8; Kafka: FetchRequest, its ReplicaState and FetchPartition)."""

    replica: int
    broker_epoch: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchAnswer(NamedTuple):
    """A leader's answer (Kafka: FetchResponse.PartitionData). Where `diverging` is set it has no records.

    Batches with `fetch_offset` <= offset < `end_offset` may be sent with it (R14): the log end offset bounds
    what replicas read, not the high watermark. `sync_first`: the follower would join the ISR, had it synced
    its log (R20; Kafka asks nobody for that).
    """

    diverging: EpochEnd | None
    high_watermark: int
    log_start_offset: int
    end_offset: int
    sync_first: bool = False


class FetchedSpan(NamedTuple):
    """What the records of an answer are: the offset behind their last batch, and a pair of leader epoch and
    base offset for the first batch and each one whose epoch differs from the one before.
    """

    next_offset: int
    epochs: tuple[tuple[int, int], ...]


class AlterPartition(NamedTuple):
    """A leader's proposal of an ISR (R21; Kafka: AlterPartitionRequest v3, LeaderAndIsr). `isr` has a pair of
    broker id and broker epoch for each member, rising; broker epoch -1 is not checked.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class AlterPartitionReply(NamedTuple):
    """The controller's answer (Kafka: AlterPartitionResponse.PartitionData): an error, or the state of the
    partition after the change.
    """

    error: type[SegstoreError] | None
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
