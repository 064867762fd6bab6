"""`Server.families`: connections, authentications and requests that end their connections are counted."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from certificates import certificates
from request_counts import counted, read, tapped
from serving import HEARTBEAT, Parked, answer, connections, heartbeat, serving
from test_sasl import SASL, begun, plain, said
from waiting import until
from wire_client import WireClient, request

import segstore
from segstore.server.apis import Api


def of_connections(server: segstore.Server) -> list[float]:
    names = "connections", "connections_made_total", "connections_refused_total"
    return [*(sum(read(server, name).values()) for name in names)]


def test_connections_are_counted(store: segstore.Store) -> None:
    with serving(store, max_connections_per_ip=2) as server:
        assert of_connections(server) == [0, 0, 0]
        with WireClient(server.host, server.port), WireClient(server.host, server.port):
            until(lambda: of_connections(server) == [2, 2, 0])
            with WireClient(server.host, server.port) as third:
                assert third.is_closed()
            assert of_connections(server) == [2, 2, 1]
        until(lambda: of_connections(server) == [0, 2, 1])
    found = {metric.prometheus: samples for metric, _, samples in server.families()}
    assert found["segstore_connections_made_total"][0].value == 2


MALFORMED = {
    "an api key that is not Kafka's": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a size that is not taken": struct.pack(">i", -5) + bytes(8),
    "no header": struct.pack(">ih", 2, 3),
    "a version that is not served": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "a body that ends early": request("Metadata", 9, 1, "wire", topics=None)[:-1],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_counted(name: str, server: segstore.Server, wire: WireClient) -> None:
    data = MALFORMED[name]
    if name == "a body that ends early":
        data = struct.pack(">i", len(data) - 4) + data[4:]
    wire.socket.sendall(data)
    assert wire.is_closed()
    assert read(server, "malformed_requests_total") == {("PLAINTEXT",): 1}
    assert read(server, "requests_total") == {}


def test_a_request_that_is_cut_off_counts_as_none(server: segstore.Server, wire: WireClient) -> None:
    wire.socket.sendall(request("Metadata", 9, 1, "wire", topics=None)[:-1])
    until(lambda: of_connections(server) == [1, 1, 0])
    wire.close()
    until(lambda: of_connections(server) == [0, 1, 0])
    assert read(server, "malformed_requests_total") == {("PLAINTEXT",): 0}
    assert read(server, "requests_total") == {}


def test_a_request_whose_client_has_left_is_counted(store: segstore.Store) -> None:
    kept = Parked()
    with serving(store, {Api.HEARTBEAT: kept}) as server:
        with WireClient(server.host, server.port) as wire:
            tap = tapped(wire)
            wire.send("Heartbeat", 4, **HEARTBEAT)
            asked = kept.next()
        until(lambda: not connections(server))
        answer(server, asked, heartbeat())
        assert counted(server, "Heartbeat") == (1, tap.sent, 0)


def test_authentications_are_counted(store: segstore.Store) -> None:
    with serving(store, **SASL) as server:
        with WireClient(server.host, server.port) as wire:
            said(begun(wire), plain())
            assert read(server, "authentications_total") == {("SASL_PLAINTEXT",): 1}
            wire.ask("Metadata", 9, topics=None)
        for bad in ("PLAIN", "GSSAPI"):
            with WireClient(server.host, server.port) as wire:
                if bad == "PLAIN":
                    said(begun(wire), plain(password="wrong"))
                else:
                    wire.ask(Api.SASL_HANDSHAKE, 1, mechanism=bad)
                assert wire.is_closed()
        with WireClient(server.host, server.port) as wire:
            wire.send("Metadata", 9, topics=None)
            assert wire.is_closed()
        assert read(server, "authentications_failed_total") == {("SASL_PLAINTEXT",): 2}
        assert read(server, "malformed_requests_total") == {("SASL_PLAINTEXT",): 1}
        assert read(server, "request_errors_total") == {
            ("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"): 1,
            ("SaslHandshake", "UNSUPPORTED_SASL_MECHANISM"): 1,
        }
        assert counted(server, "Metadata")[0] == 1


def test_handshakes_of_tls_that_fail_are_counted(store: segstore.Store, tmp_path: Path) -> None:
    settings = {"security_protocol": "SSL", **certificates(tmp_path).of_server}
    with serving(store, **settings) as server, WireClient(server.host, server.port) as wire:
        wire.socket.sendall(b"this is no TLS at all" * 10)
        with suppress(ConnectionError):
            while wire.socket.recv(1 << 16):
                pass
        until(lambda: read(server, "authentications_failed_total") == {("SSL",): 1})
        assert read(server, "authentications_total") == {("SSL",): 0}
