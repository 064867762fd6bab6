"""A node over a store with groups, whose clock the test sets, and raw requests of members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import node_of
from groups import Monotonic, Unsynced, coordinator
from parked import ask

import segstore
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, served
from segstore.server.logs import Logs
from segstore.server.node import Node

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION_MS = 10_000


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", partitions=2)
        yield store


@pytest.fixture
def node(store: segstore.Store, clock: Monotonic) -> Node:
    coordinator(store, clock)
    return node_of(store, group_initial_rebalance_delay_ms=0)


def all_versions(api: Api) -> list[int]:
    low, top = served(api)
    return list(range(low, top + 1))


def coordinator_of(node: Node) -> Any:
    from segstore.coordinator.group.coordinator import GroupCoordinator

    return shared(node.store, GroupCoordinator)


def leave(node: Node, version: int, member_id: str, instance: str | None = None) -> Any:
    kind = structs("LeaveGroupRequest").MemberIdentity
    told = {"group_instance_id": instance} if version >= 3 else {}
    if version < 3:
        return ask(node, Api.LEAVE_GROUP, version, group_id="g", member_id=member_id)
    return ask(node, Api.LEAVE_GROUP, version, group_id="g", members=[kind(member_id=member_id, **told)])


def commit(node: Node, version: int, at: TopicPartition, offset: int, note: str = "", **who: Any) -> Code:
    kinds = structs("OffsetCommitRequest")
    part = kinds.OffsetCommitRequestPartition(
        partition_index=at.partition, committed_offset=offset, committed_metadata=note
    )
    topic_id = node.part(Logs).id_of(at.topic)
    topics = [kinds.OffsetCommitRequestTopic(name=at.topic, topic_id=topic_id, partitions=[part])]
    answer = ask(node, Api.OFFSET_COMMIT, version, topics=topics, **{"group_id": "g", **who})
    return Code(answer.topics[0].partitions[0].error_code)
