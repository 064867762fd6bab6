"""Small tuples that clients take and give, with kafka-python's fields. Nothing on disk.

Threads: any; all are immutable.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_EPOCH = -1
UNJOINED = "<unjoined>"


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A position to be committed: the offset of the next record to be read, a note, and the leader epoch of
    the last record that was read (-1: not known).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = UNKNOWN_EPOCH


class OffsetAndTimestamp(NamedTuple):
    """A record that was looked up by time (ms since the epoch), and the leader epoch it was written in."""

    offset: int
    timestamp: int
    leader_epoch: int = UNKNOWN_EPOCH


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership of a group, by which a stale member is told from a present one (KIP-447).

    A consumer without a group has `group_id` None and is never joined.
    """

    group_id: str | None = None
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    state: str = UNJOINED
