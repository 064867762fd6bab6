"""Consumer groups on the wire (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe in all versions,
and what the older APIs make of such groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import node_of
from groups import Monotonic, Unsynced, coordinator
from parked import BEAT, JOIN, WireMember, ask
from wire_client import SOFTWARE

import segstore
from segstore import names
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, served
from segstore.server.logs import Logs
from segstore.server.node import Node

HEARTBEAT, DESCRIBE = Api.CONSUMER_GROUP_HEARTBEAT, Api.CONSUMER_GROUP_DESCRIBE


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.consumer.max.size": 2}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", partitions=2)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Node:
    coordinator(store, Monotonic())
    return node_of(store, group_initial_rebalance_delay_ms=0)


def id_of(store: segstore.Store) -> bytes:
    return names.topic_id_bytes(store.topics()["t"].topic_id)


def assigned(answer: Any) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}


def versions(api: Api) -> range:
    low, high = served(api)
    return range(low, high + 1)


# --- ConsumerGroupHeartbeat ------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_a_member_joins_stays_and_leaves(node: Node, store: segstore.Store, version: int) -> None:
    answer = ask(node, HEARTBEAT, version, **JOIN)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (Code.NONE, "a", 1)
    assert answer.heartbeat_interval_ms == 5000
    assert assigned(answer) == {id_of(store): [0, 1]}
    assert assigned(ask(node, HEARTBEAT, version, **BEAT)) is None
    Topic = structs("ConsumerGroupHeartbeatRequest").TopicPartitions
    # Topics that nobody knows, and topics that are named twice, are what a member says, and no error.
    owned = [Topic(topic_id=b"x" * 16, partitions=[1]), Topic(topic_id=b"x" * 16, partitions=[2])]
    assert ask(node, HEARTBEAT, version, **BEAT, topic_partitions=owned).error_code == Code.NONE
    left = ask(node, HEARTBEAT, version, **{**BEAT, "member_epoch": -1})
    assert (left.error_code, left.member_epoch) == (Code.NONE, -1)
    assert ask(node, HEARTBEAT, version, **BEAT).error_code == Code.UNKNOWN_MEMBER_ID


def test_only_version_0_gives_ids(node: Node) -> None:
    given = ask(node, HEARTBEAT, 0, **{**JOIN, "member_id": ""})
    assert (given.error_code, bool(given.member_id)) == (Code.NONE, True)
    assert ask(node, HEARTBEAT, 1, **{**JOIN, "member_id": ""}).error_code == Code.INVALID_REQUEST


REFUSED: dict[str, tuple[dict[str, Any], Code]] = {
    "no group": ({**BEAT, "group_id": ""}, Code.INVALID_REQUEST),
    "an unknown group": ({**BEAT, "group_id": "h"}, Code.GROUP_ID_NOT_FOUND),
    "a group to leave that is none": ({**BEAT, "group_id": "h", "member_epoch": -1}, Code.GROUP_ID_NOT_FOUND),
    "an unknown member": ({**BEAT, "member_id": "z"}, Code.UNKNOWN_MEMBER_ID),
    "a later epoch": ({**BEAT, "member_epoch": 9}, Code.FENCED_MEMBER_EPOCH),
    "an epoch below -2": ({**BEAT, "member_epoch": -3}, Code.INVALID_REQUEST),
    "a static leaver without an instance": ({**BEAT, "member_epoch": -2}, Code.INVALID_REQUEST),
    "an assignor": ({**BEAT, "server_assignor": "sticky"}, Code.UNSUPPORTED_ASSIGNOR),
    "a pattern": ({**BEAT, "subscribed_topic_regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
    "an instance of another": ({**JOIN, "member_id": "b", "instance_id": "i"}, Code.UNRELEASED_INSTANCE_ID),
    "an instance by another": ({**BEAT, "member_id": "b", "instance_id": "i"}, Code.FENCED_INSTANCE_ID),
    "one member too many": ({**JOIN, "member_id": "c"}, Code.GROUP_MAX_SIZE_REACHED),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_are_refused_by_kafkas_codes(node: Node, name: str) -> None:
    ask(node, HEARTBEAT, 1, **JOIN)
    ask(node, HEARTBEAT, 1, **{**JOIN, "member_id": "s", "instance_id": "i"})
    fields, code = REFUSED[name]
    answer = ask(node, HEARTBEAT, 1, **fields)
    assert (answer.error_code, bool(answer.error_message)) == (code, True)
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)


# --- ConsumerGroupDescribe, and administration ---------------------------------------------------


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_groups_are_described(node: Node, store: segstore.Store, version: int) -> None:
    ask(node, HEARTBEAT, 1, **JOIN, instance_id="i", rack_id="r", server_assignor="range")
    WireMember(node, "old").joined(WireMember(node, "old").join())
    asked = {"group_ids": ["g", "old", "none", ""], "include_authorized_operations": True}
    told, *others = ask(node, DESCRIBE, version, **asked).groups
    codes = [each.error_code for each in others]
    assert codes == [Code.GROUP_ID_NOT_FOUND, Code.GROUP_ID_NOT_FOUND, Code.INVALID_GROUP_ID]
    assert (told.group_state, told.group_epoch, told.assignment_epoch) == ("Stable", 1, 1)
    assert (told.assignor_name, told.authorized_operations) == ("range", 3400)
    (member,) = told.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 1)
    assert (member.client_id, member.client_host) == ("tests", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], "")
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name, topic.partitions) == (id_of(store), "t", [0, 1])
    assert member.member_type == (1 if version >= 1 else -1)


def test_older_apis_tell_the_kinds_apart(node: Node) -> None:
    ask(node, HEARTBEAT, 1, **JOIN)
    WireMember(node, "old").joined(WireMember(node, "old").join())

    def listed(**filters: Any) -> list[tuple[str, ...]]:
        groups = ask(node, Api.LIST_GROUPS, 5, **filters).groups
        return [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in groups]

    mine, old = ("g", "consumer", "Stable", "consumer"), "old"
    assert [each if each[0] == "g" else each[0] for each in listed()] == [mine, old]
    assert listed(types_filter=["Consumer"]) == [mine]
    assert [each[0] for each in listed(types_filter=["classic"])] == [old]
    assert listed(states_filter=["stable"], types_filter=["consumer"]) == [mine]
    (told,) = ask(node, Api.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert (told.group_state, told.error_code) == ("Dead", Code.GROUP_ID_NOT_FOUND)
    (told,) = ask(node, Api.DESCRIBE_GROUPS, 5, groups=["g"]).groups
    assert (told.group_state, told.error_code) == ("Dead", Code.NONE)


def test_groups_and_offsets_are_deleted(node: Node) -> None:
    ask(node, HEARTBEAT, 1, **JOIN)
    assert commit(node, member_id="a", generation_id_or_member_epoch=1) == Code.NONE

    def deleted() -> Code:
        (result,) = ask(node, Api.DELETE_GROUPS, 2, groups_names=["g"]).results
        return Code(result.error_code)

    kind = structs("OffsetDeleteRequest")
    part = kind.OffsetDeleteRequestPartition(partition_index=0)
    topics = [kind.OffsetDeleteRequestTopic(name="t", partitions=[part])]

    def offset_deleted() -> Code:
        (topic,) = ask(node, Api.OFFSET_DELETE, 0, group_id="g", topics=topics).topics
        return Code(topic.partitions[0].error_code)

    assert (deleted(), offset_deleted()) == (Code.NON_EMPTY_GROUP, Code.GROUP_SUBSCRIBED_TO_TOPIC)
    identity = structs("LeaveGroupRequest").MemberIdentity(member_id="a")
    left = ask(node, Api.LEAVE_GROUP, 5, group_id="g", members=[identity])
    assert left.members[0].error_code == Code.NONE
    assert (offset_deleted(), deleted()) == (Code.NONE, Code.NONE)
    assert deleted() == Code.GROUP_ID_NOT_FOUND


# --- offsets -------------------------------------------------------------------------------------


def commit(node: Node, version: int = 9, **member: Any) -> Code:
    kind = structs("OffsetCommitRequest")
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic_id = node.part(Logs).id_of("t")
    topics = [kind.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[part])]
    answer = ask(node, Api.OFFSET_COMMIT, version, group_id="g", topics=topics, **member)
    return Code(answer.topics[0].partitions[0].error_code)


def fetched(node: Node, **member: Any) -> tuple[Code, list[int]]:
    kind = structs("OffsetFetchRequest")
    topics = [kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = kind.OffsetFetchRequestGroup(group_id="g", topics=topics, **member)
    (group,) = ask(node, Api.OFFSET_FETCH, 9, groups=[asked]).groups
    return Code(group.error_code), [p.committed_offset for topic in group.topics for p in topic.partitions]


def test_offsets_are_committed_and_fetched_in_epochs(node: Node) -> None:
    ask(node, HEARTBEAT, 1, **JOIN)
    at = "generation_id_or_member_epoch"
    assert commit(node, member_id="a", **{at: 1}) == Code.NONE
    assert commit(node, member_id="a", **{at: 2}) == Code.STALE_MEMBER_EPOCH
    assert commit(node, member_id="z", **{at: 1}) == Code.UNKNOWN_MEMBER_ID
    assert commit(node, 8, member_id="a", **{at: 1}) == Code.UNSUPPORTED_VERSION
    assert commit(node) == Code.UNKNOWN_MEMBER_ID
    assert fetched(node, member_id="a", member_epoch=1) == (Code.NONE, [7])
    assert fetched(node) == (Code.NONE, [7])
    assert fetched(node, member_id="a", member_epoch=0) == (Code.STALE_MEMBER_EPOCH, [])
    assert fetched(node, member_id="z", member_epoch=1) == (Code.UNKNOWN_MEMBER_ID, [])
    ask(node, HEARTBEAT, 1, **{**BEAT, "member_epoch": -1})
    assert commit(node) == Code.NONE
    assert commit(node, member_id="a", **{at: 1}) == Code.UNKNOWN_MEMBER_ID


# --- DescribeQuorum, features --------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_QUORUM))
def test_the_node_is_its_own_quorum(node: Node, version: int) -> None:
    kind = structs("DescribeQuorumRequest")
    asked = [("__cluster_metadata", 0), ("__cluster_metadata", 1), ("t", 0)]
    topics = [
        kind.TopicData(topic_name=topic, partitions=[kind.PartitionData(partition_index=number)])
        for topic, number in asked
    ]
    answer = ask(node, Api.DESCRIBE_QUORUM, version, topics=topics)
    mine, *others = [topic.partitions[0] for topic in answer.topics]
    assert (mine.leader_id, [voter.replica_id for voter in mine.current_voters]) == (1, [1])
    assert [each.error_code for each in others] == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert [each.node_id for each in answer.nodes] == ([1] if version >= 2 else [])


@pytest.mark.parametrize("version", versions(Api.API_VERSIONS))
def test_features_are_told_where_clients_look_for_them(node: Node, version: int) -> None:
    answer = ask(node, Api.API_VERSIONS, version, **SOFTWARE)
    final = {each.name: each.max_version_level for each in answer.finalized_features}
    supported = {each.name for each in answer.supported_features}
    if version < 3:
        assert (final, supported, answer.finalized_features_epoch) == ({}, set(), -1)
    else:
        assert (final["transaction.version"], final["group.version"]) == (2, 1)
        assert answer.finalized_features_epoch >= 0
        assert ("transaction.version" in supported) == (version >= 4)  # its lowest version is 0
