"""The proxy of tests whose connections fail: what each fault delivers, and what it does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from fault_proxy import Proxy
from waiting import PATIENCE, until


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy of a server that gives back what it gets."""

    def give_back(sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)
            except OSError:
                """The connection was reset."""

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=give_back, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Proxy(listener.getsockname()[1]) as made:
            yield made
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as sock:
        sock.sendall(b"first")
        assert exactly(sock, 5) == b"first"
        yield sock


def exactly(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes, or what came before the end of the connection."""
    found = b""
    while len(found) < size and (more := sock.recv(size - len(found))):
        found += more
    return found


@pytest.mark.parametrize("way", [{}, {"requests": False}, {"answers": False}], ids=str)
def test_what_is_stalled_comes_later(proxy: Proxy, client: socket.socket, way: dict[str, bool]) -> None:
    proxy.stall(**way)
    client.sendall(b"second")
    until(lambda: any(end.held for end in proxy.ends))
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(PATIENCE)
    proxy.go_on()
    assert exactly(client, 6) == b"second"


def test_a_stalled_connection_holds_little(proxy: Proxy, client: socket.socket) -> None:
    proxy.stall()
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(64 << 20))
    assert sum(len(data) for end in [*proxy.ends] for data in end.held) < 1 << 20


@pytest.mark.parametrize("hard", [False, True])
def test_a_cut_ends_connections(proxy: Proxy, client: socket.socket, hard: bool) -> None:
    proxy.cut(hard)
    if hard:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    else:
        assert client.recv(1) == b""


def test_a_cut_after_some_bytes_delivers_those(proxy: Proxy, client: socket.socket) -> None:
    proxy.cut_after(10 + 7)  # the request, then a part of the answer
    client.sendall(b"0123456789")
    assert exactly(client, 10) == b"0123456"
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as other:
        other.sendall(b"again")
        assert exactly(other, 5) == b"again"


def test_a_torn_piece_comes_by_half(proxy: Proxy, client: socket.socket) -> None:
    proxy.tear(1)
    client.sendall(b"01234567")
    assert exactly(client, 8) == b""
    assert proxy.torn == 0


def test_what_was_to_be_torn_comes_whole_once_it_goes_on(proxy: Proxy, client: socket.socket) -> None:
    proxy.tear(1)
    proxy.go_on()
    client.sendall(b"01234567")
    assert exactly(client, 8) == b"01234567"


def test_answers_are_lost_while_it_is_mute(proxy: Proxy, client: socket.socket) -> None:
    proxy.mute()
    client.sendall(b"lost")
    until(lambda: proxy.lost)
    proxy.go_on()
    client.sendall(b"here")
    assert exactly(client, 4) == b"here"


def test_a_slow_connection_delivers_all(proxy: Proxy, client: socket.socket) -> None:
    proxy.slow(10_000)
    client.sendall(bytes(3000))
    until(lambda: any(end.held for end in proxy.ends))
    proxy.go_on()
    assert exactly(client, 3000) == bytes(3000)


def test_new_connections_are_refused(proxy: Proxy, client: socket.socket) -> None:
    proxy.refuse()
    with (
        pytest.raises(ConnectionResetError),  # by either call: the reset may come before connect returns
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as other,
    ):
        other.recv(1)
    client.sendall(b"old")
    assert exactly(client, 3) == b"old"
