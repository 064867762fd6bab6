"""The messages between followers, leaders and the controller: immutable tuples with the fields of Kafka's
requests and responses. Offsets are int64. An unknown epoch is -1.
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
    """A leader's answer to a fetch (Kafka: FetchResponse.PartitionData). If `diverging` is not None, no
    batches are sent with the answer.

    The batches from the fetch offset up to `end_offset` may be sent with the answer (R14): unlike consumers,
    followers read up to the log end offset, not only up to the high watermark. If `sync_first`, the follower
    must sync its log before it can join the ISR (R20; not in Kafka).
    """

    diverging: EpochEnd | None
    high_watermark: int
    log_start_offset: int
    end_offset: int
    sync_first: bool = False


class FetchedSpan(NamedTuple):
    """The offsets and epochs of an answer's batches. `next_offset` is the offset after the last batch.
    `epochs` has (leader epoch, base offset) of the first batch, and of each batch whose epoch differs from
    the epoch of the batch before it.
    """

    next_offset: int
    epochs: tuple[tuple[int, int], ...]


class AlterPartition(NamedTuple):
    """A leader's proposal of an ISR (R21; Kafka: AlterPartitionRequest v3, LeaderAndIsr). `isr` has (broker
    id, broker epoch) of each member, by ascending id. The controller does not check a broker epoch of -1.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class AlterPartitionReply(NamedTuple):
    """The controller's answer to `AlterPartition` (Kafka: AlterPartitionResponse.PartitionData): an error, or
    the partition's state after the change.
    """

    error: type[SegstoreError] | None
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
