"""Transactions on the wire: each API in its versions, by raw requests. Clients before KIP-890 keep their
epoch, newer ones get another one with each end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import node_of
from groups import Unsynced
from parked import WireMember, ask
from stores import Clock

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.errors import InvalidProducerEpochError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.server.apis import Api, served
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.storage.log.append import append_record

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 60_000
Identity = tuple[int, int]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_dir: Path, clock: Clock) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with segstore.open(store_dir, config=config, files=Unsynced(), clock=clock) as store:
        store.create_topic("t", partitions=2)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Node:
    return node_of(store, group_initial_rebalance_delay_ms=0)


def versions(api: Api, low: int = 0, high: int = 99) -> list[int]:
    lowest, highest = served(api)
    return list(range(max(low, lowest), min(high, highest) + 1))


def init(node: Node, version: int = 4, name: str = "x", **fields: Any) -> Any:
    told = {"transactional_id": name, "transaction_timeout_ms": TIMEOUT_MS, **fields}
    return ask(node, Api.INIT_PRODUCER_ID, version, **told)


def producer(node: Node, name: str = "x") -> Identity:
    made = init(node, name=name)
    assert made.error_code == Code.NONE
    return made.producer_id, made.producer_epoch


def topics(kind: Any, partitions: tuple[TopicPartition, ...]) -> list[Any]:
    return [kind(name=at.topic, partitions=[at.partition]) for at in partitions]


def add(node: Node, version: int, me: Identity, *partitions: TopicPartition, name: str = "x") -> list[Code]:
    kind = structs("AddPartitionsToTxnRequest").AddPartitionsToTxnTopic
    answer = ask(
        node,
        Api.ADD_PARTITIONS_TO_TXN,
        version,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=me[0],
        v3_and_below_producer_epoch=me[1],
        v3_and_below_topics=topics(kind, partitions),
    )
    found = answer.results_by_topic_v3_and_below
    return [Code(part.partition_error_code) for topic in found for part in topic.results_by_partition]


def end(node: Node, version: int, me: Identity, commit: bool, name: str = "x") -> Any:
    fields = {"transactional_id": name, "producer_id": me[0], "producer_epoch": me[1]}
    return ask(node, Api.END_TXN, version, committed=commit, **fields)


def write(store: segstore.Store, at: TopicPartition, me: Identity, sequence: int, value: bytes) -> None:
    template = Template(TRANSACTIONAL_FLAG, *me, sequence)
    append_record(store.partition(*at), value, None, (), store.context.clock(), None, template)


def committed(store: segstore.Store, at: TopicPartition) -> list[bytes | None]:
    return list(store.partition(*at).read(0, isolation_level="read_committed").values)


def state(node: Node, name: str = "x") -> Any:
    (found,) = ask(node, Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name]).transaction_states
    return found


# --- KIP-98: a producer keeps its epoch ----------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.END_TXN, high=4))
def test_transactions_of_one_epoch(node: Node, version: int) -> None:
    """Committed, aborted and committed again: sequences go on, and only what was committed is seen."""
    me = producer(node)
    for sequence, (value, commit) in enumerate([(b"a", True), (b"b", False), (b"c", True)]):
        assert add(node, min(version, 3), me, T0, T1) == [Code.NONE] * 2
        write(node.store, T0, me, sequence, value)
        assert state(node).transaction_state == "Ongoing"
        assert end(node, version, me, commit).error_code == Code.NONE
    assert committed(node.store, T0) == [b"a", b"c"]
    assert committed(node.store, T1) == []
    assert (state(node).transaction_state, state(node).producer_epoch) == ("CompleteCommit", me[1])


def test_an_end_may_be_asked_for_again_but_not_the_other_one(node: Node) -> None:
    me = producer(node)
    assert end(node, 4, me, True).error_code == Code.INVALID_TXN_STATE  # nothing was begun
    add(node, 3, me, T0)
    for commit, code in ((True, Code.NONE), (True, Code.NONE), (False, Code.INVALID_TXN_STATE)):
        assert end(node, 4, me, commit).error_code == code


@pytest.mark.parametrize("commit", [True, False])
def test_a_store_that_was_closed_knows_such_transactions(node: Node, store_dir: Path, commit: bool) -> None:
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"a")
    end(node, 4, me, commit)
    add(node, 3, me, T0)
    write(node.store, T0, me, 1, b"left open")
    node.store.close()
    with segstore.open(store_dir) as store:
        assert committed(store, T0) == ([b"a"] if commit else [])


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(
    node: Node, clock: Clock
) -> None:
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"late")
    clock.now += TIMEOUT_MS + 1
    shared(node.store, TransactionCoordinator).abort_timed_out()
    assert state(node).transaction_state == "CompleteAbort"
    assert end(node, 4, me, True).error_code == Code.PRODUCER_FENCED
    assert add(node, 3, me, T0) == [Code.PRODUCER_FENCED]
    with pytest.raises(InvalidProducerEpochError):
        write(node.store, T0, me, 1, b"later")
    assert committed(node.store, T0) == []


# --- fencing -------------------------------------------------------------------------------------


def test_a_new_producer_fences_the_one_before_in_the_words_of_each_version(node: Node) -> None:
    old = producer(node)
    new = producer(node)
    assert new == (old[0], old[1] + 1)
    stale, fenced = Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED
    for version in versions(Api.ADD_PARTITIONS_TO_TXN, high=3):
        assert add(node, version, old, T0) == [stale if version < 2 else fenced]
    for version in versions(Api.END_TXN):
        assert end(node, version, old, True).error_code == (stale if version < 2 else fenced)
    for version in versions(Api.ADD_OFFSETS_TO_TXN):
        assert add_offsets(node, version, old) == (stale if version < 2 else fenced)
    for version in versions(Api.TXN_OFFSET_COMMIT):
        assert commit_offset(node, version, old, 5) is stale
    for version in (3, 4):
        again = init(node, version, producer_id=old[0], producer_epoch=old[1])
        assert again.error_code == (stale if version < 4 else fenced)
        assert (again.producer_id, again.producer_epoch) == (-1, -1)


def test_another_producer_id_and_an_unknown_transactional_id_are_told_apart(node: Node) -> None:
    producer(node)
    assert add(node, 3, (99, 0), T0) == [Code.INVALID_PRODUCER_ID_MAPPING]
    assert add(node, 3, (0, 0), T0, name="y") == [Code.INVALID_PRODUCER_ID_MAPPING]
    assert add(node, 3, (0, 0), T0, name="") == [Code.INVALID_REQUEST]
    assert end(node, 4, (99, 0), True).error_code == Code.INVALID_PRODUCER_ID_MAPPING
    assert end(node, 4, (0, 0), True, name="y").error_code == Code.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_wants_another_epoch_may_ask_again(node: Node) -> None:
    """KIP-360: the first answer may be lost. The open transaction is aborted."""
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"aborted")
    answers = [init(node, producer_id=me[0], producer_epoch=me[1]) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0].error_code == Code.NONE
    assert answers[0].producer_epoch > me[1]
    assert committed(node.store, T0) == []


def test_an_init_is_refused_for_a_timeout_that_is_too_long(node: Node) -> None:
    assert init(node, transaction_timeout_ms=10**9).error_code == Code.INVALID_TRANSACTION_TIMEOUT
    assert init(node, name="").error_code == Code.INVALID_REQUEST


# --- partitions ----------------------------------------------------------------------------------


def test_where_one_partition_can_not_be_added_none_is(node: Node) -> None:
    me = producer(node)
    gone, internal = TopicPartition("t", 7), TopicPartition("__transaction_state", 0)
    assert add(node, 3, me, T0, gone, internal) == [
        Code.OPERATION_NOT_ATTEMPTED,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert state(node).transaction_state == "Empty"


@pytest.mark.parametrize("version", versions(Api.ADD_PARTITIONS_TO_TXN, low=4))
def test_partitions_of_several_transactions_are_added_or_verified(node: Node, version: int) -> None:
    x, y = producer(node), producer(node, "y")
    kinds = structs("AddPartitionsToTxnRequest")

    def asked(name: str, me: Identity, verify: bool, *partitions: TopicPartition) -> Any:
        return kinds.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=me[0],
            producer_epoch=me[1],
            verify_only=verify,
            topics=topics(kinds.AddPartitionsToTxnTopic, partitions),
        )

    assert add(node, 3, y, T1, name="y") == [Code.NONE]
    wanted = [asked("x", x, False, T0), asked("y", y, True, T0, T1)]
    answer = ask(node, Api.ADD_PARTITIONS_TO_TXN, version, transactions=wanted)
    missing = Code.TRANSACTION_ABORTABLE if version >= 5 else Code.INVALID_TXN_STATE
    assert [
        (
            each.transactional_id,
            [p.partition_error_code for t in each.topic_results for p in t.results_by_partition],
        )
        for each in answer.results_by_transaction
    ] == [("x", [Code.NONE]), ("y", [missing, Code.NONE])]
    assert state(node).transaction_state == "Ongoing"


# --- offsets -------------------------------------------------------------------------------------


def add_offsets(node: Node, version: int, me: Identity) -> int:
    fields = {"transactional_id": "x", "producer_id": me[0], "producer_epoch": me[1], "group_id": "g"}
    return int(ask(node, Api.ADD_OFFSETS_TO_TXN, version, **fields).error_code)


def commit_offset(node: Node, version: int, me: Identity, offset: int, **member: Any) -> Code:
    kinds = structs("TxnOffsetCommitRequest")
    part = kinds.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic_id = member.pop("topic_id", node.part(Logs).id_of("t"))
    answer = ask(
        node,
        Api.TXN_OFFSET_COMMIT,
        version,
        transactional_id="x",
        **{"group_id": "g", **member},
        producer_id=me[0],
        producer_epoch=me[1],
        topics=[kinds.TxnOffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[part])],
    )
    return Code(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", versions(Api.TXN_OFFSET_COMMIT))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_with_their_transaction(node: Node, version: int, commit: bool) -> None:
    me = producer(node)
    kept = shared(node.store, GroupOffsets)
    if version < 5:
        missing = Code.TRANSACTION_ABORTABLE if version >= 4 else Code.INVALID_TXN_STATE
        assert commit_offset(node, version, me, 5) is missing
        assert add_offsets(node, min(version, 4), me) == Code.NONE
    assert commit_offset(node, version, me, 5) is Code.NONE
    assert kept.fetch("g") == {}
    assert kept.pending("g") == {T0}
    assert end(node, 5 if version >= 5 else 4, me, commit).error_code == Code.NONE
    assert kept.fetch("g") == ({T0: OffsetAndMetadata(5)} if commit else {})


def test_only_members_of_the_generation_commit_offsets_in_a_transaction(node: Node) -> None:
    """KIP-447: a member that was replaced commits nothing, whoever's producer it has."""
    me = producer(node)
    add_offsets(node, 4, me)
    member = WireMember(node).alone(T0, T1)
    generation = "generation_id_or_member_epoch"
    mine = {"member_id": member.member_id, generation: 1}
    assert commit_offset(node, 3, me, 5, **mine | {generation: 0}) is Code.ILLEGAL_GENERATION
    assert commit_offset(node, 3, me, 5, **mine | {"member_id": "nobody"}) is Code.UNKNOWN_MEMBER_ID
    assert commit_offset(node, 3, me, 5, **mine) is Code.NONE
    assert commit_offset(node, 2, me, 6) is Code.NONE  # older clients do not say who they are


def test_offsets_are_committed_by_ids_from_version_6_on(node: Node) -> None:
    """KIP-1319: a topic that is not there now, a group that is not there, and a stale member have codes."""
    me = producer(node)
    stale: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": 3}
    assert commit_offset(node, 6, me, 5, topic_id=b"x" * 16) is Code.UNKNOWN_TOPIC_ID
    assert commit_offset(node, 6, me, 5, topic_id=bytes(16)) is Code.UNKNOWN_TOPIC_ID
    for version, code in ((5, Code.ILLEGAL_GENERATION), (6, Code.GROUP_ID_NOT_FOUND)):
        assert commit_offset(node, version, me, 5, group_id="nowhere", **stale) is code
    beat = {"group_id": "g", "member_id": "m", "rebalance_timeout_ms": 9, "topic_partitions": []}
    ask(node, Api.CONSUMER_GROUP_HEARTBEAT, 1, **beat, member_epoch=0, subscribed_topic_names=["t"])
    for version, code in ((5, Code.ILLEGAL_GENERATION), (6, Code.STALE_MEMBER_EPOCH)):
        assert commit_offset(node, version, me, 5, **stale) is code


# --- KIP-890: each transaction has an epoch ------------------------------------------------------


def test_an_end_gives_the_producer_its_next_epoch(node: Node) -> None:
    me = producer(node)
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        add(node, 3, me, T0)
        write(node.store, T0, me, 0, value)
        ended = end(node, 5, me, commit)
        assert ended == end(node, 5, me, commit)  # the first answer may be lost
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, me[0], me[1] + 1)
        me = ended.producer_id, ended.producer_epoch
    assert committed(node.store, T0) == [b"a", b"c"]


def test_both_generations_and_the_process_at_once(node: Node) -> None:
    """A producer of each kind has a transaction open in one partition; each ends its own."""
    old, new = producer(node, "old"), producer(node, "new")
    with segstore.Producer(node.store, transactional_id="ours") as ours:
        ours.init_transactions()
        ours.begin_transaction()
        ours.send("t", b"ours", partition=0)
        ours.flush()
        for name, me in (("old", old), ("new", new)):
            add(node, 3, me, T0, name=name)
            write(node.store, T0, me, 0, name.encode())
        assert end(node, 4, old, True, "old").error_code == Code.NONE
        assert end(node, 5, new, False, "new").error_code == Code.NONE
        assert committed(node.store, T0) == []
        ours.commit_transaction()
    assert committed(node.store, T0) == [b"ours", b"old"]


# --- administrators ------------------------------------------------------------------------------


def test_transactions_are_described(node: Node, clock: Clock) -> None:
    me = producer(node)
    begun = clock.now
    add(node, 3, me, T0, T1)
    found = state(node)
    assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (
        0,
        "Ongoing",
        TIMEOUT_MS,
    )
    assert (found.producer_id, found.producer_epoch, found.transaction_start_time_ms) == (*me, begun)
    assert [(t.topic, t.partitions) for t in found.topics] == [("t", [0, 1])]
    assert state(node, "y").error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert state(node, "").error_code == Code.INVALID_REQUEST


def test_transactions_are_listed_by_filters(node: Node, clock: Clock) -> None:
    me = producer(node, "app-1")
    other = producer(node, "app-2")
    add(node, 3, me, T0, name="app-1")
    clock.now += 1000

    def listed(version: int, **filters: Any) -> list[str]:
        found = ask(node, Api.LIST_TRANSACTIONS, version, **filters)
        return [each.transactional_id for each in found.transaction_states]

    for version in versions(Api.LIST_TRANSACTIONS):
        assert listed(version) == ["app-1", "app-2"]
        assert listed(version, state_filters=["Ongoing", "Dead"]) == ["app-1"]
        assert listed(version, producer_id_filters=[other[0]]) == ["app-2"]
    assert listed(1, duration_filter=1000, state_filters=["Ongoing"]) == []
    assert listed(1, duration_filter=999, state_filters=["Ongoing"]) == ["app-1"]
    assert listed(2, transactional_id_pattern=".*-2") == ["app-2"]
    wrong = ask(node, Api.LIST_TRANSACTIONS, 2, transactional_id_pattern="(")
    assert wrong.error_code == Code.INVALID_REGULAR_EXPRESSION
    unknown = ask(node, Api.LIST_TRANSACTIONS, 0, state_filters=["Sleeping"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Sleeping"], [])


def test_producers_of_a_partition_are_described(node: Node) -> None:
    me = producer(node)
    add(node, 3, me, T0)
    write(node.store, T0, me, 0, b"a")
    kind = structs("DescribeProducersRequest").TopicRequest
    (topic,) = ask(
        node, Api.DESCRIBE_PRODUCERS, 0, topics=[kind(name="t", partition_indexes=[0, 1, 7])]
    ).topics
    first, second, gone = topic.partitions
    (found,) = first.active_producers
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (*me, 0)
    assert found.current_txn_start_offset == 0
    assert second.active_producers == []
    assert gone.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    end(node, 4, me, True)
    (topic,) = ask(node, Api.DESCRIBE_PRODUCERS, 0, topics=[kind(name="t", partition_indexes=[0])]).topics
    (found,) = topic.partitions[0].active_producers
    assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 0)
