"""Produce and InitProducerId, by requests to their handlers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from calls import FakeChannel, FakeLoop, call, node_of, send, versions
from sent import NOW, RECORDS, batch, of_producer
from stores import Clock, records, values
from wire_client import WireClient

import segstore
from segstore import names
from segstore.coordinator.quotas import Entity, quotas
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import OffsetNotAvailableError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

TXN = 0x10
_Request = structs("ProduceRequest")


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"transaction.state.log.num.partitions": 1}
    with segstore.open(store_dir, clock=Clock(NOW), config=config) as store:
        store.create_topic("t", 2)
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = node_of(store)
    yield node
    node.close()


def id_of(store: segstore.Store, topic: str = "t") -> bytes:
    return names.topic_id_bytes(store.topics()[topic].topic_id)


def request(node: Node, version: int, *sent: Any, topic: str = "t", **fields: Any) -> dict[str, Any]:
    """The fields of a request with these batches for partitions 0, 1, ..."""
    parts = [_Request.PartitionProduceData(index=i, records=each) for i, each in enumerate(sent)]
    named = (
        {"name": topic} if version < 13 else {"topic_id": fields.pop("topic_id", None) or id_of(node.store)}
    )
    topics = [_Request.TopicProduceData(partition_data=parts, **named)]
    return {"acks": 1, "timeout_ms": 1000, "topic_data": topics, **fields}


def produce(node: Node, version: int, *sent: Any, **fields: Any) -> list[Any]:
    """Return the answers for the partitions."""
    body = call(node, Api.PRODUCE, version, **request(node, version, *sent, **fields))
    (topic,) = body.responses
    return list(topic.partition_responses)


def codes(answers: list[Any]) -> list[int]:
    return [each.error_code for each in answers]


# --- what is written ------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_every_version_writes_the_batches_as_they_came(node: Node, version: int) -> None:
    for n in range(2):
        answers = produce(node, version, batch(1), batch(2))
        assert codes(answers) == [0, 0]
        assert [each.index for each in answers] == [0, 1]
        assert [each.base_offset for each in answers] == [3 * n, 3 * n]
        assert [each.log_append_time_ms for each in answers] == [-1, -1]
        assert [each.log_start_offset for each in answers] == [0 if version >= 5 else -1] * 2
    for number in range(2):
        found = [(r.timestamp, r.key, r.value) for r in records(node.store.partition("t", number))]
        assert found == [r[1:4] for r in RECORDS] * 2


def test_log_append_time_and_log_start_offset(node: Node) -> None:
    node.store.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    (answer,) = produce(node, 9, batch(), topic="stamped")
    assert (answer.base_offset, answer.log_append_time_ms, answer.log_start_offset) == (0, NOW, 0)
    node.store.partition("stamped").delete_records(2)
    assert produce(node, 9, batch(), topic="stamped")[0].log_start_offset == 2


def test_no_acks_no_answer(node: Node) -> None:
    sent = send(node, Api.PRODUCE, 9, **request(node, 9, batch(), acks=0))
    assert (sent.answers, sent.channel.is_open) == ([None], True)
    assert len(values(node.store.partition("t"))) == 3
    sent = send(node, Api.PRODUCE, 9, **request(node, 9, batch(), b"", acks=0))
    assert (sent.answers, sent.channel.is_open) == ([None], False), "an error closes the connection"
    assert len(values(node.store.partition("t"))) == 6


@pytest.mark.parametrize("is_long", [False, True], ids=["in the loop", "in a worker"])
def test_a_quota_mutes_a_producer_that_wants_no_answer(
    node: Node, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-219: nothing else could hold it back."""
    quotas(node.store).alter("test", {"producer_byte_rate": 1})
    if is_long:
        monkeypatch.setattr("segstore.server.handlers.produce.AT_ONCE", 0)
    sent = [send(node, Api.PRODUCE, 9, **request(node, 9, batch(), acks=0)) for _ in range(2)]
    assert [each.answers for each in sent] == [[None], [None]]
    assert sent[1].channel.muted_ms > 0
    other = send(node, Api.PRODUCE, 9, "other", **request(node, 9, batch(), acks=0))
    assert other.channel.muted_ms == 0


def test_a_request_that_may_wait_is_done_by_a_worker(node: Node) -> None:
    assert isinstance(node.loop, FakeLoop)
    produce(node, 9, batch())
    assert node.loop.works == 0
    large = [RECORDS[0]._replace(value=bytes(600_000))]
    produce(node, 9, *[batch(records=large, last_offset_delta=0)] * 2)
    assert node.loop.works == 1
    node.store.alter_topic("t", {"flush.messages": 1})
    assert codes(produce(node, 9, batch())) == [0]
    assert node.loop.works == 2


# --- what is refused ------------------------------------------------------------------------


def test_one_partition_s_error_is_its_own(node: Node) -> None:
    answers = produce(node, 9, batch(), batch()[:-1], batch())
    assert codes(answers) == [0, Code.CORRUPT_MESSAGE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert [each.base_offset for each in answers] == [0, -1, -1]
    assert [each.log_append_time_ms for each in answers] == [-1, -1, -1]


REFUSED = {
    "no records": (None, Code.INVALID_RECORD),
    "empty records": (b"", Code.INVALID_RECORD),
    "two batches": (batch() + batch(), Code.INVALID_RECORD),
    "an old magic": (b"\0" * 16 + b"\1" + b"\0" * 60, Code.INVALID_RECORD),
    "a wrong CRC": (batch()[:-1] + b"?", Code.CORRUPT_MESSAGE),
    "a control batch": (batch(attributes=0x20), Code.INVALID_RECORD),
    "too large": (batch(payload=bytes(1 << 21)), Code.MESSAGE_TOO_LARGE),
    "a sequence with a gap": (of_producer(5, pid=1), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "an old epoch": (of_producer(0, pid=2), Code.INVALID_PRODUCER_EPOCH),
    "a transaction that is not open": (of_producer(0, attributes=TXN), Code.INVALID_TXN_STATE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(node: Node, name: str) -> None:
    sent, code = REFUSED[name]
    assert codes(produce(node, 9, of_producer(0, pid=1))) == [0]
    assert codes(produce(node, 9, of_producer(0, pid=2, epoch=1))) == [0]
    (answer,) = produce(node, 9, sent)
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert node.store.partition("t").end_offset == 2


def test_a_worker_closes_no_connection(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are the loop's: an append in a worker thread that fails without acks ends one there."""
    closed: list[int] = []

    def in_a_thread(loop: FakeLoop, run: Any, done: Any) -> None:
        with ThreadPoolExecutor(1) as workers:
            result = workers.submit(run).result()
        done(result)

    monkeypatch.setattr("segstore.server.handlers.produce.AT_ONCE", 0)
    monkeypatch.setattr(FakeLoop, "_work", in_a_thread)
    monkeypatch.setattr(FakeChannel, "close", lambda channel: closed.append(threading.get_ident()))
    sent = send(node, Api.PRODUCE, 9, **request(node, 9, b"no batch", acks=0))
    assert (sent.answers, closed) == ([None], [threading.get_ident()])


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks(node: Node, acks: int) -> None:
    assert codes(produce(node, 9, batch(), batch(), acks=acks)) == [Code.INVALID_REQUIRED_ACKS] * 2
    assert node.store.partition("t").end_offset == 0


@pytest.mark.parametrize("version", [7, 8, 9])
def test_the_records_that_are_wrong_are_named_from_version_8_on(node: Node, version: int) -> None:
    """KIP-467."""
    node.store.create_topic("compacted", config={"cleanup.policy": "compact"})
    keyless = [RECORDS[0], RECORDS[1]._replace(key=None), RECORDS[2]._replace(key=None)]
    (answer,) = produce(node, version, batch(records=keyless), topic="compacted")
    assert answer.error_code == Code.INVALID_RECORD
    named = [each.batch_index for each in answer.record_errors]
    assert named == ([1, 2] if version >= 8 else [])
    assert (answer.error_message is not None) == (version >= 8)


def test_timestamps_have_a_code_of_their_own(node: Node) -> None:
    node.store.create_topic("near", config={"message.timestamp.after.max.ms": 1})
    far = [RECORDS[0], RECORDS[1]._replace(timestamp=NOW + 10)]
    (answer,) = produce(node, 9, batch(records=far, last_offset_delta=1), topic="near")
    assert answer.error_code == Code.INVALID_TIMESTAMP
    assert [each.batch_index for each in answer.record_errors] == [1]


def test_zstd_from_version_7_on(node: Node) -> None:
    assert codes(produce(node, 6, batch(4))) == [Code.UNSUPPORTED_COMPRESSION_TYPE]
    assert codes(produce(node, 7, batch(4))) == [0]


def test_internal_topics_and_topics_that_are_not_there(node: Node) -> None:
    shared(node.store, TransactionCoordinator).init_producer_id("x", 1000)
    assert codes(produce(node, 9, batch(), topic="__transaction_state")) == [Code.INVALID_TOPIC_EXCEPTION]
    assert codes(produce(node, 9, batch(), topic="absent")) == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_topic_ids(node: Node) -> None:
    old = id_of(node.store)
    assert codes(produce(node, 13, batch())) == [0]
    assert codes(produce(node, 13, batch(), topic_id=b"x" * 16)) == [Code.UNKNOWN_TOPIC_ID]
    node.store.delete_topic("t")
    node.store.create_topic("t")
    assert codes(produce(node, 13, batch(), topic_id=old)) == [Code.UNKNOWN_TOPIC_ID]
    assert codes(produce(node, 13, batch())) == [0]
    assert len(values(node.store.partition("t"))) == 3


def test_a_quota_delays_the_next_request(node: Node) -> None:
    quotas(node.store).alter("slow", {"producer_byte_rate": 10})

    def asked(client: str | None) -> int:
        answer = call(node, Api.PRODUCE, 9, client, **request(node, 9, batch()))
        assert codes(answer.responses[0].partition_responses) == [0]
        return int(answer.throttle_time_ms)

    delays = [asked("slow") for _ in range(5)]
    assert (delays[0], sorted(delays)) == (0, delays)
    assert delays[-1] > 1000
    assert [asked("fast"), asked(None)] == [0, 0]


def test_a_quota_of_a_user_holds_for_all_that_the_user_sends(node: Node) -> None:
    """Who has not authenticated is the user ANONYMOUS."""

    def delays() -> list[int]:
        clients = [f"client {n}" for n in range(5)]
        answers = [call(node, Api.PRODUCE, 9, each, **request(node, 9, batch())) for each in clients]
        return [int(answer.throttle_time_ms) for answer in answers]

    quotas(node.store).alter_entity(Entity("another", None), {"producer_byte_rate": 10})
    assert delays() == [0] * 5
    quotas(node.store).alter_entity(Entity("ANONYMOUS", None), {"producer_byte_rate": 10})
    told = delays()
    assert (told[0], sorted(told)) == (0, told)
    assert told[-1] > 1000


def test_a_repeated_batch_has_its_old_offset(node: Node) -> None:
    offsets = [produce(node, 9, of_producer(n))[0].base_offset for n in (0, 1, 0, 1, 2)]
    assert offsets == [0, 1, 0, 1, 2]


# --- transactions ---------------------------------------------------------------------------


def begun(node: Node, *partitions: int) -> tuple[int, int]:
    """Return a producer whose transaction has these partitions of t."""
    coordinator = shared(node.store, TransactionCoordinator)
    identity = coordinator.init_producer_id("x", 60_000)
    coordinator.add_partitions("x", identity, {TopicPartition("t", number) for number in partitions})
    return identity


def of_transaction(identity: tuple[int, int], seq: int = 0) -> bytearray:
    return of_producer(seq, pid=identity[0], epoch=identity[1], attributes=TXN)


@pytest.mark.parametrize("version", [3, 9, 10, 11])
def test_a_transaction_has_the_partitions_that_were_added(node: Node, version: int) -> None:
    identity = begun(node, 0)
    answers = produce(node, version, *[of_transaction(identity)] * 2, transactional_id="x")
    refused = Code.TRANSACTION_ABORTABLE if version >= 11 else Code.INVALID_TXN_STATE
    assert codes(answers) == [0, refused]
    shared(node.store, TransactionCoordinator).end("x", identity, commit=True)
    late = produce(node, version, of_transaction(identity, 1), transactional_id="x")
    assert codes(late)[0] in (refused, Code.INVALID_PRODUCER_EPOCH)
    log = node.store.partition("t")
    assert len(log.read(0, isolation_level="read_committed")) == 1


def test_from_version_12_on_produce_adds_its_partitions(node: Node) -> None:
    coordinator = shared(node.store, TransactionCoordinator)
    identity = coordinator.init_producer_id("x", 60_000)
    assert codes(produce(node, 12, *[of_transaction(identity)] * 2, transactional_id="x")) == [0, 0]
    assert len(coordinator.transactions()["x"].partitions) == 2
    coordinator.end("x", identity, commit=True)
    assert [len(node.store.partition("t", n).read(0, isolation_level="read_committed")) for n in (0, 1)] == [
        1,
        1,
    ]


def test_a_fenced_producer_and_an_unknown_transactional_id(node: Node) -> None:
    identity = begun(node, 0)
    begun(node, 0)
    fenced = produce(node, 9, of_transaction(identity), transactional_id="x")
    unknown = produce(node, 9, of_transaction((99, 0)), transactional_id="y")
    assert codes(fenced + unknown) == [Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING]
    another = produce(node, 9, of_transaction((identity[0] + 99, 0)), transactional_id="x")
    assert codes(another) == [Code.INVALID_PRODUCER_ID_MAPPING]


# --- calls ----------------------------------------------------------------------------------


def test_a_small_request_takes_one_call_of_c_a_batch(node: Node) -> None:
    for _ in range(3):
        produce(node, 9, batch(), batch())
    called: list[str] = []

    def profile(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "").startswith("seg_"):
            called.append(function.__name__)

    fields = request(node, 9, batch(), batch())
    sys.setprofile(profile)
    try:
        call(node, Api.PRODUCE, 9, **fields)
    finally:
        sys.setprofile(None)
    assert called == ["seg_tail_take", "seg_tail_take"]


# --- producer ids ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.INIT_PRODUCER_ID))
def test_each_idempotent_producer_has_an_id_of_its_own(node: Node, version: int) -> None:
    answers = [call(node, Api.INIT_PRODUCER_ID, version, transactional_id=None) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0)] * 3
    assert len({each.producer_id for each in answers}) == 3


@pytest.mark.parametrize("version", versions(Api.INIT_PRODUCER_ID))
def test_a_transactional_id_keeps_its_id_and_its_epoch_rises(node: Node, version: int) -> None:
    ask = {"transactional_id": "x", "transaction_timeout_ms": 1000}
    first, second = (call(node, Api.INIT_PRODUCER_ID, version, **ask) for _ in range(2))
    assert (first.error_code, second.error_code, second.producer_id) == (0, 0, first.producer_id)
    assert (first.producer_epoch, second.producer_epoch) == (0, 1)
    if version < 3:
        return
    ids = {"producer_id": first.producer_id, "producer_epoch": 0}
    fenced = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
    answer = call(node, Api.INIT_PRODUCER_ID, version, **ask, **ids)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (fenced, -1, -1)
    answer = call(node, Api.INIT_PRODUCER_ID, version, **ask, **{**ids, "producer_epoch": 1})
    assert (answer.error_code, answer.producer_epoch) == (0, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, Code.INVALID_REQUEST),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": "x", "transaction_timeout_ms": 1 << 30}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": None, "producer_id": 5}, Code.INVALID_REQUEST),
    ],
)
def test_ids_that_are_refused(node: Node, fields: dict[str, Any], code: Code) -> None:
    answer = call(node, Api.INIT_PRODUCER_ID, 4, **fields)
    assert (answer.error_code, answer.producer_id) == (code, -1)


def test_a_producer_asks_again_while_the_coordinator_loads(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(log: object) -> None:
        raise OffsetNotAvailableError("__transaction_state-0: not all that was committed is shown yet")

    ask = {"transactional_id": "x", "transaction_timeout_ms": 1000}
    with monkeypatch.context() as patched:
        patched.setattr(TransactionStateLog, "load", load)
        answer = call(node, Api.INIT_PRODUCER_ID, 4, **ask)
        assert answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert call(node, Api.INIT_PRODUCER_ID, 4, **ask).error_code == Code.NONE


# --- by a socket ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_server_appends_what_a_socket_brings(
    node: Node, wire: WireClient, version: int, store: segstore.Store
) -> None:
    """Small batches, and one that a worker appends, in the order in which they were sent."""
    large = batch(records=[RECORDS[0]._replace(value=bytes(1_500_000))], last_offset_delta=0)
    store.alter_topic("t", {"max.message.bytes": 2_000_000})
    offsets = []
    for sent in (batch(), batch(3), large, batch(2)):
        answer = wire.ask(Api.PRODUCE, version, **request(node, version, sent))
        (part,) = answer.responses[0].partition_responses
        assert part.error_code == 0
        offsets.append(part.base_offset)
    assert offsets == [0, 3, 6, 7]
    assert [r.offset for r in records(store.partition("t"))] == list(range(10))


@pytest.mark.parametrize("version", [9, 12])
def test_a_transaction_on_a_store_that_is_open_for_reading(
    store: segstore.Store, store_dir: Path, version: int
) -> None:
    """Its batch is refused, as any other is; the connection goes on."""
    transactional = of_producer(attributes=TXN)
    with segstore.open(store_dir, mode="r") as reader:
        node = node_of(reader)
        told = [
            codes(produce(node, version, sent, transactional_id=name))
            for sent, name in ((batch(), None), (transactional, "x"))
        ]
        assert told[0] == told[1] != [Code.NONE]
        node.close()
