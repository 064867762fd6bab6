"""Offsets of groups on the wire: commits, fetches and deletions in their versions, by raw requests."""

from __future__ import annotations

from typing import Any

import pytest
from parked import WireMember, ask
from wire_groups import T0, T1, all_versions, commit
from wire_groups import clock as clock
from wire_groups import node as node
from wire_groups import store as store

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.logs import Logs
from segstore.server.node import Node


def fetch(node: Node, version: int, partitions: list[int] | None, stable: bool = False) -> dict[int, Any]:
    request = structs("OffsetFetchRequest")
    kind = request.OffsetFetchRequestTopics if version >= 8 else request.OffsetFetchRequestTopic
    topic_id = {"topic_id": node.part(Logs).id_of("t")} if version >= 8 else {}
    topics = None if partitions is None else [kind(name="t", partition_indexes=partitions, **topic_id)]
    told: dict[str, Any] = {"require_stable": stable} if version >= 7 else {}
    if version >= 8:
        groups = [request.OffsetFetchRequestGroup(group_id=g, topics=topics) for g in ("g", "other")]
        found = ask(node, Api.OFFSET_FETCH, version, groups=groups, **told)
        assert [each.group_id for each in found.groups] == ["g", "other"]
        assert {p.committed_offset for t in found.groups[1].topics for p in t.partitions} <= {-1}
        found = found.groups[0]
    else:
        found = ask(node, Api.OFFSET_FETCH, version, group_id="g", topics=topics, **told)
    assert found.error_code == Code.NONE
    return {part.partition_index: part for topic in found.topics for part in topic.partitions}


@pytest.mark.parametrize("version", all_versions(Api.OFFSET_COMMIT))
def test_offsets_are_committed_beside_the_process(node: Node, version: int) -> None:
    assert commit(node, version, T0, 5, "note") is Code.NONE
    kept = shared(node.store, GroupOffsets)
    assert kept.fetch("g") == {T0: OffsetAndMetadata(5, "note")}


@pytest.mark.parametrize("version", all_versions(Api.OFFSET_FETCH))
def test_offsets_of_the_process_are_fetched(node: Node, version: int) -> None:
    shared(node.store, GroupOffsets).commit("g", {T0: OffsetAndMetadata(5, "note", 3)})
    found = fetch(node, version, [0, 1])
    epoch = 3 if version >= 5 else -1
    assert [(p.committed_offset, p.metadata, p.committed_leader_epoch) for p in found.values()] == [
        (5, "note", epoch),
        (-1, "", -1),
    ]
    if version >= 2:
        assert list(fetch(node, version, None)) == [0]


@pytest.mark.parametrize("offset", [-1, -2, -(1 << 63)])
@pytest.mark.parametrize("version", all_versions(Api.OFFSET_COMMIT))
def test_a_negative_offset_is_kept_and_is_none_to_readers(node: Node, version: int, offset: int) -> None:
    """kafkajs commits -2 when its offset was out of range, and reads from the log start offset then."""
    node.store.partition("t", 0).append(b"v")
    assert commit(node, version, T0, offset) is Code.NONE
    assert fetch(node, 9, [0])[0].committed_offset == offset
    assert list(fetch(node, 9, None)) == [0]
    kept, groups = shared(node.store, GroupOffsets), segstore.Groups(node.store)
    assert kept.fetch("g") == groups.committed("g") == {}
    assert groups.describe("g").partitions == ()
    with segstore.Consumer(node.store, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert (consumer.committed(T0), consumer.position(T0)) == (None, 0)


def by_id(node: Node, *topic_ids: bytes) -> list[list[tuple[bytes, int, Code]]]:
    """Commit, then fetch, each topic's partition 0 by its id; return (id, offset or -1, code) of each."""
    commits, fetches = structs("OffsetCommitRequest"), structs("OffsetFetchRequest")
    part = commits.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    asked = [commits.OffsetCommitRequestTopic(topic_id=each, partitions=[part]) for each in topic_ids]
    committed = ask(node, Api.OFFSET_COMMIT, 10, group_id="g", topics=asked).topics
    wanted = [fetches.OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0]) for each in topic_ids]
    group = fetches.OffsetFetchRequestGroup(group_id="g", topics=wanted)
    fetched = ask(node, Api.OFFSET_FETCH, 10, groups=[group]).groups[0].topics
    return [
        [(each.topic_id, -1, Code(each.partitions[0].error_code)) for each in committed],
        [
            (each.topic_id, each.partitions[0].committed_offset, Code(each.partitions[0].error_code))
            for each in fetched
        ],
    ]


def test_offsets_are_committed_and_fetched_by_ids(node: Node) -> None:
    here, unknown, none = node.part(Logs).id_of("t"), b"x" * 16, bytes(16)
    refused = [(each, -1, Code.UNKNOWN_TOPIC_ID) for each in (unknown, none)]
    committed, fetched = by_id(node, unknown, here, none)
    assert committed == [(here, -1, Code.NONE), *refused]
    assert fetched == [(here, 5, Code.NONE), *refused]
    group = structs("OffsetFetchRequest").OffsetFetchRequestGroup(group_id="g", topics=None)
    (topic,) = ask(node, Api.OFFSET_FETCH, 10, groups=[group]).groups[0].topics
    assert (topic.topic_id, topic.partitions[0].committed_offset) == (here, 5)


def test_a_commit_for_a_topic_that_was_made_anew_is_refused(node: Node) -> None:
    before = node.part(Logs).id_of("t")
    assert by_id(node, before)[1] == [(before, 5, Code.NONE)]
    node.store.delete_topic("t")
    node.store.create_topic("t", 2)
    now = node.part(Logs).id_of("t")
    committed, fetched = by_id(node, before)
    assert committed == fetched == [(before, -1, Code.UNKNOWN_TOPIC_ID)]
    assert fetch(node, 9, [0])[0].committed_offset == -1
    assert by_id(node, now)[1] == [(now, 5, Code.NONE)]


def test_a_commit_is_judged_by_partition(node: Node) -> None:
    assert commit(node, 9, TopicPartition("t", 7), 5) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(node, 9, TopicPartition("gone", 0), 5) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(node, 9, T0, 5, "x" * 5000) is Code.OFFSET_METADATA_TOO_LARGE
    assert ask(node, Api.LIST_GROUPS, 5).groups == []


def test_a_member_commits_in_its_generation_only(node: Node) -> None:
    member = WireMember(node).alone(T0)
    mine = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
    assert commit(node, 9, T0, 5, **mine) is Code.NONE
    assert commit(node, 9, T0, 6, **mine | {"generation_id_or_member_epoch": 0}) is Code.ILLEGAL_GENERATION
    assert commit(node, 9, T0, 6, **mine | {"member_id": "nobody"}) is Code.UNKNOWN_MEMBER_ID
    assert commit(node, 9, T0, 6) is Code.UNKNOWN_MEMBER_ID
    assert commit(node, 8, T0, 6, **mine | {"group_id": "gone"}) is Code.ILLEGAL_GENERATION
    assert commit(node, 9, T0, 6, **mine | {"group_id": "gone"}) is Code.GROUP_ID_NOT_FOUND
    assert fetch(node, 9, [0])[0].committed_offset == 5


def test_offsets_of_an_open_transaction_are_not_stable(node: Node) -> None:
    with segstore.Producer(node.store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: OffsetAndMetadata(5)}, "g")
        found = fetch(node, 7, [0, 1], stable=True)
        assert [p.error_code for p in found.values()] == [Code.UNSTABLE_OFFSET_COMMIT, Code.NONE]
        assert fetch(node, 9, [0])[0].error_code == Code.NONE
        producer.commit_transaction()
    assert fetch(node, 7, [0], stable=True)[0].committed_offset == 5


def delete_offsets(node: Node, *partitions: TopicPartition) -> Any:
    kinds = structs("OffsetDeleteRequest")
    topics = [
        kinds.OffsetDeleteRequestTopic(
            name=at.topic, partitions=[kinds.OffsetDeleteRequestPartition(partition_index=at.partition)]
        )
        for at in partitions
    ]
    return ask(node, Api.OFFSET_DELETE, 0, group_id="g", topics=topics)


def test_offsets_are_deleted_but_of_topics_that_members_read(node: Node) -> None:
    assert delete_offsets(node, T0).error_code == Code.GROUP_ID_NOT_FOUND
    node.store.create_topic("u")
    other = TopicPartition("u", 0)
    kept = shared(node.store, GroupOffsets)
    kept.commit("g", {T0: OffsetAndMetadata(5), other: OffsetAndMetadata(6)})
    WireMember(node).alone(T0, T1)
    answer = delete_offsets(node, T0, other, TopicPartition("gone", 0))
    assert [t.partitions[0].error_code for t in answer.topics] == [
        Code.GROUP_SUBSCRIBED_TO_TOPIC,
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert kept.fetch("g") == {T0: OffsetAndMetadata(5)}
