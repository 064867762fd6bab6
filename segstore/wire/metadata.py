"""The metadata of a cluster: brokers, topics, leaders (Kafka: MetadataResponse, MetadataSnapshot). Threads:
any; the objects are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.protocol.error_codes import Code
from segstore.wire.connection import Address

NO_LEADER = -1


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition, which is -1 if there is no leader, and the partition's leader epoch, which
    is -1 if the answer has none.
    """

    leader: int
    leader_epoch: int


class Topic(NamedTuple):
    """A topic in the cluster's metadata. `topic_id` is "" if the broker does not know topic ids. `error` is
    an error code of Kafka's; if `error` is not 0, `partitions` is empty. `repeated`: whether the answer has
    the topic, or one of its partitions, more than once.
    """

    name: str
    topic_id: str
    internal: bool
    error: int
    partitions: Mapping[int, LeaderAndEpoch]
    repeated: bool = False


class ClusterMetadata(NamedTuple):
    """The metadata that one answer to a metadata request has."""

    cluster_id: str
    brokers: Mapping[int, Address]
    topics: Mapping[str, Topic]


def read_metadata(answer: Any) -> ClusterMetadata:
    """Return the metadata that the body of an answer has."""
    brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
    topics: dict[str, Topic] = {}
    for each in answer.topics:
        if each.name:
            topics[each.name] = _topic(each, each.name in topics)
    return ClusterMetadata(answer.cluster_id or "", brokers, topics)


def _topic(held: Any, repeated: bool) -> Topic:
    topic_id = names.topic_id_of(held.topic_id) if any(held.topic_id) else ""
    partitions = {} if held.error_code else {p.partition_index: _leader_of(p) for p in held.partitions}
    repeated |= not held.error_code and len(partitions) < len(held.partitions)
    return Topic(held.name, topic_id, held.is_internal, held.error_code, partitions, repeated)


def _leader_of(held: Any) -> LeaderAndEpoch:
    # REPLICA_NOT_AVAILABLE means that a follower is missing; the partition has a leader nevertheless.
    gone = held.error_code not in (Code.NONE, Code.REPLICA_NOT_AVAILABLE)
    return LeaderAndEpoch(NO_LEADER if gone else held.leader_id, held.leader_epoch)
