"""--bootstrap in place of --store: the same commands give the same output of a server; refusals."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bootstrap_servers import NOON
from bootstrap_servers import server as server
from certificates import certificates
from cli import json_lines, ok, run, start_program
from waiting import PATIENCE, until

import segstore
from segstore.cli.app import COMMANDS, commands
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.testing import Broker

pytestmark = pytest.mark.kind("clients on the wire")


def both(server: segstore.Server, *arguments: object) -> tuple[Any, Any]:
    """The results of a command with --store and with --bootstrap."""
    path = server.node.store.path
    return run(*arguments, "--store", path), run(*arguments, "--bootstrap", server.bootstrap_servers)


# --- the same output ------------------------------------------------------------------------------

READ = {
    "all": [],
    "one partition": ["-p", "2"],
    "in the order asked for": ["-p", "2", "-p", "0"],
    "an empty one": ["-p", "1"],
    "from an offset": ["-p", "0", "-o", "7"],
    "from the end": ["-o", "latest"],
    "from a time": ["-t", str(NOON + 5)],
    "after the last": ["-t", str(NOON + 50)],
    "at most": ["-n", "11"],
    "none": ["-n", "0"],
    "values": ["--format", "values"],
    "raw": ["--format", "raw", "-n", "3"],
    "committed": ["--isolation-level", "read_committed"],
    "an offset that is not there": ["-p", "0", "-o", "11"],
    "a partition that is not there": ["-p", "3"],
}


@pytest.mark.parametrize("arguments", READ.values(), ids=READ)
def test_consume_prints_the_same(server: segstore.Server, arguments: list[str]) -> None:
    near, far = both(server, "consume", "t", *arguments)
    assert (far.exit_code, far.stdout_bytes, far.stderr) == (near.exit_code, near.stdout_bytes, near.stderr)


def test_aborted_records_are_left_out(server: segstore.Server) -> None:
    store = server.node.store
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send("u", end.__name__.encode())
            producer.flush()
            end()
    for level, count in (("read_committed", 1), ("read_uncommitted", 2)):
        near, far = both(server, "consume", "u", "--isolation-level", level)
        assert far.stdout == near.stdout
        assert len(far.stdout.splitlines()) == count


def test_topics_are_the_same_but_for_bytes(server: segstore.Server) -> None:
    for names in ([], ["t"], ["u", "t"]):
        near, far = (json_lines(each) for each in both(server, "topics", *names, "--json"))
        for row in near:
            row |= {"bytes": None, "ours": None}
            row["partitions"] = [part | {"bytes": None} for part in row["partitions"]]
        assert far == near
    near, far = (each.stdout.split() for each in both(server, "topics", "t"))
    assert [word for word in far if word != "-"][:6] == near[:6]


@pytest.fixture
def grouped(server: segstore.Server) -> Iterator[segstore.Server]:
    """Group "app" has a member and a committed offset, "old" has offsets alone."""
    Groups(server.node.store)._writer().commit("old", {TopicPartition("t", 0): OffsetAndMetadata(4, "note")})
    consumer = segstore.Consumer(server.node.store, "t", group_id="app", auto_offset_reset="earliest")
    with consumer:
        until(lambda: consumer.poll(100))
        consumer.commit()
        yield server


def test_groups_are_the_same_but_for_generation_and_notes(grouped: segstore.Server) -> None:
    path = Path(grouped.node.store.path)
    for command in ("list", "describe"):
        near, far = (json_lines(each) for each in both(grouped, "groups", command, "--json"))
        for row in near:
            row["generation"] = -1
            for part in row.get("partitions", ()):
                part["metadata"] = ""
        assert [row["group"] for row in far] == ["app", "old"]
        assert far == near, path


# --- changes --------------------------------------------------------------------------------------


def test_produce_appends_what_it_would_append_to_a_store(server: segstore.Server, tmp_path: Path) -> None:
    lines = [
        {"key": f"k{n}", "value": f"v{n}", "timestamp": NOON + n, "headers": [["h", "1"], ["n", None]]}
        for n in range(50)
    ]
    lines += [{"key": "", "value": None, "timestamp": NOON}, {"key": None, "value": "", "timestamp": NOON}]
    lines += [{"key": "p", "value": "own", "timestamp": NOON, "partition": 1}]
    data = "".join(json.dumps(line) + "\n" for line in lines)
    ok("create", "t", "-p", "3", "-s", tmp_path / "near")
    near = ok("produce", "t", "-f", "ndjson", "-s", tmp_path / "near", stdin=data)
    ok("create", "w", "-p", "3", "-b", server.bootstrap_servers)
    far = ok("produce", "w", "-f", "ndjson", "-b", server.bootstrap_servers, stdin=data)
    assert far.stderr.split(" in ")[0] == near.stderr.split(" in ")[0].replace("t: ", "w: ")
    for number in range(3):
        there = ok("consume", "t", "-p", number, "-s", tmp_path / "near").stdout
        assert ok("consume", "w", "-p", number, "-b", server.bootstrap_servers).stdout == there


def test_the_codec_and_the_size_of_batches_are_heeded(server: segstore.Server) -> None:
    arguments = ("--compression", "zstd", "--batch-bytes", "1000", "-b", server.bootstrap_servers)
    ok("produce", "u", *arguments, stdin="x" * 99 + "\n" + ("y" * 99 + "\n") * 49)
    batches = server.node.store.partition("u").read(0).batches
    assert {int(each) & 7 for each in batches["attributes"]} == {4}
    assert len(batches) >= 5


def test_topics_are_created_altered_and_deleted(server: segstore.Server) -> None:
    store, where = server.node.store, ("-b", server.bootstrap_servers)
    told = ok("create", "w", "-p", "2", "-c", "cleanup.policy=compact", *where).stderr
    assert told == "created w: 2 partitions\n"
    assert store.topics()["w"].config == {"cleanup.policy": "compact"}
    told = ok("alter", "w", "-c", "retention.ms=1000", "-d", "cleanup.policy", "-p", "4", *where).stderr
    assert told == "altered w: 4 partitions, retention.ms=1000\n"
    assert (store.topics()["w"].partitions, store.topics()["w"].config) == (4, {"retention.ms": 1000})
    assert ok("delete", "w", "-y", *where).stderr == "deleted w\n"
    assert "w" not in store.topics()


def test_groups_are_reset_and_deleted(grouped: segstore.Server) -> None:
    where = ("-b", grouped.bootstrap_servers)
    for goal in (["--to-offset", "99"], ["--shift-by", "-1"], ["--to-datetime", str(NOON + 3)]):
        near, far = both(grouped, "groups", "reset", "old", *goal, "--all-topics", "--json")
        assert far.stdout == near.stdout
    ok("groups", "reset", "old", "--shift-by", "-1", "--all-topics", "--execute", *where)
    (row,) = json_lines(ok("groups", "describe", "old", "--json", *where))
    assert [(part["committed"], part["lag"]) for part in row["partitions"]] == [(3, 7)]
    assert ok("groups", "delete", "old", "-y", *where).stderr == "deleted old\n"
    refused = run("groups", "reset", "app", "--to-latest", "--all-topics", "--execute", *where)
    assert refused.stderr == "segstore: group 'app' has 1 member: end them first\n"


def test_what_the_commands_write_a_client_reads(server: segstore.Server) -> None:
    ok("produce", "u", "--key-separator", ":", "-b", server.bootstrap_servers, stdin="k:v\n")
    settings = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["u"])
    message = until(lambda: consumer.poll(0.5))
    consumer.close()
    assert (message.key(), message.value()) == (b"k", b"v")


def test_every_command_of_topics_takes_both() -> None:
    """The help of these commands names the option."""
    for name in sorted(ANYWHERE - {"groups"}):
        assert "--bootstrap" in run(name, "--help").stdout
    for name in ("list", "describe", "reset", "delete"):
        assert "--bootstrap" in run("groups", name, "--help").stdout
    assert set(commands.list_commands(None)) > ANYWHERE  # type: ignore[arg-type]


# --- refusals -------------------------------------------------------------------------------------

REFUSED = {
    "no such topic": (["consume", "v"], "no topic 'v'; there are: t, u"),
    "to produce to no topic": (["produce", "v"], "no topic 'v'; there are: t, u"),
    "to produce to no partition": (["produce", "t", "-p", "3"], "topic 't' has no partition 3"),
    "a topic that is there": (["create", "t"], "topic 't' exists already"),
    "a bad name": (["create", "t?"], "'t?' can't be a topic's name"),
    "a setting that is none": (["create", "v", "-c", "retention.sm=1"], "v: no setting 'retention.sm'"),
    "fewer partitions": (["alter", "t", "-p", "1"], "--partitions 1: t has 3 already; the number can only"),
    "no such group": (["groups", "describe", "g"], "no group 'g'; there are none"),
    "a setting of the client": (["topics", "--set", "foo.bar=1"], "No such configuration property"),
    "TLS": (["topics", "--set", "security.protocol=ssl"], "can't be reached: "),
}


@pytest.mark.parametrize(("arguments", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(server: segstore.Server, arguments: list[str], told: str) -> None:
    result = run(*arguments, "-b", server.bootstrap_servers, stdin="")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = [each for each in result.stderr.splitlines() if not each.startswith("t: 0 records")]
    assert line.startswith("segstore: ")
    assert told in line


MISUSED = {
    "both": (["topics", "-s", "x", "-b", "y:1"], {}, "Give --store or --bootstrap, not both"),
    "neither": (["topics"], {}, "Where are the topics? Give --store PATH (or SEGSTORE_PATH) or --bootstrap"),
    "two variables": (
        ["topics"],
        {"SEGSTORE_PATH": "x", "SEGSTORE_BOOTSTRAP": "y:1"},
        "SEGSTORE_PATH and SEGSTORE_BOOTSTRAP are both set",
    ),
    "a client's setting for a store": (
        ["topics", "-s", "x", "--set", "a=b"],
        {},
        "--command-config and --set",
    ),
    "single offsets": (
        ["groups", "delete", "g", "-t", "t", "-y", "-b", "y:1"],
        {},
        "`groups delete --topic` does not work with --bootstrap",
    ),
}


def test_records_that_the_broker_refuses_end_the_command(server: segstore.Server) -> None:
    server.node.store.alter_topic("u", {"max.message.bytes": 1000})
    result = run("produce", "u", "-b", server.bootstrap_servers, stdin="x" * 3000 + "\n")
    told = f"segstore: {server.bootstrap_servers}: u-0: Message size too large\n"
    assert (result.exit_code, result.stderr) == (1, told)


def test_a_time_that_librdkafka_can_t_send_is_refused(server: segstore.Server) -> None:
    line = json.dumps({"value": "x", "timestamp": 0}) + "\n"
    result = run("produce", "u", "-f", "ndjson", "-b", server.bootstrap_servers, stdin=line)
    assert "timestamp 0: with --bootstrap a time must lie after 1970 began" in result.stderr


# --- a server that has to know who asks -----------------------------------------------------------

JAAS = (
    'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" '
    'password="secret";\n'
)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("given", ["by --set", "by a properties file"])
def test_commands_authenticate(store: segstore.Store, tmp_path: Path, mechanism: str, given: str) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if given == "by --set":
        settings |= {"sasl.username": "alice", "sasl.password": "secret"}
        options = [word for each in settings.items() for word in ("--set", "=".join(each))]
    else:
        file = tmp_path / "client.properties"
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        jaas = JAAS.replace("scram.Scram", "plain.Plain") if mechanism == "PLAIN" else JAAS
        file.write_text(lines + jaas)
        options = ["--command-config", str(file)]
    store.create_topic("t")
    users = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": {"alice": "secret"}}
    allowed = {"allow": ["User:alice: read,write topic t"]}
    with segstore.serve(store, port=0, **users, **allowed) as server:
        place = ["--bootstrap", server.bootstrap_servers, *options]
        ok("produce", "t", *place, stdin="on time\n")
        assert ok("consume", "t", "--format", "values", *place).stdout == "on time\n"
        refused = run("create", "u", *place)
        assert refused.exit_code == 1
        assert "authorization failed" in refused.stderr.lower()


def words(text: str) -> str:
    """The words of an error in its frame."""
    return " ".join(text.split())


@pytest.mark.parametrize(("arguments", "variables", "told"), MISUSED.values(), ids=MISUSED)
def test_exactly_one_place_is_named(
    arguments: list[str], variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(*arguments, variables=variables)
    assert result.exit_code == 2
    assert told in words(result.stderr)


def test_an_option_counts_more_than_a_variable(server: segstore.Server, tmp_path: Path) -> None:
    near, far = server.node.store.path, server.bootstrap_servers
    for arguments, variables in (
        (["-b", far], {"SEGSTORE_PATH": str(tmp_path / "none")}),
        (["-s", near], {"SEGSTORE_BOOTSTRAP": "127.0.0.1:1"}),
        ([], {"SEGSTORE_BOOTSTRAP": far}),
        ([], {"SEGSTORE_PATH": near}),
    ):
        result = run("topics", "t", *arguments, variables=variables)
        assert result.exit_code == 0, result.output


ANYWHERE = {"topics", "create", "alter", "delete", "produce", "consume", "groups"}
OF_NO_STORE = {"dump", "checkpoints", "bench", "demo", "mirror", "follow"}  # or their commands name one
OF_A_SERVER = {"demote"}  # it asks segstore's own server, and no cluster


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ANYWHERE - OF_NO_STORE - OF_A_SERVER))
def test_other_commands_say_what_they_need(name: str) -> None:
    result = run(name, "--bootstrap", "127.0.0.1:1")
    assert result.exit_code == 2
    assert f"`segstore {name}` needs the files of a store: give --store PATH" in words(result.stderr)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    result = run("topics", "-b", "127.0.0.1:1")
    assert (result.exit_code, result.stderr) == (
        1,
        "segstore: --bootstrap needs confluent-kafka, which is not installed: pip install confluent-kafka\n",
    )


def test_a_cluster_that_is_not_there_is_told_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}"
    result = run("topics", "-b", where)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"segstore: {where}: can't be reached: ")
    assert result.stderr.endswith("Connection refused\n")


OF_USERS = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": {"alice": "secret"}}
"""Settings of a server."""


@pytest.mark.parametrize("command", ["topics", "produce", "consume"])
def test_a_topic_that_the_user_may_not_see(command: str) -> None:
    client = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256", "sasl.username=alice")
    of_alice = [part for each in (*client, "sasl.password=secret") for part in ("--set", each)]
    allow = ["User:alice: read,write,describe topic orders"]
    with Broker(topics=["pay", "orders"], allow=allow, **OF_USERS) as broker:
        result = run(command, "pay", "-b", broker.bootstrap_servers, *of_alice, stdin="")
        assert result.exit_code == 1
        assert "no topic 'pay'; there are: orders; or alice may not describe it\n" in result.stderr
        result = run("consume", "orders", "-p", "7", "-b", broker.bootstrap_servers, *of_alice)
        assert "may not" not in result.stderr


@pytest.mark.parametrize("of", ["TLS", "SASL"])
def test_a_server_that_wants_tls_or_sasl_is_told(of: str, tmp_path: Path) -> None:
    tls = {"security_protocol": "SSL", "ssl_keystore_location": str(certificates(tmp_path).server)}
    with Broker(**(tls if of == "TLS" else OF_USERS)) as broker:
        result = run("topics", "-b", broker.bootstrap_servers)
    assert result.exit_code == 1
    assert "does it speak TLS or SASL? Give --set security.protocol=SSL (or " in result.stderr
    assert "--command-config FILE" in result.stderr


def test_produce_to_a_demoted_primary_says_so(tmp_path: Path) -> None:
    with Broker(tmp_path / "old", topics=["t"]) as old:
        with segstore.follow(old.bootstrap_servers, tmp_path / "new") as standby:
            assert standby.wait_caught_up(PATIENCE * 1000)
        with segstore.promote(tmp_path / "new", "reachable"):
            program = start_program("produce", "t", "-b", old.bootstrap_servers, stdin=subprocess.PIPE)
            with program:
                try:
                    assert program.stdin is not None
                    assert program.stderr is not None
                    program.stdin.write(b"x\n")
                    program.stdin.close()
                    assert (
                        b": no producer id: Not coordinator; a store that was demoted"
                        in program.stderr.readline()
                    )
                finally:
                    program.kill()
