"""Effects: requests of the core to its caller, which carries them out in order. Effects are immutable.

The core does not look at logs, so the caller reports each change: after `Append`, `Truncate`,
`TruncateFullyAndStartAt` and `GoOnAt` it reports the new log end offset, by `Follower.on_append`,
`ReplicaLog.truncated`, `ReplicaLog.started_over` or `Follower.on_gone_on`. If an effect fails, the effects
after it are not carried out. Offsets are int64, times ms.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from segstore.errors import SegstoreError


class Append(NamedTuple):
    """Append batches of the last answer to a follower's log, byte for byte: the batches with a base offset
    below `before` (R1, R11; Kafka: Partition.appendRecordsToFollowerOrFutureReplica).
    """

    before: int


class Truncate(NamedTuple):
    """Truncate the log after its last batch that ends at or below `offset` (R5; Kafka:
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
    no batch between the two ends. The leader epoch `epoch` begins at `offset`; -1 is an unknown epoch (R41).
    """

    offset: int
    epoch: int


class AssignEpoch(NamedTuple):
    """Begin the leader epoch `epoch` at `start_offset`. The caller adds the epoch to the epoch cache before
    the first append in the epoch, and makes the epoch durable before any batch of the epoch counts as durable
    (R3; Kafka: UnifiedLog.assignEpochStartOffset).
    """

    epoch: int
    start_offset: int


class SetHighWatermark(NamedTuple):
    """Show consumers the records below `offset` (R13, R15)."""

    offset: int


class SetLogStartOffset(NamedTuple):
    """Set the log start offset to `offset`, the leader's log start offset (R13)."""

    offset: int


class Send(NamedTuple):
    """Send a message: `AlterPartition` to the controller, or an answer of the controller."""

    message: Any


class Complete(NamedTuple):
    """Answer the produce request `ticket`. If `error` is None, the request's records are committed (R23;
    Kafka: DelayedProduce).
    """

    ticket: Hashable
    error: type[SegstoreError] | None


class Persist(NamedTuple):
    """Write a metadata record durably to a majority of voters, before the next effects (R31)."""

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
