"""Several listeners of one server, as a broker's settings name them: each with its security protocol and the
address that its clients are told; they share the store, and end together.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from certificates import certificates
from confluent_kafka.admin import AdminClient
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.errors import ConfigError, InvalidArgumentError, ListenError
from segstore.server.security.listeners import parse_listeners
from segstore.server.security.settings import PROTOCOLS

TWO = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def client(url: str, **settings: str) -> dict[str, str]:
    protocol, _, address = url.partition("://")
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": address, "security.protocol": protocol, **named}


ALICE = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": "secret"}


def test_each_speaks_its_protocol_and_tells_its_own_address(store: segstore.Store) -> None:
    with segstore.serve(store, listeners=TWO, sasl_users={"alice": "secret"}) as server:
        plain, sasl = server.advertised_listeners
        assert plain.startswith("PLAINTEXT://127.0.0.1:")
        assert sasl.startswith("SASL_PLAINTEXT://127.0.0.1:")
        assert server.bootstrap_servers == plain.partition("://")[2]
        producer = confluent_kafka.Producer(client(sasl, **ALICE))
        producer.produce("t", b"by SASL")
        assert producer.flush(PATIENCE) == 0
        for url, settings in ((plain, {}), (sasl, ALICE)):
            told = AdminClient(client(url, **settings)).list_topics(timeout=PATIENCE)
            assert {broker.port for broker in told.brokers.values()} == {port_of(url)}
            assert "t" in told.topics
    assert store.partition("t").read(0)[0].value == b"by SASL"


def test_a_client_of_one_wakes_one_of_the_other(store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.serve(store, listeners=TWO, sasl_users={"alice": "secret"}) as server:
        plain, sasl = server.advertised_listeners
        group = {"group.id": "g", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**client(plain), **group})
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        producer = confluent_kafka.Producer(client(sasl, **ALICE))
        producer.produce("t", b"across")
        assert producer.flush(PATIENCE) == 0
        try:
            found = until(lambda: (message := consumer.poll(0.1)) is not None and message)
            assert found.value() == b"across"
        finally:
            consumer.close()


def test_names_are_mapped_and_addresses_advertised(store: segstore.Store, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    with segstore.serve(
        store,
        listeners="inside://127.0.0.1:0, OUTSIDE://127.0.0.1:0",
        advertised_listeners="outside://log.example:19093",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:SSL",
        ssl_keystore_location=str(files.server),
    ) as server:
        inside, outside = server.advertised_listeners
        assert inside.startswith("PLAINTEXT://127.0.0.1:")
        assert outside == "SSL://log.example:19093"
        with WireClient("127.0.0.1", port_of(inside)) as wire:
            (broker,) = wire.ask("Metadata", 12, topics=[]).brokers
            assert broker.port == port_of(inside)


BOTH_SSL = {
    "listeners": "IN.SIDE://127.0.0.1:0,IN://127.0.0.1:0",
    "listener_security_protocol_map": "IN.SIDE:SSL,IN:SSL",
}


def shown(url: str) -> bytes:
    """The certificate that a listener shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port_of(url)), PATIENCE) as sock,
        context.wrap_socket(sock) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""


def first_certificate(path: Path) -> bytes:
    text = path.read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end) + len(end)])


def test_a_listener_has_a_certificate_of_its_own(store: segstore.Store, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    own = {"listener_name_in_side_ssl_keystore_location": str(files.stranger)}
    with segstore.serve(store, **BOTH_SSL, **files.of_server, **own) as server:
        inside, other = server.advertised_listeners
        assert shown(inside) == first_certificate(files.stranger)
        assert shown(other) == first_certificate(files.server)


def test_a_listener_has_users_and_mechanisms_of_its_own(store: segstore.Store) -> None:
    settings = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0",
        "listener_security_protocol_map": "A:SASL_PLAINTEXT,B:SASL_PLAINTEXT",
        "sasl_users": {"alice": "secret"},
        "listener_name_b_sasl_users": {"bob": "secret"},
        "listener_name_b_sasl_enabled_mechanisms": "PLAIN",
    }

    def enters(url: str, user: str) -> bool:
        with WireClient("127.0.0.1", port_of(url)) as wire:
            assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
            token = f"\0{user}\0secret".encode()
            return bool(wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0)

    with segstore.serve(store, **settings) as server:
        a, b = server.advertised_listeners
        assert [enters(url, user) for url in (a, b) for user in ("alice", "bob")] == [
            True,
            False,
            False,
            True,
        ]
        for url, mechanisms in ((a, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]), (b, ["PLAIN"])):
            with WireClient("127.0.0.1", port_of(url)) as wire:
                assert wire.ask("SaslHandshake", 1, mechanism="none").mechanisms == mechanisms


def test_a_listener_takes_as_many_connections_as_it_may(store: segstore.Store) -> None:
    settings = {**BOTH_SSL, "listener_security_protocol_map": "IN.SIDE:PLAINTEXT,IN:PLAINTEXT"}
    with segstore.serve(store, **settings, listener_name_in_max_connections=1) as server:
        inside, narrow = server.advertised_listeners
        with WireClient("127.0.0.1", port_of(narrow)) as first:
            first.ask("ApiVersions", 0)
            with WireClient("127.0.0.1", port_of(narrow)) as second:  # the kernel takes it
                sent = second.send("ApiVersions", 0)
                for _ in range(2):
                    with WireClient("127.0.0.1", port_of(inside)) as other:
                        other.ask("ApiVersions", 0)
                second.socket.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    second.receive(sent)
                second.socket.settimeout(PATIENCE)
                first.close()
                assert second.receive(sent).error_code == 0


def test_all_end_together(store: segstore.Store) -> None:
    server = segstore.serve(store, listeners=TWO)
    ports = [port_of(url) for url in server.advertised_listeners]
    with WireClient("127.0.0.1", ports[0]) as one, WireClient("127.0.0.1", ports[1]) as other:
        server.close()
        server.close()
        assert one.is_closed()
        assert other.is_closed()
    with pytest.raises(OSError):
        WireClient("127.0.0.1", ports[1])


def test_where_one_can_t_listen_none_does(store: segstore.Store) -> None:
    with segstore.serve(store, port=0) as taken:
        with pytest.raises(ListenError):
            segstore.serve(store, listeners=f"A://127.0.0.1:0,B://127.0.0.1:{taken.port}", **_MAPPED)
        with segstore.serve(store, listeners=TWO) as server:
            assert len(server.advertised_listeners) == 2


_MAPPED: dict[str, Any] = {"listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no port": ({"listeners": "PLAINTEXT://a"}, "must be NAME://HOST:PORT"),
    "no name": ({"listeners": "127.0.0.1:0"}, "must be NAME://HOST:PORT"),
    "no such port": ({"listeners": "PLAINTEXT://a:65536"}, "must be NAME://HOST:PORT"),
    "none": ({"listeners": " , "}, "must be NAME://HOST:PORT"),
    "a name twice": ({"listeners": "SSL://a:1,ssl://a:2"}, "a different name"),
    "a port twice": ({"listeners": "A://a:1,B://b:1", **_MAPPED}, "a different port"),
    "a name that nobody explains": ({"listeners": "INSIDE://a:1"}, "what INSIDE speaks is not said"),
    "no such protocol": (
        {"listeners": "A://a:1", "listener_security_protocol_map": "A:TLS"}, "must be NAME:PROTOCOL"),
    "no listener is advertised so": (
        {"listeners": "A://a:1", "advertised_listeners": "B://b:1", **_MAPPED}, "B is none of the listeners"),
    "a map without listeners": (_MAPPED, "are for listeners, which are missing"),
    "a protocol beside": (
        {"listeners": "PLAINTEXT://a:1", "security_protocol": "SASL_PLAINTEXT"}, "only one of both"),
    "a setting of no listener": (
        {"listeners": "SSL://a:1", "listener_name_other_ssl_key_password": "x"}, "none of the listeners SSL"),
    "a setting that no listener has for itself": (
        {"listeners": "SSL://a:1", "listener_name_ssl_num_partitions": 2}, "num_partitions can't be said"),
    "users of one mechanism": (
        {"listeners": "SSL://a:1", "listener_name_ssl_plain_sasl_jaas_config": "x"}, "given by sasl_users"),
    "a setting of a listener where there is none": (
        {"listener_name_ssl_ssl_key_password": "x"}, "settings of listeners, which are missing"),
    "a value that a listener can't have": (
        {"listeners": "PLAINTEXT://a:1", "listener_name_plaintext_max_connections": 0},
        "listener PLAINTEXT: max_connections=0"),
    "TLS without a key": ({"listeners": "PLAINTEXT://a:1,SSL://a:2"}, "needs ssl_keystore_location"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(store: segstore.Store, name: str) -> None:
    settings, told = REFUSED[name]
    with pytest.raises(ConfigError, match=told):
        segstore.serve(store, **settings)


def test_a_host_beside_listeners_is_refused(store: segstore.Store) -> None:
    for place in ({"host": "localhost"}, {"port": 0}, {"advertised": "a:1"}):
        with pytest.raises(InvalidArgumentError, match="are said by each listener"):
            segstore.serve(store, listeners=TWO, **place)


def test_an_address_of_ipv6() -> None:
    (spec,) = parse_listeners("SSL://[::1]:9093", "SSL://[2001:db8::1]:1", "", PROTOCOLS)
    assert (spec.host, spec.port, spec.advertised) == ("::1", 9093, "[2001:db8::1]:1")
    (spec,) = parse_listeners("PLAINTEXT://:9092", None, "", PROTOCOLS)
    assert (spec.host, spec.advertised) == ("", None)
