"""Promise: Kafka's own console tools administer groups and transactions: what they print and change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka_tools import console, why_not

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition

pytestmark = [
    pytest.mark.judge("Kafka's console tools"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
T0 = TopicPartition("t", 0)


@pytest.fixture
def tool(server: segstore.Server) -> Callable[..., str]:
    """Runs a tool against the server."""
    return lambda name, *arguments: console(name, server.bootstrap_servers, *arguments)


def test_groups(tool: Callable[..., str], store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t", 0).append_batch([b"x"] * 5)
    kept = shared(store, GroupOffsets)
    kept.commit("g", {T0: OffsetAndMetadata(2)})
    assert tool(GROUPS, "--list", "--state").split() == ["GROUP", "STATE", "g", "Empty"]
    told = tool(GROUPS, "--describe", "--group", "g").split()
    assert told[told.index("t") : told.index("t") + 4] == ["t", "0", "2", "5"]
    with segstore.Consumer(store, "t", group_id="g") as consumer:
        consumer.poll(0)
        told = tool(GROUPS, "--describe", "--group", "g", "--members", "--verbose")
        assert "t:0" in told.split()
    tool(GROUPS, "--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute")
    assert kept.fetch("g")[T0].offset == 0
    tool(GROUPS, "--delete-offsets", "--group", "g", "--topic", "t")
    assert kept.fetch("g") == {}
    kept.commit("g", {T0: OffsetAndMetadata(2)})
    tool(GROUPS, "--delete", "--group", "g")
    assert tool(GROUPS, "--list").split() == []


def test_transactions(tool: Callable[..., str], store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v", partition=0)
        producer.flush()
        listed = tool(TRANSACTIONS, "list").splitlines()[1].split()
        assert (listed[0], listed[-1]) == ("x", "Ongoing")
        assert "t-0" in tool(TRANSACTIONS, "describe", "--transactional-id", "x")
        told = tool(TRANSACTIONS, "describe-producers", "--topic", "t", "--partition", "0").splitlines()
        assert told[1].split()[0] == "0"
        producer.commit_transaction()
