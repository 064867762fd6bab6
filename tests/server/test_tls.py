"""TLS of connections: the same bytes as without, handshakes that hold up nobody and end in time, certificates
that are judged, and slow clients that cost little.
"""

from __future__ import annotations

import gc
import random
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import EPOLLIN
from typing import Any

import pytest
from certificates import CLIENT_PRINCIPAL, Certificates, certificates
from serving import FileSlice, Parked, answer, connections, fetched, heartbeat, serving
from waiting import PATIENCE, until
from wire_client import SOFTWARE, WireClient, request

import segstore
from segstore.errors import ConfigError
from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.network.connection import ConnectionState
from segstore.server.network.outgoing import PIECE
from segstore.server.network.tls_wire import TlsWire
from segstore.server.security.tls import subject, tls_context
from segstore.server.settings import ServerConfig

MIB = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return certificates(tmp_path)


@contextmanager
def over_tls(
    store: segstore.Store, files: Certificates, handlers: Any = None, **settings: Any
) -> Iterator[Any]:
    given = {"security_protocol": "SSL", **files.of_server, **settings}
    with serving(store, handlers, **given) as server:
        yield server


def connected(server: segstore.Server, files: Certificates, **settings: Any) -> WireClient:
    """A client that has shaken hands; `certificate` is its own."""
    wire = WireClient(server.host, server.port)
    try:
        wire.socket = context(files, **settings).wrap_socket(wire.socket, server_hostname="localhost")
    except BaseException:
        wire.close()
        raise
    return wire


def context(
    files: Certificates, certificate: Path | None = None, version: str | None = None
) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files.authority))
    if certificate is not None:
        made.load_cert_chain(certificate)
    if version is not None:
        made.minimum_version = made.maximum_version = ssl.TLSVersion[version]
    return made


def exchanged(wire: WireClient, requests: bytes, count: int) -> list[bytes]:
    """Send requests while answers come, and return `count` of these. One thread does both: CPython before
    3.13 lets two threads into one connection of OpenSSL, which then tells of ends that never came.
    """
    sock, sent, come, answers = wire.socket, 0, bytearray(), list[bytes]()

    def is_done() -> bool:
        nonlocal sent
        with suppress(ssl.SSLWantReadError):
            while data := sock.recv(PIECE):
                come.extend(data)
            pytest.fail("the server closed the connection")
        with suppress(ssl.SSLWantWriteError):
            sent += sock.send(requests[sent : sent + PIECE])
        while len(come) >= 4 and len(come) >= (end := 4 + struct.unpack_from(">i", come)[0]):
            answers.append(bytes(come[4:end]))
            del come[:end]
        return len(answers) >= count

    sock.settimeout(0)
    until(is_done)
    sock.settimeout(PATIENCE)
    return answers


def is_answered(wire: WireClient) -> bool:
    return bool(wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0)


# --- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_both_versions_and_no_older_one(store: segstore.Store, files: Certificates, version: str) -> None:
    with over_tls(store, files) as server, connected(server, files, version=version) as wire:
        assert wire.socket.version() == version.replace("_", ".")  # type: ignore[attr-defined]
        assert is_answered(wire)
    other = {"TLSv1_2": "TLSv1.3", "TLSv1_3": "TLSv1.2"}[version]
    with over_tls(store, files, ssl_enabled_protocols=other) as server, pytest.raises(ssl.SSLError):
        connected(server, files, version=version)


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 5 * MIB + 7])
def test_stretches_of_files_come_as_they_are(
    store: segstore.Store, files: Certificates, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "file"
    data = bytes(n * 7 % 251 for n in range(1000)) * (size // 1000 + 1)
    path.write_bytes(b"before" + data[:size] + b"behind")
    parts = [FileSlice(path, 6, size), FileSlice(path, 6, 0), FileSlice(path, 6, size)]
    handlers: Any = {Api.FETCH: lambda node, request: fetched(*parts)}
    with over_tls(store, files, handlers) as server, connected(server, files) as wire:
        answer = wire.ask("Fetch", 12)
        found = [bytes(each.records) for each in answer.responses[0].partitions]
        assert found == [data[:size], b"", data[:size]]
        assert [part.released for part in parts] == [1, 1, 1]
        assert is_answered(wire)


def test_large_records_are_what_the_log_has(store: segstore.Store, files: Certificates) -> None:
    store.create_topic("t")
    log = store.partition("t", 0)
    log.append_batch([bytes([n % 256]) * 1000 for n in range(20_000)])
    kind = structs("FetchRequest")
    partitions = [kind.FetchPartition(partition=0, partition_max_bytes=100 * MIB)]
    asked = {"topics": [kind.FetchTopic(topic="t", partitions=partitions)], "max_bytes": 100 * MIB}
    told: list[bytes] = []
    with over_tls(store, files) as server, segstore.serve(store, port=0) as plain:
        for wire in (connected(server, files), WireClient(plain.host, plain.port)):
            with wire:
                (partition,) = wire.ask("Fetch", 11, **asked).responses[0].partitions
                told.append(bytes(partition.records))
    assert told[0] == told[1]
    assert len(told[0]) > 20_000_000


def test_requests_in_pieces_and_many_at_once(store: segstore.Store, files: Certificates) -> None:
    """Bytes that wait in the library's memory are no event of the socket."""
    with over_tls(store, files) as server, connected(server, files) as wire:
        name = "x" * 200
        topics = [structs("MetadataRequest").MetadataRequestTopic(name=name) for _ in range(2000)]
        large = request("Metadata", 1, 7, "wire", topics=topics)
        assert len(large) > 5 * PIECE
        many = b"".join(request("ApiVersions", 0, n) for n in range(500))
        come = exchanged(wire, many + large + many, 1001)
        assert [struct.unpack(">i", each[:4])[0] for each in come] == [*range(500), 7, *range(500)]
        for byte in request("ApiVersions", 0, 9):
            wire.socket.sendall(bytes([byte]))
        assert wire.receive_bytes()[:4] == struct.pack(">i", 9)


# --- slow clients ----------------------------------------------------------------------------------


def test_a_slow_reader_holds_up_nobody_and_costs_one_piece(
    store: segstore.Store, files: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(32 * MIB))
    part = FileSlice(path, 0, 32 * MIB)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    with over_tls(store, files, handlers) as server, connected(server, files) as slow:
        slow.send("Fetch", 12)
        until(lambda: any(each.state is ConnectionState.WRITING for each in connections(server)))
        with connected(server, files) as quick:
            assert is_answered(quick)
            held = [each for each in connections(server) if each.state is ConnectionState.WRITING]
            (outgoing,) = [each._outgoing for each in held]
            assert 0 < len(outgoing._sealed) < 2 * PIECE  # type: ignore[attr-defined]
        assert not part.released
        slow.close()
        until(lambda: part.released)


def test_half_handshakes_end_in_time(store: segstore.Store, files: Certificates) -> None:
    hello = ssl.MemoryBIO()
    client = context(files).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    said = hello.read()
    with over_tls(store, files, connection_setup_max_ms=300) as server:
        hanging = [socket.create_connection((server.host, server.port), PATIENCE) for _ in range(50)]
        for n, sock in enumerate(hanging):
            sock.sendall(said[: [0, 1, len(said) // 2, len(said)][n % 4]])
        with connected(server, files) as wire:
            assert is_answered(wire)
            until(lambda: len(connections(server)) == 1)
            assert is_answered(wire)  # whose own time is up too, and counts no more
        for sock in hanging:
            with suppress(ConnectionError):
                while sock.recv(1 << 16):
                    pass
            sock.close()


def test_handshakes_are_computed_by_workers(
    store: segstore.Store, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    shake = TlsWire.shake

    def noted(self: TlsWire) -> bool:
        threads.add(threading.current_thread().name)
        return shake(self)

    monkeypatch.setattr(TlsWire, "shake", noted)
    with over_tls(store, files) as server, connected(server, files) as wire:
        assert is_answered(wire)
    assert threads
    assert all(each.startswith("segstore-server-worker") for each in threads)


# --- the wrong language ----------------------------------------------------------------------------


def hello() -> bytes:
    """Return a client's first message."""
    came, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(came, sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


BROKEN = {"within the first message": hello()[:43], "behind it": hello(), "no TLS": b"GET / HTTP/1.0\r\n\r\n"}


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Python looks for cycles only once the test is over."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_nothing_is_kept_of_a_handshake_that_was_broken_off(
    store: segstore.Store, files: Certificates, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory goes with the connection: 70 KB, which Python's count of objects does not see."""
    kept = kept_wires(monkeypatch)
    with over_tls(store, files) as server:
        for _ in range(20):
            with socket.create_connection((server.host, server.port)) as broken:
                broken.sendall(sent)
        until(lambda: len(kept) == 20)
        until(lambda: not any(each() for each in kept))


def kept_wires(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[TlsWire]]:
    """Return a list that gets a reference to each `TlsWire` that is made."""
    made: list[weakref.ref[TlsWire]] = []
    init = TlsWire.__init__

    def noted(self: TlsWire, sock: socket.socket, context: ssl.SSLContext) -> None:
        init(self, sock, context)
        made.append(weakref.ref(self))

    monkeypatch.setattr(TlsWire, "__init__", noted)
    return made


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_nothing_is_kept_of_a_connection_that_was_used(
    protocol: str, store: segstore.Store, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_wires(monkeypatch)
    with over_tls(store, files, security_protocol=protocol, sasl_users={"alice": "secret"}) as server:
        for _ in range(3):
            with connected(server, files) as wire:
                assert is_answered(wire)
                if protocol == "SASL_SSL":
                    assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
                    told = wire.ask("SaslAuthenticate", 2, auth_bytes=b"\0alice\0secret")
                    assert told.error_code == 0
                assert wire.ask("Metadata", 12, topics=None).cluster_id
        until(lambda: len(kept) == 3)
        until(lambda: not any(each() for each in kept))


@pytest.mark.usefixtures("no_cycles")
def test_a_fetch_that_waits_keeps_nothing_of_a_client_that_has_gone(
    store: segstore.Store, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the purgatory until its time is over, which the client chooses."""
    store.create_topic("t")
    kept = kept_wires(monkeypatch)
    kind = structs("FetchRequest")
    topics = [kind.FetchTopic(topic="t", partitions=[kind.FetchPartition(partition=0)])]
    with over_tls(store, files) as server:
        for _ in range(3):
            with connected(server, files) as wire:
                wire.send("Fetch", 11, max_wait_ms=1_000_000, min_bytes=1, topics=topics)
        until(lambda: len(kept) == 3)
        until(lambda: not any(each() for each in kept))


def test_plain_text_to_a_tls_port_and_tls_to_a_plain_one(store: segstore.Store, files: Certificates) -> None:
    with over_tls(store, files) as server:
        for said in (
            request("ApiVersions", 0, 1),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 100,
            b"\x16\x03\x01\xff\xff" * 9,
        ):
            with WireClient(server.host, server.port) as wire:
                wire.socket.sendall(said)
                with suppress(ConnectionError):
                    while wire.socket.recv(1000):  # an alert, and the end
                        pass
        with connected(server, files) as wire:
            assert is_answered(wire)
    with serving(store) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(server, files)
        with WireClient(server.host, server.port) as plain:
            assert is_answered(plain)


# --- the end ---------------------------------------------------------------------------------------


def test_the_end_is_told_in_order(store: segstore.Store, files: Certificates) -> None:
    """A client sees that nothing was cut off: there is a close_notify."""
    with over_tls(store, files) as server, connected(server, files) as wire:
        assert is_answered(wire)
        server.close()
        wire.socket.suppress_ragged_eofs = False  # type: ignore[attr-defined]
        assert wire.socket.recv(1) == b""


def test_a_client_that_leaves_while_it_waits_is_let_go(store: segstore.Store, files: Certificates) -> None:
    parked = Parked()
    with over_tls(store, files, {Api.HEARTBEAT: parked}) as server:
        wire = connected(server, files)
        wire.send("Heartbeat", 4, group_id="g", generation_id=1, member_id="m")
        parked.next()
        wire.socket.setblocking(False)
        with suppress(ssl.SSLWantReadError):
            wire.socket.unwrap()  # type: ignore[attr-defined]
        until(lambda: not connections(server)[0]._events & EPOLLIN)  # it has come, and the end has not
        wire.close()
        until(lambda: not connections(server))


def test_what_a_client_sent_before_it_left_is_done(store: segstore.Store, files: Certificates) -> None:
    parked = Parked()
    with over_tls(store, files, {Api.HEARTBEAT: parked}) as server, connected(server, files) as wire:
        beat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
        wire.send("Heartbeat", 4, **beat)
        first = parked.next()
        wire.send("Heartbeat", 4, **beat)
        wire.socket.shutdown(socket.SHUT_WR)
        answer(server, first, heartbeat())
        parked.next()


# --- certificates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["requested", "required"])
def test_the_principal_is_the_certificate_s_subject(
    store: segstore.Store, files: Certificates, auth: str
) -> None:
    settings = {"ssl_client_auth": auth, "ssl_truststore_location": str(files.authority)}
    with over_tls(store, files, **settings) as server:
        with connected(server, files, certificate=files.client) as wire:
            assert is_answered(wire)
            assert {each.principal for each in connections(server)} == {CLIENT_PRINCIPAL}
        until(lambda: not connections(server))
        if auth == "requested":
            with connected(server, files) as wire:
                assert is_answered(wire)
                assert {each.principal for each in connections(server)} == {"ANONYMOUS"}
            until(lambda: not connections(server))
        for certificate in (files.stranger, *([None] if auth == "required" else [])):
            with (
                pytest.raises((ssl.SSLError, ConnectionError)),
                connected(server, files, certificate=certificate) as wire,
            ):
                is_answered(wire)
        until(lambda: not connections(server))


SUBJECTS = {
    "the last part is first": ((("countryName", "DE"),), (("commonName", "a"),)),
    "two in one part": ((("commonName", "a"), ("organizationName", "o")),),
    "letters with a meaning": ((("commonName", 'a,b+c"d\\e<f>g;h'),),),
    "blanks and a number sign": ((("commonName", " #a "),), (("organizationName", "#"),)),
    "a part without a short name": ((("emailAddress", "a@b"),),),
}  # fmt: skip
NAMES = [
    "CN=a,C=DE",
    "CN=a+O=o",
    'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h',
    "O=\\#,CN=\\ #a\\ ",
    "emailAddress=a@b",
]


@pytest.mark.parametrize(("parts", "name"), zip(SUBJECTS.values(), NAMES, strict=True), ids=SUBJECTS)
def test_subjects_are_written_as_java_does(parts: Any, name: str) -> None:
    assert subject({"subject": parts}) == name


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}])
def test_no_certificate_has_no_subject(certificate: Any) -> None:
    assert subject(certificate) is None


def test_certificates_may_be_given_as_texts(store: segstore.Store, files: Certificates) -> None:
    both = files.server.read_text()
    key, _, chain = both.partition("-----BEGIN CERTIFICATE-----")
    settings = {
        "security_protocol": "SSL",
        "ssl_keystore_key": key,
        "ssl_keystore_certificate_chain": f"-----BEGIN CERTIFICATE-----{chain}",
        "ssl_truststore_certificates": files.authority.read_text(),
        "ssl_client_auth": "required",
    }
    with serving(store, **settings) as server:
        with connected(server, files, certificate=files.client) as wire:
            assert is_answered(wire)
        assert key.strip().splitlines()[1] not in repr(server.node.config)


def test_keys_with_a_password(store: segstore.Store, files: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    pem = files.server.read_bytes()
    key = form.load_pem_private_key(pem, None)
    sealed = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"swordfish")
    )
    path = tmp_path / "sealed.pem"
    path.write_bytes(sealed + pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    settings = {"security_protocol": "SSL", "ssl_keystore_location": str(path)}
    with serving(store, **settings, ssl_key_password="swordfish") as server, connected(server, files) as wire:
        assert is_answered(wire)
    for wrong in ({}, {"ssl_key_password": "sword"}):
        with pytest.raises(ConfigError, match="ssl_keystore_location=") as error:
            segstore.serve(store, port=0, **settings, **wrong)
        assert "sword'" not in str(error.value)


def test_files_that_are_none(store: segstore.Store, files: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "missing", tmp_path / "empty", files.authority, tmp_path):
        with pytest.raises(ConfigError, match="no certificate with its private key"):
            segstore.serve(store, port=0, security_protocol="SSL", ssl_keystore_location=str(path))
    for name in ("missing", "empty"):
        with pytest.raises(ConfigError, match=r"ssl_truststore_location=.*no certificates"):
            segstore.serve(
                store, port=0, security_protocol="SSL", **files.of_server,
                ssl_truststore_location=str(tmp_path / name),
            )  # fmt: skip


def test_any_handshake_is_judged(files: Certificates, rng: random.Random) -> None:
    """Whatever comes, a step of the handshake waits for more or fails, and never succeeds by chance."""
    server = tls_context(ServerConfig(security_protocol="SSL", **files.of_server))
    assert server is not None
    for _ in range(300):
        said = ssl.MemoryBIO()
        client = context(files).wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = bytearray(said.read())
        for _ in range(rng.randrange(4)):
            hello[rng.randrange(len(hello))] = rng.randrange(256)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(hello[: rng.randrange(len(hello)) + 1] + rng.randbytes(rng.randrange(200)))
            ours.setblocking(False)
            wire = TlsWire(ours, server)
            assert wire.take_in()
            with suppress(ssl.SSLError):
                assert not wire.shake()
            wire.sealed()
