"""Named tuples, with kafka-python's fields, that methods of clients take as arguments or return.

Threads: any; all are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

UNKNOWN_EPOCH = -1
UNJOINED = "<unjoined>"
CLIENT_HOST = "localhost"
"""The host name that is recorded for a group's member if it runs in the store's own process."""
Leaver = tuple[str, "str | None"]
"""The member id and the group_instance_id of a member that leaves its group."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic; the topics have the order in which they first occur."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


class OffsetAndMetadata(NamedTuple):
    """An offset to commit: `offset` is that of the next record to read, `metadata` is any text, and
    `leader_epoch` is that of the last record that was read, -1 if it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = UNKNOWN_EPOCH


class OffsetAndTimestamp(NamedTuple):
    """The offset and timestamp, in ms since the epoch, of a record that was searched by time, and the leader
    epoch in which the record was written.
    """

    offset: int
    timestamp: int
    leader_epoch: int = UNKNOWN_EPOCH


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in a group. A coordinator refuses requests with the data of an earlier
    membership (KIP-447).

    If a consumer has no group, `group_id` is None.
    """

    group_id: str | None = None
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    state: str = UNJOINED
