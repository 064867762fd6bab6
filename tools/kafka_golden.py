"""Makes tests/golden/kafka: the whole log directory of a real broker with every feature of its version on.

usage: .venv/bin/python tools/kafka_golden.py [DIRECTORY]

The broker is the tests' one (tests/support/kafka/kafka/pom.xml). librdkafka writes the records, Kafka's own
tools the transactions of its newest version and what share groups read, and scripted requests the groups of
KIP-848 and of Streams (KIP-1071). Beside the archive, a file says what clients of the broker have read.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(room) for room in sorted((ROOT / "tests" / "support").iterdir())]

import kafka_tools  # noqa: E402
from kafka_broker import Broker  # noqa: E402
from kafka_messages import uncommented  # noqa: E402
from waiting import PATIENCE, until  # noqa: E402
from wire_client import WireClient  # noqa: E402

from segstore.protocol.codec import structs  # noqa: E402
from segstore.protocol.definitions import messages  # noqa: E402

TARGET = ROOT / "tests" / "golden" / "kafka"
START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.snapshot.update.records.per.snapshot=2
group.consumer.max.session.timeout.ms=600000
group.consumer.session.timeout.ms=600000
group.streams.max.session.timeout.ms=600000
group.streams.session.timeout.ms=600000
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=0
"""
TOPICS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": {"compression.type": "producer"} for codec in CODECS},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"},
    "cut": {},
    "txn": {},
    "modern": {},
}
GROUPS = ("classic", "consumer", "transactional")
PARTITIONS = {"txn": 2, "modern": 4}


def rows(count: int, keys: int = 0, since: int = START_MS) -> Iterator[dict[str, Any]]:
    """Records with headers, and with keys and values that are null or empty."""
    for i in range(count):
        key = b"key %d" % (i % keys) if keys else (None, b"", f"ключ {i}".encode())[i % 3]
        value = None if i % 7 == 3 else b"" if i % 7 == 4 else b"value %d " % i * (1 + i % 5)
        headers = [("h", b"%d" % i), ("h", None), ("e", b"")] if i % 4 == 0 else []
        yield {"key": key, "value": value, "headers": headers, "timestamp": since + i}


def produce(
    address: str, topic: str, *, count: int = 20, keys: int = 0, since: int = START_MS, **settings: Any
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 50, **settings})
    for row in rows(count, keys, since):
        producer.produce(topic, partition=0, **row)
    assert producer.flush(PATIENCE) == 0


def transactions(address: str) -> None:
    """Committed ones and aborted ones, with offsets; and one of Java's producer (transaction version 2)."""
    settings = {"bootstrap.servers": address, "transactional.id": "golden"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "transactional"})
    for number in range(4):
        producer.begin_transaction()
        for i in range(6):
            producer.produce("txn", b"%d-%d" % (number, i), partition=i % 2, timestamp=START_MS + i)
        at = [confluent_kafka.TopicPartition("txn", 1, number)]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata())
        producer.abort_transaction() if number % 2 else producer.commit_transaction()
    consumer.close()
    kafka_tools.run(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "txn", "--num-records", "20",
        "--record-size", "10", "--throughput", "-1", "--producer-props", f"bootstrap.servers={address}",
        "--transactional-id", "java", "--transaction-duration-ms", "1",
    )  # fmt: skip


def compact(address: str, directory: Path) -> None:
    """Write rounds of equal keys, each a segment, until the cleaner has gone over them."""
    for number in range(4):  # a segment is rolled by records that are later than segment.ms
        produce(address, "compacted", keys=7, count=21, since=START_MS + 1000 * number)
    produce(address, "compacted", keys=3, count=3, since=START_MS + 10_000)
    until(lambda: "compacted 0" in (directory / "cleaner-offset-checkpoint").read_text())


def classic_group(address: str) -> None:
    settings = {"bootstrap.servers": address, "group.id": "classic", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe(["codec-none"])
    until(lambda: consumer.consume(5, 0.5))
    consumer.commit(offsets=[confluent_kafka.TopicPartition("codec-none", 0, 5, "note")], asynchronous=False)
    consumer.close()


class Member:
    """A member of a group that tells and does what it is assigned; it never leaves."""

    def __init__(self, wire: WireClient, api: str, group: str, **told: Any) -> None:
        self.wire, self.api, self.fixed = wire, api, {"group_id": group, "member_id": str(uuid.uuid4())}
        self.epoch, self.target = 0, None
        self.beat(**told)

    def beat(self, **told: Any) -> Any:
        answer = self.wire.ask(self.api, 1, **self.fixed, member_epoch=self.epoch, **told)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if getattr(answer, "assignment", None) is not None:
            self.target = answer.assignment.topic_partitions
        return answer


def consumer_group(wire: WireClient, topic_id: bytes) -> None:
    """Two members, whose first keeps half of its partitions from the epoch before (KIP-1251)."""
    joins = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["modern"], "topic_partitions": []}
    first = Member(wire, "ConsumerGroupHeartbeat", "consumer", **joins)

    def has(member: Member, count: int) -> bool:
        member.beat(topic_partitions=member.target)
        return member.target is not None and [len(each.partitions) for each in member.target] == [count]

    until(lambda: has(first, 4))
    before = first.epoch
    Member(wire, "ConsumerGroupHeartbeat", "consumer", **joins)
    until(lambda: has(first, 2))
    until(lambda: has(first, 2) and first.epoch > before)
    commit = structs("OffsetCommitRequest")
    parts = [
        commit.OffsetCommitRequestPartition(partition_index=i, committed_offset=i, committed_metadata="mine")
        for i in first.target[0].partitions
    ]
    topics = [commit.OffsetCommitRequestTopic(topic_id=topic_id, partitions=parts)]
    fixed = first.fixed | {"generation_id_or_member_epoch": first.epoch}
    (told,) = wire.ask("OffsetCommit", 10, **fixed, topics=topics).topics
    assert {each.error_code for each in told.partitions} == {0}, told


def streams_group(wire: WireClient) -> None:
    """A member of Streams' own protocol. Its messages are in the jar, but not among those that are served."""
    jar = next(
        each for each in kafka_tools.classpath().split(":") if Path(each).name.startswith("kafka-clients")
    )
    with zipfile.ZipFile(jar) as archive:
        for name in ("StreamsGroupHeartbeatRequest", "StreamsGroupHeartbeatResponse"):
            held = uncommented(archive.read(f"common/message/{name}.json").decode())
            messages()._lines[name] = json.dumps(held)  # type: ignore[attr-defined]
    made = structs("StreamsGroupHeartbeatRequest")
    topology = made.Topology(
        epoch=1, subtopologies=[made.Subtopology(subtopology_id="0", source_topics=["modern"])]
    )
    empty: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    member = Member(
        wire, "StreamsGroupHeartbeat", "streams", rebalance_timeout_ms=60_000, topology=topology,
        process_id="p", **empty, client_tags=[],
    )  # fmt: skip
    until(lambda: member.beat(**empty).active_tasks)


def share_group(address: str) -> None:
    """One that accepts some records, releases one, and rejects one."""
    alter = ("--alter", "--entity-type", "groups", "--entity-name", "share")
    kafka_tools.console(
        "org.apache.kafka.tools.ConfigCommand",
        address,
        *alter,
        "--add-config",
        "share.auto.offset.reset=earliest",
    )
    for ending in ((), ("--release",), ("--reject",), ()):
        kafka_tools.console(
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer", address, "--group", "share", "--topic",
            "codec-none", "--max-messages", "3", *ending,
        )  # fmt: skip


# --- what is read back ----------------------------------------------------------------------------


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def read(address: str, topic: str, partition: int, isolation: str) -> list[list[Any]]:
    settings = {"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False}
    settings |= {"isolation.level": isolation, "check.crcs": True, "auto.offset.reset": "earliest"}
    settings |= {"enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found: list[list[Any]] = []
    while True:
        for m in consumer.consume(500, 1.0):
            if m.error() is not None:
                assert m.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, m.error()
                consumer.close()
                return found
            headers = [[name, text(value)] for name, value in m.headers() or []]
            found.append([m.offset(), m.timestamp()[1], text(m.key()), text(m.value()), headers])


def committed(wire: WireClient) -> dict[str, list[list[Any]]]:
    """The offsets of the groups."""
    asked = structs("OffsetFetchRequest").OffsetFetchRequestGroup
    found = wire.ask("OffsetFetch", 9, groups=[asked(group_id=name, topics=None) for name in GROUPS]).groups
    return {
        group.group_id: sorted(
            [topic.name, part.partition_index, part.committed_offset, part.metadata]
            for topic in group.topics
            for part in topic.partitions
        )
        for group in found
    }


def told(address: str, wire: WireClient) -> dict[str, Any]:
    """All that clients of the broker see."""
    return {
        "records": {
            f"{topic}-{i}": {
                level: read(address, topic, i, f"read_{level}") for level in ("committed", "uncommitted")
            }
            for topic in TOPICS
            for i in range(PARTITIONS.get(topic, 1))
        },
        "offsets": committed(wire),
    }


def fill(address: str, wire: WireClient, directory: Path) -> None:
    """Write something of each kind."""
    client = AdminClient({"bootstrap.servers": address})
    made = [NewTopic(name, PARTITIONS.get(name, 1), 1, config=config) for name, config in TOPICS.items()]
    for future in client.create_topics(made).values():
        future.result(PATIENCE)
    for codec in CODECS:
        produce(address, f"codec-{codec}", **{"compression.type": codec})
        produce(address, f"codec-{codec}", **{"compression.type": codec, "enable.idempotence": True})
    produce(address, "stamped")
    produce(address, "cut")
    gone = confluent_kafka.TopicPartition("cut", 0, 8)
    (deleted,) = client.delete_records([gone]).values()
    assert deleted.result(PATIENCE).low_watermark == 8
    steps: tuple[Callable[[], None], ...] = (
        lambda: transactions(address),
        lambda: classic_group(address),
        lambda: consumer_group(wire, _id(wire, "modern")),
        lambda: streams_group(wire),
        lambda: share_group(address),
        lambda: compact(address, directory),
    )
    for step in steps:
        step()


def _id(wire: WireClient, topic: str) -> bytes:
    (found,) = wire.ask(
        "Metadata", 12, topics=[structs("MetadataRequest").MetadataRequestTopic(name=topic)]
    ).topics
    return bytes(found.topic_id)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        broker = Broker(kafka_tools.classpath(), Path(made) / "broker", more=SETTINGS)
        with broker.running() as address, WireClient("127.0.0.1", broker.port) as wire:
            fill(address, wire, broker.logs)
            said = told(address, wire)
        with tarfile.open(target / f"{kafka_tools.VERSION}.tar.gz", "w:gz") as archive:
            archive.add(broker.logs, kafka_tools.VERSION)
        packed = gzip.compress(json.dumps(said, indent=0).encode(), mtime=0)
        (target / f"{kafka_tools.VERSION}.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
