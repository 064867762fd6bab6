"""What the core asks of its caller: effects, each an immutable tuple, to be carried out in their order.

The core knows of a log only the changes that were reported: after `Append`, `Truncate`,
`TruncateFullyAndStartAt` and `GoOnAt` the caller reports the new log end offset, by `Follower.on_append`,
`ReplicaLog.truncated`, `ReplicaLog.started_over` or `Follower.on_gone_on`. If an effect fails, the effects
after it are not carried out.
Offsets are int64, times ms.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from segstore.errors import SegstoreError


class Append(NamedTuple):
    """A follower appends the batches of the last answer that begin below `before`, as they came (R1, R11;
    Kafka: Partition.appendRecordsToFollowerOrFutureReplica).
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
    """Let the log end at `offset`, above its last batch: the leader's does, and has no batch between. `epoch`
    begins there, under which the leader goes on; -1: it is not known (R41).
    """

    offset: int
    epoch: int


class AssignEpoch(NamedTuple):
    """Append from `start_offset` on under `epoch`, which is noted before the first append, and durable before
    a batch of it is told to be (R3; Kafka: UnifiedLog.assignEpochStartOffset).
    """

    epoch: int
    start_offset: int


class SetHighWatermark(NamedTuple):
    """Show consumers the records below `offset` (R13, R15)."""

    offset: int


class SetLogStartOffset(NamedTuple):
    """Let the log begin at `offset`, since the leader's does (R13)."""

    offset: int


class Send(NamedTuple):
    """Send a message: `AlterPartition` to the controller, or an answer of the controller to who asked."""

    message: Any


class Complete(NamedTuple):
    """Answer the produce request `ticket`: its records are committed, or `error` says why not (R23; Kafka:
    DelayedProduce).
    """

    ticket: Hashable
    error: type[SegstoreError] | None


class Persist(NamedTuple):
    """Write a metadata record, durable on a majority of voters, before what follows is done (R31)."""

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
