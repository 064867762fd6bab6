"""What the log tells of clients that do wrong: each event once, a peer once a minute, and no secret."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from serving import connections, serving
from waiting import PATIENCE, told, until
from wire_client import WireClient

import segstore
from segstore.server import notices
from segstore.server.apis import Api
from segstore.server.notices import LONGEST, MOST_USERS, QUIET, Notices, shown

USERS = {"alice": "topsecret"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    told()
    return [record.getMessage() for record in caplog.records]


def test_a_peer_is_told_once_a_minute_with_how_many_were_left_out(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    made = Notices(None, clock)
    for _ in range(3):
        made.log("request", "a", "wrong: %s", "a")
    made.log("SASL", "a", "no password")
    made.log("request", "b", "wrong: %s", "b", level=logging.ERROR)
    assert lines(caplog) == ["wrong: a", "no password", "wrong: b"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    caplog.clear()
    clock.now += QUIET - 0.001
    made.log("request", "a", "wrong: %s", "a")
    assert lines(caplog) == []
    clock.now += 0.001
    for _ in range(2):
        made.log("request", "a", "wrong: %s", "a")
    clock.now += QUIET
    made.log("request", "a", "wrong: %s", "a")
    assert lines(caplog) == [
        "wrong: a (3 more since the last such line)",
        "wrong: a (1 more since the last such line)",
    ]


def test_each_user_of_a_peer_has_a_line_up_to_a_bound(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    made = Notices(None, clock)
    for _ in range(2):
        for user in ("alice", "bob"):
            made.log("SASL", "a", "wrong: %s", user, user=user)
    made.log("SASL", "b", "wrong: %s", "alice of b", user="alice")
    assert lines(caplog) == ["wrong: alice", "wrong: bob", "wrong: alice of b"]
    caplog.clear()
    for i in range(2, 1000):
        made.log("SASL", "a", "wrong: %s", i, user=f"{'u' * 99}{i:c}")
    assert lines(caplog) == [f"wrong: {i}" for i in range(2, MOST_USERS + 1)]  # the last one is its others'
    assert len(made._known) == MOST_USERS + 2
    caplog.clear()
    clock.now += QUIET
    made.log("SASL", "a", "wrong: %s", "carol", user="carol")
    assert (lines(caplog), len(made._known)) == (["wrong: carol"], 1)


def test_a_long_name_is_not_kept_in_whole(clock: Clock) -> None:
    made = Notices(None, clock)
    made.log("SASL", "a", "wrong", user="u" * 1_000_000)
    assert max(len(each) for key in made._known for each in key) == LONGEST


def test_many_peers_do_not_fill_the_memory_nor_the_log(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MOST", 10)
    made = Notices(None, clock)
    for i in range(100):
        made.log("request", f"10.0.0.{i}", "wrong: %s", i)
    assert lines(caplog) == [f"wrong: {i}" for i in range(11)]  # the last one is that of all others
    assert len(made._known) == 11
    caplog.clear()
    clock.now += QUIET
    made.log("request", "10.0.1.1", "wrong: %s", "x")
    assert lines(caplog) == ["wrong: x"]
    assert len(made._known) == 1


@pytest.mark.parametrize(("name", "expected"), [("a'b\n", '"a\'b\\n"'), ("x" * 101, f"'{'x' * 100}...'")])
def test_a_client_s_name_is_shown(name: str, expected: str) -> None:
    assert shown(name) == expected


# --- servers -----------------------------------------------------------------------------------------


def send(server: segstore.Server, data: bytes) -> None:
    """Send bytes, and wait until the server closes the connection."""
    with socket.create_connection((server.host, server.port), PATIENCE) as sock:
        sock.sendall(data)
        with suppress(ConnectionError):
            while sock.recv(1000):
                pass


MALFORMED: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "the connection of 127.0.0.1 was closed: a request can't be read: "),
    "no such API": (b"\0\0\0\x0a\x7f\x7f\0\0\0\0\0\x01\xff\xff", "a request can't be read: "),
    "no such version": (b"\0\0\0\x0a\0\x03\x7f\0\0\0\0\x01\xff\xff", "a request can't be read: Metadata"),
    "a body that is cut off": (b"\0\0\0\x0c\0\x03\0\x01\0\0\0\x01\xff\xff\0\0", "a request can't be read: "),
}


@pytest.mark.parametrize(("data", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_told_once(
    store: segstore.Store, caplog: pytest.LogCaptureFixture, data: bytes, expected: str
) -> None:
    with serving(store) as server:
        for _ in range(5):
            send(server, data)
    (line,) = lines(caplog)
    assert expected in line
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_client_that_goes_is_not_told(
    store: segstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    caplog.set_level(logging.INFO)
    key = {"ssl_keystore_location": str(certificates(tmp_path).server)} if protocol == "SSL" else {}
    with serving(store, security_protocol=protocol, **key) as server:
        parts = b"\0\0\0\x0a\0\x03" if protocol == "PLAINTEXT" else b"\x16\x03\x01\x02\x00\x01"
        for data in (b"", parts[:2], parts):
            with socket.create_connection((server.host, server.port), PATIENCE) as sock:
                sock.sendall(data)
        until(lambda: not connections(server))
    assert lines(caplog) == []


TOKENS: dict[str, tuple[str, bytes, str]] = {
    "a wrong password": (
        "PLAIN",
        b"\0alice\0topsecret2",
        "an authentication by 'PLAIN' of user 'alice' failed (from 127.0.0.1): "
        "Authentication failed: Invalid username or password",
    ),
    "nobody": ("PLAIN", b"\0mallory\0topsecret", "by 'PLAIN' of user 'mallory' failed (from 127.0.0.1): "),
    "a password in the wrong place": ("PLAIN", b"alice\0topsecret", "by 'PLAIN' failed (from 127.0.0.1): "),
    "another's authority": ("SCRAM-SHA-256", b"n,a=bob,n=alice,r=x", "by 'SCRAM-SHA-256' of user 'alice' "),
}


@pytest.mark.parametrize(("mechanism", "token", "expected"), TOKENS.values(), ids=TOKENS)
def test_a_failed_authentication_is_told_without_secrets(
    store: segstore.Store, caplog: pytest.LogCaptureFixture, mechanism: str, token: bytes, expected: str
) -> None:
    caplog.set_level(logging.DEBUG)
    sasl: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_users": USERS,
        "connection_failed_authentication_delay_ms": 1,
    }
    with serving(store, **sasl) as server:
        for _ in range(3):
            with WireClient(server.host, server.port) as wire:
                assert wire.ask(Api.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == 0
                wire.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=token)
                assert wire.is_closed()
    (line,) = [each for each in lines(caplog) if "authentication" in each]
    assert expected in line
    assert "topsecret" not in caplog.text


def test_each_user_who_fails_is_told(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    sasl: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": USERS}
    with serving(store, connection_failed_authentication_delay_ms=1, **sasl) as server:
        for name in ("alice", "mallory", "alice"):
            with WireClient(server.host, server.port) as wire:
                wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                wire.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=f"\0{name}\0guess".encode())
                assert wire.is_closed()
    assert [each.split(" (from")[0] for each in lines(caplog) if "authentication" in each] == [
        f"an authentication by 'PLAIN' of user '{name}' failed" for name in ("alice", "mallory")
    ]


def test_a_callable_that_fails_is_told_without_its_text(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    def users(_name: str, password: str) -> bool:
        raise ValueError(password)

    sasl: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": users}
    sasl |= {"sasl_enabled_mechanisms": "PLAIN", "connection_failed_authentication_delay_ms": 1}
    with serving(store, **sasl) as server, WireClient(server.host, server.port) as wire:
        wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        wire.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0topsecret")
        assert wire.is_closed()
    (line,) = lines(caplog)
    assert line == "an authentication by 'PLAIN' of user 'alice' failed (from 127.0.0.1): ValueError"
    assert caplog.records[0].levelname == "ERROR"
    assert "topsecret" not in caplog.text


def test_a_mechanism_that_is_not_served_is_told(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    sasl: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": USERS}
    with serving(store, **sasl) as server, WireClient(server.host, server.port) as wire:
        wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="GSS\nAPI")
        assert wire.is_closed()
    (line,) = lines(caplog)
    assert line == (
        "an authentication by 'GSS\\nAPI' failed (from 127.0.0.1): its SASL handshake is not served"
    )


def test_a_failed_handshake_of_tls_is_told_once(
    store: segstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = certificates(tmp_path).server
    with serving(store, security_protocol="SSL", ssl_keystore_location=str(key)) as server:
        for _ in range(3):
            send(server, b"GET / HTTP/1.1\r\n\r\n")
    (line,) = lines(caplog)
    assert "the connection of 127.0.0.1 was closed: its TLS handshake failed: " in line
