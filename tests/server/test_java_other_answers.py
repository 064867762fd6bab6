"""Promise: docs/serve.md tells each answer that differs from that of a real broker on purpose, and a broker
still answers as is told there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from oracle import Batch, Record, encode_batch
from waiting import until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
    pytest.mark.kind("Java's clients"),
]
MORE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
Step = Callable[["Asking"], Any]
PRODUCE, COMMIT, FETCH = (
    structs("ProduceRequest"),
    structs("OffsetCommitRequest"),
    structs("OffsetFetchRequest"),
)
SCRAM = structs("AlterUserScramCredentialsRequest")
TXN, NEW = structs("TxnOffsetCommitRequest"), structs("CreateTopicsRequest").CreatableTopic
GZIP, FOREIGN_CODEC, APPEND_TIME, HORIZON = 1, 5, 1 << 3, 1 << 6
TOPICS = ("plain", "sequences", "groups")


def batch(first: int = -1, producer: tuple[int, int] = (-1, -1)) -> Batch:
    """Return a batch of two records."""
    records = [Record(n, 1000 + n, None, b"v%d" % n, []) for n in range(2)]
    return Batch(
        last_offset_delta=1, base_timestamp=1000, max_timestamp=1001, base_sequence=first,
        producer_id=producer[0], producer_epoch=producer[1], records=records,
    )  # fmt: skip


class Asking:
    """A client of a broker, or of our server, that has the topics."""

    def __init__(self, host: str, port: int) -> None:
        self.wire = WireClient(host, port)
        topics = [NEW(name=name, num_partitions=1, replication_factor=1) for name in TOPICS]
        self.wire.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000)
        for kind, name in ((0, "g"), (1, "tx")):
            until(lambda kind=kind, name=name: self._is_there(kind, name))
        until(lambda: self.fetched("g")[0] == 0)
        self.ids = self._producer("tx")

    def _is_there(self, kind: int, name: str) -> bool:
        found = self.wire.ask("FindCoordinator", 4, key_type=kind, coordinator_keys=[name])
        return not found.coordinators[0].error_code

    def _producer(self, name: str | None) -> tuple[int, int]:
        found: list[Any] = []

        def asked() -> bool:
            found[:] = [
                self.wire.ask("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
            ]
            return not found[0].error_code

        until(asked)
        return found[0].producer_id, found[0].producer_epoch

    def sent(self, data: bytes, topic: str = "plain") -> int:
        part = PRODUCE.PartitionProduceData(index=0, records=data)
        topics = [PRODUCE.TopicProduceData(name=topic, partition_data=[part])]
        answer = self.wire.ask("Produce", 9, acks=-1, timeout_ms=30_000, topic_data=topics)
        return int(answer.responses[0].partition_responses[0].error_code)

    def sequences(self) -> list[int]:
        """Return the answers to eight batches, and to the first one once more."""
        producer = self._producer(None)
        return [self.sent(encode_batch(batch(first * 2, producer)), "sequences") for first in (*range(8), 0)][
            -2:
        ]

    def committed(self, group: str, offset: int, version: int = 9) -> int:
        part = COMMIT.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topics = [COMMIT.OffsetCommitRequestTopic(name="groups", partitions=[part])]
        (topic,) = self.wire.ask("OffsetCommit", version, group_id=group, topics=topics).topics
        return int(topic.partitions[0].error_code)

    def fetched(self, group: str, *, stable: bool = False) -> tuple[int, ...]:
        topics = [FETCH.OffsetFetchRequestTopics(name="groups", partition_indexes=[0])]
        asked = [FETCH.OffsetFetchRequestGroup(group_id=group, topics=topics)]
        (found,) = self.wire.ask("OffsetFetch", 9, groups=asked, require_stable=stable).groups
        parts = [part for topic in found.topics for part in topic.partitions]
        return (found.error_code, *(x for part in parts for x in (part.committed_offset, part.error_code)))

    def commit_of(self, transactional_id: str, offset: int) -> int:
        """Commit within a transaction of this client's producer, that of `tx`."""
        fields = {"producer_id": self.ids[0], "producer_epoch": self.ids[1], "group_id": "g"}
        added = self.wire.ask("AddOffsetsToTxn", 3, transactional_id="tx", **fields).error_code
        assert added == 0
        part = TXN.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topics = [TXN.TxnOffsetCommitRequestTopic(name="groups", partitions=[part])]
        answer = self.wire.ask(
            "TxnOffsetCommit", 3, transactional_id=transactional_id, topics=topics, **fields
        )
        return int(answer.topics[0].partitions[0].error_code)

    def plain_over_pending(self) -> tuple[int, ...]:
        """Return what a stable fetch finds while a pending commit is followed by a plain one."""
        assert self.commit_of("tx", 5) == 0
        assert self.committed("g", 9) == 0
        return self.fetched("g", stable=True)

    def first_epoch(self) -> int:
        told = {"subscribed_topic_names": ["groups"], "topic_partitions": [], "rebalance_timeout_ms": 60_000}
        answer = self.wire.ask(
            "ConsumerGroupHeartbeat", 1, group_id="modern", member_id="m", member_epoch=0, **told
        )
        assert answer.error_code == 0, answer
        return int(answer.member_epoch)

    def found(self, name: str) -> int:
        topics = [structs("MetadataRequest").MetadataRequestTopic(name=name)]
        answer = self.wire.ask("Metadata", 12, topics=topics, allow_auto_topic_creation=True)
        return int(answer.topics[0].error_code)

    def both_mechanisms(self) -> int:
        """Give a user credentials of both mechanisms in one request."""
        fields = {"name": "u", "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
        asked = [SCRAM.ScramCredentialUpsertion(mechanism=mechanism, **fields) for mechanism in (1, 2)]
        (answer,) = self.wire.ask("AlterUserScramCredentials", 0, upsertions=asked, deletions=[]).results
        return int(answer.error_code)

    def created_by_metadata(self) -> list[int]:
        """Return the first answer about a topic that isn't there, and the answer after its creation."""
        first = self.found("unheard-of")
        until(lambda: self.found("unheard-of") == 0)
        return [first, 0]


def flagged(attributes: int) -> bytes:
    return encode_batch(replace(batch(), attributes=attributes))


def with_offsets(*offsets: int) -> bytes:
    records = [each._replace(offset=n) for each, n in zip(batch().records, offsets, strict=True)]
    return encode_batch(replace(batch(), records=records))


OTHERWISE: dict[str, tuple[Step, Any, Any]] = {
    "bytes behind a batch": (lambda to: to.sent(encode_batch(batch()) + b"\0"), 0, Code.INVALID_RECORD),
    "a client's append time": (lambda to: to.sent(flagged(APPEND_TIME)), 0, Code.INVALID_TIMESTAMP),
    "a client's delete horizon": (lambda to: to.sent(flagged(HORIZON)), 0, Code.INVALID_RECORD),
    "offsets that do not follow": (lambda to: to.sent(with_offsets(0, 5)), 0, Code.INVALID_RECORD),
    "a codec of no name": (
        lambda to: to.sent(flagged(FOREIGN_CODEC)), Code.UNKNOWN_SERVER_ERROR, Code.INVALID_RECORD
    ),
    "a codec that can't be read": (
        lambda to: to.sent(flagged(GZIP)), Code.UNKNOWN_SERVER_ERROR, Code.CORRUPT_MESSAGE
    ),
    "an old sequence": (
        lambda to: to.sequences(),
        [0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER],
        [0, Code.DUPLICATE_SEQUENCE_NUMBER],
    ),
    "a commit of no group": (lambda to: to.committed("", 5), 0, Code.INVALID_GROUP_ID),
    "the offsets of no group": (lambda to: to.fetched(""), (0, 5, 0), (Code.INVALID_GROUP_ID,)),
    "commits by another id": (
        lambda to: [to.commit_of(name, 4) for name in ("nobody", "tx", "nobody")],
        [Code.INVALID_PRODUCER_ID_MAPPING, 0, 0],
        [Code.INVALID_PRODUCER_ID_MAPPING, 0, Code.INVALID_PRODUCER_ID_MAPPING],
    ),
    "a plain commit over a pending one": (
        lambda to: to.plain_over_pending(), (0, -1, Code.UNSTABLE_OFFSET_COMMIT), (0, 9, 0)
    ),
    "a topic that metadata creates": (
        lambda to: to.created_by_metadata(), [Code.UNKNOWN_TOPIC_OR_PARTITION, 0], [0, 0]
    ),
    "a user's credentials of both mechanisms": (
        lambda to: to.both_mechanisms(), Code.DUPLICATE_RESOURCE, 0
    ),
    "the first epoch of a group": (lambda to: to.first_epoch(), 2, 1),
}  # fmt: skip
"""By name: a step, a broker's answer, and ours."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    base = tmp_path_factory.mktemp("both")
    broker = Broker(classpath(), base / "broker", more=MORE)
    with broker.running(), segstore.open(base / "store") as store, segstore.serve(store, port=0) as server:
        theirs, ours = Asking("127.0.0.1", broker.port), Asking(server.host, server.port)
        found = {name: (step(theirs), step(ours)) for name, (step, _, _) in OTHERWISE.items()}
        for each in (theirs, ours):
            each.wire.close()
    assert segstore.check(base / "store") == []
    return found


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_answered_otherwise(answers: dict[str, tuple[Any, Any]], name: str) -> None:
    _, theirs, ours = OTHERWISE[name]
    assert answers[name] == (theirs, ours)
