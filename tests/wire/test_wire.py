"""The client of Kafka's protocol: connections with TLS and SASL, versions, time-outs, brokers that lie, and
metadata through any of several addresses.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates

import segstore
from segstore.errors import (
    AuthenticationFailedError,
    BrokerError,
    ConfigError,
    DisconnectedError,
    InvalidArgumentError,
    InvalidTypeError,
    RequestTimedOutError,
    SegstoreError,
    UnsupportedVersionError,
)
from segstore.protocol.codec import encode, structs
from segstore.protocol.error_codes import Code, broker_error
from segstore.testing import Broker
from segstore.wire.backoff import Backoff
from segstore.wire.cluster import Cluster, addresses, is_passing
from segstore.wire.connection import Address, BrokerConnection
from segstore.wire.settings import WireConfig


def config(**settings: Any) -> WireConfig:
    return WireConfig.parse({name.replace("_", "."): value for name, value in settings.items()})


@contextmanager
def scripted(answers: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A server that does what a test says with each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    answers(peer)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address(*listener.getsockname()[:2])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def read_request(peer: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
    return peer.recv(size, socket.MSG_WAITALL)


def answered(request: bytes, body: bytes) -> bytes:
    return struct.pack(">i", 4 + len(body)) + request[4:8] + body


def versions(*ranges: tuple[int, int, int], version: int = 0, error: int = 0) -> bytes:
    kind = structs("ApiVersionsResponse")
    keys = [kind.ApiVersion(api_key=k, min_version=low, max_version=high) for k, low, high in ranges]
    encode(kind(error_code=error, api_keys=keys), version, out := bytearray())
    return bytes(out)


# --- connections -------------------------------------------------------------------------------


def test_the_newest_common_version_is_taken(store: segstore.Store) -> None:
    with segstore.serve(store, port=0) as server:
        connection = BrokerConnection(Address(server.host, server.port), config(client_id="me"), None)
        assert (connection.version("Fetch"), connection.version("SaslHandshake")) == (18, 1)
        assert connection.ask("Metadata", topics=[]).brokers[0].port == server.port
        connection.close()


def test_a_broker_of_another_age_is_asked_for_the_versions_that_it_knows() -> None:
    def old(peer: socket.socket) -> None:
        request = read_request(peer)
        assert request[:4] == struct.pack(">hh", 18, 5)
        peer.sendall(answered(request, versions((18, 0, 2), error=Code.UNSUPPORTED_VERSION)))
        request = read_request(peer)
        assert request[:4] == struct.pack(">hh", 18, 2)
        peer.sendall(answered(request, versions((18, 0, 2), (3, 0, 1), (1, 99, 100), version=2)))

    with scripted(old) as address:
        connection = BrokerConnection(address, config(), None)
        assert connection.version("Metadata") == 1
        with pytest.raises(UnsupportedVersionError, match=f"{address} has 99 to 100: Fetch"):
            connection.version("Fetch")
        with pytest.raises(UnsupportedVersionError, match="does not have it: ListOffsets"):
            connection.ask("ListOffsets")
        assert not connection.has("ListOffsets")
        connection.close()


def test_offsets_are_asked_for_by_names_of_topics() -> None:
    """Newer versions have ids, which are other ones in the other cluster."""

    def newest(peer: socket.socket) -> None:
        told = versions((18, 0, 5), (8, 2, 10), (9, 1, 10), (2, 1, 11), version=5)
        peer.sendall(answered(read_request(peer), told))

    with scripted(newest) as address:
        connection = BrokerConnection(address, config(), None)
        found = [connection.version(api) for api in ("OffsetCommit", "OffsetFetch", "ListOffsets")]
        assert found == [9, 9, 11]
        connection.close()


def good(peer: socket.socket) -> None:
    request = read_request(peer)
    peer.sendall(answered(request, versions((18, 0, 4), (3, 12, 12), version=4)))


def then(answer: Callable[[bytes], bytes]) -> Callable[[socket.socket], None]:
    def serve(peer: socket.socket) -> None:
        good(peer)
        peer.sendall(answer(read_request(peer)))
        peer.recv(1)

    return serve


LIES: dict[str, tuple[Callable[[bytes], bytes], type[SegstoreError], str]] = {
    "it says nothing": (lambda _: b"", RequestTimedOutError, "Metadata was not answered in 300 ms"),
    "half an answer": (lambda _: b"\0\0\0\x20abc", RequestTimedOutError, "Metadata was not answered"),
    "another answer": (lambda r: answered(b"\0\0\0\0\0\0\0\x63", b""), DisconnectedError, "request 99"),
    "no message": (lambda r: answered(r, b"\0" + b"\xff" * 9), DisconnectedError, "no answer of Kafka's"),
    "tags that end nowhere": (lambda r: answered(r, b"\xff"), DisconnectedError, "no answer of Kafka's"),
    "a huge answer": (
        lambda _: b"\x7f\xff\xff\xff",
        DisconnectedError,
        "receive.message.max.bytes=100000000",
    ),
    "a negative size": (lambda _: b"\xff\xff\xff\xff", DisconnectedError, "-1 bytes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_broker_that_lies_is_an_error_that_names_it(name: str) -> None:
    answer, kind, told = LIES[name]
    with scripted(then(answer)) as address:
        connection = BrokerConnection(address, config(request_timeout_ms=300), None)
        with pytest.raises(kind) as caught:
            connection.ask("Metadata", topics=[])
        connection.close()
    assert told in str(caught.value)
    assert str(address) in str(caught.value)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DisconnectedError, match=f"127.0.0.1:{port}: no connection"):
        BrokerConnection(Address("127.0.0.1", port), config(), None)


def test_a_broker_that_closes_the_connection(store: segstore.Store) -> None:
    with Broker() as broker:
        cluster = Cluster(broker.bootstrap_servers, config())
        cluster.metadata([])
        broker.faults.drop("ListGroups")
        with pytest.raises(DisconnectedError, match="the broker has closed it"):
            cluster.connect(1).ask("ListGroups")
        broker.faults.drop("ListGroups")
        assert cluster.ask("ListGroups").error_code == 0  # by another connection
        cluster.close()


def test_abort_ends_the_call_of_another_thread() -> None:
    with scripted(then(lambda _: b"")) as address:
        connection = BrokerConnection(address, config(request_timeout_ms=100_000), None)
        threading.Timer(0.05, connection.abort).start()
        with pytest.raises(DisconnectedError, match="it was ended here"):
            connection.ask("Metadata", topics=[])
        connection.close()


# --- TLS and SASL ------------------------------------------------------------------------------


@pytest.fixture
def secured(store: segstore.Store, tmp_path: Path) -> Iterator[tuple[segstore.Server, dict[str, str]]]:
    """A server with TLS and SASL, and settings of a client that it lets in."""
    files = certificates(tmp_path)
    users = {"alice": "pa=ss,word"}
    with segstore.serve(
        store, port=0, security_protocol="SASL_SSL", sasl_users=users, **files.of_server
    ) as server:
        yield server, {"ssl.ca.location": str(files.authority), "security.protocol": "SASL_SSL"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"])
def test_users_authenticate_over_tls(secured: Any, mechanism: str) -> None:
    server, settings = secured
    given = {**settings, "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "pa=ss,word"}
    cluster = Cluster(server.bootstrap_servers, WireConfig.parse(given))
    assert list(cluster.metadata([]).brokers) == [1]
    cluster.close()
    wrong = Cluster(server.bootstrap_servers, WireConfig.parse({**given, "sasl.password": "wrong"}))
    with pytest.raises(AuthenticationFailedError, match=r"[Aa]uthentication failed"):
        wrong.metadata([])


def test_java_s_form_of_user_and_password(secured: Any) -> None:
    server, settings = secured
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{module} username="alice" password="pa=ss,word";'
    cluster = Cluster(server.bootstrap_servers, WireConfig.parse({**settings, "sasl.jaas.config": jaas}))
    assert list(cluster.metadata([]).brokers) == [1]
    cluster.close()


def test_a_certificate_that_is_not_trusted(secured: Any) -> None:
    server, _ = secured
    given = {"security.protocol": "SASL_SSL", "sasl.username": "alice", "sasl.password": "p"}
    with pytest.raises(AuthenticationFailedError, match="certificate is not trusted"):
        Cluster(server.bootstrap_servers, WireConfig.parse(given)).metadata([])


@pytest.mark.parametrize("given", ["none", "one of another authority"])
def test_a_client_s_certificate_that_the_broker_does_not_take(
    store: segstore.Store, tmp_path: Path, given: str
) -> None:
    files = certificates(tmp_path)
    asked = {"ssl_client_auth": "required", "ssl_truststore_location": str(files.authority)}
    settings = {"ssl.ca.location": str(files.authority), "security.protocol": "SSL"}
    if given != "none":
        settings["ssl.certificate.location"] = str(files.stranger)
    with segstore.serve(store, port=0, security_protocol="SSL", **files.of_server, **asked) as server:
        cluster = Cluster(server.bootstrap_servers, WireConfig.parse(settings))
        with pytest.raises(AuthenticationFailedError, match="wants a certificate that it trusts"):
            cluster.metadata([])
        cluster.close()


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    def impostor(peer: socket.socket) -> None:
        request = read_request(peer)
        keys = versions((18, 0, 4), (17, 0, 1), (36, 0, 0), version=4)
        peer.sendall(answered(request, keys))
        peer.sendall(answered(read_request(peer), b"\0\0" + b"\0\0\0\1" + b"\0\x0dSCRAM-SHA-256"))
        first = read_request(peer)
        nonce = first.rpartition(b"r=")[2]
        said = b"r=" + nonce + b"more,s=c2FsdHNhbHQ=,i=4096"
        peer.sendall(answered(first, token(said)))
        peer.sendall(answered(read_request(peer), token(b"v=AAAA")))
        peer.recv(1)

    def token(data: bytes) -> bytes:
        return b"\0\0" + b"\xff\xff" + struct.pack(">i", len(data)) + data

    given = config(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="a",
        sasl_password="b",
    )
    with scripted(impostor) as address, pytest.raises(AuthenticationFailedError, match="has not proved"):
        BrokerConnection(address, given, None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no user": ({"security.protocol": "SASL_SSL"}, "needs sasl.username and sasl.password"),
    "two trust stores": (
        {"ssl.ca.location": "a", "ssl.truststore.location": "b"},
        "ssl.ca.location and ssl.truststore.location are both given",
    ),
    "an unknown protocol": ({"security.protocol": "TLS"}, "security.protocol='TLS'"),
    "an unknown mechanism": ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism='GSSAPI'"),
    "another login module": (
        {"security.protocol": "SASL_SSL", "sasl.jaas.config": "x.Krb5LoginModule required;"},
        "only PlainLoginModule and ScramLoginModule",
    ),
    "backoffs": ({"reconnect.backoff.ms": 2000}, "reconnect.backoff.max.ms must be at least"),
    "an unknown setting": ({"bootstrap.server": "a"}, "bootstrap.server"),
    "a key alone": ({"ssl.key.location": "a"}, "needs ssl.certificate.location"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_refused(name: str) -> None:
    given, told = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        WireConfig.parse(given)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location"])
def test_files_that_are_no_certificates(name: str, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=f"{name}='.*no.pem'"):
        Cluster("a:1", WireConfig.parse({"security.protocol": "SSL", name: str(tmp_path / "no.pem")}))


def test_no_password_is_shown() -> None:
    given = config(security_protocol="SASL_SSL", sasl_username="a", sasl_password="secret")
    assert "secret" not in repr(given)


# --- clusters ----------------------------------------------------------------------------------


def test_the_first_bootstrap_address_that_answers_is_taken(store: segstore.Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = free.getsockname()[1]
    store.create_topic("t", partitions=2)
    with segstore.serve(store, port=0) as server:
        cluster = Cluster(f"127.0.0.1:{dead}, {server.bootstrap_servers}", config())
        found = cluster.metadata(None)
        assert (found.topics["t"].topic_id, len(found.topics["t"].partitions)) == (
            store.topics()["t"].topic_id,
            2,
        )
        assert cluster.metadata(["absent"]).topics["absent"].error == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert "absent" not in store.topics()
        with pytest.raises(DisconnectedError, match="broker 7 is not among those"):
            cluster.connect(7)
        cluster.close()
    with pytest.raises(DisconnectedError, match="the client is closed"):
        cluster.metadata(None)


ADDRESSES: dict[str, Any] = {
    "host:1": (("host", 1),),
    "a:1,b:2": (("a", 1), ("b", 2)),
    " a:1 , [::1]:2": (("a", 1), ("::1", 2)),
    "PLAINTEXT://a:9092": (("a", 9092),),
    "": InvalidArgumentError,
    "host": InvalidArgumentError,
    "host:0": InvalidArgumentError,
    "host:70000": InvalidArgumentError,
    "a:1,b": InvalidArgumentError,
    "::1:9092": InvalidArgumentError,
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_bootstrap_addresses(text: str) -> None:
    expected = ADDRESSES[text]
    if isinstance(expected, tuple):
        assert addresses(text) == expected
        return
    with pytest.raises(expected, match="must be HOST:PORT"):
        addresses(text)


def test_a_bootstrap_that_is_no_text() -> None:
    with pytest.raises(InvalidTypeError, match="must be a str, not list"):
        addresses(["a:1"])


def test_backoff_grows_to_its_most_and_begins_anew() -> None:
    class Middle:
        def uniform(self, low: float, high: float) -> float:
            return (low + high) / 2

    backoff = Backoff(50, 1000, Middle())  # type: ignore[arg-type]
    assert [round(backoff.failed(), 3) for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.succeeded()
    assert round(backoff.failed(), 3) == 0.05


def test_errors_of_brokers_have_kafka_s_names() -> None:
    error = broker_error(Code.NOT_COORDINATOR, "what")
    assert str(error) == "what: the broker answers NOT_COORDINATOR (16)"
    assert is_passing(error)
    assert not is_passing(broker_error(Code.TOPIC_AUTHORIZATION_FAILED, "what"))
    assert "not known here (999)" in str(broker_error(999, "what"))
    assert isinstance(error, BrokerError)
    assert error.code == 16
