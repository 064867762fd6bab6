"""`segstore serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import certificates
from cli import ok, run, start_program
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import PATIENCE
from wire_client import SOFTWARE, WireClient

import segstore


@contextmanager
def serving(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """Start the command on a port that is free; gives the process, the port and the line that it printed."""
    place = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    program = start_program("serve", "-s", store, *place, *arguments)
    with program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline().decode()
            found = re.search(r"listens on 127\.0\.0\.1:([0-9]+)", line)
            assert found is not None, line
            yield program, int(found[1]), line
        finally:
            program.kill()


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_serves_until_a_signal_and_closes_the_store(
    store_dir: Path, number: signal.Signals, status: int
) -> None:
    with serving(store_dir) as (program, port, line):
        assert line.startswith(f"{store_dir} listens on ")
        with WireClient("127.0.0.1", port) as wire:
            assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0
            program.send_signal(number)
            assert wire.is_closed()
        assert program.wait(PATIENCE) == status
        assert program.stderr is not None
        assert f" {store_dir} is closed, after " in program.stderr.read().decode().splitlines()[-1]
    with segstore.open(store_dir) as store:
        assert store.recovered == ()


@pytest.mark.kind("programs")
@pytest.mark.parametrize(
    ("before", "is_new"), [("none", True), ("empty directory", True), ("store", False)], ids=str
)
def test_it_says_that_the_store_is_new(store_dir: Path, before: str, is_new: bool) -> None:
    """A path that is not the right one, or a restore that has failed, shows as a store without topics."""
    if before == "store":
        segstore.open(store_dir).close()
    elif before == "empty directory":
        store_dir.mkdir()
    with serving(store_dir) as (program, _port, _line):
        program.terminate()
        assert program.wait(PATIENCE) == 0
        assert program.stderr is not None
        told = program.stderr.read().decode()
    assert (f"{store_dir} is a new store: there was none" in told) == is_new


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_ends_by_a_signal_that_another_thread_gets(store_dir: Path, number: int, status: int) -> None:
    """The system may choose any thread; CPython calls the handler in the main one, and does not wake it."""
    tgkill = getattr(ctypes.CDLL(None, use_errno=True), "tgkill", None)
    if tgkill is None:
        pytest.skip("the C library has no tgkill")
    with serving(store_dir) as (program, _, _):
        others = {int(each.name) for each in Path(f"/proc/{program.pid}/task").iterdir()} - {program.pid}
        assert tgkill(program.pid, min(others), number) == 0
        assert program.wait(PATIENCE) == status


@pytest.mark.kind("programs")
def test_it_says_what_clients_are_told(store_dir: Path) -> None:
    with serving(store_dir, "--advertise", "log.example:19092") as (_, _, line):
        assert line.endswith(", and tells clients log.example:19092\n")


REFUSED = {
    "a setting that is none": (["--set", "num.partition=1"], "did you mean num.partitions?"),
    "a setting like none": (
        ["--set", "nope=1"],
        "segstore: no setting 'nope'; docs/reference/settings.md lists those that there are\n",
    ),
    "a store's setting that is none": (
        ["--set", "offsets.topic.num.partitionz=1"],
        "no setting 'offsets.topic.num.partitionz'; did you mean offsets.topic.num.partitions",
    ),
    "a store's value that is none": (
        ["--set", "group.consumer.assignors=sticky"],
        "group.consumer.assignors='sticky': must be one or more, by commas, of uniform, range",
    ),
    "a value that is none": (["--set", "num.partitions=0"], "num.partitions='0': must be an integer from 1"),
    "no port": (["--listen", "a:b"], "--listen='a:b': must be HOST:PORT"),
    "no such port": (["--listen", "a:70000"], "with a port from 0 to 65535"),
    "no such protocol": (["--listen", "TLS://127.0.0.1:0"], "security.protocol='TLS': must be one of"),
    "a setting that is none, with underscores": (
        ["--set", "num_partition=1"],
        "no setting 'num.partition'; did you mean num.partitions?",
    ),
    "TLS without a key": (
        ["--listen", "SSL://127.0.0.1:0"],
        "security.protocol=SSL needs ssl.keystore.location (--tls-keystore), or ssl.keystore",
    ),
    "TLS without a key, of several": (
        ["--listen", "127.0.0.1:0", "--listen", "SSL://127.0.0.1:0"],
        "needs ssl.keystore.location (--tls-keystore), or ssl.keystore",
    ),
    "a port alone to advertise": (["--advertise", "9092"], "--advertise='9092': must be HOST:PORT or HOST"),
    "a right that is none": (["--allow", "User:a: fly topic t"], "'fly' is no operation of a topic"),
    "an address for some of the listeners": (
        ["-l", "127.0.0.1:0", "-l", "SASL_PLAINTEXT://127.0.0.1:0", "--advertise", "a:1"],
        "--advertise is given 1 times, and --listen 2: each has one, in order",
    ),
    "more addresses than listeners": (
        ["--advertise", "a:1", "--advertise", "b:1"],
        "--advertise is given more often than --listen",
    ),
    "a listener whose protocol is not said": (
        ["-l", "127.0.0.1:0", "-l", "INSIDE://127.0.0.1:0"],
        "what INSIDE speaks is not said",
    ),
    "no port to advertise": (["--advertise", "a:b"], "--advertise='a:b': must be HOST:PORT"),
}


@pytest.mark.parametrize(("arguments", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_makes_no_store(store_dir: Path, arguments: list[str], told: str) -> None:
    result = run("serve", "-s", store_dir, *arguments)
    assert result.exit_code == 1
    assert told in result.stderr
    assert not store_dir.exists()


@pytest.mark.kind("programs")
@pytest.mark.parametrize("more", [(), ("--listen", "SASL_PLAINTEXT://0")], ids=["one", "several"])
def test_a_port_alone_is_one_of_this_machine(store_dir: Path, more: tuple[str, ...]) -> None:
    with start_program("serve", "-s", store_dir, "--listen", "0", *more) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline().decode()
            assert re.search(r" listens (on|for PLAINTEXT://)? ?127\.0\.0\.1:[1-9]", line), line
        finally:
            program.kill()


EVERYWHERE = "is open on every address of this machine, and nothing is encrypted"
OPEN: dict[str, tuple[str, str]] = {
    "no host": (":0", f"PLAINTEXT://:PORT {EVERYWHERE}"),
    "every address": ("0.0.0.0:0", f"PLAINTEXT://0.0.0.0:PORT {EVERYWHERE}"),
    "with passwords": ("SASL_PLAINTEXT://:0", f"SASL_PLAINTEXT://:PORT {EVERYWHERE}"),
    "encrypted": ("SSL://:0", ""),
    "this machine": ("127.0.0.1:0", ""),
}


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("listen", "told"), OPEN.values(), ids=OPEN)
def test_a_listener_that_is_open_to_the_network_is_told(
    store_dir: Path, tmp_path: Path, listen: str, told: str
) -> None:
    key = ("--tls-keystore", str(certificates(tmp_path).server)) if "SSL://" in listen else ()
    with start_program("serve", "-s", store_dir, "--listen", listen, *key) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert " listens on " in program.stdout.readline().decode()
        program.terminate()
        log = program.stderr.read().decode().splitlines()
        warned = [line.partition(" WARNING segstore.server: ")[2] for line in log if " WARNING " in line]
        assert [re.sub(r":[0-9]+ is", ":PORT is", line) for line in warned] == [*filter(None, [told])]


@pytest.mark.kind("programs")
def test_it_listens_in_several_places(store_dir: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("alice:secret\n")
    more = ("--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--sasl-users", str(users))
    told = ("--advertise", "127.0.0.1:19092", "--advertise", "log.example:19093")
    program = start_program("serve", "-s", store_dir, "--listen", "127.0.0.1:0", *more, *told)
    with program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline().decode()
            urls = "PLAINTEXT://127.0.0.1:19092, SASL_PLAINTEXT://log.example:19093"
            assert line == f"{store_dir} listens for {urls}\n"
        finally:
            program.kill()


def test_a_port_that_is_taken_is_told(store_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "-s", store_dir, "--listen", where)
    advice = "another program listens there; --listen takes another port, or 0 for one that is free"
    told = f"segstore: {where}: Address already in use: {advice}\n"
    assert (result.exit_code, result.stderr) == (1, told)
    assert not store_dir.exists()


@pytest.mark.parametrize("topics", [(), ("t",)], ids=["empty", "with a topic"])
def test_a_store_of_before_stays_though_the_port_is_taken(store_dir: Path, topics: tuple[str, ...]) -> None:
    with segstore.open(store_dir) as store:
        for topic in topics:
            store.create_topic(topic)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run("serve", "-s", store_dir, "--listen", where).exit_code == 1
    with segstore.open(store_dir, "r") as store:
        assert [*store.topics()] == [*topics]
    assert (store_dir / ".segstore").exists()


def test_an_address_of_another_machine_is_told(store_dir: Path) -> None:
    result = run("serve", "-s", store_dir, "--listen", "192.0.2.1:9092")  # RFC 5737: nobody has it
    assert (result.exit_code, store_dir.exists()) == (1, False)
    assert "this machine does not have that address; 0.0.0.0 is every one" in result.stderr


@pytest.mark.kind("programs")
def test_it_serves_users_with_rights_over_tls(store_dir: Path, tmp_path: Path) -> None:
    files, users = certificates(tmp_path), tmp_path / "users"
    users.write_text("alice:secret\n")
    given = ("--tls-keystore", files.server, "--sasl-users", users, "--allow", "User:alice: create topic t")
    with serving(store_dir, "--listen", "sasl_ssl://127.0.0.1:0", *map(str, given)) as (_, port, _line):
        client = AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "alice",
                "sasl.password": "secret",
                **files.of_client,
            }
        )
        made = client.create_topics([NewTopic("t", 1), NewTopic("other", 1)])
        made["t"].result(PATIENCE)
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            made["other"].result(PATIENCE)


@pytest.mark.kind("programs")
def test_serve_shares(store_dir: Path) -> None:
    with serving(store_dir, "--shared") as (program, port, _):
        ok("create", "t", "--bootstrap", f"127.0.0.1:{port}")
        with segstore.open(store_dir, shared="guest") as guest:
            assert (guest.role, guest.host_pid) == ("guest", program.pid)
            guest.partition("t").append(b"guest's")
        result = ok("consume", "t", "--bootstrap", f"127.0.0.1:{port}", "--format", "values")
        assert "guest's" in result.stdout
        second = run("serve", "--store", store_dir, "--shared", "--listen", "127.0.0.1:0")
        assert second.exit_code == 1
        assert f"has a host already, process {program.pid}" in second.stderr
        program.terminate()
        assert program.wait(PATIENCE) == 0
    with segstore.open(store_dir) as store:
        assert store.recovered == ()
