"""Named tuples that clients take and return, with kafka-python's fields.

Threads: any; all are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

UNKNOWN_EPOCH = -1
UNJOINED = "<unjoined>"
CLIENT_HOST = "localhost"
"""The host of a group's member in the store's own process."""
Leaver = tuple[str, "str | None"]
"""The id of a member that leaves its group, and its group_instance_id."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic; topics are in the order of their first partitions."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the offset of the next record to read, a note, and the leader epoch of the last
    record read (-1: not known).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = UNKNOWN_EPOCH


class OffsetAndTimestamp(NamedTuple):
    """The offset and timestamp (ms since the epoch) of a record found by time, and the leader epoch in which
    it was written.
    """

    offset: int
    timestamp: int
    leader_epoch: int = UNKNOWN_EPOCH


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in a group, by which a stale member is recognized (KIP-447).

    A consumer without a group has `group_id` None and never joins.
    """

    group_id: str | None = None
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    state: str = UNJOINED
