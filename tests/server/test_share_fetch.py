"""ShareFetch, case by case (KIP-932): refused requests, partitions with errors, records that are acquired."""

from __future__ import annotations

from typing import Any

import pytest
from fetches import serving
from share_members import ACCEPT, RENEW, TERMS, ShareMember
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import put, waiting
from share_nodes import store as store

import segstore
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.node import Node

NO_TOPIC = b"\1" * 16


# --- the whole request ----------------------------------------------------------------------------

UNNAMED = {
    "no group": {"group_id": None},
    "an empty group": {"group_id": ""},
    "no member": {"member_id": None},
    "an empty member": {"member_id": ""},
    "a member id of 37 characters": {"member_id": "m" * 37},
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fields", UNNAMED.values(), ids=UNNAMED)
def test_a_group_and_a_member_must_be_named(node: Node, fields: dict[str, Any], version: int) -> None:
    member = ShareMember(node, version=version)
    assert member.fetch(**fields).code == Code.INVALID_REQUEST
    assert member.acknowledge(epoch=1, **fields).code == Code.INVALID_REQUEST


def test_the_longest_member_id(node: Node) -> None:
    member = ShareMember(node, "m" * 36)
    member.beat()
    assert member.fetch().code == Code.NONE


@pytest.mark.parametrize("name", [name for name in TERMS if name != "batch_size"])
def test_renewals_fetch_nothing(member: ShareMember, name: str) -> None:
    member.fetch()
    nothing = dict.fromkeys(TERMS, 0)
    told = member.fetch({0: [(0, 9, [RENEW])]}, epoch=1, is_renew_ack=True, **{**nothing, name: 1})
    assert told.code == Code.INVALID_REQUEST
    told = member.fetch({0: [(0, 9, [RENEW])]}, epoch=1, is_renew_ack=True, **nothing)
    assert (told.code, told.acknowledged, told.acquired()) == (Code.NONE, {0: 0}, [])
    put(member.node, 1)
    assert member.fetch(epoch=2).acquired() == [(10, 10, 1)]


def test_an_acquire_mode_that_nobody_knows(member: ShareMember) -> None:
    assert member.fetch(share_acquire_mode=2).code == Code.INVALID_REQUEST


@pytest.mark.parametrize("level", [1, 2])
def test_q74_share_groups_are_on(store: segstore.Store, level: int) -> None:
    node = serving(store, share_version=level)
    member = ShareMember(node)
    assert (member.beat().error_code, member.fetch().code) == (Code.NONE, Code.NONE)
    node.close()


def test_q74_share_groups_are_off(store: segstore.Store) -> None:
    node = serving(store, share_version=0)
    member = ShareMember(node)
    assert member.beat().error_code == Code.UNSUPPORTED_VERSION
    assert member.fetch().code == Code.UNSUPPORTED_VERSION
    assert member.acknowledge(epoch=1).code == Code.UNSUPPORTED_VERSION
    node.close()


# --- partitions -----------------------------------------------------------------------------------


def test_a_topic_that_nobody_knows(member: ShareMember) -> None:
    member.fetch()
    member.topic_id = NO_TOPIC
    told = member.fetch({0: [(0, 0, [ACCEPT])]}, wanted=())
    (unknown,) = [topic for topic in told.body.responses if topic.topic_id == NO_TOPIC]
    (row,) = unknown.partitions
    assert (row.error_code, row.acknowledge_error_code) == (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_ID)
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.UNKNOWN_TOPIC_ID}


def test_a_partition_that_is_not_there(member: ShareMember) -> None:
    told = member.fetch(wanted=(0, 9))
    assert told.codes == {0: 0, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert told.acquired() == [(0, 9, 1)]
    told = member.acknowledge({9: [(0, 0, [ACCEPT])], 0: [(0, 0, [ACCEPT])]})
    assert told.codes == {9: Code.UNKNOWN_TOPIC_OR_PARTITION, 0: 0}


def test_a_topic_that_may_not_be_read(store: segstore.Store) -> None:
    node = serving(store, allow=["User:ANONYMOUS: read group g"])
    member = ShareMember(node)
    assert member.fetch().codes == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    told = member.fetch({0: [(0, 0, [ACCEPT])]})
    assert told.acknowledged == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    node.close()


def test_a_group_that_may_not_be_read(store: segstore.Store) -> None:
    node = serving(store, allow=["User:ANONYMOUS: read topic t"])
    member = ShareMember(node)
    for told in (member.fetch(), member.acknowledge(epoch=1)):
        assert (told.code, told.body.responses) == (Code.GROUP_AUTHORIZATION_FAILED, [])
    assert member.fetch(group_id=None).code == Code.INVALID_REQUEST
    node.close()


def test_a_partition_that_no_heartbeat_has_initialised(node: Node) -> None:
    put(node, 1)
    member = ShareMember(node)
    assert member.fetch().codes == {0: Code.UNKNOWN_SERVER_ERROR}


def test_a_member_that_never_sent_a_heartbeat(member: ShareMember) -> None:
    """It fetches and acknowledges all the same, as in Kafka: a fetch looks at its session only."""
    stranger = ShareMember(member.node, "stranger")
    assert stranger.fetch().acquired() == [(0, 9, 1)]
    assert stranger.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


def test_a_share_partition_that_was_never_fetched(member: ShareMember) -> None:
    member.fetch()
    assert member.acknowledge({1: [(0, 0, [ACCEPT])]}).codes == {1: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert member.acknowledge({1: [(1, 0, [ACCEPT])]}).codes == {1: Code.INVALID_REQUEST}


def test_nobody_leads_but_for_those_who_look(member: ShareMember) -> None:
    (row,) = member.fetch().rows.values()
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (-1, -1)


def test_q98_a_fenced_share_partition(member: ShareMember) -> None:
    """Its offsets were altered: the session stays, and its client looks for the leader anew."""
    from segstore.coordinator.group.coordinator import GroupCoordinator
    from segstore.coordinator.structs import TopicPartition

    member.fetch()
    member.beat(-1)
    groups = shared(member.node.store, GroupCoordinator)
    assert groups.alter_share_offsets("g", {TopicPartition("t", 0): 4}) == {TopicPartition("t", 0): None}
    told = member.acknowledge({0: [(0, 0, [ACCEPT])]})
    assert told.codes[0] == Code.NOT_LEADER_OR_FOLLOWER
    assert member.fetch().acquired() == [(4, 9, 1)]


# --- what is acquired -----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"max_records": 0}, {"max_bytes": 0}, {"wanted": ()}], ids=str)
def test_there_is_nothing_to_acquire(member: ShareMember, fields: dict[str, Any]) -> None:
    """The answer comes at once, whatever the fetch would wait."""
    told = member.fetch(**{"max_wait_ms": 1000, **fields})
    assert (told.code, told.acquired()) == (Code.NONE, [])
    assert member.fetch().acquired() == [(0, 9, 1)]


def test_q19_modes(member: ShareMember) -> None:
    assert member.fetch(max_records=3, share_acquire_mode=1).acquired() == [(0, 2, 1)]
    assert member.fetch(max_records=3).acquired() == [(3, 9, 1)]
    put(member.node, 5)
    old = ShareMember(member.node, "old", version=1)
    assert old.fetch(max_records=3).acquired() == [(10, 14, 1)]


def test_q20_whole_batches_are_sent(member: ShareMember) -> None:
    put(member.node, 5)
    log = member.node.store.partition("t", 0)
    whole = log.stored(0, 1 << 20)
    told = member.fetch(max_records=3, share_acquire_mode=1)
    (row,) = told.rows.values()
    assert whole.startswith(bytes(row.records))
    assert 0 < len(row.records) < len(whole)
    assert bytes(member.fetch().rows[0].records) == whole


def test_q27_partitions_take_turns(member: ShareMember) -> None:
    for partition in (0, 1, 2):
        for _ in range(3):
            put(member.node, 1, partition)
    member.fetch(wanted=(0, 1, 2), max_records=0)
    rounds = [member.fetch(wanted=(), max_records=1).rows for _ in range(3)]
    assert [[number for number, row in rows.items() if row.acquired_records] for rows in rounds] == [
        *([1], [2], [0])
    ]


def test_the_lock_s_time_is_told(member: ShareMember) -> None:
    assert member.fetch().body.acquisition_lock_timeout_ms == 30_000


def test_requests_are_counted(member: ShareMember) -> None:
    member.fetch(wanted=(0, 9))
    member.fetch({0: [(0, 0, [ACCEPT]), (0, 0, [ACCEPT])]}, wanted=())
    member.fetch(wanted=(), forgotten=[9])
    member.acknowledge({0: [(0, 9, [ACCEPT])]})
    member.acknowledge(epoch=99)
    waiting(ShareMember(member.node, "b", topic="t"))
    member.node.loop.pass_time(1.1)
    assert member.node.metrics() == {
        "TotalShareFetchRequestsPerSec": 4,
        "FailedShareFetchRequestsPerSec": 2,
        "TotalShareAcknowledgementRequestsPerSec": 2,
        "FailedShareAcknowledgementRequestsPerSec": 1,
        "ExpiresPerSec": 1,
        "ShareSessionsCount": 2,
        "SharePartitionsCount": 2,
    }
