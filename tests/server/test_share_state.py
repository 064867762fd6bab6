"""The durable states of share partitions on the wire, as brokers ask each other for them (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import call
from fetches import id_of, serving
from share_members import ACCEPT, ShareMember

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

INITIALIZE, READ, WRITE = (
    Api.INITIALIZE_SHARE_GROUP_STATE,
    Api.READ_SHARE_GROUP_STATE,
    Api.WRITE_SHARE_GROUP_STATE,
)
DELETE, SUMMARY = Api.DELETE_SHARE_GROUP_STATE, Api.READ_SHARE_GROUP_STATE_SUMMARY
TOPICS = {
    INITIALIZE: "InitializeStateData",
    READ: "ReadStateData",
    WRITE: "WriteStateData",
    DELETE: "DeleteStateData",
    SUMMARY: "ReadStateSummaryData",
}
NO_ID, OTHER = bytes(16), b"\1" * 16


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        store.create_topic("t")
        store.partition("t", 0).append_batch([b"x"] * 10)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = serving(store)
    yield node
    node.close()
    node.loop.run()


def ask(node: Node, api: Api, version: int = 0, topic_id: bytes | None = None, **fields: Any) -> Any:
    """Return the row of the only partition that is asked for."""
    kind = structs(f"{api.message}Request")
    row = kind.PartitionData(**{"partition": 0, **fields})
    topic = getattr(kind, TOPICS[api])(topic_id=topic_id or id_of(node, "t"), partitions=[row])
    (told,) = call(node, api, version, group_id="g", topics=[topic]).results
    assert told.topic_id == topic.topic_id
    (answer,) = told.partitions
    assert (answer.partition, bool(answer.error_message)) == (row.partition, bool(answer.error_code))
    return answer


def initialised(node: Node, state_epoch: int = 3, start: int = 2) -> None:
    assert ask(node, INITIALIZE, state_epoch=state_epoch, start_offset=start).error_code == Code.NONE


def batch(first: int, last: int, state: int, count: int) -> Any:
    kind = structs("WriteShareGroupStateRequest").StateBatch
    return kind(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)


def state(node: Node, leader_epoch: int = 0) -> tuple[Any, ...]:
    told = ask(node, READ, leader_epoch=leader_epoch)
    assert told.error_code == Code.NONE, told
    batches = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in told.state_batches
    ]
    return told.state_epoch, told.start_offset, batches


def test_a_state_is_begun_written_read_and_deleted(node: Node) -> None:
    initialised(node)
    assert state(node) == (3, 2, [])
    written = ask(
        *(node, WRITE, 1),
        state_epoch=3,
        leader_epoch=0,
        start_offset=2,
        delivery_complete_count=1,
        state_batches=[batch(3, 3, 2, 1), batch(4, 5, 0, 2)],
    )
    assert written.error_code == Code.NONE
    assert state(node) == (3, 2, [(3, 3, 2, 1), (4, 5, 0, 2)])
    told = ask(node, SUMMARY, 1)
    assert (told.state_epoch, told.leader_epoch, told.start_offset, told.delivery_complete_count) == (
        *(3, 0, 2, 1),
    )
    assert ask(node, SUMMARY, 0).delivery_complete_count == -1  # which version 0 does not know
    assert ask(node, DELETE).error_code == Code.NONE
    assert ask(node, READ).error_code == Code.INVALID_REQUEST


def test_a_write_of_version_0_leaves_the_count(node: Node) -> None:
    initialised(node)
    wanted = {"state_epoch": 3, "leader_epoch": 0, "start_offset": 2}
    assert ask(node, WRITE, 1, delivery_complete_count=2, **wanted).error_code == Code.NONE
    assert ask(node, WRITE, 0, **wanted).error_code == Code.NONE
    assert ask(node, SUMMARY, 1).delivery_complete_count == 2


def test_a_leader_makes_its_epoch_known(node: Node) -> None:
    initialised(node)
    assert state(node, leader_epoch=5) == (3, 2, [])
    assert ask(node, SUMMARY, 1).leader_epoch == 5
    assert ask(node, READ, leader_epoch=4).error_code == Code.FENCED_LEADER_EPOCH
    refused = ask(node, WRITE, state_epoch=3, leader_epoch=4, start_offset=2)
    assert refused.error_code == Code.FENCED_LEADER_EPOCH


NOT_THERE = {
    "no topic id": ({"topic_id": NO_ID}, Code.INVALID_REQUEST),
    "a negative partition": ({"partition": -1}, Code.INVALID_REQUEST),
    "an unknown topic": ({"topic_id": OTHER}, Code.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown partition": ({"partition": 7}, Code.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.parametrize(("fields", "code"), NOT_THERE.values(), ids=NOT_THERE)
def test_partitions_that_are_not_there(node: Node, fields: dict[str, Any], code: Code) -> None:
    initialised(node)
    for api in (INITIALIZE, DELETE, SUMMARY):
        assert ask(node, api, **fields).error_code == code, api
    # What was never begun is met first.
    assert ask(node, READ, **fields).error_code == Code.INVALID_REQUEST
    assert ask(node, WRITE, **fields).error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state_epoch": 2}, Code.FENCED_STATE_EPOCH),
        ({"state_epoch": -1}, Code.INVALID_REQUEST),
        ({"leader_epoch": -1}, Code.INVALID_REQUEST),
        ({"state_batches": [batch(5, 4, 2, 1)]}, Code.INVALID_REQUEST),
        ({"state_batches": [batch(4, 4, 1, 1)]}, Code.INVALID_REQUEST),
    ],
    ids=str,
)
def test_q53_writes_that_are_refused(node: Node, fields: dict[str, Any], code: Code) -> None:
    initialised(node)
    good = {"state_epoch": 3, "leader_epoch": 0, "start_offset": 2}
    assert ask(node, WRITE, **{**good, **fields}).error_code == code
    assert state(node) == (3, 2, [])


def test_a_state_is_begun_anew_by_a_later_epoch(node: Node) -> None:
    initialised(node)
    assert ask(node, INITIALIZE, state_epoch=2, start_offset=0).error_code == Code.FENCED_STATE_EPOCH
    assert ask(node, INITIALIZE, state_epoch=4, start_offset=0).error_code == Code.NONE
    assert state(node) == (4, 0, [])


def test_what_was_never_begun(node: Node) -> None:
    assert ask(node, READ).error_code == Code.INVALID_REQUEST
    assert ask(node, WRITE).error_code == Code.INVALID_REQUEST
    assert ask(node, DELETE).error_code == Code.NONE
    told = ask(node, SUMMARY, 1)
    assert (told.error_code, told.state_epoch, told.leader_epoch) == (Code.NONE, 0, 0)
    assert (told.start_offset, told.delivery_complete_count) == (-1, -1)


def test_a_share_partition_in_memory_gives_way(node: Node) -> None:
    """A state from outside counts from the next fetch on; an acknowledgement of before is refused."""
    member = ShareMember(node)
    member.beat()
    assert ask(node, INITIALIZE, state_epoch=9, start_offset=4).error_code == Code.NONE
    assert member.fetch().acquired() == [(4, 9, 1)]
    assert ask(node, INITIALIZE, state_epoch=10, start_offset=6).error_code == Code.NONE
    assert ShareMember(node, "b").fetch().acquired() == [(6, 9, 1)]
    told = member.acknowledge({0: [(4, 4, [ACCEPT])]})
    assert told.codes == {0: Code.NONE}  # below the start of the other state: Q29
    assert ask(node, DELETE).error_code == Code.NONE
    told = member.acknowledge({0: [(6, 6, [ACCEPT])]})
    assert told.codes == {0: Code.NOT_LEADER_OR_FOLLOWER}
    assert member.fetch().codes == {0: Code.UNKNOWN_SERVER_ERROR}
