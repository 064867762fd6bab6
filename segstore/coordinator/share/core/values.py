"""The values that go into a share partition and come out of it (KIP-932; Kafka: SharePartition,
InFlightState, PersisterStateBatch, SharePartitionOffsets).

Offsets and counts are ints, times are ms of a monotonic clock. Threads: immutable values.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """The state of a record in flight (Kafka: RecordState); the numbers are those of the durable state, in
    which ACQUIRED never occurs.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """What a consumer says of a record (Kafka: AcknowledgeType). GAP is the client's own answer for an offset
    that has no record; an application never gives it.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """How many records a fetch acquires (KIP-1206): whole batches, or at most as many as it asks for."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Cause(IntEnum):
    """Why a record becomes a dead letter (KIP-1191)."""

    REJECTED = 0
    LIMIT_EXCEEDED = 1


class Limits(NamedTuple):
    """The settings of a group at the time of an event. `window`: how many offsets may be in flight;
    `deliveries`: how often a record is delivered at most; `lock_ms`: how long a record stays acquired;
    `dead_letters`: the group has a dead letter topic; `may_renew`: RENEW is allowed.
    """

    window: int = 2000
    deliveries: int = 5
    lock_ms: float = 30_000
    dead_letters: bool = False
    may_renew: bool = True


class ReadBatch(NamedTuple):
    """A record batch that a fetch has read: its offsets from `base` to `last`, and whose it is."""

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
    """Offsets that are acknowledged: `types` has one AcknowledgeType for all, or one for each offset."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """Neighbouring offsets of one durable state (Kafka: PersisterStateBatch)."""

    first: int
    last: int
    state: int
    count: int  # type: ignore[assignment]


class Durable(NamedTuple):
    """The durable state of a share partition (Kafka: ShareGroupOffset). `start`: the share-partition start
    offset, -1 if it is not known yet; `complete`: how many offsets from there on are acknowledged or
    archived, -1 if that is not known. Times are ms since the epoch.
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
    """What an event wants to be made durable (Kafka: WriteShareGroupState). `token` names it in the answer:
    `SharePartition.written`. `start` is the start offset before the write's own changes, `complete` the count
    behind them (Q39).
    """

    token: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...]


class DeadLetter(NamedTuple):
    """Neighbouring offsets that are ARCHIVING durably, and are to be copied to the dead letter topic."""

    first: int
    last: int
    count: int  # type: ignore[assignment]
    cause: Cause


class Outcome(NamedTuple):
    """What is to be done behind an event: `write` first, if there is one. `wakes`: records became available,
    or a window that was full has moved, so that fetches that wait are to look again. `dead_letters` are to be
    copied, and then told by `SharePartition.dead_lettered`.
    """

    write: StateWrite | None = None
    wakes: bool = False
    dead_letters: tuple[DeadLetter, ...] = ()


class Grant(NamedTuple):
    """What a fetch has acquired: `acquired` in the order of offsets, disjoint; empty if there was nothing to
    acquire. `token` takes it back (`SharePartition.ungrant`).
    """

    token: int
    acquired: tuple[Acquired, ...]
    wakes: bool = False
