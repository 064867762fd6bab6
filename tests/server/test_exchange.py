"""What one call of C receives, does and answers (`LearnedRequest.receive`), what C leaves to Python, and what
of its answer is left to be sent.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from errno import EAGAIN
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fetch_frames import asked, fill, received
from fetch_frames import made as fetch
from sent import NOW, RECORDS, batch
from serving import connections, within
from stores import Clock, values
from test_learned_produce import made as produce
from waiting import until
from wire_client import WireClient

import segstore
from segstore._native import held
from segstore.server.network.connection import ConnectionState
from segstore.server.request import ANSWERED

Ask = Callable[..., bytes]


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    return fill(store)


class Talk:
    """A client of a server that has learned what its requests look like; the socket `mine` is the server's
    end of another connection, without a loop.
    """

    def __init__(self, server: segstore.Server, wire: WireClient, data: bytes) -> None:
        self._server = server
        for _ in range(2):
            asked(wire, data)
        (self.connection,) = connections(server)
        self.mine, self.other = socket.socketpair()
        self.mine.setblocking(False)

    def receive(self, data: bytes, room: int = 1 << 16) -> Any:
        """What `LearnedRequest.receive` returns when this has come."""
        if data:
            self.other.sendall(data)
        memory, repeat = held("uint8_t[]", np.zeros(room, np.uint8)), self.connection.learned
        return within(self._server, lambda: repeat.receive(self.mine.fileno(), memory))

    def counted(self) -> int:
        """How many requests like these were counted."""
        return sum(self.connection.learned.row.times)

    def fill(self) -> bytes:
        """Let `mine` take no more."""
        sent = b""
        with suppress(BlockingIOError):
            while True:
                sent += b"x" * self.mine.send(b"x" * 4096)
        return sent

    def close(self) -> None:
        self.mine.close()
        self.other.close()


def of_now() -> bytes:
    now = time.time_ns() // 1_000_000
    one = RECORDS[0]._replace(timestamp=now)
    return bytes(batch(records=[one], last_offset_delta=0, base_timestamp=now, max_timestamp=now))


ASKED: dict[str, Callable[[segstore.Store, int], bytes]] = {
    "fetch": lambda store, number: fetch(store, correlation_id=number, partition_max_bytes=400),
    "produce": lambda store, number: produce(correlation_id=number, records=of_now()),
}


@pytest.fixture(params=ASKED)
def ask(request: pytest.FixtureRequest, filled: segstore.Store) -> Callable[[int], bytes]:
    return lambda number: ASKED[request.param](filled, number)


@pytest.fixture
def talk(server: segstore.Server, wire: WireClient, ask: Callable[[int], bytes]) -> Iterator[Talk]:
    with closing(Talk(server, wire, ask(1))) as made:
        yield made


def test_a_request_like_the_last_one_is_answered(talk: Talk, ask: Callable[[int], bytes]) -> None:
    data = ask(7)
    before = talk.counted()
    count, told, sent = talk.receive(data)
    assert talk.counted() == before + 1
    assert (count, told) == (len(data), ANSWERED)
    answer = talk.other.recv(1 << 16)
    assert answer[4:8] == data[8:12]
    assert len(answer) == sent


def test_nothing_is_waited_for(talk: Talk) -> None:
    assert talk.receive(b"") == (-EAGAIN, None, 0)
    talk.other.shutdown(socket.SHUT_WR)
    assert talk.receive(b"") == (0, None, 0)


def test_what_is_not_one_whole_request_is_received_only(
    talk: Talk, ask: Callable[[int], bytes], filled: segstore.Store
) -> None:
    data = ask(7)
    end = filled.partition("t").end_offset
    for other in (
        data[:-1],
        data[:11],
        data[:3],
        data + data,
        data[:-1] + b"\1",
        data[:12] + b"\1" + data[13:],
    ):
        assert talk.receive(other) == (len(other), None, 0)
    assert talk.receive(data, len(data) + 8) == (len(data), None, 0)  # no room for the answer
    assert filled.partition("t").end_offset == end
    assert talk.receive(data)[:2] == (len(data), ANSWERED)


def test_what_the_socket_does_not_take_is_left(
    talk: Talk, ask: Callable[[int], bytes], wire: WireClient
) -> None:
    data, before, counted = ask(7), talk.fill(), talk.counted()
    count, (rest, slices), sent = talk.receive(data)
    assert (count, slices, sent) == (len(data), [], 0)
    assert talk.counted() == counted, "who sends the rest counts it"
    assert len(talk.other.recv(len(before), socket.MSG_WAITALL)) == len(before)
    talk.other.sendall(data)
    memory = held("uint8_t[]", np.zeros(1 << 16, np.uint8))
    assert (
        within(talk._server, lambda: talk.connection.learned.receive(talk.mine.fileno(), memory))[1]
        is ANSWERED
    )
    after = talk.other.recv(1 << 16)
    assert len(after) == len(rest)
    assert after[:8] == rest[:8]


def test_the_rest_of_an_answer_is_sent_when_the_client_reads(
    server: segstore.Server, wire: WireClient, filled: segstore.Store
) -> None:
    data = fetch(filled, partition_max_bytes=400)
    expected, _ = asked(wire, data), asked(wire, data)
    (connection,) = connections(server)
    repeat: Any = connection.learned
    rest = bytearray(struct.pack(">i", 8 << 20) + bytes(8 << 20))  # more than sockets take at once
    repeat.receive = lambda sock, memory: (len(os.read(sock, 1 << 16)), (rest, []), 0)
    wire.socket.sendall(data)
    until(lambda: connection.state is ConnectionState.WRITING)
    del repeat.receive
    assert received(wire) == rest
    assert asked(wire, data) == expected


class Twin:
    """A server over a store whose clock stands still, and a client, of one connection or of one a request."""

    def __init__(self, where: Path, one: bool) -> None:
        self.store = segstore.open(where, clock=Clock(NOW))
        fill(self.store)
        self.server, self._one = segstore.serve(self.store, port=0), one
        self._wire: WireClient | None = None

    def ask(self, data: bytes) -> bytes:
        """The answer; nothing where the connection is closed instead."""
        if self._wire is None or not self._one:
            self._leave()
            self._wire = WireClient(self.server.host, self.server.port)
        try:
            return asked(self._wire, data)
        except (AssertionError, ConnectionError):
            self._leave()
            return b""

    def _leave(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def close(self) -> None:
        self._leave()
        self.store.close()


def changed(rng: random.Random, data: bytes, begin: int) -> bytes:
    """A request with other bytes from `begin` on, more of them or fewer, and its right size."""
    body = bytearray(data[4:])
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(begin, len(body))
        kind = rng.choice(("bit", "byte", "cut", "more"))
        if kind == "bit":
            body[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == "cut":
            del body[at : at + rng.randint(1, 4)]
        else:
            body[at:at] = rng.randbytes(rng.randint(1, 4))
        if len(body) <= begin + 1:
            break
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("name", ASKED)
def test_changed_requests_are_answered_as_by_their_handler(
    name: str, tmp_path: Path, rng: random.Random
) -> None:
    with closing(Twin(tmp_path / "one", True)) as one, closing(Twin(tmp_path / "each", False)) as each:
        if name == "fetch":
            data = fetch(one.store, partition_max_bytes=400)
        else:
            data = produce(records=batch(max_timestamp=NOW + 5))
        begin = data.index(b"\x02t", 12) - 4  # what stands before says how long to wait
        for _ in range(150):
            for sent in (data, data, changed(rng, data, begin)):
                assert one.ask(sent) == each.ask(sent), sent.hex()
        assert values(one.store.partition("t")) == values(each.store.partition("t"))
    for where in ("one", "each"):
        assert segstore.check(tmp_path / where) == []
