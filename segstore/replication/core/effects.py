"""Effects: actions that the methods of this package return, and that the caller carries out in order. Effects
are immutable.

This package does not read logs, so the caller reports each change of a log: after `Append`, `Truncate`,
`TruncateFullyAndStartAt` and `GoOnAt` the caller reports the new log end offset, by calling
`Follower.on_append`, `ReplicaLog.truncated`, `ReplicaLog.started_over` or `Follower.on_gone_on`. If an effect
fails, the effects after it are not carried out. Offsets are int64. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from segstore.errors import SegstoreError


class Append(NamedTuple):
    """Append to a follower's log, byte for byte, those batches of the last fetch answer that have base
    offsets below `before` (R1, R11; Kafka: Partition.appendRecordsToFollowerOrFutureReplica).
    """

    before: int


class Truncate(NamedTuple):
    """Truncate the log after the last batch that ends at or below `offset` (R5; Kafka:
    Partition.truncateTo).
    """

    offset: int


class TruncateFullyAndStartAt(NamedTuple):
    """Empty the log, and set its log start and log end offset to `offset` (R6; Kafka:
    Partition.truncateFullyAndStartAt).
    """

    offset: int


class GoOnAt(NamedTuple):
    """Move a follower's log end offset to `offset`, the leader's log end offset, because the leader's log has
    no batch between these two offsets. The leader epoch `epoch` begins at `offset`. If `epoch` is -1, the
    epoch is unknown (R41).
    """

    offset: int
    epoch: int


class AssignEpoch(NamedTuple):
    """Begin the leader epoch `epoch` at `start_offset`. The caller adds the epoch to the epoch cache before
    it appends the first batch of the epoch, and writes the epoch durably before any batch of the epoch counts
    as durable (R3; Kafka: UnifiedLog.assignEpochStartOffset).
    """

    epoch: int
    start_offset: int


class SetHighWatermark(NamedTuple):
    """Set the high watermark to `offset`: consumers can read the records below it (R13, R15)."""

    offset: int


class SetLogStartOffset(NamedTuple):
    """Set the log start offset to `offset`, the leader's log start offset (R13)."""

    offset: int


class Send(NamedTuple):
    """Send a message: either the `AlterPartition` of a leader or an answer of the controller."""

    message: Any


class Complete(NamedTuple):
    """Answer the produce request that the caller named `ticket`. If `error` is None, the request's records
    are committed (R23; Kafka: DelayedProduce).
    """

    ticket: Hashable
    error: type[SegstoreError] | None


class Persist(NamedTuple):
    """Write a metadata record durably to a majority of voters, before the effects after this one (R31)."""

    record: Any


Effect = (
    Append
    | Truncate
    | TruncateFullyAndStartAt
    | GoOnAt
    | AssignEpoch
    | SetHighWatermark
    | SetLogStartOffset
    | Send
    | Complete
    | Persist
)
Effects = tuple[Effect, ...]
