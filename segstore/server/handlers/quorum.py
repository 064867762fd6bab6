"""DescribeQuorum: describes the controller quorum, whose only voter is this node (KIP-595, KIP-836). This
node serves no metadata log to clients, so the metadata log's high watermark is answered as 0. Source:
KafkaRaftClient.handleDescribeQuorumRequest.
"""

from __future__ import annotations

from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.logs import NO_ID
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.storage.meta.topic_info import CLUSTER_METADATA

_Response = structs("DescribeQuorumResponse")
_EPOCH, _END = 1, 0
_LISTENER = "CONTROLLER"


def describe_quorum(node: Node, request: Request) -> Any:
    """Answer with this node as the leader and the only voter of partition 0 of `__cluster_metadata`."""
    host, port = node.endpoint
    known = _Response.Node(
        node_id=node.node_id, listeners=[_Response.Listener(name=_LISTENER, host=host, port=port)]
    )
    topics = [
        _Response.TopicData(
            topic_name=topic.topic_name,
            partitions=[
                _partition(node, topic.topic_name, each.partition_index) for each in topic.partitions
            ],
        )
        for topic in request.body.topics
    ]
    is_there = any(not each.error_code for topic in topics for each in topic.partitions)
    return _Response(topics=topics, nodes=[known] if is_there else [])


def _partition(node: Node, topic: str, number: int) -> Any:
    if (topic, number) != (CLUSTER_METADATA, 0):
        why = "This server does not host this topic-partition."
        return _Response.PartitionData(
            partition_index=number, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=why
        )
    now = node.store.context.clock()
    voter = _Response.ReplicaState(
        replica_id=node.node_id,
        replica_directory_id=NO_ID,
        log_end_offset=_END,
        last_fetch_timestamp=now,
        last_caught_up_timestamp=now,
    )
    return _Response.PartitionData(
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=_EPOCH,
        high_watermark=_END,
        current_voters=[voter],
    )


HANDLERS = {Api.DESCRIBE_QUORUM: describe_quorum}
