"""A store that moves to a real Kafka broker: live, by `mirror_to` through kills of the broker, and at rest,
as docs/moving-to-kafka.md walks it. Nothing is renumbered.
"""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from cli import json_lines, ok
from documented_commands import simple
from kafka_broker import Broker
from kafka_tools import classpath, run, why_not
from places import REPOSITORY
from replica_logs import read
from waiting import PATIENCE, until

import segstore

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="Kafka's broker needs a client with every codec"
)
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's broker"),
]
CONFIG = {"metadata.max.age.ms": 500, "sync.group.offsets.interval.seconds": 1, "request.timeout.ms": 5000}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(classpath(), tmp_path / "broker")


def consumed(address: str, topic: str, partition: int, count: int) -> list[tuple[object, ...]]:
    """What librdkafka reads: offset, timestamp, key, value, headers."""
    settings = {"bootstrap.servers": address, "group.id": "judge", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found: list[tuple[object, ...]] = []

    def look() -> bool:
        for each in consumer.consume(count, 0.5):
            assert each.error() is None
            found.append((each.offset(), each.timestamp()[1], each.key(), each.value(), each.headers() or []))
        return len(found) >= count

    until(look)
    consumer.close()
    return found


def ours(log: segstore.PartitionLog) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read(log)]


def committed(address: str, group: str, topic: str) -> int:
    settings = {"bootstrap.servers": address, "group.id": group}
    consumer = confluent_kafka.Consumer(settings)
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE)
    consumer.close()
    return int(found.offset)


def read_some(store: segstore.Store, topic: str) -> int:
    with segstore.Consumer(store, topic, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.poll(PATIENCE * 1000, 17)
        consumer.commit()
        return int(consumer.position(segstore.TopicPartition(topic, 0)))


def test_a_live_store_is_mirrored_through_kills_of_the_broker(broker: Broker, store: segstore.Store) -> None:
    store.create_topic("live", config={"segment.bytes": 1 << 20})
    log = store.partition("live")
    log.append(b"one", key=b"k", headers=[("h", b"x"), ("n", None)], timestamp=1_600_000_000_000)
    with broker.running() as address:
        running = segstore.mirror_to(store, address, config=CONFIG)
        try:
            assert running.wait_caught_up(PATIENCE * 1000), running.error
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                log.append_batch([b"%d" % i * 20 for i in range(5000)], compression=codec, batch_bytes=2000)
            until(lambda: running.partitions()[0].target_end_offset > 1)
            assert broker.process is not None
            broker.process.kill()
            broker.process.wait(PATIENCE)
            log.append_batch([b"%d while it was away" % i for i in range(1000)], batch_bytes=500)
            with broker.running():
                at = read_some(store, "live")
                assert running.wait_caught_up(PATIENCE * 1000), running.error
                assert running.problems == {}
                assert consumed(address, "live", 0, 26_001) == ours(log)
                until(lambda: committed(address, "readers", "live") == at)
        finally:
            running.close()


SCRIPTS = {
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
"""The class that each of Kafka's scripts calls."""


def called(block: pages.Block, values: dict[str, str]) -> None:
    """Call the tools that a block of the page calls, with values in the place of names."""
    for command in simple(block.text.replace("\\\n", " ")):
        run(SCRIPTS[command.program], *(values.get(word, word) for word in command.words[1:]))


def test_the_walk_of_the_page(
    broker: Broker, store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create, copying, writing, reset = pages.blocks(REPOSITORY / "docs" / "moving-to-kafka.md")
    settings = {"segment.bytes": "1048576", "cleanup.policy": "compact"}
    with segstore.open(store_dir) as store:
        store.create_topic("flights", 2, {**settings, "segment.bytes": 20_000})  # less than Kafka allows
        for number in range(2):
            log = store.partition("flights", number)
            for i in range(2000):
                log.append(b"%d" % i * 10, key=b"%d" % (i % 50))
        store.sweep()
        at = read_some(store, "flights")
        with segstore.Producer(store, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("flights", b"of a transaction", key=b"t", partition=0)
            producer.commit_transaction()
        expected = [ours(store.partition("flights", number)) for number in range(2)]
    with broker.running() as address:
        called(create, {"kafka1:9092": address})
        told = ok("topics", "--store", store_dir, "--json")
        (info,) = (each for each in json_lines(told) if each["topic"] == "flights")
        assert {name: str(info["config"][name]) for name in settings} == {
            **settings,
            "segment.bytes": "20000",
        }
    names = {"STORE": str(store_dir), "LOG_DIR": str(broker.logs)}
    exec(copying.text, dict(names))
    assert (store_dir / "flights-0").is_dir()
    with broker.running() as address:
        for number in range(2):
            assert consumed(address, "flights", number, len(expected[number])) == expected[number]
        exec(writing.text, dict(names))
        written = (tmp_path / "offsets.csv").read_text().splitlines()
        assert f"flights,0,{at}" in written
        called(reset, {"kafka1:9092": address})
        assert committed(address, "readers", "flights") == at
        producer = confluent_kafka.Producer({"bootstrap.servers": address})
        placed: list[int] = []
        producer.produce(
            "flights", b"new", b"k", 0, on_delivery=lambda error, message: placed.append(message.offset())
        )
        assert producer.flush(PATIENCE) == 0
        assert placed == [segstore_end(store_dir)]


def segstore_end(directory: Path) -> int:
    with segstore.open(directory, "r") as store:
        return store.partition("flights").end_offset
