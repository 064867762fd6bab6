"""The inputs and outputs of a share partition's events (KIP-932; Kafka: SharePartition, InFlightState,
PersisterStateBatch, SharePartitionOffsets).

Offsets and counts are ints, times are ms of a monotonic clock. Threads: immutable values.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """The state of a record in flight (Kafka: RecordState). The numbers are those of the durable state, which
    never has ACQUIRED.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """The type of an acknowledgement (Kafka: AcknowledgeType). The client sends GAP by itself for an offset
    without a record; an application can't choose it.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """The mode of a fetch (KIP-1206). In mode BATCH_OPTIMIZED the fetch may exceed its limit of records, so
    that it acquires a whole batch; in mode RECORD_LIMIT it never does.
    """

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Cause(IntEnum):
    """The reason why a record becomes a dead letter (KIP-1191)."""

    REJECTED = 0
    LIMIT_EXCEEDED = 1


class Limits(NamedTuple):
    """The settings of a group at the time of an event. `window`: limit of offsets in flight; `deliveries`:
    limit of a record's deliveries; `lock_ms`: duration of a lock; `dead_letters`: the group has a dead letter
    topic; `may_renew`: RENEW is allowed.
    """

    window: int = 2000
    deliveries: int = 5
    lock_ms: float = 30_000
    dead_letters: bool = False
    may_renew: bool = True


class ReadBatch(NamedTuple):
    """A record batch that a fetch has read: its offsets from `base` to `last`, and its producer id."""

    base: int
    last: int
    producer_id: int = -1
    is_control: bool = False


class OffsetRange(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class Acquired(NamedTuple):
    """Neighbouring offsets that were granted with the same delivery count (Kafka: AcquiredRecords)."""

    first: int
    last: int
    count: int  # type: ignore[assignment]


class AckBatch(NamedTuple):
    """Offsets that are acknowledged. `types` has one AcknowledgeType for all offsets, or one per offset."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """Adjacent offsets with the same durable record state and delivery count (Kafka: PersisterStateBatch)."""

    first: int
    last: int
    state: int
    count: int  # type: ignore[assignment]


class Durable(NamedTuple):
    """The durable state of a share partition (Kafka: ShareGroupOffset). `start`: the share-partition start
    offset, -1 if it is not known yet; `complete`: the number of offsets from `start` on that are acknowledged
    or archived, -1 if the number is not known. Times are ms since the epoch.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start: int = -1
    complete: int = -1
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0


class StateWrite(NamedTuple):
    """A write of durable state that an event needs (Kafka: WriteShareGroupState). `token` identifies the
    write in the call of `SharePartition.written`. `start` is the start offset before the write's own changes.
    `complete` is the number of acknowledged or archived offsets after these changes (rule Q39 of
    docs/queue-rules.md).
    """

    token: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...]


class DeadLetter(NamedTuple):
    """Adjacent offsets in the durable state ARCHIVING; each of their records needs a dead letter."""

    first: int
    last: int
    count: int  # type: ignore[assignment]
    cause: Cause


class Outcome(NamedTuple):
    """The actions that the caller must take after an event. `write` must be made. `wakes` is True if waiting
    fetches must be woken, because records became available, or because the limit of offsets in flight allows
    new grants again. `dead_letters` must be copied to the dead letter topic, and then reported to
    `SharePartition.dead_lettered`.
    """

    write: StateWrite | None = None
    wakes: bool = False
    dead_letters: tuple[DeadLetter, ...] = ()


class Grant(NamedTuple):
    """The result of a grant: `acquired` has disjoint runs of offsets in order; it is empty if there was no
    record to acquire. `token` identifies the grant for `SharePartition.ungrant`. `wakes` is as in `Outcome`.
    """

    token: int
    acquired: tuple[Acquired, ...]
    wakes: bool = False
