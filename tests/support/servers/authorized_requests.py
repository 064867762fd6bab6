"""Requests for topic `t` and group `g`, and a node that allows what a test says."""

from __future__ import annotations

from typing import Any

import pytest
from calls import node_of

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.topics import id_of
from segstore.storage.meta.topic_info import TopicInfo

TOPIC, GROUP = int(Code.TOPIC_AUTHORIZATION_FAILED), int(Code.GROUP_AUTHORIZATION_FAILED)


def of(api: Api) -> Any:
    return structs(f"{api.message}Request")


def produced(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.PRODUCE)
    data = [kind.PartitionProduceData(index=0, records=memoryview(b""))]
    topic = kind.TopicProduceData(name="t", topic_id=id_of(info), partition_data=data)
    return {"acks": 1, "timeout_ms": 0, "transactional_id": "x", "topic_data": [topic]}


def fetched(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.FETCH)
    partitions = [kind.FetchPartition(partition=0, partition_max_bytes=1)]
    topic = kind.FetchTopic(topic="t", topic_id=id_of(info), partitions=partitions)
    return {"max_wait_ms": 0, "topics": [topic]}


def topics(
    api: Api, name: str, kinds: tuple[str, str], index: str, ids_since: int = 1 << 15, **more: Any
) -> Any:
    """Fields of requests that name topics with partitions, from a version on by ids."""

    def fields(version: int, info: TopicInfo) -> dict[str, Any]:
        kind = of(api)
        of_topic, of_partition = (getattr(kind, each) for each in kinds)
        names = {"topic_id": id_of(info)} if version >= ids_since else {name: "t"}
        return {"topics": [of_topic(**names, partitions=[of_partition(**{index: 0})])], **more}

    return fields


A = Api


def node_with(store: segstore.Store, rights: Any, principal: str = "ANONYMOUS") -> Node:
    return node_of(
        store, allow=[f"User:{principal}: {right}" for right in rights], group_initial_rebalance_delay_ms=0
    )


@pytest.fixture
def info(store: segstore.Store) -> TopicInfo:
    return store.create_topic("t")
