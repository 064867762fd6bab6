"""Connections: requests in pieces and pipelines, answers that come later, clients that read slowly or go."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from serving import (
    HEARTBEAT,
    FileSlice,
    Parked,
    answer,
    connections,
    fetched,
    heartbeat,
    serving,
    within,
)
from waiting import told, until
from wire_client import SOFTWARE, WireClient, request

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.network.connection import ConnectionState
from segstore.server.network.loop import Loop
from segstore.server.network.outgoing import SHORT
from segstore.server.request import LATER

MIB = 1 << 20


def connected(server: segstore.Server) -> WireClient:
    return WireClient(server.host, server.port)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_api_versions(wire: WireClient, server: segstore.Server, version: int) -> None:
    keys = wire.ask("ApiVersions", version, **SOFTWARE).api_keys
    assert [key.api_key for key in keys] == sorted(server.node.apis)


MEANT: dict[str, tuple[str | None, int, Code]] = {
    "any": (None, -1, Code.NONE),
    "this one": ("here", 1, Code.NONE),
    "another node": ("here", 2, Code.REBOOTSTRAP_REQUIRED),
    "another cluster": ("there", 1, Code.REBOOTSTRAP_REQUIRED),
    "a cluster of no name": ("", 1, Code.REBOOTSTRAP_REQUIRED),
    "a cluster without a node": ("here", -1, Code.INVALID_REQUEST),
    "a node without a cluster": (None, 1, Code.INVALID_REQUEST),
}


@pytest.mark.parametrize("name", MEANT)
def test_a_client_is_told_that_it_has_reached_another_node(
    wire: WireClient, server: segstore.Server, name: str
) -> None:
    """KIP-1242; as of a broker of Kafka 4.4 the connection stays."""
    cluster, node_id, code = MEANT[name]
    cluster_id = server.node.cluster_id if cluster == "here" else cluster
    answer = wire.ask("ApiVersions", 5, cluster_id=cluster_id, node_id=node_id, **SOFTWARE)
    assert (answer.error_code, bool(answer.api_keys)) == (code, code is Code.NONE)
    assert wire.ask("ApiVersions", 4, **SOFTWARE).error_code == 0


@pytest.mark.parametrize(
    ("software", "code"),
    [(("segstore", "0.2.0-rc.1"), Code.NONE), (("a b", "1"), Code.INVALID_REQUEST),
     (("", "1"), Code.INVALID_REQUEST), (("a", "1."), Code.INVALID_REQUEST)],
)  # fmt: skip
def test_a_client_that_names_no_software_is_refused(
    wire: WireClient, software: tuple[str, str], code: Code
) -> None:
    """KIP-511; a broker judges more names in test_java_broker.py. The connection stays."""
    told = dict(zip(SOFTWARE, software, strict=True))
    answer = wire.ask("ApiVersions", 3, **told)
    assert (answer.error_code, bool(answer.api_keys)) == (code, code is Code.NONE)
    assert wire.ask("ApiVersions", 2, **told).error_code == 0


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(wire: WireClient) -> None:
    data = struct.pack(">hhih", Api.API_VERSIONS, 99, 7, -1)
    wire.socket.sendall(struct.pack(">i", len(data)) + data + b"")
    assert bytes(wire.receive_bytes()) == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 5)
    assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


CLOSED = {
    "an unknown version": framed(struct.pack(">hhih", Api.METADATA, 99, 7, -1)),
    "an api that is none": framed(struct.pack(">hhih", 999, 0, 7, -1)),
    "a request without a header": framed(b"abc"),
    "an empty request": framed(b""),
    "a negative size": struct.pack(">i", -1),
    "a size that is too large": struct.pack(">i", 100 * MIB + 1),
    "a body that ends early": framed(request("ApiVersions", 3, 1, client_software_name="x" * 20)[4:-9]),
    "text of another protocol": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_can_not_be_answered_ends_its_connection(store: segstore.Store, name: str) -> None:
    with serving(store) as server, connected(server) as wire, connected(server) as other:
        wire.socket.sendall(CLOSED[name])
        assert wire.is_closed()
        assert other.ask("ApiVersions", 0).error_code == 0


def test_a_request_that_comes_byte_by_byte(wire: WireClient) -> None:
    for byte in request("ApiVersions", 3, 5, client_software_name="n", client_software_version="1"):
        wire.socket.sendall(bytes((byte,)))
    assert struct.unpack_from(">i", wire.receive_bytes()) == (5,)


@pytest.mark.parametrize("size", [1 << 16, 3 * MIB])
def test_a_request_that_is_larger_than_what_is_read_at_once(store: segstore.Store, size: int) -> None:
    seen: list[bytes] = []

    def handler(node: Any, request: Any) -> Any:
        seen.append(bytes(request.body.topic_data[0].partition_data[0].records))
        return structs("ProduceResponse")()

    batch = bytes(range(256)) * (size // 256)
    with serving(store, {Api.PRODUCE: handler}) as server, connected(server) as wire:
        for part in (batch, batch[::-1]):
            wire.ask("Produce", 9, **produced(part))
    assert seen == [batch, batch[::-1]]


def produced(batch: bytes, acks: int = 1) -> dict[str, Any]:
    kind = structs("ProduceRequest")
    data = kind.PartitionProduceData(index=0, records=batch)
    return {"acks": acks, "topic_data": [kind.TopicProduceData(name="t", partition_data=[data])]}


def test_a_pipeline_of_thousands_is_answered_in_order(wire: WireClient) -> None:
    count = 5000
    wire.socket.sendall(b"".join(request("ApiVersions", 0, n) for n in range(count)))
    assert [struct.unpack_from(">i", wire.receive_bytes())[0] for _ in range(count)] == list(range(count))


def test_thousands_that_are_answered_within_their_handlers_need_no_deeper_stack(
    store: segstore.Store,
) -> None:
    def handler(node: Any, request: Any) -> Any:
        request.answer(heartbeat())
        return LATER

    with serving(store, {Api.HEARTBEAT: handler}) as server, connected(server) as wire:
        sent = [wire.send("Heartbeat", 4, **HEARTBEAT) for _ in range(3000)]
        assert all(wire.receive(each).error_code == 0 for each in sent)


# --- answers -------------------------------------------------------------------------------------


def test_a_later_answer_holds_up_its_own_connection_only(store: segstore.Store) -> None:
    parked = Parked()
    with serving(store, {Api.HEARTBEAT: parked}) as server, connected(server) as wire:
        first = wire.send("Heartbeat", 4, **HEARTBEAT)
        second = wire.send("ApiVersions", 0)
        third = wire.send("Heartbeat", 0, **HEARTBEAT)
        kept = parked.next()
        with connected(server) as other:
            assert other.ask("ApiVersions", 0).error_code == 0
        assert parked.requests.empty()
        answer(server, kept, heartbeat(error_code=27))
        assert wire.receive(first).error_code == 27
        assert wire.receive(second).error_code == 0
        answer(server, parked.next(), heartbeat())
        assert wire.receive(third).error_code == 0


def test_a_request_without_an_answer_lets_the_next_one_go_on(store: segstore.Store) -> None:
    seen = []

    def handler(node: Any, request: Any) -> None:
        seen.append(bytes(request.body.topic_data[0].partition_data[0].records))

    with serving(store, {Api.PRODUCE: handler}) as server, connected(server) as wire:
        for n in range(3):
            wire.send("Produce", 9, **produced(b"%d" % n, acks=0))
        assert wire.ask("ApiVersions", 0).error_code == 0
    assert seen == [b"0", b"1", b"2"]


def test_record_batches_stay_as_they_came_until_their_answer(store: segstore.Store) -> None:
    parked = Parked()
    with (
        serving(store, {Api.PRODUCE: parked}) as server,
        connected(server) as wire,
        connected(server) as other,
    ):
        wire.send("Produce", 9, **produced(b"a" * 1000))
        wire.send("Produce", 9, **produced(b"b" * 1000))
        first = parked.next()
        for _ in range(20):
            other.ask("ApiVersions", 3, client_software_name="z" * 2000, client_software_version="1")
        assert bytes(first.body.topic_data[0].partition_data[0].records) == b"a" * 1000
        answer(server, first, structs("ProduceResponse")())
        records = parked.next().body.topic_data[0].partition_data[0].records
        assert bytes(records) == b"b" * 1000
        assert not records.readonly  # offsets are written there


def test_a_handler_that_fails_is_told_where_there_is_room(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(node: Any, request: Any) -> Any:
        raise ZeroDivisionError("oops")

    handlers = {Api.HEARTBEAT: fails, Api.METADATA: fails, Api.PRODUCE: fails}
    with serving(store, handlers) as server, connected(server) as wire:
        assert wire.ask("Heartbeat", 4, **HEARTBEAT).error_code == -1
        assert wire.ask("Metadata", 13, topics=[]).error_code == -1
        wire.send("Produce", 9, **produced(b""))
        assert wire.is_closed()
    with serving(store, handlers) as server, connected(server) as wire:
        wire.send("Metadata", 12, topics=[])  # an answer without topics would be one of an empty cluster
        assert wire.is_closed()
    told()
    assert [r.exc_info and r.exc_info[0] for r in caplog.records] == [ZeroDivisionError] * 4


def test_an_answer_that_can_not_be_encoded_ends_the_connection(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    handlers: Any = {Api.HEARTBEAT: lambda node, request: heartbeat(error_code=1 << 40)}
    with serving(store, handlers) as server, connected(server) as wire:
        wire.send("Heartbeat", 4, **HEARTBEAT)
        assert wire.is_closed()
    told()
    assert "Heartbeat could not be answered" in caplog.text


def test_a_second_answer_is_dropped(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    parked = Parked()
    with serving(store, {Api.HEARTBEAT: parked}) as server, connected(server) as wire:
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        kept = parked.next()
        answer(server, kept, heartbeat(error_code=1))
        answer(server, kept, heartbeat(error_code=2))
        assert wire.receive(sent).error_code == 1
        assert wire.ask("ApiVersions", 0).error_code == 0
    told()
    assert "answered twice" in caplog.text


def test_a_throttled_client_is_answered_at_once_and_then_not_read(store: segstore.Store) -> None:
    """KIP-219."""
    day = 86_400_000
    calls: list[Any] = []

    def handler(node: Any, request: Any) -> Any:
        calls.append(request)
        return heartbeat(throttle_time_ms=day if len(calls) == 1 else 0)

    with serving(store, {Api.HEARTBEAT: handler}) as server, connected(server) as wire:
        assert wire.ask("Heartbeat", 4, **HEARTBEAT).throttle_time_ms == day
        (connection,) = connections(server)
        assert connection.state is ConnectionState.THROTTLED
        second = wire.send("Heartbeat", 4, **HEARTBEAT)
        with connected(server) as other:
            assert other.ask("ApiVersions", 0).error_code == 0
        assert len(calls) == 1
        within(server, connection._unmute)
        assert wire.receive(second).throttle_time_ms == 0


def test_a_muted_client_that_got_no_answer_is_not_read(store: segstore.Store) -> None:
    """KIP-219, for producers with acks=0."""
    calls: list[Any] = []

    def handler(node: Any, request: Any) -> Any:
        calls.append(request)
        if len(calls) > 1:
            return heartbeat()
        request.channel.mute(86_400_000)
        return None

    with serving(store, {Api.HEARTBEAT: handler}) as server, connected(server) as wire:
        wire.send("Heartbeat", 4, **HEARTBEAT)
        second = wire.send("Heartbeat", 4, **HEARTBEAT)
        (connection,) = until(lambda: connections(server))
        until(lambda: connection.state is ConnectionState.THROTTLED)
        assert len(calls) == 1
        within(server, connection._unmute)
        assert wire.receive(second).error_code == 0


# --- system calls --------------------------------------------------------------------------------


class Counted:
    """A socket whose calls are counted."""

    def __init__(self, sock: socket.socket, calls: Counter[str]) -> None:
        self._sock, self._calls = sock, calls

    def __getattr__(self, name: str) -> Any:
        if name in ("recv", "recv_into", "send"):
            self._calls[name] += 1
        return getattr(self._sock, name)


def counted(server: segstore.Server, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the counts of the calls that the only connection makes from now on."""
    calls: Counter[str] = Counter()
    change = Loop.change

    def changed(self: Loop, sock: socket.socket, events: int) -> None:
        calls["epoll_ctl"] += 1
        change(self, sock, events)

    monkeypatch.setattr(Loop, "change", changed)
    (connection,) = connections(server)
    within(server, lambda: setattr(connection, "_sock", Counted(connection._sock, calls)))
    return calls


def test_small_requests_that_come_together_are_read_once(
    server: segstore.Server, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.ask("ApiVersions", 0)
    calls = counted(server, monkeypatch)
    wire.socket.sendall(b"".join(request("ApiVersions", 0, n) for n in range(50)))
    for _ in range(50):
        wire.receive_bytes()
    assert within(server, lambda: dict(calls)) == {"recv_into": 1, "send": 50}


def test_a_later_answer_costs_no_more_calls(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    parked = Parked()
    with serving(store, {Api.HEARTBEAT: parked}) as server, connected(server) as wire:
        wire.ask("ApiVersions", 0)
        calls = counted(server, monkeypatch)
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        answer(server, parked.next(), heartbeat())
        wire.receive(sent)
        assert within(server, lambda: dict(calls)) == {"recv_into": 1, "send": 1}


# --- parts of files ------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4096 * 16)
    return path


@pytest.mark.parametrize("version", [4, 11, 12])
def test_parts_of_files_lie_between_the_bytes_of_an_answer(
    store: segstore.Store, file: Path, version: int
) -> None:
    data = file.read_bytes()
    slices = [FileSlice(file, 5, 1000), FileSlice(file, 0, 0), FileSlice(file, 9, 3 * MIB)]
    handlers: Any = {Api.FETCH: lambda node, request: fetched(slices[0], slices[1], b"inline", slices[2])}
    with serving(store, handlers) as server, connected(server) as wire:
        (topic,) = wire.ask("Fetch", version).responses
        found = [bytes(partition.records) for partition in topic.partitions]
        assert found == [data[5:1005], b"", b"inline", data[9 : 9 + 3 * MIB]]
        assert wire.ask("ApiVersions", 0).error_code == 0
    assert [each.released for each in slices] == [1, 1, 1]


def stuck(server: segstore.Server, wire: WireClient) -> Any:
    """Have an answer written as far as the client's and the kernel's buffers take it."""
    wire.send("Fetch", 12)
    return until(lambda: next((c for c in connections(server) if c.state is ConnectionState.WRITING), None))


def test_a_client_that_reads_slowly_holds_up_nobody(store: segstore.Store, file: Path) -> None:
    part = FileSlice(file, 0, 16 * MIB)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    with serving(store, handlers) as server, connected(server) as slow, connected(server) as other:
        stuck(server, slow)
        for _ in range(10):
            assert other.ask("ApiVersions", 0).error_code == 0
        assert part.released == 0
        assert len(slow.receive_bytes()) > 16 * MIB
        until(lambda: part.released)


@pytest.mark.parametrize("hard", [False, True])
def test_a_client_that_goes_within_an_answer_releases_it(
    store: segstore.Store, file: Path, hard: bool
) -> None:
    part = FileSlice(file, 0, 16 * MIB)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    with serving(store, handlers) as server:
        wire = connected(server)
        stuck(server, wire)
        if hard:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
        until(lambda: part.released)
        until(lambda: not connections(server))


@pytest.mark.parametrize("version", [4, 12])
def test_short_parts_of_files_take_no_call_more(
    store: segstore.Store, file: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = file.read_bytes()
    slices = [FileSlice(file, 5, SHORT - 1), FileSlice(file, 0, 0), FileSlice(file, 9, 1)]
    handlers: Any = {Api.FETCH: lambda node, request: fetched(slices[0], slices[1], b"inline", slices[2])}
    with serving(store, handlers) as server, connected(server) as wire:
        wire.ask("ApiVersions", 0)
        calls = counted(server, monkeypatch)
        (topic,) = wire.ask("Fetch", version).responses
        found = [bytes(partition.records) for partition in topic.partitions]
        assert found == [data[5 : SHORT + 4], b"", b"inline", data[9:10]]
        assert within(server, lambda: dict(calls)) == {"recv_into": 1, "send": 1}
    assert [each.released for each in slices] == [1, 1, 1]


@pytest.mark.parametrize("count", [100, SHORT + 1])
def test_a_file_that_has_become_shorter_ends_the_connection(
    store: segstore.Store, file: Path, count: int
) -> None:
    part = FileSlice(file, 16 * MIB - 10, count)
    handlers: Any = {Api.FETCH: lambda node, request: fetched(part)}
    with serving(store, handlers) as server, connected(server) as wire:
        sent = wire.send("Fetch", 12)
        with pytest.raises(ConnectionError):
            wire.receive(sent)
        until(lambda: part.released)


def test_an_answer_for_a_client_that_has_gone_is_released(store: segstore.Store, file: Path) -> None:
    part, parked = FileSlice(file, 0, 10), Parked()
    with serving(store, {Api.FETCH: parked}) as server:
        with connected(server) as wire:
            wire.send("Fetch", 12)
            kept = parked.next()
            assert kept.channel.is_open
        until(lambda: not kept.channel.is_open)  # nothing is sent to it: the kernel tells of its end
        answer(server, kept, fetched(part))
        assert part.released == 1


def test_an_answer_that_can_not_be_encoded_releases_its_parts(store: segstore.Store, file: Path) -> None:
    part = FileSlice(file, 0, 10)
    body = fetched(part)
    body.error_code = 1 << 40
    handlers: Any = {Api.FETCH: lambda node, request: body}
    with serving(store, handlers) as server, connected(server) as wire:
        wire.send("Fetch", 12)
        assert wire.is_closed()
        until(lambda: part.released)


def test_requests_of_a_client_that_has_gone_meanwhile_are_still_handled(store: segstore.Store) -> None:
    """What came before the end counts: acks=0 has no answer to wait for."""
    parked, seen = Parked(), []

    def produce(node: Any, request: Any) -> None:
        seen.append(request.body.acks)

    with serving(store, {Api.HEARTBEAT: parked, Api.PRODUCE: produce}) as server:
        with connected(server) as wire:
            wire.send("Heartbeat", 4, **HEARTBEAT)
            kept = parked.next()
            wire.send("Produce", 9, **produced(b"x", acks=0))
        answer(server, kept, heartbeat())
        until(lambda: seen)
