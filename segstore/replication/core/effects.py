"""Effects: requests of the core to its caller, each an immutable tuple, to be carried out in their order.

The core knows of a log only the changes that were reported: after `Append`, `Truncate`,
`TruncateFullyAndStartAt` and `GoOnAt` the caller reports the new log end offset, by `Follower.on_append`,
`ReplicaLog.truncated`, `ReplicaLog.started_over` or `Follower.on_gone_on`. If an effect fails, the effects
after it are not carried out. Offsets are int64, times ms.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from segstore.errors import SegstoreError


class Append(NamedTuple):
    """Append the batches of the last answer that begin below `before` to a follower's log, without a change
    of their bytes (R1, R11; Kafka: Partition.appendRecordsToFollowerOrFutureReplica).
    """

    before: int


class Truncate(NamedTuple):
    """Cut the log back to the last whole batch that ends at or below `offset` (R5; Kafka:
    Partition.truncateTo).
    """

    offset: int


class TruncateFullyAndStartAt(NamedTuple):
    """Drop the whole log, which then begins and ends at `offset` (R6; Kafka:
    Partition.truncateFullyAndStartAt).
    """

    offset: int


class GoOnAt(NamedTuple):
    """Let the log end at `offset`, above its last batch: the leader's log ends there, and has no batch
    between. `epoch` begins there, the leader's own; -1 if that is not known (R41).
    """

    offset: int
    epoch: int


class AssignEpoch(NamedTuple):
    """Append from `start_offset` on under `epoch`, which is noted before the first append, and durable before
    any batch of that epoch counts as durable (R3; Kafka: UnifiedLog.assignEpochStartOffset).
    """

    epoch: int
    start_offset: int


class SetHighWatermark(NamedTuple):
    """Show consumers the records below `offset` (R13, R15)."""

    offset: int


class SetLogStartOffset(NamedTuple):
    """Let the log begin at `offset`, the leader's log start offset (R13)."""

    offset: int


class Send(NamedTuple):
    """Send a message: `AlterPartition` to the controller, or an answer of the controller."""

    message: Any


class Complete(NamedTuple):
    """Answer the produce request `ticket`: its records are committed, or it failed with `error` (R23; Kafka:
    DelayedProduce).
    """

    ticket: Hashable
    error: type[SegstoreError] | None


class Persist(NamedTuple):
    """Write a metadata record, durable on a majority of voters, before the next effects (R31)."""

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
