"""What one client, or many, can take of a server: connections, memory, time."""

from __future__ import annotations

import resource
import select
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from serving import HEARTBEAT, FileSlice, Parked, answer, connections, fetched, heartbeat, serving, within
from waiting import until
from wire_client import WireClient, request

import segstore
from segstore.server.apis import Api
from segstore.server.network import listener
from segstore.server.network.connection import ConnectionState

MIB = 1 << 20
HOUR = 3_600_000


def connected(server: segstore.Server) -> WireClient:
    return WireClient(server.host, server.port)


def is_answered(wire: WireClient) -> bool:
    return bool(wire.ask("ApiVersions", 0).error_code == 0)


# --- connections -----------------------------------------------------------------------------------


def test_more_connections_wait_until_one_ends(store: segstore.Store) -> None:
    with serving(store, max_connections=2) as server:
        first, second = connected(server), connected(server)
        assert is_answered(first)
        assert is_answered(second)
        third = connected(server)  # the kernel takes it
        sent = third.send("ApiVersions", 0)
        assert is_answered(first)
        assert len(connections(server)) == 2
        first.close()
        assert third.receive(sent).error_code == 0
        second.close()
        third.close()


def test_more_connections_of_one_address_are_turned_away(store: segstore.Store) -> None:
    with serving(store, max_connections_per_ip=1) as server:
        with connected(server) as first, connected(server) as second:
            assert is_answered(first)
            assert second.is_closed()
        until(lambda: not connections(server))
        with connected(server) as third:
            assert is_answered(third)
        elsewhere = socket.create_connection((server.host, server.port), source_address=("127.0.0.2", 0))
        with elsewhere:
            elsewhere.sendall(request("ApiVersions", 0, 1))
            assert elsewhere.recv(4)


def test_a_storm_of_connections_is_taken_at_a_rate(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    wait = listener.Listener._wait

    def noted(self: listener.Listener, seconds: float | None) -> None:
        waits.append(seconds)
        wait(self, 0.01)  # the test does not wait for the next second

    monkeypatch.setattr(listener.Listener, "_wait", noted)
    with serving(store, max_connection_creation_rate=3) as server:
        clients = [connected(server) for _ in range(4)]
        assert all(is_answered(each) for each in clients[:3])
        until(lambda: waits)
        assert waits[0] is not None
        assert 0 < waits[0] <= 1
        assert is_answered(clients[3])
        for each in clients:
            each.close()


def test_no_descriptor_for_a_connection_is_no_end(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "_PAUSE", 0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with segstore.serve(store, port=0) as server:
        client = socket.socket()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            client.connect((server.host, server.port))
            until(lambda: "a connection can't be taken" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with client:
            client.sendall(request("ApiVersions", 0, 1))
            assert client.recv(4)


def test_connections_leave_descriptors_to_the_store(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that do nothing take what they can get; then partitions are opened, and their logs roll."""
    monkeypatch.setattr(listener, "_PAUSE", 0.01)
    store.create_topic("t", 2, {"segment.bytes": 300})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients: list[socket.socket] = []
    with segstore.serve(store, port=0) as server:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
            while "the rest of RLIMIT_NOFILE is the store's" not in caplog.text:
                clients.append(socket.create_connection((server.host, server.port)))
                within(server, lambda: None)  # it has taken the connection, or not
            for number in range(2):
                for _ in range(3):
                    store.partition("t", number).append(b"x" * 150)
            clients[0].sendall(request("ApiVersions", 0, 1))
            assert clients[0].recv(4)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for client in clients:
                client.close()
        with connected(server) as wire:
            assert is_answered(wire)


# --- time ------------------------------------------------------------------------------------------


def aged(server: segstore.Server, seconds: float) -> None:
    """Look for idle connections as if none had done anything for so long."""
    held = server._service._listener.connections

    def look() -> None:
        for connection in held._all:
            connection.active_at -= seconds
        held._end_idle()

    within(server, look)


def test_a_connection_that_idles_is_closed_and_one_in_work_is_not(store: segstore.Store) -> None:
    parked = Parked()
    with (
        serving(store, {Api.HEARTBEAT: parked}, connections_max_idle_ms=HOUR) as server,
        connected(server) as idle,
        connected(server) as half,
        connected(server) as working,
    ):
        assert is_answered(idle)
        half.socket.sendall(struct.pack(">i", 1000) + b"half")
        sent = working.send("Heartbeat", 4, **HEARTBEAT)
        kept = parked.next()
        until(lambda: sum(not each._frames.is_empty for each in connections(server)) == 1)
        aged(server, 3599)
        assert len(connections(server)) == 3
        aged(server, 1.1)
        assert idle.is_closed()
        assert half.is_closed()
        answer(server, kept, heartbeat())
        assert working.receive(sent).error_code == 0
        assert is_answered(working)


def test_idle_connections_are_looked_for(store: segstore.Store) -> None:
    with serving(store, connections_max_idle_ms=20) as server, connected(server) as wire:
        assert wire.is_closed()
    never = {"connections_max_idle_ms": -1, "response_write_max_ms": -1}
    with serving(store, **never) as server, connected(server) as wire:
        assert is_answered(wire)
        aged(server, 1e9)
        assert is_answered(wire)


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(store: segstore.Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * MIB))
    part = FileSlice(path, 0, 16 * MIB)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    limits = {"connections_max_idle_ms": -1, "response_write_max_ms": HOUR}
    with serving(store, handlers, **limits) as server, connected(server) as stuck, connected(server) as idle:
        assert is_answered(idle)
        stuck.send("Fetch", 12)
        until(lambda: any(each.state is ConnectionState.WRITING for each in connections(server)))
        aged(server, 3601)
        until(lambda: part.released)
        assert is_answered(idle)


# --- memory ----------------------------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_request_that_is_announced_and_does_not_come_costs_nothing(store: segstore.Store) -> None:
    with segstore.serve(store, port=0) as server:
        before = resident()
        clients = [connected(server) for _ in range(20)]
        for each in clients:
            each.socket.sendall(struct.pack(">i", 100 * MIB) + b"x" * 1000)
        until(lambda: sum(not each._frames.is_empty for each in connections(server)) == 20)
        assert resident() - before < 50 * MIB
        for each in clients:
            each.close()


def test_the_largest_request_is_taken_and_one_byte_more_is_not(store: segstore.Store) -> None:
    data = request("ApiVersions", 0, 1)
    with serving(store, socket_request_max_bytes=len(data) - 4) as server, connected(server) as wire:
        wire.socket.sendall(data)
        assert len(wire.receive_bytes()) > 0
        wire.socket.sendall(struct.pack(">i", len(data) - 3))
        assert wire.is_closed()


def test_large_requests_wait_for_memory(store: segstore.Store) -> None:
    """queued.max.request.bytes: the first may go beyond it, others wait until it was answered."""
    parked = Parked()
    fields = {**HEARTBEAT, "member_id": "m" * 30_000}
    large = request("Heartbeat", 0, 7, **fields)
    with (
        serving(store, {Api.HEARTBEAT: parked}, queued_max_request_bytes=1000) as server,
        connected(server) as first,
        connected(server) as second,
        connected(server) as gone,
    ):
        first.socket.sendall(large[:100])
        until(lambda: sum(each._memory for each in connections(server)) == len(large))
        second.socket.sendall(large[:5000])
        gone.socket.sendall(large[:5000])
        until(lambda: [each.state for each in connections(server)].count(ConnectionState.STARVING) == 2)
        second.socket.sendall(large[5000:])
        gone.close()
        first.socket.sendall(large[100:])
        kept = parked.next()
        with connected(server) as small:
            assert is_answered(small)
        assert parked.requests.empty()
        answer(server, kept, heartbeat())
        assert first.receive_bytes()
        kept = parked.next()
        assert kept.body.member_id == fields["member_id"]
        answer(server, kept, heartbeat())
        assert second.receive_bytes()
        until(lambda: len(connections(server)) == 2)
        assert server._service._shared.memory.taken == 0


def test_memory_comes_back_from_connections_that_end(store: segstore.Store) -> None:
    with serving(store, queued_max_request_bytes=1 << 20) as server:
        with connected(server) as wire:
            wire.socket.sendall(struct.pack(">i", 100_000) + b"x" * 10)
            until(lambda: server._service._shared.memory.taken == 100_004)
        until(lambda: server._service._shared.memory.taken == 0)


def sent_some(wire: WireClient, data: bytes) -> bool:
    """Send what the kernel takes now; False where it takes nothing."""
    try:
        return wire.socket.send(data) > 0
    except BlockingIOError:
        return False


def test_what_a_client_sends_ahead_stays_in_the_kernel(store: segstore.Store) -> None:
    parked = Parked()
    with serving(store, {Api.HEARTBEAT: parked}) as server, connected(server) as wire:
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        kept = parked.next()
        wire.socket.setblocking(False)
        until(lambda: not sent_some(wire, request("ApiVersions", 0, 9) * 10_000))
        (connection,) = connections(server)
        assert len(connection._frames._rest) <= 1 << 16
        assert not connection._events & select.EPOLLIN
        wire.socket.settimeout(60)
        answer(server, kept, heartbeat())
        assert wire.receive(sent).error_code == 0
        assert len(wire.receive_bytes()) > 0
