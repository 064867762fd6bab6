"""Share groups on the wire (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, and what the APIs of all
groups make of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import call
from fetches import serving
from share_members import ACCEPT, ShareMember

import segstore
from segstore import names
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

ONE_OF_EACH_BYTE = "é" * 36


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.share.max.size": 2}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", partitions=2)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = serving(store, group_initial_rebalance_delay_ms=0)
    yield node
    node.close()
    node.loop.run()


def assigned(answer: Any) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def id_of(node: Node) -> bytes:
    return names.topic_id_bytes(node.store.topics()["t"].topic_id)


# --- ShareGroupHeartbeat -----------------------------------------------------------------------


def test_a_member_joins_stays_and_leaves(node: Node) -> None:
    member = ShareMember(node)
    joined = member.beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (Code.NONE, "a", 2)
    assert (joined.heartbeat_interval_ms, assigned(joined)) == (5000, {id_of(node): [0, 1]})
    stays = member.beat(2, topics=None)
    assert (stays.member_epoch, assigned(stays)) == (2, None)
    assert assigned(member.beat(2)) == {id_of(node): [0, 1]}  # topics were named: Q79
    left = member.beat(-1, topics=None)
    assert (left.error_code, left.member_epoch) == (Code.NONE, -1)
    assert member.beat(2, topics=None).error_code == Code.UNKNOWN_MEMBER_ID


def test_q78_a_living_member_joins_again(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    again = member.beat()
    assert (again.error_code, again.member_epoch) == (Code.NONE, 2)
    assert assigned(again) == {id_of(node): [0, 1]}


REFUSED = {
    "no group": ({"group_id": ""}, Code.INVALID_REQUEST),
    "no member": ({"member_id": ""}, Code.INVALID_REQUEST),
    "a member id of 37 characters": ({"member_id": "m" * 37}, Code.INVALID_REQUEST),
    "an empty rack": ({"rack_id": ""}, Code.INVALID_REQUEST),
    "an epoch below -1": ({"member_epoch": -2}, Code.INVALID_REQUEST),
    "no topics to join": ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
    "a group that is not there": ({"group_id": "other", "member_epoch": 1}, Code.GROUP_ID_NOT_FOUND),
    "a member that is not there": ({"member_id": "b", "member_epoch": 1}, Code.UNKNOWN_MEMBER_ID),
    "another epoch": ({"member_epoch": 7}, Code.FENCED_MEMBER_EPOCH),
}


@pytest.mark.parametrize(("fields", "code"), REFUSED.values(), ids=REFUSED)
def test_q77_heartbeats_that_are_refused(node: Node, fields: dict[str, Any], code: Code) -> None:
    member = ShareMember(node)
    member.beat()
    asked = {"group_id": "g", "member_id": "a", "member_epoch": 0, "subscribed_topic_names": ["t"], **fields}
    answer = call(node, Api.SHARE_GROUP_HEARTBEAT, 1, **asked)
    assert answer.error_code == code
    assert answer.error_message


def test_q77_a_member_id_has_36_characters_of_any_size(node: Node) -> None:
    assert ShareMember(node, ONE_OF_EACH_BYTE).beat().error_code == Code.NONE


def test_q77_a_group_is_full(node: Node) -> None:
    for name in "ab":
        assert ShareMember(node, name).beat().error_code == Code.NONE
    assert ShareMember(node, "c").beat().error_code == Code.GROUP_MAX_SIZE_REACHED
    assert ShareMember(node, "a").beat(-1).error_code == Code.NONE
    assert ShareMember(node, "c").beat().error_code == Code.NONE


def test_q87_a_group_of_another_kind(node: Node) -> None:
    heartbeat = {"member_id": "m" * 22, "member_epoch": 0, "rebalance_timeout_ms": 1000}
    topics = {"subscribed_topic_names": ["t"], "topic_partitions": []}
    consumer = call(node, Api.CONSUMER_GROUP_HEARTBEAT, 1, group_id="c", **heartbeat, **topics)
    assert consumer.error_code == Code.NONE
    assert ShareMember(node, group="c").beat().error_code == Code.GROUP_ID_NOT_FOUND
    ShareMember(node).beat()
    consumer = call(node, Api.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", **heartbeat, **topics)
    assert consumer.error_code == Code.GROUP_ID_NOT_FOUND
    protocol = structs("JoinGroupRequest").JoinGroupRequestProtocol(name="range", metadata=b"")
    joined = call(
        *(node, Api.JOIN_GROUP, 3),
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    assert joined.error_code == Code.INCONSISTENT_GROUP_PROTOCOL


# --- ShareGroupDescribe --------------------------------------------------------------------------


def test_a_group_is_described(node: Node) -> None:
    member = ShareMember(node)
    member.beat(rack_id="r")
    group, missing = call(node, Api.SHARE_GROUP_DESCRIBE, 1, group_ids=["g", "missing"]).groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert group.assignor_name == "simple"
    (told,) = group.members
    assert (told.member_id, told.member_epoch, told.rack_id) == ("a", 2, "r")
    assert (told.client_id, told.client_host, told.subscribed_topic_names) == ("tests", "/127.0.0.1", ["t"])
    (topic,) = told.assignment.topic_partitions
    assert (topic.topic_name, topic.topic_id, topic.partitions) == ("t", id_of(node), [0, 1])
    assert (missing.error_code, missing.error_message) == (
        Code.GROUP_ID_NOT_FOUND,
        "Group missing not found.",
    )
    member.beat(-1)
    (group,) = call(node, Api.SHARE_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert (group.group_state, group.members) == ("Empty", [])


def test_operations_are_told_if_asked_for(node: Node) -> None:
    ShareMember(node).beat()
    fields = {"group_ids": ["g"], "include_authorized_operations": True}
    (group,) = call(node, Api.SHARE_GROUP_DESCRIBE, 1, **fields).groups
    assert group.authorized_operations > 0


def test_a_topic_that_may_not_be_described_hides_the_group(store: segstore.Store) -> None:
    maker = serving(store)
    ShareMember(maker).beat()
    node = serving(store, allow=["User:ANONYMOUS: describe group g"])
    (group,) = call(node, Api.SHARE_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert (group.error_code, group.members) == (Code.TOPIC_AUTHORIZATION_FAILED, [])
    node.close()
    maker.close()


def test_q74_nothing_is_described_without_the_feature(store: segstore.Store) -> None:
    node = serving(store, share_version=0)
    (group,) = call(node, Api.SHARE_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert (group.group_id, group.error_code) == ("g", Code.UNSUPPORTED_VERSION)
    node.close()


# --- the APIs of all groups ------------------------------------------------------------------------


def listed(node: Node, **filters: Any) -> list[tuple[str, ...]]:
    answer = call(node, Api.LIST_GROUPS, 5, **filters)
    return [(each.group_id, each.group_type, each.protocol_type, each.group_state) for each in answer.groups]


def test_share_groups_are_listed(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    assert listed(node) == [("g", "share", "share", "Stable")]
    assert listed(node, types_filter=["Share"]) == [("g", "share", "share", "Stable")]
    assert listed(node, types_filter=["classic", "consumer"]) == []
    member.beat(-1)
    assert listed(node, states_filter=["empty"]) == [("g", "share", "share", "Empty")]
    assert listed(node, states_filter=["Stable"]) == []


@pytest.mark.parametrize("version", [0, 2, 3])
def test_q100_share_groups_are_deleted(node: Node, version: int) -> None:
    member = ShareMember(node)
    member.beat()

    def delete() -> Any:
        (result,) = call(node, Api.DELETE_GROUPS, version, groups_names=["g"]).results
        return result

    full = delete()
    assert full.error_code == Code.NON_EMPTY_GROUP
    assert bool(full.error_message) == (version >= 3)
    member.beat(-1)
    assert delete().error_code == Code.NONE
    assert delete().error_code == Code.GROUP_ID_NOT_FOUND
    assert listed(node) == []
    put_and_fetch_of_a_new_group(node)


def put_and_fetch_of_a_new_group(node: Node) -> None:
    """What the deleted group has done is forgotten: it begins at the end of the log again."""
    node.store.partition("t", 0).append_batch([b"a", b"b"])
    member = ShareMember(node)
    member.beat()
    assert member.fetch().acquired() == []
    node.store.partition("t", 0).append(b"c")
    told = member.fetch()
    assert told.acquired() == [(2, 2, 1)]
    assert member.acknowledge({0: [(2, 2, [ACCEPT])]}).codes == {0: 0}


def test_classic_descriptions_know_no_share_group(node: Node) -> None:
    ShareMember(node).beat()
    (group,) = call(node, Api.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert (group.error_code, group.group_state) == (Code.GROUP_ID_NOT_FOUND, "Dead")
    (group,) = call(node, Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    assert group.error_code == Code.GROUP_ID_NOT_FOUND


def test_q87_share_groups_commit_no_offsets(node: Node) -> None:
    ShareMember(node).beat()
    kind = structs("OffsetCommitRequest")
    row = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = kind.OffsetCommitRequestTopic(name="t", partitions=[row])
    answer = call(node, Api.OFFSET_COMMIT, 8, group_id="g", member_id="", topics=[topic])
    assert [each.error_code for each in answer.topics[0].partitions] == [Code.GROUP_ID_NOT_FOUND]
    asked = structs("OffsetFetchRequest").OffsetFetchRequestGroup(group_id="g", topics=None)
    (group,) = call(node, Api.OFFSET_FETCH, 8, groups=[asked]).groups
    assert (group.error_code, group.topics) == (Code.NONE, [])


# --- FindCoordinator, ApiVersions ------------------------------------------------------------------

KEY = f"a:b:{'A' * 21}Q:0"
KEYS = {
    "a share partition": (6, KEY, Code.NONE),
    "not before version 6": (5, KEY, Code.INVALID_REQUEST),
    "a group": (6, "gz", Code.INVALID_REQUEST),
    "no number": (6, KEY.replace(":0", ":x"), Code.INVALID_REQUEST),
    "no topic id": (6, "a:b:0", Code.INVALID_REQUEST),
}


@pytest.mark.parametrize(("version", "key", "code"), KEYS.values(), ids=KEYS)
def test_coordinators_of_share_partitions(node: Node, version: int, key: str, code: Code) -> None:
    (found,) = call(node, Api.FIND_COORDINATOR, version, key_type=2, coordinator_keys=[key]).coordinators
    assert (found.key, found.error_code, found.node_id) == (key, code, -1 if code else node.node_id)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_q74_the_feature(store: segstore.Store, level: int) -> None:
    """It is supported from 0 on, so clients of before version 4 don't see it as supported; the APIs are
    advertised at every level.
    """
    node = serving(store, share_version=level)
    software = {"client_software_name": "tests", "client_software_version": "1"}
    for version in (3, 4):
        answer = call(node, Api.API_VERSIONS, version, **software)
        known = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        assert known.get("share.version") == (None if version < 4 else (0, 2))
        chosen = {each.name: each.max_version_level for each in answer.finalized_features}
        assert chosen.get("share.version", 0) == level
        ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        wanted = {76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2), 83: (0, 0), 84: (0, 0), 85: (0, 1)}
        wanted |= {86: (0, 0), 87: (0, 1), 90: (0, 1), 91: (0, 0), 92: (0, 0)}
        assert {key: ranges[key] for key in wanted} == wanted
    node.close()
