"""`Server.reload`: other certificates, users and rights while connections go on; all of it or nothing."""

from __future__ import annotations

import os
import random
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trustme
from certificates import certificates
from sent import NOW, batch
from serving import connections, serving, within
from waiting import PATIENCE, until
from wire_client import SOFTWARE, Sent, WireClient

import segstore
from segstore.errors import ConfigError, IllegalStateError, InvalidArgumentError, SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.handlers.fetch import Fetches
from segstore.server.learned.produce import LearnedProduce
from segstore.server.security import sasl
from segstore.server.security.allow_list import ResourceType
from segstore.server.settings import ServerConfig

_Produce, _Fetch = structs("ProduceRequest"), structs("FetchRequest")
SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_users": {"alice": "one", "bob": "two"},
    "connection_failed_authentication_delay_ms": 1,
}
DENIED = int(Code.TOPIC_AUTHORIZATION_FAILED)
FAILED = int(Code.SASL_AUTHENTICATION_FAILED)
MAY_ALL = "User:*: all topic *"
MAY_READ = "User:*: read topic *"


def entered(wire: WireClient, name: str, password: str) -> int:
    """Authenticate by PLAIN, perhaps anew; return the error code."""
    assert wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    return int(wire.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=f"\0{name}\0{password}".encode()).error_code)


def may_enter(server: segstore.Server, name: str, password: str, port: int = 0) -> bool:
    with WireClient(server.host, port or server.port) as wire:
        return entered(wire, name, password) == 0


def appended(wire: WireClient) -> int:
    """Append to "t"; return the error code."""
    parts = [_Produce.PartitionProduceData(index=0, records=batch(max_timestamp=NOW + 5))]
    topics = [_Produce.TopicProduceData(name="t", partition_data=parts)]
    answer = wire.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)


def polled(wire: WireClient, offset: int, wait_ms: int) -> Sent:
    """Begin to fetch "t"."""
    part = _Fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [_Fetch.FetchTopic(topic="t", partitions=[part])]
    return wire.send("Fetch", 12, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


# --- certificates --------------------------------------------------------------------------------


def serial(wire: WireClient) -> object:
    return wire.socket.getpeercert()["serialNumber"]  # type: ignore[attr-defined]


@contextmanager
def shaken(server: segstore.Server, authority: Path) -> Iterator[WireClient]:
    context = ssl.create_default_context(cafile=str(authority))
    with WireClient(server.host, server.port) as wire:
        wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
        yield wire


def test_new_handshakes_have_the_new_certificate(store: segstore.Store, tmp_path: Path) -> None:
    authority, key = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def issue() -> None:
        leaf = authority.issue_cert("localhost")
        leaf.private_key_and_cert_chain_pem.write_to_path(key)

    issue()
    with (
        serving(store, security_protocol="SSL", ssl_keystore_location=str(key)) as server,
        shaken(server, tmp_path / "ca.pem") as old,
    ):
        issue()
        with shaken(server, tmp_path / "ca.pem") as before:
            assert serial(before) == serial(old)
        server.reload()
        with shaken(server, tmp_path / "ca.pem") as new:
            renewed = serial(new)
            assert renewed != serial(old)
            for wire in (new, old):
                assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0
        key.write_bytes(key.read_bytes()[:-100])  # half written
        with pytest.raises(ConfigError, match="no certificate with its private key"):
            server.reload()
        with shaken(server, tmp_path / "ca.pem") as after:
            assert serial(after) == renewed


def test_clients_may_be_asked_for_certificates(store: segstore.Store, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    with serving(store, security_protocol="SSL", **files.of_server) as server:
        trusted = str(files.authority)
        server.reload(ssl_client_auth="required", ssl_truststore_location=trusted)
        with shaken(server, files.authority) as wire, pytest.raises((OSError, AssertionError)):
            wire.ask("ApiVersions", 3, **SOFTWARE)
        server.reload(ssl_client_auth=None)
        with shaken(server, files.authority) as wire:
            assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_file", [True, False])
def test_users_come_go_and_change(store: segstore.Store, tmp_path: Path, from_file: bool) -> None:
    path = tmp_path / "users"
    path.write_text("alice:one\nbob:two\n")
    given = {**SASL, "sasl_users": str(path)} if from_file else SASL
    with serving(store, **given) as server, WireClient(server.host, server.port) as wire:
        assert entered(wire, "alice", "one") == 0
        path.write_text("bob:three\ncarol:four\n")
        server.reload(**{} if from_file else {"sasl_users": {"bob": "three", "carol": "four"}})
        found = {user: may_enter(server, *user) for user in PAIRS}
        assert found == PAIRS
        assert wire.ask(Api.METADATA, 9, topics=None).topics == []  # what is open goes on


PAIRS = {
    ("alice", "one"): False,
    ("bob", "two"): False,
    ("bob", "three"): True,
    ("carol", "four"): True,
}


def test_a_session_is_renewed_by_the_new_users(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl, "_LEAST_BETWEEN", 0.0)
    with (
        serving(store, **SASL, connections_max_reauth_ms=600_000) as server,
        WireClient(server.host, server.port) as alice,
        WireClient(server.host, server.port) as bob,
    ):
        assert (entered(alice, "alice", "one"), entered(bob, "bob", "two")) == (0, 0)
        server.reload(sasl_users={"bob": "two"})
        assert (entered(alice, "alice", "one"), entered(bob, "bob", "two")) == (FAILED, 0)
        assert alice.is_closed()
        assert bob.ask(Api.METADATA, 9, topics=None).topics == []


def test_listeners_have_their_own_users(store: segstore.Store) -> None:
    settings = {
        "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener_security_protocol_map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
        "sasl_users": {"alice": "one"},
        "connection_failed_authentication_delay_ms": 1,
    }

    def entries() -> list[bool]:
        names = ("alice", "one"), ("bob", "two"), ("carol", "three")
        return [may_enter(server, *name, port) for port in server.ports for name in names]

    with segstore.serve(store, **settings) as server:
        assert entries() == [True, False, False] * 2
        server.reload(listener_name_out_sasl_users={"bob": "two"})
        assert entries() == [True, False, False, False, True, False]
        server.reload(sasl_users={"carol": "three"})
        assert entries() == [False, False, True, False, True, False]
        server.reload(listener_name_out_sasl_users=None)
        assert entries() == [False, False, True] * 2


# --- rights --------------------------------------------------------------------------------------


def test_a_request_like_those_before_is_judged_anew(store: segstore.Store) -> None:
    store.create_topic("t")
    with serving(store, allow=[MAY_ALL]) as server, WireClient(server.host, server.port) as wire:
        assert [appended(wire) for _ in range(5)] == [0] * 5
        (connection,) = connections(server)
        assert isinstance(connection.learned, LearnedProduce)
        server.reload(allow=[MAY_READ])
        assert appended(wire) == DENIED
        server.reload(allow=[MAY_ALL])
        assert appended(wire) == 0
        server.reload(allow=None, super_users="User:ANONYMOUS")
        assert appended(wire) == 0
        server.reload(super_users="User:other")
        assert appended(wire) == DENIED


def test_a_fetch_that_waits_is_judged_by_the_new_list(store: segstore.Store) -> None:
    store.create_topic("t")
    with serving(store, allow=[MAY_READ]) as server, WireClient(server.host, server.port) as wire:
        waiting = polled(wire, 0, 600_000)
        until(lambda: within(server, lambda: len(server.node.part(Fetches).purgatory)))
        server.reload(allow=["User:other: read topic *"])
        store.partition("t").append(b"secret")
        (topic,) = wire.receive(waiting).responses
        assert (topic.partitions[0].error_code, len(topic.partitions[0].records or b"")) == (DENIED, 0)


def test_requests_on_their_way_are_answered(store: segstore.Store) -> None:
    """A client that never waits for an answer before its next request."""
    store.create_topic("t")
    count, failed = 20_000, []
    with serving(store, allow=["User:*: all topic *; all cluster"]) as server:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0, "enable.idempotence": True}
        )
        for n in range(count):
            producer.produce("t", b"%d" % n, on_delivery=lambda error, _: error and failed.append(error))
            if n % 200 == 0:
                producer.poll(0)
                server.reload(allow=["User:*: all topic *; all cluster", f"User:{n}: read topic t"])
        assert producer.flush(PATIENCE) == 0
        del producer
    assert failed == []
    assert [each.value for each in store.partition("t").read(0)] == [b"%d" % n for n in range(count)]


def test_a_handler_may_reload(store: segstore.Store) -> None:
    """The server's own thread does not wait for itself."""
    with serving(store, allow=[MAY_READ]) as server:
        node = server.node
        assert node.allows("a", AclOperation.READ, ResourceType.TOPIC, "t")
        within(server, lambda: server.reload(allow=["User:b: read topic t"]))
        found = {who: node.allows(who, AclOperation.READ, ResourceType.TOPIC, "t") for who in ("a", "b")}
        assert found == {"a": False, "b": True}


# --- all or nothing ------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a setting that stays": ({"num_partitions": 3}, "num_partitions can't change while the server runs"),
    "a protocol": ({"security_protocol": "SSL"}, "security_protocol can't change"),
    "no setting": ({"sasl_userz": {}}, "sasl_userz can't change while the server runs; what may is allow"),
    "a listener without listeners": ({"listener_name_x_sasl_users": {}}, "settings of listeners, which are"),
    "a right that is none": ({"allow": ["User:a: fly topic t"]}, "'fly' is no operation"),
    "no list any more": ({"allow": None}, "nor both be taken away"),
    "no such file": ({"sasl_users": "/none/such"}, "/none/such"),
    "half a user": ({"sasl_users": "{half}"}, "line 2 is not NAME:PASSWORD"),
    "no such mechanism": ({"sasl_enabled_mechanisms": "GSSAPI"}, "sasl_enabled_mechanisms="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_after_an_error_all_is_as_before(store: segstore.Store, tmp_path: Path, case: str) -> None:
    given, told = REFUSED[case]
    (tmp_path / "half").write_text("carol:three\nali")
    given = {k: v.format(half=tmp_path / "half") if isinstance(v, str) else v for k, v in given.items()}
    others = {"sasl_users": {"carol": "three"}, "allow": [MAY_ALL], "super_users": ""}
    with serving(store, **SASL, allow=[MAY_READ]) as server:
        before = server.node.config
        with pytest.raises(SegstoreError, match=told):
            server.reload(**{**others, **given})
        assert server.node.config is before
        assert (may_enter(server, "alice", "one"), may_enter(server, "carol", "three")) == (True, False)
        server.reload()
        assert server.node.config == before


DRAWN: dict[str, tuple[Any, ...]] = {
    "allow": ([MAY_ALL], [MAY_READ], [], None),
    "super_users": ("User:a", "User:b", None),
    "sasl_users": ({"alice": "one"}, {"bob": "two"}, {}, None),
    "sasl_enabled_mechanisms": ("PLAIN", "SCRAM-SHA-256,PLAIN", None),
    "connections_max_reauth_ms": (5000, 600_000, None),
    "listener_name_in_sasl_users": ({"carol": "three"}, None),
    "listener_name_in_connections_max_reauth_ms": (7000, None),
    "listener_name_out_sasl_enabled_mechanisms": ("PLAIN", None),
}


def test_it_becomes_what_a_new_server_would_be(store: segstore.Store) -> None:
    seed = int(os.environ.get("SEGSTORE_SEED", "0")) or random.randrange(1 << 30)
    draw = random.Random(seed)
    held: dict[str, Any] = {
        "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener_security_protocol_map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
        "allow": [],
    }
    with segstore.serve(store, **held) as server:
        for _ in range(60):
            given = {name: draw.choice(values) for name, values in DRAWN.items() if draw.random() < 0.3}
            merged = {name: value for name, value in {**held, **given}.items() if value is not None}
            if "allow" in merged or "super_users" in merged:
                server.reload(**given)
                held = merged
            else:
                with pytest.raises(ConfigError, match="nor both be taken away"):
                    server.reload(**given)
            wanted = ServerConfig.parse(held)
            nodes = [server.node, *(node for node, _, _ in server._others)]
            for spec, node in zip(wanted.specs, nodes, strict=True):
                assert node.config == wanted.of_listener(spec), f"seed {seed}"
                assert node.authorizer is not None
                assert node.authorizer.rules == (wanted.allow or ()), f"seed {seed}"


def test_a_server_without_rights_gets_no_first_ones(store: segstore.Store) -> None:
    with serving(store) as server:
        for given in ({"allow": [MAY_ALL]}, {"super_users": "User:a"}):
            with pytest.raises(ConfigError, match="can't be the first ones"):
                server.reload(**given)


def test_a_secret_is_in_no_error(store: segstore.Store) -> None:
    with serving(store, **SASL) as server:
        for given in ({"ssl_key_password": ["swordfish"]}, {"sasl_users": {"a": "swordfish\0"}}):
            with pytest.raises(InvalidArgumentError, match="a secret value") as error:
                server.reload(**given)
            assert "swordfish" not in str(error.value)


def test_a_server_that_has_ended_says_so(store: segstore.Store) -> None:
    with serving(store, **SASL) as server:
        pass
    with pytest.raises(IllegalStateError, match="the server has ended"):
        server.reload(sasl_users={})


def test_a_hundred_times_leak_nothing(store: segstore.Store, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    given = {**SASL, "security_protocol": "SASL_SSL", **files.of_server, "allow": [MAY_ALL]}
    with serving(store, **given) as server:
        server.reload()
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        for n in range(100):
            server.reload(sasl_users={"alice": str(n + 1)}, allow=[MAY_ALL, f"User:a: read topic t{n}"])
            if n % 10 == 0:
                with pytest.raises(SegstoreError):
                    server.reload(ssl_keystore_location=str(tmp_path / "none"))
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
