"""Promise: transactions of producers, and members of groups, that come over the network outlive the process
that has the store, as they outlive a restart of a broker; those within the process end with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from calls import node_of
from groups import Monotonic, Unsynced, coordinator, is_empty, member_ids
from parked import WireMember, ask
from stores import Clock
from test_transactions import T0, TIMEOUT_MS, Identity, add, committed, end, producer, state, write

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.errors import NonEmptyGroupError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

Restart = Callable[[], Node]
SESSION_MS = 10_000
"""Of `WireMember`."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["closed", "killed"])
def restart(store_dir: Path, clock: Clock, request: Any) -> Iterator[Restart]:
    """A node; each further call gives one over the store that the last one has left."""
    config = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    places = [store_dir]
    with ExitStack() as stack:
        held: list[segstore.Store] = []

        def begin() -> Node:
            if held and request.param == "closed":
                held.pop().close()
            elif held:
                places.append(store_dir.with_name(f"life{len(places)}"))
                shutil.copytree(places[-2], places[-1])
                held.pop().close()
            store = segstore.open(places[-1], config=config, files=Unsynced(), clock=clock)
            held.append(stack.enter_context(store))
            if "t" not in store.topics():
                store.create_topic("t", partitions=2)
            return node_of(store, group_initial_rebalance_delay_ms=0)

        yield begin
    for place in places:
        assert segstore.check(place) == []


def offsets(node: Node, me: Identity, offset: int) -> list[int]:
    """Add a group's offsets to the transaction."""
    told = {"transactional_id": "x", "producer_id": me[0], "producer_epoch": me[1], "group_id": "g"}
    assert ask(node, Api.ADD_OFFSETS_TO_TXN, 3, **told).error_code == Code.NONE
    kind = structs("TxnOffsetCommitRequest")
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = kind.TxnOffsetCommitRequestTopic(name="t", partitions=[part])
    answer = ask(node, Api.TXN_OFFSET_COMMIT, 3, **told, topics=[topic])
    return [each.error_code for found in answer.topics for each in found.partitions]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_goes_on_and_ends_its_transaction(restart: Restart, version: int, commit: bool) -> None:
    node = restart()
    me = producer(node)
    assert add(node, 3, me, T0) == [Code.NONE]
    write(node.store, T0, me, 0, b"before")
    assert offsets(node, me, 7) == [Code.NONE]
    node = restart()
    assert state(node).transaction_state == "Ongoing"
    assert committed(node.store, T0) == []
    write(node.store, T0, me, 1, b"after")
    assert shared(node.store, GroupOffsets).pending("g") == {T0}
    assert end(node, version, me, commit).error_code == Code.NONE
    assert committed(node.store, T0) == ([b"before", b"after"] if commit else [])
    found = shared(node.store, GroupOffsets).fetch("g", [T0]).get(T0)
    assert (found.offset if found else None) == (7 if commit else None)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_whose_answer_was_lost_is_asked_for_again(
    restart: Restart, version: int, commit: bool
) -> None:
    node = restart()
    me = producer(node)
    add(node, 3, me, T0)
    first = end(node, version, me, commit)
    node = restart()
    again = end(node, version, me, commit)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (
        *(Code.NONE, first.producer_id, first.producer_epoch),
    )
    other = end(node, version, me, not commit)
    assert other.error_code in (Code.INVALID_TXN_STATE, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH)


def test_a_producer_that_does_not_come_back_is_aborted_in_time(restart: Restart, clock: Clock) -> None:
    node = restart()
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"left")
    node = restart()
    transactions = shared(node.store, TransactionCoordinator)
    transactions.abort_timed_out()
    assert state(node).transaction_state == "Ongoing"
    clock.now += TIMEOUT_MS + 1
    transactions.abort_timed_out()
    assert state(node).transaction_state == "CompleteAbort"
    log = node.store.partition(*T0)
    assert log.last_stable_offset == log.end_offset


def test_a_producer_that_comes_back_anew_aborts_what_it_left(restart: Restart) -> None:
    node = restart()
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"left")
    node = restart()
    assert producer(node) > me
    assert state(node).transaction_state == "Empty"
    assert end(node, 4, me, True).error_code in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH)
    assert committed(node.store, T0) == []


@pytest.mark.parametrize("mine", [True, False])
def test_a_producer_within_the_process_ends_with_it(restart: Restart, mine: bool) -> None:
    """Also one that has taken a transactional id over from the wire; and the other way round."""
    node = restart()
    if mine:
        producer(node)
    with segstore.Producer(node.store, transactional_id="x") as inner:
        inner.init_transactions()
        inner.begin_transaction()
        inner.send("t", b"left", partition=0)
        inner.flush()
        if not mine:
            me = producer(node)
            add(node, 3, me, T0)
        node = restart()
    assert state(node).transaction_state == ("CompleteAbort" if mine else "Ongoing")


# --- members of classic groups -------------------------------------------------------------------


def test_a_member_on_the_wire_goes_on(restart: Restart) -> None:
    member = WireMember(restart()).alone(TopicPartition("t", 0))
    member.node = restart()
    clock = Monotonic()
    found = coordinator(member.node.store, clock)
    assert member.heartbeat() is Code.NONE
    assert found.generation("g") == member.generation
    clock.now += SESSION_MS
    assert member.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert is_empty(member.node.store)


@pytest.mark.parametrize("tool", ["delete", "reset", "delete_offsets"])
def test_a_group_whose_member_goes_on_is_not_empty_for_tools(restart: Restart, tool: str) -> None:
    node = restart()
    member = WireMember(node).alone(T0)
    shared(node.store, GroupOffsets).commit("g", {T0: OffsetAndMetadata(1)})
    member.node = restart()
    groups = segstore.Groups(member.node.store)
    asked = {"delete": (), "reset": (segstore.Reset.to_earliest(),), "delete_offsets": (["t"],)}[tool]
    with segstore.serve(member.node.store, port=0):
        with pytest.raises(NonEmptyGroupError):
            getattr(groups, tool)("g", *asked)
        (found,) = groups.list()
        assert found.state == "Stable"
        assert [each.member_id for each in groups.describe("g").members] == [member.member_id]
        assert member.heartbeat() is Code.NONE


def test_a_consumer_in_the_process_ends_with_it(restart: Restart) -> None:
    with segstore.Consumer(restart().store, group_id="g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0)
        assert consumer.assignment()
        assert member_ids(restart().store) == []
