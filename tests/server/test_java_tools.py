"""Promise: Kafka's own console tools administer a store: what they print, and what they change."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from kafka_tools import classpath, console, run, why_not

import segstore
from segstore.coordinator.quotas.quotas import quotas

pytestmark = [
    pytest.mark.judge("Kafka's console tools"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
TOOLS = "org.apache.kafka.tools."
CONFIGS = "org.apache.kafka.tools.ConfigCommand"


@pytest.fixture
def tool(server: segstore.Server) -> Callable[..., str]:
    """Runs a tool against the server."""
    return lambda name, *arguments: console(name, server.bootstrap_servers, *arguments)


def test_topics(tool: Callable[..., str], store: segstore.Store) -> None:
    topics = f"{TOOLS}TopicCommand"
    tool(topics, "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=1000")
    info = store.topics()["t"]
    assert (info.partitions, info.config) == (2, {"retention.ms": 1000})
    tool(topics, "--alter", "--topic", "t", "--partitions", "3")
    told = tool(topics, "--describe").splitlines()
    assert told[0].split("\t")[:3] == ["Topic: t", f"TopicId: {info.topic_id}", "PartitionCount: 3"]
    assert [line.split("\t")[2:6] for line in told[1:4]] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1", "Isr: 1"] for number in range(3)
    ]
    tool(topics, "--delete", "--topic", "t")
    assert not store.topics()
    assert tool(topics, "--list").split() == []


def test_settings(tool: Callable[..., str], store: segstore.Store) -> None:
    store.create_topic("t", config={"retention.ms": 1000})
    of_topic = ("--entity-type", "topics", "--entity-name", "t")
    added = "flush.ms=5,cleanup.policy=[delete,compact]"
    tool(CONFIGS, "--alter", *of_topic, "--add-config", added, "--delete-config", "retention.ms")
    assert store.topics()["t"].config == {"flush.ms": 5, "cleanup.policy": "delete,compact"}
    told = tool(CONFIGS, "--describe", *of_topic)
    assert "flush.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.ms=5}" in told
    assert "retention" not in told
    of_broker = tool(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "num.partitions=1 sensitive=false" in of_broker


def test_what_is_not_set_is_deleted(tool: Callable[..., str], store: segstore.Store, tmp_path: Path) -> None:
    store.create_topic("t")
    for kind, name in (("topics", "t"), ("brokers", "1"), ("groups", "g")):
        tool(CONFIGS, "--alter", "--entity-type", kind, "--entity-name", name, "--delete-config", "foo")
    assert tool(CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", "1").split("\n")[
        1:
    ] == [""]
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    verify = ("--verify", "--reassignment-json-file", f"{tmp_path}/plan.json")
    told = tool(f"{TOOLS}reassign.ReassignPartitionsCommand", *verify)
    assert "Reassignment of partition t-0 is completed." in told


def test_quotas(tool: Callable[..., str], store: segstore.Store) -> None:
    rates = "producer_byte_rate=1000,consumer_byte_rate=2000"
    tool(CONFIGS, "--alter", "--entity-type", "clients", "--entity-name", "c", "--add-config", rates)
    assert quotas(store).effective("c") == {"producer_byte_rate": 1000, "consumer_byte_rate": 2000}
    told = tool(CONFIGS, "--describe", "--entity-type", "clients")
    assert "client-id 'c'" in told
    assert "producer_byte_rate=1000.0" in told


def test_quotas_of_users(tool: Callable[..., str], store: segstore.Store) -> None:
    alice, of_her_clients = ("--entity-type", "users", "--entity-name", "alice"), ("--entity-type", "clients")
    tool(CONFIGS, "--alter", *alice, "--add-config", "producer_byte_rate=1000")
    tool(
        CONFIGS,
        "--alter",
        *alice,
        *of_her_clients,
        "--entity-name",
        "c",
        "--add-config",
        "producer_byte_rate=2000",
    )
    tool(
        CONFIGS,
        "--alter",
        "--entity-type",
        "users",
        "--entity-default",
        "--add-config",
        "consumer_byte_rate=3000",
    )
    told = tool(CONFIGS, "--describe", "--entity-type", "users")
    for line in (
        "Quota configs for user-principal 'alice' are producer_byte_rate=1000.0",
        "Quota configs for the default user-principal are consumer_byte_rate=3000.0",
    ):
        assert line in told
    told = tool(CONFIGS, "--describe", *alice, *of_her_clients)
    assert "Quota configs for user-principal 'alice', client-id 'c' are producer_byte_rate=2000.0" in told
    tool(CONFIGS, "--alter", *alice, "--delete-config", "producer_byte_rate")
    assert "'alice' are" not in tool(CONFIGS, "--describe", *alice)
    with pytest.raises(AssertionError, match="request_percentage"):
        tool(CONFIGS, "--alter", *alice, "--add-config", "request_percentage=50")


def test_settings_of_groups(tool: Callable[..., str]) -> None:
    of_group = ("--entity-type", "groups", "--entity-name", "g")
    tool(CONFIGS, "--alter", *of_group, "--add-config", "consumer.session.timeout.ms=50000")
    told = tool(CONFIGS, "--describe", *of_group)
    assert "consumer.session.timeout.ms=50000 sensitive=false" in told
    assert "consumer.session.timeout.ms=50000" in tool(CONFIGS, "--describe", "--entity-type", "groups")
    with pytest.raises(AssertionError, match=r"consumer\.session\.timeout\.ms"):
        tool(CONFIGS, "--alter", *of_group, "--add-config", "consumer.session.timeout.ms=1")
    tool(CONFIGS, "--alter", *of_group, "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=50000" not in tool(CONFIGS, "--describe", *of_group)


def test_logs(tool: Callable[..., str], store: segstore.Store, tmp_path: Path) -> None:
    store.create_topic("t", 2)
    store.partition("t", 1).append_batch([b"x"] * 5)
    told = tool(f"{TOOLS}LogDirsCommand", "--describe")
    (directory,) = json.loads(told[told.index("{") :])["brokers"][0]["logDirs"]
    sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
    assert (directory["logDir"], directory["error"]) == (store.path, None)
    assert sizes == {"t-0": 0, "t-1": store.partition("t", 1).size}
    wanted = {"partitions": [{"topic": "t", "partition": 1, "offset": 3}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    told = tool(f"{TOOLS}DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "offsets.json"))
    assert "low_watermark: 3" in told
    assert store.partition("t", 1).start_offset == 3
    for time, offsets in (("-2", ["t:0:0", "t:1:3"]), ("-1", ["t:0:0", "t:1:5"])):
        told = tool(f"{TOOLS}GetOffsetShell", "--topic", "t", "--time", time)
        assert told.split() == offsets


def test_users_with_sasl_over_tls(store: segstore.Store, tmp_path: Path) -> None:
    """A superuser makes a user of SCRAM, who then may list topics, and not make them."""
    files = certificates(tmp_path)
    store.create_topic("t")
    store.create_topic("hidden")
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_users": {"admin": "secret"},
        "super_users": "User:admin",
        "allow": "User:bob: describe topic t",
        **files.of_server,
    }
    with segstore.serve(store, port=0, **settings) as server:

        def as_user(user: str, password: str, mechanism: str, tool: str, *arguments: str) -> str:
            module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            path = tmp_path / "client.properties"
            path.write_text(
                f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nssl.truststore.type=PEM\n"
                f"ssl.truststore.location={files.authority}\n"
                f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required "
                f'username="{user}" password="{password}";\n'
            )
            return console(tool, server.bootstrap_servers, "--command-config", str(path), *arguments)

        of_bob = ("--entity-type", "users", "--entity-name", "bob")
        added = "SCRAM-SHA-256=[iterations=8192,password=bob-secret],SCRAM-SHA-512=[password=bob-secret]"
        as_user("admin", "secret", "PLAIN", CONFIGS, "--alter", *of_bob, "--add-config", added)
        told = as_user("admin", "secret", "SCRAM-SHA-512", CONFIGS, "--describe", *of_bob)
        assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in told
        bob = ("bob", "bob-secret", "SCRAM-SHA-256", f"{TOOLS}TopicCommand")
        assert as_user(*bob, "--list").split() == ["t"]
        with pytest.raises(AssertionError, match="Topic authorization failed"):
            as_user(*bob, "--create", "--topic", "mine")
        of_acls = ("admin", "secret", "PLAIN", f"{TOOLS}AclCommand")
        acls = as_user(*of_acls, "--list")
        assert "(principal=User:bob, host=*, operation=DESCRIBE, permissionType=ALLOW)" in acls
        with pytest.raises(AssertionError, match="does not support CREATE_ACLS"):
            as_user(*of_acls, "--add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "t")


def test_verifiable_clients(server: segstore.Server, store: segstore.Store) -> None:
    """The clients of Kafka's system tests count what was acknowledged, copied in transactions, and read."""
    store.create_topic("in")
    store.create_topic("out")
    at, verifiable = ("--bootstrap-server", server.bootstrap_servers), f"{TOOLS}Verifiable"
    told = run(f"{verifiable}Producer", *at, "--topic", "in", "--max-messages", "1000")
    assert last_line(told)["acked"] == 1000
    assert store.partition("in").end_offset == 1000
    told = run(
        f"{TOOLS}TransactionalMessageCopier",
        *("--broker-list", server.bootstrap_servers, "--input-topic", "in", "--input-partition", "0"),
        *("--output-topic", "out", "--max-messages", "1000", "--consumer-group", "copier"),
        *("--transactional-id", "x", "--transaction-size", "100", "--enable-random-aborts"),
    )
    assert (last_line(told)["consumed"], last_line(told)["remaining"]) == (1000, 0)
    copied = [record.value for record in store.partition("out").read(0, isolation_level="read_committed")]
    assert copied == [b"%d" % n for n in range(1000)]
    run(f"{verifiable}Consumer", *at, *("--topic", "in", "--group-id", "reader", "--max-messages", "1000"))
    for group in ("copier", "reader"):
        with segstore.Consumer(store, group_id=group) as reader:
            assert reader.committed(segstore.TopicPartition("in", 0)) == 1000


def test_replicas_are_compared(server: segstore.Server, store: segstore.Store) -> None:
    """The tool goes on until it is stopped."""
    store.create_topic("t", 2)
    store.partition("t", 1).append_batch([b"x"] * 5)
    options = ["--topics-include", "t", "--report-interval-ms", "200", "--time", "-2"]
    command = ["java", "-Xmx256m", "-cp", classpath(), f"{TOOLS}ReplicaVerificationTool"]
    command += ["--broker-list", server.bootstrap_servers, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            compared = next(line for line in process.stdout if "max lag" in line)
        finally:
            process.kill()
    assert compared.rstrip().endswith("among 2 partitions")
    assert "max lag is 0 for partition t-" in compared


def test_compaction_keeps_the_last_values(tool: Callable[..., str], store: segstore.Store) -> None:
    told = tool(f"{TOOLS}LogCompactionTester", "--messages", "500", "--percent-deletes", "10", "--sleep", "0")
    assert " values, 0 mismatches." in told
    (topic,) = (info for name, info in store.topics().items() if name.startswith("log-cleaner-test"))
    assert topic.config["cleanup.policy"] == "compact"


def last_line(told: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.strip().rpartition("\n")[2])
    return found
