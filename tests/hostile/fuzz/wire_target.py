"""A whole server given any bytes: whole requests, halves, pipelines, hostile record batches in Produce.

A sound answer comes, in the version that was asked for, or the connection ends; nothing fails that a handler
did not expect, others are served on, and no memory stays taken. The loop's turns are taken by the thread of
the test, and so are the jobs of its workers, so that an input does the same each time.

On disk: a store in a temporary directory, checked and made anew after `_LIVES` inputs, removed with the
process.
"""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any
from unittest import mock

import memory
import sent
from drawn_messages import drawn

import segstore
from fuzz import batches
from fuzz.mutate import ANY, INTERESTING, MOST_BYTES, Mutator
from fuzz.target import Target
from segstore.errors import InvalidRequestError, SegstoreError, UnsupportedVersionError
from segstore.logger import Logger
from segstore.protocol.codec import decode, encode, structs
from segstore.protocol.definitions import message
from segstore.protocol.primitives import read_uvarint
from segstore.server.apis import Api, read_header, served
from segstore.server.handlers import HANDLERS, topics
from segstore.server.network import loop as loops
from segstore.server.network.connections import Connections
from segstore.server.network.memory import RequestMemory, Scratch
from segstore.server.network.shared import Shared
from segstore.server.node import Endpoint, Node
from segstore.server.settings import ServerConfig

_LIVES = 3000
_IDLE_TURNS = 3
_MOST_TURNS = 20_000
_MOST_READ = 40
"""Answers of one input that are decoded; of the others only the request is looked for."""
_MOST_MEMORY = 1 << 30
"""Bytes that the process may become larger, the sanitizer's quarantine within."""
_PARTITIONS = 8
"""What a topic may have at most here: a hundred thousand are allowed otherwise, and take their time."""
_CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
_TOPICS = {
    "topic-0": {}, "zstd": {"compression.type": "zstd"}, "compact": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}  # fmt: skip


class _Loop(loops.Loop):
    """Its workers' jobs are done by the loop's thread."""

    def work(self, run: Callable[[], Any], done: Callable[[Any], object], waits: bool = False) -> None:
        def job() -> None:
            try:
                result = run()
            except BaseException as error:
                result = error
            done(result)

        self.soon(job)

    def turn(self) -> None:
        """Do what can be done now, without a wait."""
        self.soon(lambda: None)
        self._turn()


class _Server:
    """A server without a thread, and without a socket that listens."""

    def __init__(self) -> None:
        self._work = memory.directory()
        self.store = segstore.open(self._work.name, config=_CONFIG)
        for name, config in _TOPICS.items():
            self.store.create_topic(name, 2, config)
        self.loop = _Loop()
        config = ServerConfig(group_initial_rebalance_delay_ms=0, num_partitions=2)
        node = Node(self.store, config, self.loop, Endpoint("127.0.0.1", 9), "c" * 22, tuple(HANDLERS))
        self.shared = Shared(node, self.loop, HANDLERS, Scratch(), RequestMemory(-1))
        self.connections = Connections(self.shared, lambda: None)
        self.lives = 0
        self.others = self.connected()

    def connected(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        for each in (mine, theirs):
            each.setblocking(False)
        self.connections.add(theirs, "127.0.0.1")
        return mine

    def exchange(self, client: socket.socket, data: bytes) -> tuple[bytes, bool]:
        """Send bytes; return what comes back, and whether the server has closed the connection."""
        left, came, idle = memoryview(data), bytearray(), 0
        for _ in range(_MOST_TURNS):
            moved = 0
            with suppress(BlockingIOError, BrokenPipeError):
                moved = client.send(left) if left else 0
            left = left[moved:]
            self.loop.turn()
            try:
                part = client.recv(1 << 18)
                if not part:
                    return bytes(came), True
                came += part
                moved += len(part)
            except BlockingIOError:
                pass
            except ConnectionResetError:
                return bytes(came), True
            idle = 0 if moved else idle + 1
            if idle > _IDLE_TURNS and not self.loop._asked:
                return bytes(came), False
        raise AssertionError("the exchange does not end")

    def close(self) -> None:
        """End all, as a server does, and check what is on disk."""
        self.others.close()
        self.loop.turn()
        self.shared.node.close()
        self.connections.close()
        self.loop._close()
        self.store.close()
        found = segstore.check(self._work.name)
        self._work.cleanup()
        assert not found, found


_server: list[_Server] = []


def _serving() -> _Server:
    if _server and _server[0].lives >= _LIVES:
        _server.pop().close()
    if not _server:
        _server.append(_Server())
    _server[0].lives += 1
    return _server[0]


class Failure(AssertionError):
    """A message of the level "error": something failed that nobody expected."""


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What is logged as an error."""
    heard: list[str] = []

    def error(self: Logger, text: str, *args: object, **more: Any) -> None:
        heard.append(f"{text % args if args else text} {more.get('exc_info')!r}")

    with ExitStack() as stack:
        for name in ("error", "exception"):
            stack.enter_context(mock.patch.object(Logger, name, error))
        stack.enter_context(mock.patch.object(topics, "MOST_PARTITIONS", _PARTITIONS))
        yield heard


_largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def wire(data: bytes) -> str:
    """Outcomes: the first answers, by their APIs and codes, and what became of the connection."""
    with _heard() as heard:
        server = _serving()
        client = server.connected()
        came, is_closed = server.exchange(client, data)
        client.close()
        server.loop.turn()
        answers = _answers(data, came)
        hello = bytes(_request("ApiVersions", 0))
        answer, others_closed = server.exchange(server.others, hello)
        server.loop.turn()
    if heard:
        raise Failure("; ".join(heard))
    assert answer[8:10] == b"\0\0", "others are not served"
    assert not others_closed
    assert server.shared.memory.taken == 0, "memory stays taken"
    assert len(server.connections) == 1, "a connection stays"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - _largest) * 1024
    assert grown < _MOST_MEMORY, f"the process has become {grown >> 20} MiB larger"
    return f"{', '.join(answers[:3])}{', ...' * (len(answers) > 3)}: {'closed' if is_closed else 'open'}"


# --- what was asked, and what came ------------------------------------------------------------


def _frames(data: bytes) -> Iterator[bytes]:
    """What the sizes say."""
    at = 0
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if not 0 <= size <= len(data) - at - 4:
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _answers(data: bytes, came: bytes) -> list[str]:
    """Decode all answers: each is of a request, in the requests' order. A connection may end within one."""
    asked, found = _frames(data), []
    for answer in _frames(came):
        told = struct.unpack_from(">i", answer)[0]
        for frame in asked:
            try:
                header = read_header(memoryview(frame))
            except (SegstoreError, InvalidRequestError, UnsupportedVersionError):
                continue
            if header.correlation_id == told:
                found.append(_answer(header, answer) if len(found) < _MOST_READ else "...")
                break
        else:
            raise AssertionError("an answer is of no request")
    return found


def _answer(header: Any, answer: bytes) -> str:
    api, at = header.api, 4
    low, high = served(api)
    version = header.version if low <= header.version <= high else 0  # ApiVersions of a later client
    if api is not Api.API_VERSIONS and version in message(f"{api.message}Request").flexible:
        tags, at = read_uvarint(memoryview(answer), at)
        assert tags == 0
    body = decode(f"{api.message}Response", version, memoryview(answer)[at:])
    codes = sorted({*_codes(body)})
    return f"{api.message} {codes[:2]}"


def _codes(body: Any) -> Iterator[int]:
    if isinstance(body, list):
        for each in body[:20]:
            yield from _codes(each)
    for name in getattr(body, "__slots__", ()):
        value = getattr(body, name)
        if name == "error_code":
            yield value
        else:
            yield from _codes(value)


# --- inputs ------------------------------------------------------------------------------------


def _request(
    name: str, version: int, body: Any = None, client: bytes = b"fuzz", number: int = 7
) -> bytearray:
    definition = message(f"{name}Request")
    out = bytearray(struct.pack(">ihhih", 0, definition.api_key, version, number, len(client)) + client)
    if version in definition.flexible:
        out.append(0)
    encode(structs(f"{name}Request")() if body is None else body, version, out)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return out


def _produced(rng: Random, records: bytes) -> bytes:
    """A Produce request with these bytes as a partition's records."""
    kind, version = structs("ProduceRequest"), rng.randint(*served(Api.PRODUCE))
    version = min(version, 12)  # which name topics
    data = [kind.PartitionProduceData(index=rng.choice((0, 0, 1, 7)), records=records)]
    topic = rng.choice([*_TOPICS, "new"])
    body = kind(
        transactional_id=rng.choice((None, None, None, "x")),
        acks=rng.choice((-1, 1, 1, 0, 5)),
        timeout_ms=rng.choice((0, 10, -1)),
        topic_data=[kind.TopicProduceData(name=topic, partition_data=data)],
    )
    return bytes(_request("Produce", version, body, number=rng.randrange(1 << 31)))


BOMBS = {1: 40 << 20, 3: 12 << 20, 4: 1 << 29}
"""By codec, the size that is decompressed of bytes that are few enough for an input."""


def _seeds() -> list[bytes]:
    """A request of each API, batches in each codec, bombs, a pipeline; `_drawn` makes all versions."""
    rng = Random(31)
    found = []
    for api in sorted(HANDLERS):
        version = rng.randint(*served(api))
        found.append(bytes(_request(api.message, version, drawn(f"{api.message}Request", version, rng))))
    made = [bytes(8) + data[8:] for data in batches.made()]
    made += [bytes(sent.batch(codec)) for codec in range(5)]
    made += [bytes(sent.of_producer(seq, 2)) for seq in range(0, 6, 2)]
    made += [batches.bomb(codec, size) for codec, size in BOMBS.items()]
    hello = bytes(_request("ApiVersions", 0))
    return [*found, *(_produced(rng, data) for data in made), hello * (MOST_BYTES // len(hello))]


def _batch(rng: Random, data: bytes, other: bytes) -> bytes:
    """A hostile batch in a Produce request, alone or behind another request."""
    records = bytes(8) + rng.choice(batches.made())[8:]
    for _ in range(rng.choice((1, 1, 2, 4))):
        records = rng.choice(batches.MUTATORS)(rng, records, other)
    if rng.random() < 0.8:
        records = batches.with_crcs(records)
    return (data if rng.random() < 0.3 else b"") + _produced(rng, records[: MOST_BYTES // 2])


def _pipeline(rng: Random, data: bytes, other: bytes) -> bytes:
    return data + other if rng.random() < 0.7 else other * rng.choice((2, 20, 200))


def _drawn(rng: Random, data: bytes, other: bytes) -> bytes:
    api = rng.choice(sorted(HANDLERS))
    version = rng.randint(*served(api))
    lengths = rng.choice(((0, 3), (0, 1), (1, 30)))
    return bytes(_request(api.message, version, drawn(f"{api.message}Request", version, rng, lengths)))


def _head(rng: Random, data: bytes, _: bytes) -> bytes:
    """Another size, API or version."""
    at, size = rng.choice(((0, 4), (4, 2), (6, 2), (12, 2)))
    number = rng.choice((rng.choice(INTERESTING), rng.randrange(80), rng.randrange(14)))
    return data[:at] + (number & ((1 << 8 * size) - 1)).to_bytes(size, "big") + data[at + size :]


def _framed(data: bytes) -> bytes:
    """The size of the last request, so that a change reaches what comes behind."""
    at = sum(4 + len(frame) for frame in _frames(data))
    if at == len(data) or len(data) - at < 4:
        return data
    return data[:at] + struct.pack(">i", len(data) - at - 4) + data[at + 4 :]


MUTATORS: tuple[Mutator, ...] = (_batch, _batch, _batch, _pipeline, _drawn, _drawn, _head, *ANY)
TARGETS = {"wire": Target(wire, _seeds, MUTATORS, _framed, allowed=())}
