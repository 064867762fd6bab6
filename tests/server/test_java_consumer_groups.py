"""Promise: Java's clients are members of consumer groups (KIP-848), work by transactions of KIP-890, and
Kafka's own tools tell of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import confluent_kafka
import pytest
from kafka_tools import console, run, why_not
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator

pytestmark = [
    pytest.mark.judge("Kafka's console tools"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
TOOLS = "org.apache.kafka.tools."
GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"


@pytest.fixture
def tool(server: segstore.Server) -> Callable[..., str]:
    """Runs a tool against the server."""
    return lambda name, *arguments: console(name, server.bootstrap_servers, *arguments)


def test_the_console_consumer_is_a_member(tool: Callable[..., str], store: segstore.Store) -> None:
    store.create_topic("t", 2)
    for number in (0, 1):
        store.partition("t", number).append_batch([b"a", b"b"])
    told = tool(
        f"{TOOLS}consumer.ConsoleConsumer",
        *("--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "4"),
        *("--command-property", "group.protocol=consumer", "--timeout-ms", "60000"),
    )
    assert sorted(told.split()) == ["a", "a", "b", "b"]
    found = shared(store, GroupCoordinator).describe_consumers("g")
    assert found is not None
    assert (found.state.value, found.epoch >= 2) == ("Empty", True)
    committed = shared(store, GroupOffsets).fetch("g")
    assert {at: offset.offset for at, offset in committed.items()} == {
        TopicPartition("t", 0): 2,
        TopicPartition("t", 1): 2,
    }


def test_groups_are_told(tool: Callable[..., str], server: segstore.Server, store: segstore.Store) -> None:
    store.create_topic("t", 2)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "g", "group.protocol": "consumer"}
    )
    consumer.subscribe(["t"])
    until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2)
    state = tool(GROUPS, "--describe", "--group", "g", "--state", "--verbose").split()
    assert state[-5:] == ["uniform", "Stable", "1", "1", "1"]
    members = tool(GROUPS, "--describe", "--group", "g", "--members", "--verbose").split()
    assert members[-5:] == ["2", "1", "t:0,1", "1", "t:0,1"]  # what it has, and what it shall have
    assert tool(GROUPS, "--list", "--type", "consumer").split()[-2:] == ["g", "Consumer"]
    assert "g" not in tool(GROUPS, "--list", "--type", "classic").split()
    consumer.close()
    tool(GROUPS, "--delete", "--group", "g")
    assert tool(GROUPS, "--list").split() == []


def test_transactions_have_epochs_of_their_own(server: segstore.Server, store: segstore.Store) -> None:
    """The copier reads in a group, and writes what it read and its offsets in transactions; meanwhile a
    producer has one open that knows only the older protocol.
    """
    for topic in ("source", "target"):
        store.create_topic(topic)
    store.partition("source", 0).append_batch([b"%d" % n for n in range(20)])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "transactional.id": "old"}
    )
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce("target", b"old")
    assert producer.flush(PATIENCE) == 0
    told = run(
        f"{TOOLS}TransactionalMessageCopier",
        *("--broker-list", server.bootstrap_servers, "--transactional-id", "x", "--input-topic", "source"),
        *("--input-partition", "0", "--output-topic", "target", "--max-messages", "20"),
        *("--transaction-size", "5", "--consumer-group", "g"),
    )
    last = json.loads(told.strip().splitlines()[-1])
    assert last["totalProcessed"] == 20
    producer.commit_transaction(PATIENCE)
    target = store.partition("target", 0)
    read = [record.value for record in target.read(0, isolation_level="read_committed")]
    assert read == [b"old"] + [b"%d" % n for n in range(20)]
    # Each of the four transactions has raised the producer's epoch: that is transaction.version 2.
    assert shared(store, TransactionCoordinator).transactions()["x"].producer_epoch >= 4


def test_the_quorum_and_the_features_are_told(tool: Callable[..., str]) -> None:
    quorum = tool(f"{TOOLS}MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId: 1 LeaderEpoch:" in " ".join(quorum.split())
    features = tool(f"{TOOLS}FeatureCommand", "describe")
    (line,) = (line for line in features.splitlines() if "transaction.version" in line)
    assert "FinalizedVersionLevel: 2" in " ".join(line.split())
