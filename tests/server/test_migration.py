"""Consumer groups with members of both protocols on the wire: what members of the classic protocol are
answered in all versions of their requests, and administrators about such groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import node_of
from groups import Monotonic, Unsynced, coordinator
from parked import WireMember, ask

import segstore
from segstore.coordinator.structs import TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, served
from segstore.server.logs import Logs
from segstore.server.node import Node

BEAT = Api.CONSUMER_GROUP_HEARTBEAT
JOIN: dict[str, Any] = {
    "member_epoch": 0,
    "rebalance_timeout_ms": 60_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
EVERY = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def node(store_dir: Path) -> Iterator[Node]:
    config = {"offsets.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", partitions=4)
        coordinator(store, Monotonic())
        yield node_of(store, group_initial_rebalance_delay_ms=0)


def beat(node: Node, member_id: str = "a", **fields: Any) -> Any:
    return ask(node, BEAT, 1, **{"group_id": "g", "member_id": member_id, **fields})


def versions(api: Api) -> range:
    low, high = served(api)
    return range(low, high + 1)


def share(node: Node, version: int | None = None) -> WireMember:
    """Return a member of the classic protocol that shares a group with one of KIP-848, "a"."""
    old = WireMember(node, join_version=version).alone(*EVERY)
    assert beat(node, **JOIN).error_code == Code.NONE
    assert old.heartbeat() == Code.REBALANCE_IN_PROGRESS
    old.joined(old.join())
    old.synced(old.sync())
    return old


@pytest.mark.parametrize("version", versions(Api.JOIN_GROUP))
def test_a_member_joins_by_every_version(node: Node, version: int) -> None:
    old = share(node, version)
    place = old.place
    assert (place.generation_id, place.protocol_name, place.leader, place.members) == (2, "range", "", [])
    assert place.protocol_type == ("consumer" if version >= 7 else None)
    assert len(old.given) == 2
    assert old.heartbeat() == Code.NONE
    assert len(beat(node, member_epoch=2).assignment.topic_partitions[0].partitions) == 2


@pytest.mark.parametrize("version", versions(Api.OFFSET_COMMIT))
def test_members_commit_by_every_version_in_their_generation(node: Node, version: int) -> None:
    old = share(node)
    kind = structs("OffsetCommitRequest")
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic_id = node.part(Logs).id_of("t")
    topics = [kind.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[part])]

    def commit(member_id: str, at: int) -> Code:
        who = {"group_id": "g", "member_id": member_id, "generation_id_or_member_epoch": at}
        answer = ask(node, Api.OFFSET_COMMIT, version, topics=topics, **who)
        return Code(answer.topics[0].partitions[0].error_code)

    assert [commit(old.member_id, at) for at in (2, 1, 3)] == [Code.NONE, Code.NONE, Code.ILLEGAL_GENERATION]
    knows = version >= 9
    assert commit("a", 2) == (Code.NONE if knows else Code.UNSUPPORTED_VERSION)
    assert commit("a", 1) == (Code.STALE_MEMBER_EPOCH if knows else Code.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("version", versions(Api.LEAVE_GROUP))
def test_members_leave_by_every_version(node: Node, version: int) -> None:
    old = share(node)
    identity = structs("LeaveGroupRequest").MemberIdentity(member_id=old.member_id)
    who = {"members": [identity]} if version >= 3 else {"member_id": old.member_id}
    for code in (Code.NONE, Code.UNKNOWN_MEMBER_ID):
        answer = ask(node, Api.LEAVE_GROUP, version, group_id="g", **who)
        assert (answer.members[0] if version >= 3 else answer).error_code == code
    assert beat(node, member_epoch=2).member_epoch == 3


def test_administrators_see_which_members_are_classic(node: Node) -> None:
    old = share(node)

    def kinds() -> list[tuple[str, str]]:
        return [(each.group_type, each.protocol_type) for each in ask(node, Api.LIST_GROUPS, 5).groups]

    (group,) = ask(node, Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert {each.member_id: each.member_type for each in group.members} == {"a": 1, old.member_id: 0}
    assert kinds() == [("consumer", "consumer")]
    assert beat(node, member_epoch=-1).error_code == Code.NONE
    (group,) = ask(node, Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert group.error_code == Code.GROUP_ID_NOT_FOUND
    (group,) = ask(node, Api.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert (group.group_state, len(group.members)) == ("PreparingRebalance", 1)
    assert kinds() == [("classic", "consumer")]


def test_a_parked_join_is_answered_when_the_group_is_converted(node: Node) -> None:
    WireMember(node).alone(*EVERY)
    second = WireMember(node)
    waiting = second.join()
    assert waiting.answer is None
    beat(node, **JOIN)
    assert waiting.answer.error_code == Code.REBALANCE_IN_PROGRESS
    assert second.joined(second.join()).generation_id == 2
