"""Groups on the wire: each API in its versions, by raw requests, beside members in the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from groups import Monotonic
from parked import Asked, WireMember, ask
from waiting import PATIENCE
from wire_groups import SESSION_MS, T0, T1, all_versions, commit, coordinator_of, leave
from wire_groups import clock as clock
from wire_groups import node as node
from wire_groups import store as store

import segstore
from segstore import mutex
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

# --- FindCoordinator ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", all_versions(Api.FIND_COORDINATOR))
def test_this_node_coordinates_all_keys(node: Node, version: int) -> None:
    keys = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
    found = ask(node, Api.FIND_COORDINATOR, version, **keys)
    places = found.coordinators if version >= 4 else [found]
    assert {(p.node_id, p.host, p.port, p.error_code) for p in places} == {
        (node.node_id, node.endpoint.host, node.endpoint.port, Code.NONE)
    }
    assert [p.key for p in found.coordinators] == (["a", "b"] if version >= 4 else [])


# --- JoinGroup, SyncGroup -------------------------------------------------------------------------


@pytest.mark.parametrize("version", all_versions(Api.JOIN_GROUP))
def test_a_member_joins_alone(node: Node, version: int) -> None:
    member = WireMember(node, join_version=version).alone(T0, T1)
    assert member.leads
    assert member.generation == 1
    assert [m.member_id for m in member.place.members] == [member.member_id]
    assert (member.place.protocol_type, member.place.protocol_name) == (
        "consumer" if version >= 7 else None,
        "range",
    )
    assert member.given == [T0, T1]
    assert member.heartbeat() is Code.NONE


def test_a_member_gets_an_id_first_and_a_rebalance_waits_for_it(node: Node, clock: Monotonic) -> None:
    first = WireMember(node).alone(T0, T1)
    second = WireMember(node)
    told = second._join().answer
    assert told.error_code == Code.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("tests-")
    assert told.protocol_name is None
    third = WireMember(node, join_version=3)
    joining = third.join()
    rejoining = first.join()
    assert rejoining.answer is None  # it waits for the second, too
    second.member_id = told.member_id
    second.joined(second._join())
    third.joined(joining)
    assert {m.member_id for m in first.joined(rejoining).members} == {
        first.member_id,
        second.member_id,
        third.member_id,
    }


def test_a_member_that_never_comes_back_with_its_id_holds_nobody_up_for_ever(
    node: Node, clock: Monotonic
) -> None:
    WireMember(node)._join()
    node.loop.run()  # type: ignore[attr-defined]
    member = WireMember(node, join_version=3)
    joining = member.join()
    assert joining.answer is None
    clock.now += SESSION_MS
    coordinator_of(node).run_due()
    assert member.joined(joining).generation_id == 1


def test_an_id_that_was_given_up_can_leave(node: Node) -> None:
    told = WireMember(node)._join().answer
    member = WireMember(node, join_version=3)
    joining = member.join()
    assert joining.answer is None
    assert leave(node, 1, told.member_id).error_code == Code.NONE
    assert member.joined(joining).generation_id == 1


def test_two_members_share_and_both_hear_of_it(node: Node) -> None:
    first = WireMember(node).alone(T0, T1)
    second = WireMember(node)
    joining = second.join()
    assert joining.answer is None
    assert first.heartbeat() is Code.REBALANCE_IN_PROGRESS
    first.joined(first.join())
    second.joined(joining)
    assert (first.generation, second.generation) == (2, 2)
    assert second.place.members == []
    waiting = second.sync()
    assert waiting.answer is None
    first.synced(first.sync({first.member_id: [T0], second.member_id: [T1]}))
    second.synced(waiting)
    assert (first.given, second.given) == ([T0], [T1])


JOIN_ERRORS: dict[str, tuple[dict[str, Any], Code]] = {
    "no group id": ({"group_id": ""}, Code.INVALID_GROUP_ID),
    "a session that is too short": ({"session_timeout_ms": 1}, Code.INVALID_SESSION_TIMEOUT),
    "no protocol": ({"protocols": []}, Code.INCONSISTENT_GROUP_PROTOCOL),
    "an id that nobody has": ({"member_id": "nobody"}, Code.UNKNOWN_MEMBER_ID),
}


@pytest.mark.parametrize("version", [0, 6, 7, 9])
@pytest.mark.parametrize("case", JOIN_ERRORS)
def test_a_join_is_refused(node: Node, case: str, version: int) -> None:
    given, code = JOIN_ERRORS[case]
    kind = structs("JoinGroupRequest").JoinGroupRequestProtocol
    fields = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": -1 if version == 0 else 1000,
        "protocol_type": "consumer",
        "protocols": [kind(name="range")],
        **given,
    }
    answer = ask(node, Api.JOIN_GROUP, version, **fields)
    assert (answer.error_code, answer.generation_id, answer.leader) == (code, -1, "")
    assert answer.protocol_name == (None if version >= 7 else "")


def test_version_0_has_its_session_timeout_to_rebalance(node: Node) -> None:
    WireMember(node, join_version=0).alone(T0)
    (member,) = coordinator_of(node)._groups.find("g").group.members.values()
    assert member.rebalance_timeout_ms == member.session_timeout_ms == SESSION_MS


@pytest.mark.parametrize("field", ["protocol_type", "protocol_name"])
@pytest.mark.parametrize("value", [None, "another"])
def test_a_sync_must_name_the_protocol_of_the_group(node: Node, field: str, value: str | None) -> None:
    member = WireMember(node)
    member.joined(member.join())
    named = {"protocol_type": "consumer", "protocol_name": "range", field: value}
    answer = ask(
        node,
        Api.SYNC_GROUP,
        5,
        group_id="g",
        generation_id=1,
        member_id=member.member_id,
        **named,
    )
    assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", all_versions(Api.SYNC_GROUP))
def test_any_version_gets_its_assignment(node: Node, version: int) -> None:
    member = WireMember(node).alone(T1)
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    answer = ask(
        node, Api.SYNC_GROUP, version, group_id="g", generation_id=1, member_id=member.member_id, **named
    )
    assert answer.error_code == Code.NONE
    assert answer.assignment
    assert (answer.protocol_type, answer.protocol_name) == tuple(named.values() or (None, None))


def test_other_protocols_pass_as_bytes(node: Node) -> None:
    kinds = structs("JoinGroupRequest"), structs("SyncGroupRequest")
    said = b"\x00\xffno subscription"
    join = ask(
        node,
        Api.JOIN_GROUP,
        3,
        group_id="workers",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=1000,
        protocol_type="connect",
        protocols=[kinds[0].JoinGroupRequestProtocol(name="sessioned", metadata=said)],
    )
    assert [m.metadata for m in join.members] == [said]
    given = kinds[1].SyncGroupRequestAssignment(member_id=join.member_id, assignment=b"\xfe\xff")
    fields = {"group_id": "workers", "generation_id": 1, "member_id": join.member_id}
    sync = ask(node, Api.SYNC_GROUP, 3, **fields, assignments=[given])
    assert sync.assignment == b"\xfe\xff"
    (told,) = ask(node, Api.DESCRIBE_GROUPS, 5, groups=["workers"]).groups
    assert (told.protocol_type, told.protocol_data) == ("connect", "sessioned")
    assert told.members[0].member_metadata == said


# --- static members -------------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance(node: Node) -> None:
    first = WireMember(node, instance="i").alone(T0, T1)
    again = WireMember(node, instance="i")
    place = again.joined(again.join())
    assert (place.generation_id, place.skip_assignment, again.leads) == (1, True, True)
    assert again.member_id != first.member_id
    again.synced(again.sync())
    assert again.given == [T0, T1]
    assert first.heartbeat() is Code.FENCED_INSTANCE_ID


def test_an_old_static_leader_does_not_take_itself_for_the_leader(node: Node) -> None:
    first = WireMember(node, instance="i", join_version=8).alone(T0, T1)
    again = WireMember(node, instance="i", join_version=8)
    place = again.joined(again.join())
    assert (place.leader, place.members) == (first.member_id, [])
    again.synced(again.sync())
    assert again.given == [T0, T1]


# --- LeaveGroup, Heartbeat ------------------------------------------------------------------------


@pytest.mark.parametrize("version", all_versions(Api.LEAVE_GROUP))
def test_a_member_leaves(node: Node, version: int) -> None:
    member = WireMember(node).alone(T0)
    for expected in (Code.NONE, Code.UNKNOWN_MEMBER_ID):
        answer = leave(node, version, member.member_id)
        codes = [m.error_code for m in answer.members] if version >= 3 else [answer.error_code]
        assert codes == [expected]
    assert coordinator_of(node).state("g") is ClassicGroupState.EMPTY


def test_an_administrator_removes_static_members_by_one_rebalance(node: Node) -> None:
    first = WireMember(node, instance="a").alone(T0, T1)
    second = WireMember(node, instance="b")
    joining = second.join()
    first.joined(first.join())
    second.joined(joining)
    kind = structs("LeaveGroupRequest").MemberIdentity
    gone = [kind(group_instance_id=each) for each in ("a", "b", "c")]
    answer = ask(node, Api.LEAVE_GROUP, 5, group_id="g", members=gone)
    assert [m.error_code for m in answer.members] == [Code.NONE, Code.NONE, Code.UNKNOWN_MEMBER_ID]
    assert coordinator_of(node).generation("g") == 3


@pytest.mark.parametrize("version", all_versions(Api.HEARTBEAT))
def test_heartbeats_tell_what_is_wrong(node: Node, version: int) -> None:
    member = WireMember(node).alone(T0)

    def beat(member_id: str, generation: int) -> int:
        fields = {"group_id": "g", "member_id": member_id, "generation_id": generation}
        return int(ask(node, Api.HEARTBEAT, version, **fields).error_code)

    assert beat(member.member_id, 1) == Code.NONE
    assert beat(member.member_id, 0) == Code.ILLEGAL_GENERATION
    assert beat("nobody", 1) == Code.UNKNOWN_MEMBER_ID


@contextmanager
def late(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another request to the group waits for replicas."""
    held = coordinator_of(node)._groups.get("g")
    assert held is not None
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with held.lock:
            taken.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(PATIENCE)
    with monkeypatch.context() as patched:
        patched.setattr(mutex, "PATIENCE", 0.01)
        yield
    over.set()
    thread.join()


def test_members_of_a_group_that_is_late_are_told_what_has_them_try_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = WireMember(node).alone(T0)
    who = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
    with late(node, monkeypatch):
        assert member.heartbeat() is Code.NONE
        assert member.sync().answer.error_code == Code.REBALANCE_IN_PROGRESS
        assert member.join().answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert commit(node, 9, T0, 1, **who) is Code.COORDINATOR_LOAD_IN_PROGRESS
        answer = ask(node, Api.DESCRIBE_GROUPS, 5, groups=["g", "other"])
        assert [each.error_code for each in answer.groups] == [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NONE]
        answer = ask(node, Api.DELETE_GROUPS, 2, groups_names=["g"])
        assert [each.error_code for each in answer.results] == [Code.COORDINATOR_LOAD_IN_PROGRESS]
    assert member.heartbeat() is Code.NONE
    assert commit(node, 9, T0, 1, **who) is Code.NONE


def test_a_member_that_sends_no_heartbeat_is_removed(node: Node, clock: Monotonic) -> None:
    member = WireMember(node).alone(T0)
    clock.now += SESSION_MS
    coordinator_of(node).run_due()
    assert coordinator_of(node).state("g") is ClassicGroupState.EMPTY
    assert member.heartbeat() is Code.UNKNOWN_MEMBER_ID


def test_asking_for_a_group_makes_none(node: Node) -> None:
    member = WireMember(node, group="nowhere")
    member.member_id, member.generation = "nobody", 4
    assert member.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert member.sync().answer.error_code == Code.UNKNOWN_MEMBER_ID
    leave(node, 5, "nobody")
    assert ask(node, Api.LIST_GROUPS, 5).groups == []


# --- administrators -------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type(node: Node) -> None:
    shared(node.store, GroupOffsets).commit("a", {T0: OffsetAndMetadata(5)})
    WireMember(node).alone(T0)

    def listed(version: int, **filters: list[str]) -> list[str]:
        return [each.group_id for each in ask(node, Api.LIST_GROUPS, version, **filters).groups]

    for version in all_versions(Api.LIST_GROUPS):
        assert listed(version) == ["a", "g"]
    assert listed(4, states_filter=["EMPTY"]) == ["a"]
    assert listed(5, states_filter=["Stable", "Dead"], types_filter=["Classic"]) == ["g"]
    assert listed(5, types_filter=["consumer"]) == []
    told = ask(node, Api.LIST_GROUPS, 5).groups[1]
    assert (told.protocol_type, told.group_state, told.group_type) == ("consumer", "Stable", "classic")


@pytest.mark.parametrize("version", all_versions(Api.DESCRIBE_GROUPS))
def test_groups_are_described(node: Node, version: int) -> None:
    member = WireMember(node, instance="i").alone(T0)
    asked = {"include_authorized_operations": True} if version >= 3 else {}
    found, missing = ask(node, Api.DESCRIBE_GROUPS, version, groups=["g", "gone"], **asked).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (told,) = found.members
    assert (told.member_id, told.client_id, told.client_host) == (member.member_id, "tests", "/127.0.0.1")
    assert told.group_instance_id == ("i" if version >= 4 else None)
    assert found.authorized_operations == (3400 if version >= 3 else -(1 << 31))
    assert missing.group_state == "Dead"
    assert missing.error_code == (Code.GROUP_ID_NOT_FOUND if version >= 6 else Code.NONE)


@pytest.mark.parametrize("version", all_versions(Api.DELETE_GROUPS))
def test_only_groups_without_members_are_deleted(node: Node, version: int) -> None:
    shared(node.store, GroupOffsets).commit("a", {T0: OffsetAndMetadata(5)})
    WireMember(node).alone(T0)
    answer = ask(node, Api.DELETE_GROUPS, version, groups_names=["a", "g", "gone", "", "a"])
    assert [each.error_code for each in answer.results] == [
        Code.NONE,
        Code.NON_EMPTY_GROUP,
        Code.GROUP_ID_NOT_FOUND,
        Code.GROUP_ID_NOT_FOUND,
    ]
    assert [each.group_id for each in ask(node, Api.LIST_GROUPS, 5).groups] == ["g"]


# --- with members in the process ------------------------------------------------------------------


def polled(consumer: segstore.Consumer, done: Callable[[], bool]) -> None:
    """Poll until that is so, a few times: nobody else does anything meanwhile."""
    for _ in range(5):
        consumer.poll(0)
        if done():
            return
    raise AssertionError("it did not come about")


def test_a_consumer_in_the_process_shares_with_a_member_on_the_wire(node: Node) -> None:
    """Partitions move to the wire when its member joins, and back when it leaves."""
    with segstore.Consumer(node.store, "t", group_id="g", partition_assignment_strategy=["range"]) as ours:
        ours.poll(0)
        assert ours.assignment() == {T0, T1}
        member = WireMember(node)
        joining = member.join()
        polled(ours, lambda: joining.answer is not None)
        member.joined(joining)
        syncing = member.sync()
        polled(ours, lambda: syncing.answer is not None)
        member.synced(syncing)
        assert len(member.given) == 1
        assert {*member.given, *ours.assignment()} == {T0, T1}
        leave(node, 5, member.member_id)
        polled(ours, lambda: ours.assignment() == {T0, T1})


def test_closing_the_store_answers_who_waits(node: Node) -> None:
    WireMember(node).alone(T0)
    joining: Asked = WireMember(node).join()
    assert joining.answer is None
    node.store.close()
    assert joining.answer.error_code == Code.NOT_COORDINATOR
