"""`Server.families`: each request is counted once, with all of its bytes, whichever way it is answered; so
are errors.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from fetch_frames import fill, made, parked, received
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from request_counts import counted, read, tapped
from sent import of_values
from serving import HEARTBEAT, connections, heartbeat, serving, told_by, within
from session_twins import Client
from share_members import TERMS
from test_learned_standby_fetch import primary as store_primary
from test_learned_standby_fetch import registered
from test_tls import context
from waiting import PATIENCE, until
from wire_client import SOFTWARE, WireClient, request

import segstore
from segstore._native._counts import seg_count
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.learned.fetch import LearnedFetch
from segstore.server.learned.produce import AT_ONCE, LearnedProduce
from segstore.server.learned.standing_fetch import Spot, StandingFetch
from segstore.server.network.request_metrics import BOUNDS, ApiMetrics
from segstore.storage.store.stats import prometheus_family

_Produce = structs("ProduceRequest")


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    return fill(store)


def produce(*batches: tuple[str, int, bytes], acks: int = -1, number: int = 1) -> bytes:
    """A request with these batches, each with its topic and partition."""
    topics = [
        _Produce.TopicProduceData(
            name=topic, partition_data=[_Produce.PartitionProduceData(index=index, records=records)]
        )
        for topic, index, records in batches
    ]
    return request("Produce", 9, number, "wire", acks=acks, timeout_ms=1000, topic_data=topics)


def exchange(wire: WireClient, *requests: bytes) -> None:
    """Have each request answered before the next one is sent."""
    for each in requests:
        wire.socket.sendall(each)
        wire.receive_bytes()


# --- each way of answering ------------------------------------------------------------------------

Way = Callable[[segstore.Store, segstore.Server, WireClient], tuple[str, int]]
"""Has requests of one API answered; returns its name, and how many there were."""


def produced(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    """By the handler, then by C."""
    exchange(wire, *(produce(("t", 0, of_values([b"x"])), number=n) for n in range(20)))
    return "Produce", 20


def produced_in_a_worker(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    half = of_values([b"x" * (AT_ONCE // 2)])
    exchange(wire, *[produce(("t", 0, half), ("t", 1, half))] * 3)
    return "Produce", 3


def produced_pipelined(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    """By the handler, then by `LearnedProduce` from what was read before."""
    wire.socket.sendall(produce(("t", 0, of_values([b"x"]))) * 200)
    for _ in range(200):
        wire.receive_bytes()
    return "Produce", 200


def produced_without_acks(
    store: segstore.Store, server: segstore.Server, wire: WireClient
) -> tuple[str, int]:
    end = store.partition("t", 1).end_offset
    wire.socket.sendall(produce(("t", 1, of_values([b"x"])), acks=0) * 5)
    until(lambda: store.partition("t", 1).end_offset == end + 5)
    return "Produce", 5


def fetched(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    """By the handler, then by C."""
    exchange(wire, *[made(store, partition_max_bytes=400)] * 10)
    return "Fetch", 10


def fetched_from_files(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    """By `LearnedFetch`, more than is copied."""
    exchange(wire, *[made(store, offset=offset) for offset in (0, 1, 2, 3, 0, 3)])
    return "Fetch", 6


def fetched_after_a_wait(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    exchange(wire, *[made(store, offset=5, max_wait_ms=1)] * 4)
    return "Fetch", 4


def fetched_by_a_session(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    client = Client(server, store, 12, is_known=True)
    assert client._wire is not None
    client._wire.close()
    client._wire = wire
    steps: list[Any] = [{0: 0}, {0: 4}, {}, {}, {0: 5}, {}, {0: 0}]
    for wanted in steps:
        client.ask(wanted=wanted)
    client.ask(max_wait_ms=1)
    return "Fetch", len(steps) + 1


def metadata(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    for _ in range(3):
        wire.ask("Metadata", 9, topics=None)
    return "Metadata", 3


def unknown_version(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    asked = bytearray(request("ApiVersions", 3, 1, "wire", **SOFTWARE))
    asked[6:8] = struct.pack(">h", 99)
    exchange(wire, bytes(asked))
    return "ApiVersions", 1


def transaction(store: segstore.Store, server: segstore.Server, wire: WireClient) -> tuple[str, int]:
    begun = wire.ask("InitProducerId", 4, transactional_id="tx2", transaction_timeout_ms=10_000)
    who = {
        "transactional_id": "tx2",
        "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }
    kinds = structs("AddPartitionsToTxnRequest")
    topic = kinds.AddPartitionsToTxnTopic(name="t", partitions=[0])
    fields = {
        "v3_and_below_transactional_id": "tx2",
        "v3_and_below_producer_id": begun.producer_id,
        "v3_and_below_producer_epoch": begun.producer_epoch,
        "v3_and_below_topics": [topic],
    }
    wire.ask("AddPartitionsToTxn", 3, **fields)
    assert wire.ask("EndTxn", 3, committed=True, **who).error_code == 0
    for api in ("InitProducerId", "AddPartitionsToTxn"):
        assert counted(server, api)[0] == 1
    return "EndTxn", 1


WAYS: dict[str, Way] = {
    "produced": produced,
    "produced in a worker": produced_in_a_worker,
    "produced, pipelined": produced_pipelined,
    "produced without acks": produced_without_acks,
    "fetched": fetched,
    "fetched from files": fetched_from_files,
    "fetched after a wait": fetched_after_a_wait,
    "fetched by a session": fetched_by_a_session,
    "metadata": metadata,
    "an unknown version of ApiVersions": unknown_version,
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_answering_is_counted(
    name: str, filled: segstore.Store, server: segstore.Server, wire: WireClient
) -> None:
    tap = tapped(wire)
    api, requests = WAYS[name](filled, server, wire)
    assert counted(server, api) == (requests, tap.sent, tap.received)
    assert read(server, "request_errors_total").keys() <= {("ApiVersions", "UNSUPPORTED_VERSION")}


@pytest.mark.parametrize("name", ["produced", "fetched", "fetched from files", "produced, pipelined"])
def test_bytes_over_tls_are_those_before_it(name: str, filled: segstore.Store, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    settings = {"security_protocol": "SSL", **files.of_server}
    with serving(filled, **settings) as server, WireClient(server.host, server.port) as wire:
        wire.socket = context(files).wrap_socket(wire.socket, server_hostname="localhost")
        tap = tapped(wire)
        api, requests = WAYS[name](filled, server, wire)
        assert counted(server, api) == (requests, tap.sent, tap.received)
        assert read(server, "authentications_total") == {("SSL",): 1}


def test_requests_that_c_answers_are_counted(
    filled: segstore.Store, server: segstore.Server, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_c = told_by(LearnedProduce, monkeypatch), told_by(LearnedFetch, monkeypatch)
    produced(filled, server, wire)
    fetched(filled, server, wire)
    assert all(sum(seen) >= 5 for seen in by_c)
    assert (counted(server, "Produce")[0], counted(server, "Fetch")[0]) == (20, 10)


def test_transactions_are_counted(filled: segstore.Store, server: segstore.Server, wire: WireClient) -> None:
    transaction(filled, server, wire)
    assert counted(server, "EndTxn")[0] == 1
    assert read(server, "request_errors_total") == {}


def test_share_fetches_are_counted(filled: segstore.Store, server: segstore.Server, wire: WireClient) -> None:
    tap, who = tapped(wire), {"group_id": "s", "member_id": "m" * 22}
    asked = {"member_epoch": 0, "rack_id": None, "subscribed_topic_names": ["t"]}
    wire.ask("ShareGroupHeartbeat", 1, **who, **asked)
    assert counted(server, "ShareGroupHeartbeat") == (1, *(before := (tap.sent, tap.received)))
    kinds = structs("ShareFetchRequest")
    parts = [kinds.FetchPartition(partition_index=0, acknowledgement_batches=[])]
    topic_id = topic_id_bytes(filled.topics()["t"].topic_id)
    for epoch in range(3):
        topics = [kinds.FetchTopic(topic_id=topic_id, partitions=parts)] if epoch == 0 else []
        wire.ask("ShareFetch", 1, **who, **TERMS, share_session_epoch=epoch, topics=topics)
    assert counted(server, "ShareFetch") == (3, tap.sent - before[0], tap.received - before[1])


def test_the_rest_of_an_answer_that_c_has_begun_is_counted(
    filled: segstore.Store, server: segstore.Server, wire: WireClient
) -> None:
    data = made(filled, partition_max_bytes=400)
    exchange(wire, *[data] * 3)
    requests, received, sent = counted(server, "Fetch")
    (connection,) = connections(server)
    repeat: Any = connection.learned
    answer = struct.pack(">i", 8 << 20) + bytes(8 << 20)  # more than sockets take at once
    repeat.receive = lambda sock, memory: (len(os.read(sock, 1 << 16)), (bytearray(answer[7:]), []), 7)
    wire.socket.sendall(data)
    until(lambda: counted(server, "Fetch")[0] == requests + 1)
    assert counted(server, "Fetch")[1:] == (received + len(data), sent + len(answer))


def test_fetches_of_a_standby_are_counted(
    filled: segstore.Store, server: segstore.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C receives these, and sends the answers when something is appended."""
    given: list[bool] = []
    give = StandingFetch._give

    def giving(self: StandingFetch, spot: Spot) -> bool:
        given.append(give(self, spot))
        return given[-1]

    monkeypatch.setattr(StandingFetch, "_give", giving)
    who, client = registered(filled, sync=False), Client(server, filled, 17, is_known=True)
    assert client._wire is not None
    tap, log = tapped(client._wire), filled.partition("t")
    asked = {"last_fetched_epoch": 0, "current_leader_epoch": 0, "log_start_offset": 0}
    for n in range(8):
        at = {0: {"fetch_offset": log.log_end_offset, **asked}}
        client._wire.socket.sendall(client.frame(wanted=at, max_wait_ms=0 if n == 0 else 600_000, **who))
        if n:
            until(lambda: parked(server) == 1)
            log.append_as_leader(bytearray(of_values([b"new"])), acks=1)
        client.told(received(client._wire))
    assert given.count(True) >= 5
    assert counted(server, "Fetch") == (8, tap.sent, tap.received)
    client._wire.close()
    store_primary(filled).unregister()


# --- errors ---------------------------------------------------------------------------------------


def hostile(records: bytes) -> bytes:
    """A batch whose checksum is wrong."""
    return records[:-1] + bytes([records[-1] ^ 1])


def wrong_topics(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    good = of_values([b"x"])
    exchange(wire, produce(("t", 0, good), ("no", 0, good), ("t", 7, good), ("t", 1, hostile(good))))
    return {"UNKNOWN_TOPIC_OR_PARTITION": 2, "CORRUPT_MESSAGE": 1}


def corrupt(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    """By the handler, then by the repeat, then by C."""
    good = of_values([b"x"])
    exchange(wire, produce(("t", 0, good)), *[produce(("t", 0, hostile(good)))] * 4)
    wire.socket.sendall(produce(("t", 0, hostile(good))) * 3)
    for _ in range(3):
        wire.receive_bytes()
    return {"CORRUPT_MESSAGE": 7}


def corrupt_without_acks(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    wire.socket.sendall(produce(("t", 0, hostile(of_values([b"x"]))), acks=0))
    assert wire.is_closed()
    return {"CORRUPT_MESSAGE": 1}


def out_of_range(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    """Also after requests that a repeat has answered."""
    exchange(wire, *[made(store, offset=offset) for offset in (0, 0, 99, 0, 99)])
    return {"OFFSET_OUT_OF_RANGE": 2}


def unknown_session(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    exchange(wire, made(store, session_id=77, session_epoch=3))
    return {"FETCH_SESSION_ID_NOT_FOUND": 1}


def unknown_member(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    for _ in range(2):
        wire.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    return {"UNKNOWN_MEMBER_ID": 2}


def unknown_groups(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    """Codes of rows that have no rows of theirs."""
    wire.ask("DeleteGroups", 2, groups_names=["g", "h"])
    return {"GROUP_ID_NOT_FOUND": 2}


def failing(store: segstore.Store, server: segstore.Server, wire: WireClient) -> dict[str, int]:
    """The handler raises."""
    assert wire.ask("ListGroups", 4, states_filter=[]).error_code == -1
    return {"UNKNOWN_SERVER_ERROR": 1}


ERRORS: dict[str, tuple[str, Callable[..., dict[str, int]]]] = {
    "partitions of a produce": ("Produce", wrong_topics),
    "a produce that is repeated": ("Produce", corrupt),
    "a produce without an answer": ("Produce", corrupt_without_acks),
    "a fetch": ("Fetch", out_of_range),
    "a whole fetch": ("Fetch", unknown_session),
    "a heartbeat": ("Heartbeat", unknown_member),
    "rows of one level": ("DeleteGroups", unknown_groups),
    "a handler that fails": ("ListGroups", failing),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_counted_by_code(name: str, filled: segstore.Store) -> None:
    api, fail = ERRORS[name]

    def raising(node: Any, request: Any) -> Any:
        raise RuntimeError("a bug")

    handlers = {Api.LIST_GROUPS: raising} if fail is failing else None
    with serving(filled, handlers) as server, WireClient(server.host, server.port) as wire:
        tap = tapped(wire)
        expected = fail(filled, server, wire)
        assert read(server, "request_errors_total") == {(api, code): n for code, n in expected.items()}
        assert counted(server, api)[1:] == (tap.sent, tap.received)


def test_a_code_without_a_name_is_told_by_its_number(server: segstore.Server) -> None:
    within(server, lambda: server._service._shared.metrics.rows[Api.FETCH].add_error(9_999))
    assert read(server, "request_errors_total") == {("Fetch", "9999"): 1}


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bounds", "bucket"), [((2000, 3000), 0), ((1, 3000), 1), ((1, 2), 2)])
def test_a_time_falls_below_its_bound(bounds: tuple[float, float], bucket: int) -> None:
    row = ApiMetrics(Api.FETCH)
    row.counts.bounds = [bounds[0]] + [bounds[1]] * (len(BOUNDS) - 1)
    seg_count(row.counts_at, 11, 7, time.monotonic() - 1000)
    expected = [0] * (len(BOUNDS) + 1)
    expected[[0, 1, len(BOUNDS)][bucket]] = 1
    assert (row.times, row.counts.received, row.counts.sent) == (expected, 11, 7)
    assert 1000 <= row.counts.seconds < 2000


def test_the_time_of_a_request_has_none_in_which_its_client_was_throttled(store: segstore.Store) -> None:
    answers = iter((86_400_000, 0))
    handlers = {Api.HEARTBEAT: lambda node, request: heartbeat(throttle_time_ms=next(answers))}
    with serving(store, handlers) as server, WireClient(server.host, server.port) as wire:
        wire.socket.sendall(request("Heartbeat", 4, 1, "wire", **HEARTBEAT) * 2)
        wire.receive_bytes()
        (connection,) = connections(server)

        def end() -> None:
            connection.active_at -= 1000
            connection._unmute()

        within(server, end)
        wire.receive_bytes()
        assert counted(server, "Heartbeat")[0] == 2
        assert read(server, "request_seconds_total")["Heartbeat",] < 1000


# --- listeners, and the loop ----------------------------------------------------------------------


def test_listeners_have_counts_of_their_own_and_requests_together(store: segstore.Store) -> None:
    listeners = "IN://127.0.0.1:0,OUT://127.0.0.1:0"
    protocols = "IN:PLAINTEXT,OUT:PLAINTEXT"
    settings: Any = {"listeners": listeners, "listener_security_protocol_map": protocols}
    with segstore.serve(store, **settings) as server:
        sent = 0
        for port in server.ports * 2 + server.ports[1:]:
            with WireClient("127.0.0.1", port) as wire:
                tap = tapped(wire)
                wire.ask("Metadata", 9, topics=None)
                sent += tap.sent
        until(lambda: sum(read(server, "connections").values()) == 0)
        assert read(server, "connections_made_total") == {("IN",): 2, ("OUT",): 3}
        assert counted(server, "Metadata")[:2] == (5, sent)


def age(server: segstore.Server) -> float:
    (samples,) = [s for metric, _, s in server.families() if metric.prometheus == "segstore_loop_age_seconds"]
    return samples[0].value


def test_a_loop_that_is_held_up_grows_old(store: segstore.Store) -> None:
    """One that sleeps does not, nor does `families` wait for it."""
    held, entered = threading.Event(), threading.Event()

    def handler(node: Any, request: Any) -> Any:
        entered.set()
        held.wait()
        return heartbeat()

    with (
        serving(store, {Api.HEARTBEAT: handler}) as server,
        WireClient(server.host, server.port) as wire,
    ):
        until(lambda: age(server) == 0.0)
        sent = wire.send("Heartbeat", 4, **HEARTBEAT)
        assert entered.wait(PATIENCE)
        try:
            first = age(server)
            assert first > 0
            until(lambda: age(server) > first)
        finally:
            held.set()
        wire.receive(sent)
        until(lambda: age(server) == 0.0)


def test_prometheus_reads_all_of_it(
    filled: segstore.Store, server: segstore.Server, wire: WireClient
) -> None:
    for way in (produced, fetched):
        way(filled, server, wire)
    corrupt(filled, server, wire)
    registry = CollectorRegistry()
    shown = within(server, server.families)

    class Families(Collector):
        def collect(self) -> Iterator[Any]:
            return map(prometheus_family, shown)

    registry.register(Families())
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found[(sample.name, *sorted(sample.labels.values()))] = sample.value
    assert found["segstore_requests_total", "Fetch"] == 10
    assert found["segstore_request_errors_total", "CORRUPT_MESSAGE", "Produce"] == 7
    assert found["segstore_request_duration_seconds_bucket", "+Inf", "Produce"] == 28
    assert found["segstore_request_duration_seconds_count", "Produce"] == 28
    total = found["segstore_request_duration_seconds_sum", "Produce"]
    assert total == found["segstore_request_seconds_total", "Produce"] > 0
    buckets = [found["segstore_request_duration_seconds_bucket", repr(b), "Produce"] for b in BOUNDS]
    assert buckets == sorted(buckets)
