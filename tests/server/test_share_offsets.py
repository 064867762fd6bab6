"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: where share groups are, and
where administrators put them (KIP-932, KIP-1226).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from calls import call, versions
from fetches import serving
from share_members import ACCEPT, REJECT, ShareMember

import segstore
from segstore import names
from segstore.coordinator.group_settings import group_settings
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

DESCRIBE, ALTER, DELETE = (
    Api.DESCRIBE_SHARE_GROUP_OFFSETS,
    Api.ALTER_SHARE_GROUP_OFFSETS,
    Api.DELETE_SHARE_GROUP_OFFSETS,
)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        store.create_topic("t", partitions=2)
        group_settings(store).alter("g", {"share.auto.offset.reset": "earliest"})
        store.partition("t", 0).append_batch([b"x"] * 10)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = serving(store)
    yield node
    node.close()
    node.loop.run()


@pytest.fixture
def member(node: Node) -> ShareMember:
    member = ShareMember(node)
    member.beat()
    return member


def described(
    node: Node, topics: Mapping[str, Sequence[int]] | None = None, group: str = "g", version: int = 1
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return (start, leader epoch, lag, error) by partition."""
    kind = structs("DescribeShareGroupOffsetsRequest")
    wanted = None if topics is None else [
        kind.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(numbers))
        for name, numbers in topics.items()
    ]  # fmt: skip
    asked = kind.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=wanted)
    (told,) = call(node, DESCRIBE, version, groups=[asked]).groups
    assert (told.group_id, told.error_code) == (group, Code.NONE)
    return {
        (topic.topic_name, each.partition_index): (
            *(each.start_offset, each.leader_epoch, each.lag, each.error_code),
        )
        for topic in told.topics
        for each in topic.partitions
    }


def alter(node: Node, offsets: Mapping[tuple[str, int], int], group: str = "g") -> Any:
    kind = structs("AlterShareGroupOffsetsRequest")
    topics = [
        kind.AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[
                kind.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
            ],
        )
        for (name, number), offset in offsets.items()
    ]
    return call(node, ALTER, 0, group_id=group, topics=topics)


def delete(node: Node, *topics: str, group: str = "g") -> Any:
    kind = structs("DeleteShareGroupOffsetsRequest").DeleteShareGroupOffsetsRequestTopic
    return call(node, DELETE, 0, group_id=group, topics=[kind(topic_name=name) for name in topics])


def codes(answer: Any) -> dict[Any, int]:
    """Return the errors of an answer's partitions, or of its topics."""
    assert answer.error_code == Code.NONE, answer
    found: dict[Any, int] = {}
    for topic in answer.responses:
        for each in getattr(topic, "partitions", ()):
            found[topic.topic_name, each.partition_index] = each.error_code
        if not hasattr(topic, "partitions"):
            found[topic.topic_name] = topic.error_code
    return found


# --- DescribeShareGroupOffsets -----------------------------------------------------------------


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_q97_offsets_are_described(member: ShareMember, version: int) -> None:
    node = member.node
    lag = (lambda known: known) if version else (lambda _: -1)
    assert described(node, version=version) == {("t", 0): (-1, 0, -1, 0), ("t", 1): (-1, 0, -1, 0)}
    member.fetch(wanted=(0, 1))
    assert described(node, version=version) == {("t", 0): (0, 0, lag(10), 0), ("t", 1): (0, 0, lag(0), 0)}
    member.acknowledge({0: [(0, 3, [ACCEPT]), (6, 7, [REJECT])]})
    assert described(node, {"t": [0]}, version=version) == {("t", 0): (0, 0, lag(4), 0)}
    member.acknowledge({0: [(4, 4, [ACCEPT])]})
    # A write carries the start from before itself: Q39.
    assert described(node, {"t": [0]}, version=version) == {("t", 0): (4, 0, lag(3), 0)}


def test_q97_what_is_not_there_has_no_offset_and_no_error(member: ShareMember) -> None:
    node = member.node
    assert described(node, {"t": [7], "other": [0]}) == {
        ("t", 7): (-1, 0, -1, 0),
        ("other", 0): (-1, 0, -1, 0),
    }
    assert described(node, group="missing") == {}
    assert described(node, {"t": [0]}, group="missing") == {("t", 0): (-1, 0, -1, 0)}


def test_q97_topics_have_their_ids(member: ShareMember) -> None:
    kind = structs("DescribeShareGroupOffsetsRequest").DescribeShareGroupOffsetsRequestGroup
    (told,) = call(member.node, DESCRIBE, 1, groups=[kind(group_id="g", topics=None)]).groups
    (topic,) = told.topics
    assert topic.topic_id == names.topic_id_bytes(member.node.store.topics()["t"].topic_id)


# --- AlterShareGroupOffsets ----------------------------------------------------------------------


def test_q98_offsets_are_altered(member: ShareMember) -> None:
    node = member.node
    member.fetch()
    member.acknowledge({0: [(0, 9, [ACCEPT])]})
    member.beat(-1)
    answer = alter(node, {("t", 0): 3, ("t", 9): 0, ("other", 0): 0})
    assert codes(answer) == {
        ("t", 0): Code.NONE,
        ("t", 9): Code.UNKNOWN_TOPIC_OR_PARTITION,
        ("other", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert described(node, {"t": [0]}) == {("t", 0): (3, 0, 7, 0)}
    member.beat()
    assert member.fetch().acquired() == [(3, 9, 1)]


def test_q98_a_group_with_members_is_left_alone(member: ShareMember) -> None:
    assert alter(member.node, {("t", 0): 3}).error_code == Code.NON_EMPTY_GROUP
    assert described(member.node, {"t": [0]}) == {("t", 0): (-1, 0, -1, 0)}


def test_q98_a_group_is_made(node: Node) -> None:
    """Its first member gets the partition, and goes on from there."""
    assert codes(alter(node, {("t", 0): 4}, group="new")) == {("t", 0): Code.NONE}
    assert described(node, group="new") == {("t", 0): (4, 0, 6, 0)}
    member = ShareMember(node, group="new")
    assert member.beat().assignment.topic_partitions[0].partitions == [0, 1]
    assert member.fetch().acquired() == [(4, 9, 1)]


def test_q98_an_offset_above_the_end(node: Node) -> None:
    """The lag is below zero, and delivery begins when the log gets there."""
    assert codes(alter(node, {("t", 0): 12})) == {("t", 0): Code.NONE}
    assert described(node) == {("t", 0): (12, 0, -2, 0)}
    member = ShareMember(node)
    member.beat()
    told = member.fetch()
    assert (told.codes, told.acquired()) == ({0: 0}, [])
    node.store.partition("t", 0).append_batch([b"y"])
    assert member.fetch().acquired() == []
    for _ in range(2):
        node.store.partition("t", 0).append_batch([b"y"])
    assert member.fetch().acquired() == [(12, 12, 1)]


def test_q98_a_negative_offset(node: Node) -> None:
    assert codes(alter(node, {("t", 0): -2}))["t", 0] == Code.INVALID_REQUEST


# --- DeleteShareGroupOffsets ---------------------------------------------------------------------


def test_q99_offsets_are_deleted(member: ShareMember) -> None:
    node = member.node
    member.fetch()
    member.acknowledge({0: [(0, 9, [ACCEPT])]})
    assert delete(node, "t").error_code == Code.NON_EMPTY_GROUP
    member.beat(-1)
    answer = delete(node, "t", "other")
    assert codes(answer) == {"t": Code.NONE, "other": Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert described(node) == {}
    member.beat()
    assert member.fetch().acquired() == [(0, 9, 1)]


def test_q99_a_session_that_is_open_meets_another_share_partition(member: ShareMember) -> None:
    member.fetch()
    member.beat(-1)
    assert codes(delete(member.node, "t")) == {"t": Code.NONE}
    told = member.acknowledge({0: [(0, 9, [ACCEPT])]})
    assert told.codes[0] == Code.NOT_LEADER_OR_FOLLOWER
    assert member.fetch().codes == {0: Code.UNKNOWN_SERVER_ERROR}  # not initialised


def test_q99_a_group_that_is_not_there(node: Node) -> None:
    assert delete(node, "t", group="missing").error_code == Code.GROUP_ID_NOT_FOUND


# --- who may, and the feature ------------------------------------------------------------------


def test_q74_without_the_feature(store: segstore.Store) -> None:
    node = serving(store, share_version=0)
    kind = structs("DescribeShareGroupOffsetsRequest").DescribeShareGroupOffsetsRequestGroup
    (told,) = call(node, DESCRIBE, 1, groups=[kind(group_id="g", topics=None)]).groups
    assert told.error_code == Code.UNSUPPORTED_VERSION
    assert alter(node, {("t", 0): 0}).error_code == Code.UNSUPPORTED_VERSION
    assert delete(node, "t").error_code == Code.UNSUPPORTED_VERSION
    node.close()


def test_topics_that_may_not_be_described(store: segstore.Store, member: ShareMember) -> None:
    """Of all topics they are left out; if they are named, they have an error."""
    store.create_topic("u")
    member.beat(2, topics=["t", "u"])
    node = serving(store, allow=["User:ANONYMOUS: describe group g", "User:ANONYMOUS: describe topic u"])
    assert described(node) == {("u", 0): (-1, 0, -1, 0)}
    assert described(node, {"t": [0]}) == {("t", 0): (-1, 0, -1, Code.TOPIC_AUTHORIZATION_FAILED)}
    kind = structs("DescribeShareGroupOffsetsRequest").DescribeShareGroupOffsetsRequestGroup
    (told,) = call(node, DESCRIBE, 1, groups=[kind(group_id="other", topics=None)]).groups
    assert (told.error_code, told.topics) == (Code.GROUP_AUTHORIZATION_FAILED, [])
    node.close()


def test_topics_that_may_not_be_read(store: segstore.Store) -> None:
    store.create_topic("u")
    rights = ["read group g", "delete group g", "read topic u"]
    node = serving(store, allow=[f"User:ANONYMOUS: {each}" for each in rights])
    assert codes(alter(node, {("t", 0): 1, ("u", 0): 0})) == {
        ("u", 0): Code.NONE,
        ("t", 0): Code.TOPIC_AUTHORIZATION_FAILED,
    }
    assert codes(delete(node, "t", "u")) == {"u": Code.NONE, "t": Code.TOPIC_AUTHORIZATION_FAILED}
    for answer in (alter(node, {}, group="other"), delete(node, group="other")):
        assert answer.error_code == Code.GROUP_AUTHORIZATION_FAILED
    node.close()
