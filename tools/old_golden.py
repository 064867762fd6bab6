"""Makes tests/golden/old: partitions that a real Kafka 2.8.2 broker wrote as messages of magic 0 and 1.

usage: .venv/bin/python tools/old_golden.py [DIRECTORY]

Maven fetches the broker, and the ZooKeeper that it needs, by tests/support/kafka/old_kafka/pom.xml. The
messages are sent by librdkafka, and converted down by the broker as `message.format.version` of each topic
says; those of `kept` are made by kafka-python, and the broker keeps their bytes. What an ordinary consumer
reads of them is written beside the partitions.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(room) for room in sorted((ROOT / "tests" / "support").iterdir())]

import kafka_tools  # noqa: E402
from kafka_broker import free_port  # noqa: E402
from waiting import until  # noqa: E402

TARGET = ROOT / "tests" / "golden" / "old"
FLIGHTS = ROOT / "tests" / "golden" / "records" / "flights-snappy-0.jsonl.gz"
START_MS = 1_388_000_000_000
JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TIMES = ("NoTimestamp", "CreateTime", "LogAppendTime")
CODECS = ("none", "gzip", "snappy", "lz4")

ZOOKEEPER = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""
BROKER = """\
broker.id=0
zookeeper.connect=127.0.0.1:{zookeeper}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
log.retention.ms=-1
log.segment.delete.delay.ms=100
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=2000000
"""
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "6000",
    "min.cleanable.dirty.ratio": "0.01",
}


class Row(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None


def flights(count: int, first: int = 0, keys: int = 0) -> list[Row]:
    """Return rows of flights; with `keys` each has one of so many keys."""
    with gzip.open(FLIGHTS, "rt") as lines:
        values = [base64.b64decode(json.loads(line)["value"]) for line in islice(lines, first, first + count)]
    return [Row(b"key-%d" % (i * 7 % keys) if keys else None, v) for i, v in enumerate(values)]


EDGES = [
    Row(b"key", b"value"), Row(None, b"no key"), Row(b"", b"an empty key"), Row(b"no value", None),
    Row(b"an empty value", b""), Row(None, None), Row(b"", b""), Row("ключ".encode(), "значение".encode()),
    Row(b"long", b"0123456789" * 500),
]  # fmt: skip


# --- broker ------------------------------------------------------------------------------------


@contextmanager
def program(classpath: str, main: str, text: str, where: Path) -> Iterator[None]:
    """Run a Java program with this properties file; it is ended as a clean shutdown asks for."""
    properties = where / f"{main}.properties"
    properties.write_text(text)
    with open(where / f"{main}.log", "wb") as out:
        process = subprocess.Popen([*JAVA, "-cp", classpath, main, str(properties)], stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)


@contextmanager
def broker(where: Path) -> Iterator[tuple[str, Path]]:
    """Run ZooKeeper and a broker; yield the broker's address and its log directory."""
    classpath, zookeeper, port = kafka_tools.classpath(kafka_tools.OLD_POM), free_port(), free_port()
    logs, main = where / "logs", "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    made = BROKER.format(zookeeper=zookeeper, port=port, logs=logs)
    with (
        program(classpath, main, ZOOKEEPER.format(data=where / "zookeeper", port=zookeeper), where),
        program(classpath, "kafka.Kafka", made, where),
    ):
        address = f"127.0.0.1:{port}"
        admin = AdminClient({"bootstrap.servers": address})
        until(lambda: _answers(admin))
        yield address, logs


def _answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except confluent_kafka.KafkaException:
        return False


class Cluster:
    """What is asked of the broker at an address, whose logs lie in a directory."""

    def __init__(self, address: str, logs: Path) -> None:
        self.address, self.logs = address, logs
        self.admin = AdminClient({"bootstrap.servers": address})

    def create(self, topic: str, version: str, **config: str) -> None:
        settings = {"message.format.version": version, "index.interval.bytes": "1024", **config}
        self.admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(60)

    def use(self, topic: str, version: str) -> None:
        """Let what is sent from now on have another format."""
        entry = ConfigEntry("message.format.version", version, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(60)

    def send(self, topic: str, rows: Sequence[Row], codec: str, batch: int = 20) -> None:
        """Send rows in batches of so many."""
        config = {"bootstrap.servers": self.address, "compression.type": codec, "linger.ms": 200}
        producer = confluent_kafka.Producer(config)
        for first in range(0, len(rows), batch):
            for i, row in enumerate(rows[first : first + batch], first):
                stamp = START_MS + 1000 * i
                producer.produce(topic, row.value, row.key, partition=0, timestamp=stamp, on_delivery=_sent)
            assert producer.flush(60) == 0

    def send_old(self, topic: str, rows: Sequence[Row], codec: str | None, version: tuple[int, ...]) -> None:
        """Send rows as message sets that kafka-python makes for brokers of a version."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address, api_version=version, compression_type=codec, linger_ms=200
        )
        for first in range(0, len(rows), 20):
            for i, row in enumerate(rows[first : first + 20], first):
                producer.send(topic, row.value, row.key, partition=0, timestamp_ms=START_MS + 1000 * i)
            producer.flush(60)
        producer.close()

    def await_clean(self, topic: str, offset: int) -> None:
        """Wait until the log cleaner has passed an offset."""
        file = self.logs / "cleaner-offset-checkpoint"

        def passed() -> bool:
            lines = file.read_text().split("\n") if file.is_file() else []
            return any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) >= offset for line in lines)

        until(passed)

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return all records of a topic, as tests/golden/records has them."""
        config = {"bootstrap.servers": self.address, "group.id": "reader", "enable.partition.eof": True}
        consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[dict[str, Any]] = []
        while True:
            message = consumer.poll(60)
            assert message is not None, topic
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                consumer.close()
                return found
            found.append(_line(message))


def _sent(error: object, message: object) -> None:
    assert error is None, error


def _line(message: Any) -> dict[str, Any]:
    kind, stamp = message.timestamp()
    return {
        "offset": message.offset(),
        "timestamp_type": TIMES[kind],
        "timestamp": stamp if kind else -1,
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [],
        "leader_epoch": -1 if message.leader_epoch() is None else message.leader_epoch(),
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# --- topics ------------------------------------------------------------------------------------


def plain(codec: str, version: str) -> Callable[[Cluster, str], None]:
    """Return what fills a topic with flights and with records that have something odd."""

    def fill(cluster: Cluster, topic: str) -> None:
        cluster.create(topic, version)
        cluster.send(topic, flights(50), codec)
        cluster.send(topic, EDGES, codec)

    return fill


def compacted(codec: str, version: str) -> Callable[[Cluster, str], None]:
    """Return what fills a compacted topic, whose wrappers have gaps then."""

    def fill(cluster: Cluster, topic: str) -> None:
        cluster.create(topic, version, **COMPACTED)
        for turn in range(4):
            cluster.send(topic, flights(60, 60 * turn, keys=23 + turn), codec, batch=12)
        cluster.send(topic, [Row(b"key-%d" % i, None) for i in range(3)], codec)
        cluster.send(topic, flights(24, 300, keys=5), codec, batch=12)
        cluster.await_clean(topic, 180)

    return fill


def append_time(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, "0.10.2", **{"message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        cluster.send(topic, flights(20), codec, batch=10)


def mixed(cluster: Cluster, topic: str) -> None:
    """All three magics in one segment, and back again."""
    cluster.create(topic, "0.9.0")
    for version in ("0.9.0", "0.10.2", "2.8", "0.9.0", "2.8", "0.10.2"):
        cluster.use(topic, version)
        for codec in CODECS:
            cluster.send(topic, flights(6), codec, batch=3)


def kept(cluster: Cluster, topic: str) -> None:
    """Message sets of magic 1 as a producer of that time made them."""
    cluster.create(topic, "0.10.2")
    for codec in (None, "gzip", "snappy", "lz4"):
        cluster.send_old(topic, flights(30), codec, (0, 10, 0))


def kept_0(cluster: Cluster, topic: str) -> None:
    """Message sets of magic 0 as a producer of that time made them."""
    cluster.create(topic, "0.9.0")
    for codec in (None, "gzip", "snappy", "lz4"):
        cluster.send_old(topic, flights(30), codec, (0, 9))


TOPICS: dict[str, Callable[[Cluster, str], None]] = {
    **{f"magic0-{codec}": plain(codec, "0.9.0") for codec in CODECS},
    **{f"magic1-{codec}": plain(codec, "0.10.2") for codec in CODECS},
    "magic0-compacted": compacted("gzip", "0.9.0"),
    "magic1-compacted": compacted("lz4", "0.10.2"),
    "magic1-compacted-plain": compacted("none", "0.10.2"),
    "magic1-appendtime": append_time,
    "magic0-kept": kept_0,
    "magic1-kept": kept,
    "mixed": mixed,
}


def make(target: Path) -> None:
    """Write all partitions to `target`, which is replaced."""
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        with broker(where) as (address, logs):
            cluster = Cluster(address, logs)
            for topic, fill in TOPICS.items():
                fill(cluster, topic)
            records = {topic: cluster.read(topic) for topic in TOPICS}
        shutil.rmtree(target / "clean", ignore_errors=True)
        shutil.rmtree(target / "records", ignore_errors=True)
        (target / "records").mkdir(parents=True)
        for topic, found in records.items():
            shutil.copytree(logs / f"{topic}-0", target / "clean" / f"{topic}-0")
            text = "".join(json.dumps(line) + "\n" for line in found)
            packed = gzip.compress(text.encode(), mtime=0)
            (target / "records" / f"{topic}-0.jsonl.gz").write_bytes(packed)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
