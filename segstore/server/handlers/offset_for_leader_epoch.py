"""OffsetForLeaderEpoch: the end offset of a leader epoch. A client compares this offset with its position to
find out whether the log was truncated below the position (KIP-101, KIP-320; Kafka:
Partition.lastOffsetForLeaderEpoch).
"""

from __future__ import annotations

from typing import Any

from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import code_of
from segstore.server.apis import Api
from segstore.server.logs import Logs, check_leader_epoch
from segstore.server.node import Node
from segstore.server.request import Request

_Response = structs("OffsetForLeaderEpochResponse")
_Topic, _End = _Response.OffsetForLeaderTopicResult, _Response.EpochEndOffset


def offset_for_leader_epoch(node: Node, request: Request) -> Any:
    """For each partition answer with the largest epoch in its log that is not above the requested epoch, and
    that epoch's end offset. Answer with -1 for both if the log has no such epoch.
    """
    logs = node.part(Logs)
    return _Response(
        topics=[
            _Topic(
                topic=topic.topic,
                partitions=[_end(logs, topic.topic, each) for each in topic.partitions],
            )
            for topic in request.body.topics
        ]
    )


def _end(logs: Logs, topic: str, asked: Any) -> Any:
    try:
        log = logs.find(topic, asked.partition)
        check_leader_epoch(log, asked.current_leader_epoch)
        epoch, end_offset = log.epoch_end(asked.leader_epoch)
    except SegstoreError as error:
        return _End(partition=asked.partition, error_code=code_of(error))
    return _End(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


HANDLERS = {Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch}
