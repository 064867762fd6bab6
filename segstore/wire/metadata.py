"""What a cluster tells of itself: brokers, topics, leaders (Kafka: MetadataResponse, MetadataSnapshot).
Threads: any; immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.protocol.error_codes import Code
from segstore.wire.connection import Address

NO_LEADER = -1


class LeaderAndEpoch(NamedTuple):
    """Who leads a partition, -1 for nobody, and in which leader epoch, -1 where that is not known."""

    leader: int
    leader_epoch: int


class Topic(NamedTuple):
    """A topic as the cluster has it. `topic_id` is "" where the broker knows no ids; `error` is a code of
    Kafka's, and `partitions` is empty where it is not 0. `repeated`: the answer tells of the topic, or of one
    of its partitions, more than once.
    """

    name: str
    topic_id: str
    internal: bool
    error: int
    partitions: Mapping[int, LeaderAndEpoch]
    repeated: bool = False


class ClusterMetadata(NamedTuple):
    """One answer."""

    cluster_id: str
    brokers: Mapping[int, Address]
    topics: Mapping[str, Topic]


def read_metadata(answer: Any) -> ClusterMetadata:
    """Return what an answer says."""
    brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
    topics: dict[str, Topic] = {}
    for each in answer.topics:
        if each.name:
            topics[each.name] = _topic(each, each.name in topics)
    return ClusterMetadata(answer.cluster_id or "", brokers, topics)


def _topic(held: Any, repeated: bool) -> Topic:
    topic_id = names.topic_id_of(held.topic_id) if any(held.topic_id) else ""
    partitions = {} if held.error_code else {p.partition_index: _led(p) for p in held.partitions}
    repeated |= not held.error_code and len(partitions) < len(held.partitions)
    return Topic(held.name, topic_id, held.is_internal, held.error_code, partitions, repeated)


def _led(held: Any) -> LeaderAndEpoch:
    # A partition whose replica is missing somewhere (REPLICA_NOT_AVAILABLE) has a leader all the same.
    gone = held.error_code not in (Code.NONE, Code.REPLICA_NOT_AVAILABLE)
    return LeaderAndEpoch(NO_LEADER if gone else held.leader_id, held.leader_epoch)
