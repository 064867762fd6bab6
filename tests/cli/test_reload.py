"""`segstore serve` reads certificates, users and rights again at SIGHUP: clients go on, and what is wrong
changes nothing and is a line of the log.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import ssl
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
import trustme
from cli import start_program
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore

pytestmark = pytest.mark.kind("programs")

SECRET = "swordfish"
PLACES = """\
listeners=SASL_PLAINTEXT://127.0.0.1:0
connection.failed.authentication.delay.ms=1
"""


class Served:
    """A server and the file that it was started with."""

    def __init__(self, program: subprocess.Popen[bytes], path: Path, port: int) -> None:
        self.program, self.path, self.port = program, path, port
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.program.stderr or ():
            self.lines.append(line.decode().rstrip("\n"))

    def hang_up(self) -> None:
        self.program.send_signal(signal.SIGHUP)

    def rewrite(self, text: str) -> None:
        self.path.write_text(text)
        self.hang_up()

    def told(self, text: str) -> str:
        """Wait for a line of the log."""
        until(lambda: any(text in each for each in list(self.lines)) or self.program.poll() is not None)
        return next(each for each in self.lines if text in each)

    def end(self) -> None:
        self.program.send_signal(signal.SIGTERM)
        assert self.program.wait(PATIENCE) == 0, self.lines
        self._reader.join()

    def may_enter(self, name: str, password: str) -> bool:
        with WireClient("127.0.0.1", self.port) as wire:
            assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
            token = f"\0{name}\0{password}".encode()
            return bool(wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0)


@contextmanager
def served(directory: Path, text: str, *arguments: object, **options: Any) -> Iterator[Served]:
    path = directory / "server.properties"
    path.write_text(text)
    store = directory / "store"
    with start_program("serve", "-s", store, "--config", path, *arguments, **options) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline().decode()
            found = re.search(r"listens on 127\.0\.0\.1:([0-9]+)", line)
            assert found is not None, line + program.communicate(timeout=PATIENCE)[1].decode()
            yield Served(program, path, int(found[1]))
        finally:
            program.kill()


def users(**passwords: str) -> str:
    words = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    return f"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {words};\n"


def test_users_of_the_file_are_read_again(tmp_path: Path) -> None:
    with served(tmp_path, PLACES + users(alice="one")) as server:
        assert server.may_enter("alice", "one")
        server.rewrite(PLACES + users(bob="two"))
        until(lambda: server.may_enter("bob", "two"))
        assert not server.may_enter("alice", "one")
        server.end()
        assert sum("were read again" in line for line in server.lines) == 1
        assert f" {tmp_path}/store is closed, after " in server.lines[-1]


def test_files_of_options_are_read_again(tmp_path: Path) -> None:
    known = tmp_path / "users"
    known.write_text("alice:one\n")
    with served(tmp_path, PLACES, "--sasl-users", known) as server:
        known.write_text("bob:two\n")
        server.hang_up()
        until(lambda: server.may_enter("bob", "two"))
        assert not server.may_enter("alice", "one")
        server.end()


def test_it_reloads_under_nohup_too(tmp_path: Path) -> None:
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with served(tmp_path, PLACES + users(alice="one"), **ignored) as server:
        server.rewrite(PLACES + users(bob="two"))
        until(lambda: server.may_enter("bob", "two"))
        server.end()


HUNG_UP_EARLY = """
import signal, sys
import segstore.cli

class HangsUp:
    def find_spec(name, *_):
        if name in ("segstore.cli.app", "segstore.cli.serve", "segstore.cli.server_plan"):
            signal.raise_signal(signal.SIGHUP)

sys.meta_path.insert(0, HangsUp)
sys.exit(segstore.cli.main())
"""


@pytest.mark.parametrize("is_place_first", [False, True])
def test_a_signal_while_it_starts_is_heeded_once_it_listens(tmp_path: Path, is_place_first: bool) -> None:
    arguments = ["serve", "--listen", "127.0.0.1:0"]
    arguments.insert(0 if is_place_first else 1, f"--store={tmp_path / 'store'}")
    command = [sys.executable, "-c", HUNG_UP_EARLY, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            server = Served(program, tmp_path, 0)
            server.told("were read again")
            server.end()
            assert "listens on" in server.lines[0]
        finally:
            program.kill()


def test_it_outlives_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:one\n")
    ours, theirs = os.openpty()
    held = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    held |= {"preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}  # SIGHUP comes when it is closed
    place = ("--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--sasl-users", tmp_path / "users")
    with start_program("serve", "-s", tmp_path / "store", *place, **held) as program:
        try:
            os.close(theirs)
            shown = b""
            while (found := re.search(rb"listens on 127\.0\.0\.1:([0-9]+)\r\n", shown)) is None:
                shown += os.read(ours, 4096)
            server = Served(program, tmp_path / "users", int(found[1]))
            server.path.write_text("bob:two\n")
            os.close(ours)
            until(lambda: server.may_enter("bob", "two"))
            server.end()
        finally:
            program.kill()
    with segstore.open(tmp_path / "store") as store:
        assert store.recovered == ()


WRONG: dict[str, tuple[str, str]] = {
    "a name that is none": ("sasl.user=x\n", "line 3: no setting 'sasl.user'; did you mean sasl.users?"),
    "half a line": ("sasl.jaas.con", "line 3: must be NAME=VALUE"),
    "no users": (f"sasl.jaas.config={SECRET}\n", "line 3: sasl.jaas.config must have users"),
    "a user that is twice in its file": ("sasl.users=twice.txt\n", "line 3 has the user 'bob' again"),
    "a path with a NUL": ("sasl.users=u\\u0000.txt\n", "No such file"),
    "no file of users": ("sasl.users=none\n", "/none: No such file"),
    "no certificate": (
        "ssl.truststore.location=none\nlistener.name.sasl_plaintext.ssl.keystore.key=x\n",
        "ssl.keystore.certificate.chain and ssl.keystore.key are given together",
    ),
    "a first right": (users(bob="two") + "allow=User:*: all topic *\n", "allow and super.users"),
    "not UTF-8": ("\ud800", "the file is not UTF-8"),
}


def test_what_is_wrong_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "twice.txt").write_text("bob:one\n\nbob:two\n", encoding="utf-8-sig")
    with served(tmp_path, PLACES + users(alice="one")) as server:
        for text, told in WRONG.values():
            server.path.write_bytes((PLACES + text).encode("utf-8", "surrogatepass"))
            server.hang_up()
            line = server.told(told)
            assert " ERROR segstore.cli: nothing was changed by SIGHUP: " in line
            assert server.may_enter("alice", "one")
        server.path.unlink()
        server.hang_up()
        server.told("server.properties: No such file or directory")
        assert server.may_enter("alice", "one")
        server.end()
        assert sum("nothing was changed" in line for line in server.lines) == len(WRONG) + 1
        assert sum(" ERROR " in line for line in server.lines) == len(WRONG) + 1
        assert SECRET not in "\n".join(server.lines)


def test_what_needs_a_restart_is_named_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    more = "num.partitions=3\ngroup.max.size=7\nlisteners=SASL_PLAINTEXT://127.0.0.1:1\nhttp.listener=1\n"
    text = users(bob="two") + more + PLACES.partition("\n")[2]
    with served(tmp_path, PLACES + users(alice="one") + "max.connections=9\n") as server:
        server.rewrite(text)
        names = "group.max.size, http.listener, listeners, max.connections, num.partitions"
        server.told(f"SIGHUP can't change {names}: that needs a")
        assert (server.may_enter("bob", "two"), server.may_enter("alice", "one")) == (True, False)
        server.end()


# --- under load ----------------------------------------------------------------------------------


def login(name: str) -> dict[str, str]:
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": name}


def _librdkafka(port: int, authority: Path) -> Callable[[int], object]:
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "ssl.ca.location": str(authority)}
    producer = confluent_kafka.Producer({**settings, **login("alice"), "sasl.password": "one"})

    def send(number: int) -> None:
        failed: list[object] = []
        producer.produce("t", b"%d" % number, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(PATIENCE) == 0
        assert failed == [None]

    return send


def _kafka_python(port: int, authority: Path) -> Callable[[int], object]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}",
        security_protocol="SASL_SSL",
        ssl_cafile=str(authority),
        sasl_mechanism="PLAIN",
        sasl_plain_username="alice",
        sasl_plain_password="one",
    )
    return lambda number: producer.send("t", b"%d" % number).get(PATIENCE)


CLIENTS: Mapping[str, Callable[[int, Path], Callable[[int], object]]] = {
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
}


def _serial(port: int, authority: Path) -> object:
    context = ssl.create_default_context(cafile=str(authority))
    with WireClient("127.0.0.1", port) as wire:
        wire.socket = context.wrap_socket(wire.socket, server_hostname="127.0.0.1")
        return wire.socket.getpeercert()["serialNumber"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_go_on(tmp_path: Path, client: str) -> None:
    authority, key = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def issue() -> None:
        leaf = authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(key)

    issue()
    text = (
        "listeners=SASL_SSL://127.0.0.1:0\nssl.keystore.location=server.pem\nnum.partitions=1\n"
        "allow=User:alice: all topic t\nallow=User:alice: all cluster\n" + users(alice="one")
    )
    with served(tmp_path, text) as server:
        send = CLIENTS[client](server.port, tmp_path / "ca.pem")
        rounds, count = 5, 0
        for _ in range(rounds):
            before = _serial(server.port, tmp_path / "ca.pem")
            issue()
            server.hang_up()
            while True:
                send(count)
                count += 1
                if _serial(server.port, tmp_path / "ca.pem") != before:
                    break
            send(count)
            count += 1
        server.end()
    with segstore.open(tmp_path / "store", "r") as store:
        values = [each.value for each in store.partition("t").read(0)]
    assert values == [b"%d" % n for n in range(count)]
