"""A server's end: what it still answers, whom it waits for, and what it leaves open."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from descriptors import allowed
from leftovers import descriptors, threads
from serving import HEARTBEAT, FileSlice, Parked, connections, fetched, heartbeat, serving, within
from waiting import PATIENCE, told, until
from wire_client import WireClient, request

import segstore
from segstore.server.apis import Api
from segstore.server.network import server as module
from segstore.server.network import service
from segstore.server.network.outgoing import taken
from segstore.server.request import LATER

MIB = 1 << 20


def test_a_closed_server_leaves_nothing(store: segstore.Store) -> None:
    before = descriptors(), threads()
    with segstore.serve(store, port=0) as server:
        clients = [socket.create_connection((server.host, server.port)) for _ in range(3)]
        until(lambda: len(connections(server)) == 3)
        done = Event()
        within(server, lambda: server.node.loop.work(int, lambda _: done.set()))
        assert done.wait(PATIENCE)
        assert len(threads()) == 2
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    assert (descriptors(), threads()) == before
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port))
    segstore.serve(store, port=server.port).close()


def test_a_store_ends_its_servers(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        servers = [segstore.serve(store, port=0) for _ in range(2)]
        wires = [WireClient(server.host, server.port) for server in servers]
        for wire in wires:
            assert wire.ask("ApiVersions", 0).error_code == 0
    for wire in wires:
        assert wire.is_closed()
        wire.close()
    assert threads() == set()


def test_what_a_worker_does_is_answered_before_the_end(store: segstore.Store) -> None:
    begun, go = Event(), Event()

    def run() -> int:
        begun.set()
        assert go.wait(PATIENCE)
        return 7

    def handler(node: Any, request: Any) -> Any:
        node.loop.work(run, lambda code: request.answer(heartbeat(error_code=code)))
        return LATER

    with serving(store, {Api.HEARTBEAT: handler}) as server:
        wire = WireClient(server.host, server.port)
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        assert begun.wait(PATIENCE)
        closing = threading.Thread(target=server.close, args=(PATIENCE,))
        closing.start()
        until(lambda: server._service._shared.is_ending)
        go.set()
        assert wire.receive(sent).error_code == 7
        assert wire.is_closed()
        closing.join(PATIENCE)
        wire.close()
    assert threads() == set()


class Waiting:
    """A part of the handlers that keeps requests, and answers them when the server ends."""

    def __init__(self, node: Any) -> None:
        self.requests: list[Any] = []

    def close(self) -> None:
        for kept in self.requests:
            kept.answer(heartbeat(error_code=16))


def test_parts_answer_what_waits_in_them_and_the_rest_is_closed(store: segstore.Store) -> None:
    parked = Parked()

    def keep(node: Any, request: Any) -> Any:
        node.part(Waiting).requests.append(request)
        return LATER

    handlers = {Api.HEARTBEAT: keep, Api.SYNC_GROUP: parked}
    with serving(store, handlers) as server:
        wire, left = (WireClient(server.host, server.port) for _ in range(2))
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        wire.send("ApiVersions", 0)
        left.send("SyncGroup", 4)
        parked.next()
        until(lambda: server.node.part(Waiting).requests)
        server.close(PATIENCE)
        assert wire.receive(sent).error_code == 16
        assert wire.is_closed()  # what it had sent besides was not begun
        assert left.is_closed()
        wire.close()
        left.close()


def test_a_client_that_does_not_read_is_cut_off_after_the_time(store: segstore.Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * MIB))
    part = FileSlice(path, 0, 16 * MIB)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    with serving(store, handlers) as server, WireClient(server.host, server.port) as wire:
        wire.send("Fetch", 12)
        until(lambda: part._fd and connections(server)[0]._outgoing)
        server.close(0.05)
        assert part.released == 1
    assert threads() == set()


@pytest.fixture
def unread(store_dir: Path, tmp_path: Path) -> Iterator[tuple[segstore.Store, segstore.Server, WireClient]]:
    """A store whose server has an answer of 16 MiB for a client that does not read."""
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * MIB))
    handlers: Any = {Api.FETCH: lambda node, request: fetched(FileSlice(path, 0, 16 * MIB))}
    store = segstore.open(store_dir)
    try:
        with serving(store, handlers) as server, WireClient(server.host, server.port) as wire:
            wire.send("Fetch", 12)
            until(lambda: connections(server) and connections(server)[0]._outgoing)
            yield store, server, wire
    finally:
        store.close()


def test_a_client_that_does_not_read_is_not_waited_for(
    unread: tuple[segstore.Store, segstore.Server, WireClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has all the time there is."""
    _, server, _ = unread
    monkeypatch.setattr(service, "_STALL", 0.05)
    closing = threading.Thread(target=server.close, args=(float("inf"),), daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_client_that_takes_slowly_is_waited_for(
    unread: tuple[segstore.Store, segstore.Server, WireClient],
) -> None:
    """The kernel asks the server for more only once a third of its buffer is free, which may take a slow
    client seconds: what it takes of that buffer counts.
    """
    _, server, wire = unread
    [connection] = connections(server)
    all_of_them = server._service._listener.connections

    def look(idle: float) -> None:
        connection.active_at = connection._shared.loop.now - idle
        all_of_them.end_stalled(60, 0)

    def takes(at_most: int) -> bool:
        return len(wire.socket.recv(at_most)) > 0 and taken(connection._sock) > connection._taken

    within(server, lambda: look(0))
    until(lambda: takes(1 << 14))
    within(server, lambda: look(100))
    assert connection.is_open
    within(server, lambda: look(100))
    assert not connection.is_open


def test_a_client_that_had_taken_nothing_before_the_end_has_its_time(
    unread: tuple[segstore.Store, segstore.Server, WireClient],
) -> None:
    _, server, _ = unread
    [connection] = connections(server)
    all_of_them = server._service._listener.connections

    def look(since: float) -> None:
        connection.active_at = connection._shared.loop.now - 100
        all_of_them.end_stalled(60, connection._shared.loop.now - since)

    within(server, lambda: look(50))
    assert connection.is_open
    within(server, lambda: look(70))
    assert not connection.is_open


def test_a_client_that_reads_gets_its_answer_though_the_server_ends(
    unread: tuple[segstore.Store, segstore.Server, WireClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server, wire = unread
    monkeypatch.setattr(service, "_STALL", PATIENCE)
    closing = threading.Thread(target=server.close, args=(PATIENCE,), daemon=True)
    closing.start()
    until(lambda: server._service._shared.is_ending)
    assert len(wire.receive_bytes()) > 16 * MIB
    assert wire.is_closed()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_store_that_is_closed_has_time_for_others_than_clients_that_read_slowly(
    unread: tuple[segstore.Store, segstore.Server, WireClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = unread
    monkeypatch.setattr(service, "_STALL", float("inf"))
    monkeypatch.setattr(service, "CLOSE_TIMEOUT", 0.05)
    closing = threading.Thread(target=store.close, args=(float("inf"),), daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_part_that_fails_to_close_is_told(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def __init__(self, node: Any) -> None:
            pass

        def close(self) -> None:
            raise ZeroDivisionError

    handlers: Any = {Api.HEARTBEAT: lambda node, request: node.part(Bad) and heartbeat()}
    with serving(store, handlers) as server, WireClient(server.host, server.port) as wire:
        wire.ask("Heartbeat", 4, **HEARTBEAT)
    told()
    assert "a part of a server could not be closed" in caplog.text
    assert threads() == set()


def test_a_handler_that_closes_its_server_does_not_wait_for_itself(store: segstore.Store) -> None:
    servers: list[segstore.Server] = []

    def handler(node: Any, request: Any) -> Any:
        servers[0].close()
        return heartbeat(error_code=3)

    with serving(store, {Api.HEARTBEAT: handler}) as server, WireClient(server.host, server.port) as wire:
        servers.append(server)
        assert wire.ask("Heartbeat", 4, **HEARTBEAT).error_code == 3
        assert wire.is_closed()
        until(lambda: not threads())


def test_an_interrupt_of_close_ends_all_at_once(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Event()

    class Interrupted:
        def open(self) -> None:
            ended.set()

        def wait(self, seconds: float) -> bool:
            raise KeyboardInterrupt

    def handler(node: Any, request: Any) -> Any:
        node.loop.work(ended.wait, lambda _: None)
        return LATER

    with serving(store, {Api.HEARTBEAT: handler}) as server, WireClient(server.host, server.port) as wire:
        wire.send("Heartbeat", 4, **HEARTBEAT)
        until(lambda: within(server, lambda: server._service._shared.loop.works))
        with monkeypatch.context() as patch:
            patch.setattr(server._service, "_ended", Interrupted())
            with pytest.raises(KeyboardInterrupt):
                server.close(PATIENCE)
            assert wire.is_closed()
            assert ended.wait(PATIENCE)
        server._service._ended.open()


@pytest.mark.parametrize("ready", [True, False])
def test_an_interrupt_of_serve_leaves_no_server(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    """The interrupt comes when the server is ready, or before that."""
    go, making = Event(), []
    before = descriptors(), threads()

    def interrupted(run: Any, name: str) -> Any:
        making.append(threading.Thread(target=lambda: go.wait(PATIENCE) and run()))
        making[0].start()
        if ready:
            go.set()
            making[0].join(PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        segstore.serve(store, port=0)
    go.set()
    making[0].join(PATIENCE)
    assert (descriptors(), threads()) == before


def events() -> list[str]:
    """The selectors and eventfds of this process."""
    return [path for path in descriptors() if "event" in path]


@pytest.mark.kind("programs")
def test_a_fork_leaves_the_parents_connections_alone(store: segstore.Store) -> None:
    before = events()  # those that other clients in this process have left
    with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
        assert wire.ask("ApiVersions", 0).error_code == 0
        until(lambda: len(connections(server)) == 1)
        child = os.fork()
        if child == 0:
            held = events()
            server.close()
            os._exit(len(held) - len(before))  # the client's own socket is the only thing that it has of them
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert wire.ask("ApiVersions", 0).error_code == 0


def test_a_thousand_idle_connections_cost_nothing(store: segstore.Store) -> None:
    """No memory for buffers, and no turn of the loop."""
    count = 1000
    with allowed(4 * count), segstore.serve(store, port=0) as server:
        clients = [socket.create_connection((server.host, server.port)) for _ in range(count)]
        for client in clients:
            client.sendall(request("ApiVersions", 0, 1))
        for client in clients:
            assert len(client.recv(4)) == 4
        held = connections(server)
        assert len(held) == count
        assert all(each._frames.is_empty and not each._outgoing and not each._memory for each in held)
        turns: list[None] = []
        server.node.loop.soon(lambda: server.node.loop.every_turn(lambda: turns.append(None)))
        connections(server)
        before = len(turns)
        assert not server._service._ended.wait(0.1)
        assert len(turns) <= before + 1  # the one that has answered `connections`
        for client in clients:
            client.close()
        until(lambda: not connections(server))
