"""A real broker serves what segstore wrote of each kind, and its tools read it: offsets, groups,
transactions, directories, settings; they change it, and segstore goes on from there.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_clients import consume, create
from kafka_broker import Broker
from kafka_tools import classpath, console, why_not
from tool_cases import CONFIGS, DUMP, GROUPS, OFFSETS, TOPICS, TXN
from tool_runner import ToolRunner, tool_runner
from waiting import until

import segstore
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared

confluent_kafka = pytest.importorskip("confluent_kafka", reason="Kafka's broker needs a client")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
    pytest.mark.kind("Kafka's broker"),
]
TOOLS = "org.apache.kafka.tools."
SETTINGS: dict[str, dict[str, Any]] = {
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 1500},
    "idempotent": {"compression.type": "zstd"},
    "txn": {"segment.bytes": 1000},
}
MORE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


def write(logs: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Write records of each kind, and offsets of groups; return what a reader of committed ones gets."""
    with segstore.open(logs) as store:
        for name, config in SETTINGS.items():
            store.alter_topic(name, config)
        for i in range(60):
            store.partition("stamped").append(b"s%d" % i, None if i % 2 else b"", [("h", None)])
            store.partition("compacted").append(b"c%d" % i if i % 9 else b"", b"k%d" % (i % 7))
        with segstore.Producer(store, enable_idempotence=True, linger_ms=0) as producer:
            for i in range(20):
                producer.send("idempotent", b"i%d" % i, key=b"", partition=0)
        transactions(store)
        with segstore.Consumer(store, group_id="ours", enable_auto_commit=False) as consumer:
            part = segstore.TopicPartition("stamped", 0)
            consumer.assign([part])
            consumer.commit({part: segstore.OffsetAndMetadata(17, "seventeen", -1)})
        modern = {"group_protocol": "consumer", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        with segstore.Consumer(store, "stamped", group_id="modern", **modern) as consumer:
            until(lambda: consumer.poll(100))
            consumer.commit({part: segstore.OffsetAndMetadata(9, "", -1)})
        store.sweep()
        return {name: readable(store.partition(name)) for name in SETTINGS}


def transactions(store: segstore.Store) -> None:
    """Each third is aborted; their offsets are of another group."""
    with segstore.Producer(store, transactional_id="ours", linger_ms=0) as producer:
        producer.init_transactions()
        for number in range(7):
            producer.begin_transaction()
            for i in range(4):
                producer.send("txn", b"%d of %d" % (i, number), partition=0)
            at = {segstore.TopicPartition("txn", 0): segstore.OffsetAndMetadata(number, "", -1)}
            producer.send_offsets_to_transaction(at, "transactional")
            producer.flush()  # an abort drops what is not sent yet
            producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction()


def readable(log: segstore.PartitionLog) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    at = log.start_offset
    while at < log.end_offset:
        read = log.read(at, isolation_level="read_committed")
        found += [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read]
        at = read.next_offset
    return found


@pytest.fixture(scope="module")
def afterwards() -> list[Callable[[segstore.Store], None]]:
    """What to look at in the store once the broker has ended: a test may run without the others."""
    return []


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, afterwards: list[Callable[[segstore.Store], None]]
) -> Iterator[tuple[str, Broker, dict[str, Any]]]:
    """A broker that serves what we wrote."""
    base = tmp_path_factory.mktemp("tools")
    broker = Broker(classpath(), base / "broker", more=MORE)
    with broker.running() as address:
        for name in SETTINGS:
            create(address, name)
        settings = {"bootstrap.servers": address, "transactional.id": "theirs", "group.id": "theirs"}
        confluent_kafka.Producer(settings).init_transactions()
        consumer = confluent_kafka.Consumer(settings)
        consumer.commit(offsets=[confluent_kafka.TopicPartition("txn", 0, 0)], asynchronous=False)
        consumer.close()
    written = write(broker.logs)
    assert segstore.check(broker.logs) == []
    shutil.rmtree(broker.logs / ".segstore")  # a broker takes no directory that is no partition's
    with broker.running() as address:
        yield address, broker, written
    assert segstore.check(broker.logs) == []
    with segstore.open(broker.logs) as store:
        assert {each.group_id for each in Groups(store).list()} >= {"ours", "modern", "theirs"}
        for look in afterwards:
            look(store)
    assert segstore.check(broker.logs) == []


@pytest.mark.parametrize("topic", SETTINGS)
def test_a_reader_of_it_gets_what_ours_does(served: tuple[str, Broker, dict[str, Any]], topic: str) -> None:
    address, _, written = served
    expected = written[topic]
    assert consume(address, topic, len(expected), "read_committed") == expected
    gaps = expected[-1][0] + 1 - len(expected)
    assert bool(gaps) == (topic in ("compacted", "txn"))


def test_its_tools_find_the_ends(served: tuple[str, Broker, dict[str, Any]]) -> None:
    address, broker, written = served
    told = console(f"{TOOLS}GetOffsetShell", address, "--topic", "|".join(SETTINGS), "--time", "latest")
    ends = {line.split(":")[0]: int(line.split(":")[2]) for line in told.split()}
    assert ends.keys() == SETTINGS.keys()
    assert ends["txn"] == written["txn"][-1][0] + 2  # a marker is behind
    assert {name: ends[name] for name in ("stamped", "idempotent")} == {"stamped": 60, "idempotent": 20}
    told = console(f"{TOOLS}LogDirsCommand", address, "--describe", "--topic-list", ",".join(SETTINGS))
    (directory,) = json.loads(told.strip().splitlines()[-1])["brokers"][0]["logDirs"]
    sizes = {part["partition"]: part["size"] for part in directory["partitions"]}
    assert sizes == {
        f"{name}-0": sum(path.stat().st_size for path in (broker.logs / f"{name}-0").glob("*.log"))
        for name in SETTINGS
    }


def read_groups(address: str) -> None:
    told = console(f"{TOOLS}consumer.group.ConsumerGroupCommand", address, "--describe", "--all-groups")
    rows = {tuple(line.split()[:5]) for line in told.splitlines()}
    assert {("ours", "stamped", "0", "17", "60"), ("transactional", "txn", "0", "6", "35")} <= rows


def test_its_tools_read_our_transactions(served: tuple[str, Broker, dict[str, Any]]) -> None:
    address, _, _ = served
    told = console(f"{TOOLS}TransactionsCommand", address, "describe", "--transactional-id", "ours")
    assert "CompleteCommit" in told
    told = console(
        f"{TOOLS}TransactionsCommand", address, "describe-producers", "--topic", "txn", "--partition", "0"
    )
    (row,) = [line.split() for line in told.splitlines() if line and line[0].isdigit()]
    assert row[-1] == "None"  # no transaction is open
    assert (
        console(f"{TOOLS}TransactionsCommand", address, "find-hanging", "--broker-id", "1").count("\n") == 1
    )


def test_its_tools_delete_our_records(served: tuple[str, Broker, dict[str, Any]], tmp_path: Path) -> None:
    address, _, _ = served
    wanted = {"partitions": [{"topic": "idempotent", "partition": 0, "offset": 8}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    told = console(f"{TOOLS}DeleteRecordsCommand", address, "--offset-json-file", f"{tmp_path}/offsets.json")
    assert "low_watermark: 8" in told
    settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("idempotent", 0)) == (8, 20)
    consumer.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[ToolRunner]:
    with tool_runner() as found:
        yield found


SETTING = r"{}={} sensitive=false synonyms={{DYNAMIC_{}_CONFIG:".format
CHANGES: dict[str, tuple[str, str, str]] = {
    "set for a topic": (CONFIGS, "--alter --topic stamped --add-config flush.ms=9", "updating config"),
    "settings of a topic": (CONFIGS, "--describe --topic stamped", SETTING("flush.ms", 9, "TOPIC")),
    "set for a broker": (CONFIGS, "--alter --broker 1 --add-config log.cleaner.threads=2", "updating config"),
    "settings of a broker": (CONFIGS, "--describe --broker 1", SETTING("log.cleaner.threads", 2, "BROKER")),
    "set for all": (CONFIGS, "--alter --broker-defaults --add-config log.flush.interval.ms=99", "updating"),
    "settings of all": (
        CONFIGS, "--describe --broker-defaults", SETTING("log.flush.interval.ms", 99, "DEFAULT_BROKER")
    ),
    "set for a group": (
        CONFIGS, "--alter --group modern --add-config consumer.session.timeout.ms=50000", "updating config"
    ),
    "settings of a group": (
        CONFIGS, "--describe --group modern", SETTING("consumer.session.timeout.ms", 50000, "GROUP")
    ),
    "limit a client": (CONFIGS, "--alter --client c --add-config producer_byte_rate=9", "updating config"),
    "limits of clients": (CONFIGS, "--describe --entity-type clients", "'c' are producer_byte_rate=9.0"),
    "describe a topic": (TOPICS, "--describe --topic stamped", r"PartitionCount: 1.*flush\.ms=9"),
    "states of groups": (GROUPS, "--list --state", r"(?s)(?=.*ours +Empty).*modern +Empty"),
    "types of groups": (GROUPS, "--list --type consumer", r"modern +Consumer"),
    "describe a group of KIP-848": (GROUPS, "--describe --group modern", r"modern +stamped +0 +9 +60 +51"),
    "its state": (GROUPS, "--describe --group modern --state --verbose", r"modern .* uniform +Empty"),
    "reset it": (GROUPS, "--reset-offsets --group modern --topic stamped --to-latest --execute", r" 0 +60"),
    "reset another group": (GROUPS, "--reset-offsets --group ours --topic txn --to-offset 3 --execute", " 3"),
    "delete offsets": (GROUPS, "--delete-offsets --group ours --topic stamped", "Successful"),
    "delete a group": (GROUPS, "--delete --group transactional", "was successful"),
    "list transactions": (TXN, "AT list", r"ours +\t1 +\t\d+ +\tCompleteCommit"),
    "newest record": (OFFSETS, "--topic txn --time max-timestamp", r"txn:0:\d+"),
    "dump our groups": (
        DUMP, "--files LOGS/__consumer_offsets-0/00000000000000000000.log --offsets-decoder",
        r'"group":"ours","topic":"stamped","partition":0\}\} payload: \{"version":"4","data":\{"offset":17,',
    ),
    "dump our transactions": (
        DUMP, "--files LOGS/__transaction_state-0/00000000000000000000.log --transaction-log-decoder",
        r'"transactionalId":"ours"\}\} payload: .*"CompleteAbort"',
    ),
}  # fmt: skip
"""By name: a call of a tool, and what it shows."""


def test_its_tools_change_what_is_ours(
    served: tuple[str, Broker, dict[str, Any]],
    afterwards: list[Callable[[segstore.Store], None]],
    runner: ToolRunner,
) -> None:
    """In the order of the table: a call shows what an earlier one has changed. The groups are read before."""
    address, broker, _ = served
    read_groups(address)
    for name, (tool, words, shown) in CHANGES.items():
        arguments = words.replace("LOGS", str(broker.logs)).replace("AT ", "").split()
        server = [] if tool == DUMP else ["--bootstrap-server", address]
        outcome = runner.call(f"{TOOLS}{tool}", *server, *arguments)
        assert outcome.code == 0, (name, outcome)
        assert re.search(shown, outcome.out), (name, outcome)
        assert "isvalid: false" not in outcome.out

    def look(store: segstore.Store) -> None:
        kept = shared(store, GroupOffsets)
        assert kept.fetch("transactional") == {}
        assert {part.topic: found.offset for part, found in kept.fetch("ours").items()} == {"txn": 3}
        assert {part.topic: found.offset for part, found in kept.fetch("modern").items()} == {"stamped": 60}

    afterwards.append(look)
