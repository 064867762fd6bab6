"""A mirror of a real Kafka broker: record for record and byte for byte what the broker has, under load, with
transactions, compaction, restarts, and a log that was cut at the source.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from pathlib import Path

import pytest
from fault_proxy import Proxy
from kafka_broker import Broker
from kafka_tools import classpath, judge, why_not
from waiting import PATIENCE, until

import segstore
from segstore.records import scan

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="Kafka's broker needs a client with every codec"
)
admin = pytest.importorskip("confluent_kafka.admin")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's broker"),
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MORE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.cleaner.backoff.ms=200
log.segment.delete.delay.ms=100
"""
CONFIG = {"metadata.max.age.ms": 1000, "sync.group.offsets.interval.seconds": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(classpath(), tmp_path / "broker", more=MORE)


def create(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": address})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    for future in client.create_topics([admin.NewTopic(topic, partitions, 1, config=settings)]).values():
        future.result(PATIENCE)


def produce(address: str, topic: str, records: range, codec: str = "none", keys: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "compression.type": codec})
    for i in records:
        producer.produce(topic, b"value %06d " % i * 9, key=b"%d" % (i % keys) if keys else None)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def transact(address: str, topic: str, rounds: range) -> None:
    """Transactions of two partitions, each third of which is aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": f"t-{topic}"})
    producer.init_transactions(PATIENCE)
    for i in rounds:
        producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, b"%d of transaction %d" % (n, i))
        producer.flush(PATIENCE)
        producer.abort_transaction(PATIENCE) if i % 3 == 2 else producer.commit_transaction(PATIENCE)


def commit(address: str, topic: str, group: str, offset: int) -> None:
    settings = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    at = confluent_kafka.TopicPartition(topic, 0, offset, "a note")
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()


def read_committed(address: str, topic: str, partition: int, end: int) -> list[tuple[int, bytes | None]]:
    """What librdkafka gives of a partition, up to the offset `end`."""
    settings = {"bootstrap.servers": address, "group.id": "judge", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings | {"isolation.level": "read_committed"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found: list[tuple[int, bytes | None]] = []
    while True:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.value()))


def committed(log: segstore.PartitionLog) -> list[tuple[int, bytes | None]]:
    """What our own reader gives of committed transactions."""
    found: list[tuple[int, bytes | None]] = []
    at = log.start_offset
    while at < log.end_offset:
        records = log.read(at, isolation_level="read_committed")
        found += [(record.offset, record.value) for record in records]
        at = records.next_offset
    return found


def stored(partition: Path) -> bytes:
    """The batches of a partition as they are on disk, one segment after the other."""
    found = b""
    for log in sorted(partition.glob("*.log")):
        data = log.read_bytes()
        batches, _ = scan(data)
        found += data[: int(batches["size"].sum())]
    return found


def assert_equal(broker: Broker, mirror: Path, *partitions: str) -> None:
    """The same bytes, leader epochs and topic ids; and nothing is wrong with the mirror."""
    for name in partitions:
        ours, theirs = mirror / name, broker.logs / name
        assert stored(ours) == stored(theirs), name
        for file in ("leader-epoch-checkpoint", "partition.metadata"):
            assert (ours / file).read_text().strip() == (theirs / file).read_text().strip(), (name, file)
    assert judge(*(mirror / name for name in partitions)).errors == []
    assert segstore.check(mirror) == []


def await_end(mirror: segstore.Mirror, address: str, topic: str, partitions: int = 1) -> dict[int, int]:
    """Wait until the mirror has what the broker has, and return the ends."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "ends"})
    ends = {}
    for n in range(partitions):
        at = confluent_kafka.TopicPartition(topic, n)
        ends[n] = consumer.get_watermark_offsets(at, PATIENCE)[1]
    consumer.close()

    def there() -> bool:
        assert mirror._control.failure is None
        have = {each.partition: each.end_offset for each in mirror.partitions() if each.topic == topic}
        return have == ends

    until(there)
    return ends


def test_a_loaded_broker_is_mirrored_through_its_restarts(broker: Broker, tmp_path: Path) -> None:
    directory = tmp_path / "mirror"
    with broker.running() as address:
        create(address, "plain", 1, segment_bytes="1048576")
        create(address, "txns", 2)
        produce(address, "plain", range(3000))
        with segstore.mirror(address, directory, ["plain", "txn.*"], config=CONFIG) as mirror:
            load = threading.Thread(target=transact, args=(address, "txns", range(30)))
            load.start()
            for part, codec in enumerate(CODECS):
                produce(address, "plain", range(part * 3000, part * 3000 + 3000), codec)
            load.join(PATIENCE)
            commit(address, "plain", "readers", 4321)
            assert mirror.wait_caught_up(PATIENCE * 1000)
    mirror = segstore.mirror(address, directory, ["plain", "txn.*"], config=CONFIG)
    with mirror:  # the broker is down: the mirror waits for it
        until(lambda: mirror.error is not None)
        with broker.running():
            produce(address, "plain", range(100))
            transact(address, "txns", range(5))
            end = await_end(mirror, address, "plain")[0]
            ends = await_end(mirror, address, "txns", 2)
            expected = {n: read_committed(address, "txns", n, ends[n]) for n in ends}
        for number, rows in expected.items():
            log = mirror.store.partition("txns", number)
            assert committed(log) == rows, number
        assert mirror.store.topics()["plain"].config["segment.bytes"] == 1048576
    assert end == 18_100
    assert_equal(broker, directory, "plain-0", "txns-0", "txns-1")
    segstore.end_mirror(directory)
    with segstore.open(directory) as store:
        with segstore.Consumer(store, "plain", group_id="readers") as consumer:
            first = next(iter(consumer))
            assert (first.offset, first.value) == (4321, b"value 001321 " * 9)
        assert store.partition("plain").append(b"own") == 18_100
    assert segstore.check(directory) == []


def test_gaps_of_compaction_come_as_they_are(broker: Broker, tmp_path: Path) -> None:
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "100"}
    with broker.running() as address:
        create(address, "compacted", 1, **settings)
        # The first record stays: a follower notes a leader epoch where its first batch begins.
        produce(address, "compacted", range(999_999, 10**6), keys=10**6)
        for part in range(4):
            produce(address, "compacted", range(part * 2000 + 1, part * 2000 + 2001), CODECS[part], keys=50)
        compacted = broker.logs / "compacted-0"
        until(lambda: len(stored(compacted)) < 100_000)
        for attempt in itertools.count():  # the broker may go on compacting meanwhile
            before, directory = stored(compacted), tmp_path / f"mirror {attempt}"
            with segstore.mirror(address, directory, "compacted", config=CONFIG) as mirror:
                assert mirror.wait_caught_up(PATIENCE * 1000)
                assert mirror.store.topics()["compacted"].config["cleanup.policy"] == "compact"
            if before == stored(compacted):
                break
    assert_equal(broker, directory, "compacted-0")


def test_what_the_source_has_lost_is_cut_and_kept_aside(broker: Broker, tmp_path: Path) -> None:
    directory = tmp_path / "mirror"
    with broker.running() as address:
        create(address, "cut")
        for part in range(10):
            produce(address, "cut", range(part * 10, part * 10 + 10))
        with segstore.mirror(address, directory, "cut", config=CONFIG) as mirror:
            assert mirror.wait_caught_up(PATIENCE * 1000)
    cut_log(broker, "cut-0", 60)
    with broker.running(), segstore.mirror(address, directory, "cut", config=CONFIG) as mirror:
        produce(address, "cut", range(1000, 1070))
        assert await_end(mirror, address, "cut") == {0: 130}
        until(lambda: mirror.store.partition("cut").end_offset == 130)
        assert mirror.store.partition("cut").read_one(60).value == b"value 001000 " * 9
    assert_equal(broker, directory, "cut-0")
    assert len(list((directory / ".segstore" / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("more", [20, 70])
def test_a_broker_that_was_restored_from_an_older_copy(broker: Broker, tmp_path: Path, more: int) -> None:
    """It leads in the same epochs as the original did, and has other records under them."""
    directory, older = tmp_path / "mirror", tmp_path / "older"

    def went_on(first: int, count: int) -> None:
        with broker.running() as address:
            for at in range(first, first + count, 10):
                produce(address, "log", range(at, at + 10))
            with segstore.mirror(address, directory, "log", config=CONFIG) as mirror:
                assert mirror.wait_caught_up(PATIENCE * 1000)

    with broker.running() as address:
        create(address, "log")
        produce(address, "log", range(30))
    shutil.copytree(broker.logs, older)
    went_on(1000, 50)
    shutil.rmtree(broker.logs)
    shutil.copytree(older, broker.logs)
    went_on(2000, more)
    assert_equal(broker, directory, "log-0")
    cut = [each.offset for each in segstore.cut_records(directory)]
    assert cut == list(range(30, 80))


def test_connections_that_stall_tear_and_end_cost_nothing(tmp_path: Path, rng: random.Random) -> None:
    """A proxy stands before the broker, for the mirror and for the producers beside it."""
    config = {**CONFIG, "request.timeout.ms": 2000, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
    few = {"fetch.max.bytes": 50_000, "max.partition.fetch.bytes": 50_000}
    with Proxy() as proxy:
        more = f"{MORE}advertised.listeners=PLAINTEXT://{proxy.address}\n"
        broker = Broker(classpath(), tmp_path / "broker", more=more)
        proxy.target = broker.port
        with broker.running() as address:
            create(address, "plain", 1, segment_bytes="1048576")
            create(address, "txns", 2)
            produce(address, "plain", range(20_000), "lz4")
            transact(address, "txns", range(15))
            faults = {
                "stalled answers": lambda: proxy.stall(requests=False),
                "stalled": proxy.stall,
                "answers lost": proxy.mute,
                "torn": lambda: proxy.tear(rng.randrange(1, 4)),
                "cut": lambda: proxy.cut(hard=rng.random() < 0.5),
                "refused": proxy.refuse,
            }
            with segstore.mirror(address, tmp_path / "mirror", config={**config, **few}) as mirror:
                for name in rng.sample([*faults] * 2, 2 * len(faults)):
                    before = sum(each.end_offset for each in mirror.partitions())
                    faults[name]()
                    time.sleep(rng.choice((0.05, 0.3)))
                    proxy.cut(hard=True)
                    proxy.go_on()
                    until(lambda before=before: is_ahead(mirror, before))
                produce(address, "plain", range(500))
                await_end(mirror, address, "plain")
                ends = await_end(mirror, address, "txns", 2)
                for number, end in ends.items():
                    log = mirror.store.partition("txns", number)
                    assert committed(log) == read_committed(address, "txns", number, end)
        assert_equal(broker, tmp_path / "mirror", "plain-0", "txns-0", "txns-1")


def is_ahead(mirror: segstore.Mirror, before: int) -> bool:
    """Whether the mirror has more than before, or all."""
    found = mirror.partitions()
    assert mirror._control.failure is None
    caught_up = bool(found) and all(each.lag.records == 0 for each in found)
    return caught_up or sum(each.end_offset for each in found) > before


def cut_log(broker: Broker, partition: str, offset: int) -> None:
    """Let a broker that is stopped lose the end of a log, as in an unclean election."""
    directory = broker.logs / partition
    for path in directory.iterdir():
        if path.suffix in (".index", ".timeindex", ".snapshot", ".txnindex"):
            path.unlink()
    (log,) = directory.glob("*.log")
    batches, _ = scan(log.read_bytes())
    kept = batches[batches["base_offset"] < offset]
    assert int(kept["last_offset"][-1]) == offset - 1
    with open(log, "r+b") as file:
        file.truncate(int(kept["size"].sum()))
    (broker.logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (broker.logs / "recovery-point-offset-checkpoint").unlink()
