"""`segstore.testing`: the broker for tests, its faults, its log of requests, its fixtures for pytest."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka_python import member
from plugin_runs import Run
from plugin_runs import kept_modules as kept_modules
from plugin_runs import run_with_plugin as run_with_plugin
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.errors import ConfigError, InvalidArgumentError, InvalidTypeError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.testing import Broker, broker, request_log

pytest_plugins = ["pytester"]


@pytest.fixture
def running() -> Iterator[Broker]:
    with Broker(topics={"flights": 2}) as running:
        yield running


@pytest.fixture
def wire(running: Broker) -> Iterator[WireClient]:
    with connected(running) as wire:
        yield wire


def connected(to: Broker) -> WireClient:
    host, _, port = to.bootstrap_servers.rpartition(":")
    return WireClient(host, int(port))


# --- the broker ----------------------------------------------------------------------------------


def test_it_is_gone_without_a_trace() -> None:
    threads = set(threading.enumerate())
    with Broker(topics=["flights"]) as running:
        root = Path(running.store.context.root)
        assert root.is_dir()
        address = running.bootstrap_servers.split(":")
    assert not root.exists()
    assert until(lambda: set(threading.enumerate()) <= threads)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])), timeout=PATIENCE)
    running.close()


def test_a_directory_that_is_given_stays(store_dir: Path) -> None:
    with Broker(store_dir, topics={"flights": 3}) as running:
        running.store.partition("flights", 2).append(b"kept")
    with Broker(store_dir, topics=["flights"]) as running:
        assert len(running.store.topics()["flights"].partition_ids) == 3
        assert running.store.partition("flights", 2).read_one(0).value == b"kept"


def test_nothing_is_synced(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with Broker(store_dir) as running:
        running.store.create_topic("flights", config={"flush.messages": 1})
        running.store.partition("flights", 0).append(b"1")
        log = running.store.partition("flights", 0)
        assert log.end_offset == 1
        assert running.store.context.files.native_sync(None) is None  # nor does C sync
    assert synced == []


def test_settings_go_to_the_store_and_to_the_server() -> None:
    with Broker(num_partitions=4, offsets_topic_num_partitions=3) as running:
        with connected(running) as wire:
            wire.ask("Metadata", 4, topics=[topic("Metadata", name="made")], allow_auto_topic_creation=True)
        assert len(running.store.topics()["made"].partition_ids) == 4
        commit(running, "made")
        assert len(running.store.topics()["__consumer_offsets"].partition_ids) == 3


def test_internal_topics_have_one_partition(running: Broker) -> None:
    commit(running, "flights")
    assert len(running.store.topics()["__consumer_offsets"].partition_ids) == 1


def commit(to: Broker, topic: str) -> None:
    settings = {"bootstrap.servers": to.bootstrap_servers, "group.id": "g", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"num_partition": 1}, ConfigError, "num_partition"),
        ({"num_partitions": 0}, ConfigError, "num_partitions"),
        ({"topics": "flights"}, InvalidTypeError, "flights"),
        ({"topics": ["a/b"]}, segstore.InvalidTopicError, "a/b"),
    ],
)
def test_bad_input_leaves_nothing(
    arguments: dict[str, Any],
    error: type[Exception],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker, "_in_memory", lambda: str(tmp_path))
    with pytest.raises(error, match=told):
        Broker(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_where_memory_is_short_it_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "ENOUGH", 1 << 62)
    with Broker() as running:
        assert not str(running.store.context.root).startswith(broker.MEMORY)


# --- faults --------------------------------------------------------------------------------------


def topic(api: str, **fields: Any) -> Any:
    kinds = structs(f"{api}Request")
    return getattr(kinds, f"{api}RequestTopic")(**fields)


def codes(wire: WireClient, count: int) -> list[int]:
    return [wire.ask("Heartbeat", 4, group_id="none").error_code for _ in range(count)]


UNKNOWN = Code.UNKNOWN_MEMBER_ID
BUSY = Code.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("api", [Api.HEARTBEAT, "Heartbeat", "HEARTBEAT", 12], ids=repr)
@pytest.mark.parametrize("code", [14, "COORDINATOR_LOAD_IN_PROGRESS"])
def test_an_error_is_answered(
    running: Broker, wire: WireClient, api: Api | str | int, code: int | str
) -> None:
    before = codes(wire, 1)[0]
    fault = running.faults.error(api, code)
    assert codes(wire, 3) == [BUSY, before, before]
    assert fault.hits == 1


def test_the_nth_request_and_those_behind_it(running: Broker, wire: WireClient) -> None:
    before = codes(wire, 1)[0]
    running.faults.error("Heartbeat", BUSY, nth=2, times=2)
    assert codes(wire, 4) == [before, BUSY, BUSY, before]
    assert wire.ask("ApiVersions", 4, client_software_name="x", client_software_version="1").error_code == 0


def test_a_fault_for_ever_ends_with_its_block(running: Broker, wire: WireClient) -> None:
    before = codes(wire, 1)[0]
    with running.faults.error("Heartbeat", BUSY, times=None) as fault:
        assert codes(wire, 3) == [BUSY] * 3
    assert codes(wire, 1) == [before]
    assert fault.hits == 3
    fault.remove()


def test_all_faults_and_requests_are_forgotten(running: Broker, wire: WireClient) -> None:
    running.faults.error("Heartbeat", BUSY, times=None)
    before = codes(wire, 1)
    running.clear()
    assert running.requests == []
    assert codes(wire, 1) != before


def test_a_dropped_request_is_not_done(running: Broker, wire: WireClient) -> None:
    running.faults.drop("CreateTopics")
    created = {"topics": [new_topic("late")], "timeout_ms": 1000}
    with pytest.raises(ConnectionError):
        wire.ask("CreateTopics", 7, **created)
    assert "late" not in running.store.topics()
    with connected(running) as again:
        assert again.ask("CreateTopics", 7, **created).topics[0].error_code == 0


def test_half_of_an_answer_comes_and_what_was_asked_is_done(running: Broker, wire: WireClient) -> None:
    running.faults.half("CreateTopics")
    with pytest.raises(ConnectionResetError, match=r"after [1-9]\d* of \d+ bytes"):
        wire.ask("CreateTopics", 7, topics=[new_topic("made")], timeout_ms=1000)
    assert "made" in running.store.topics()


def new_topic(name: str) -> Any:
    kind = structs("CreateTopicsRequest").CreatableTopic
    return kind(name=name, num_partitions=1, replication_factor=1)


def test_a_delayed_answer_holds_up_its_own_connection_only(running: Broker, wire: WireClient) -> None:
    with running.faults.delay("Heartbeat", 0.1):
        late = wire.send("Heartbeat", 4, group_id="none")
        with connected(running) as other:
            assert other.ask("Heartbeat", 4, group_id="none").error_code
        assert wire.receive(late).error_code


def test_throttled(running: Broker, wire: WireClient) -> None:
    running.faults.throttle("Heartbeat", 7)
    answers = [wire.ask("Heartbeat", 4, group_id="none") for _ in range(2)]
    assert [body.throttle_time_ms for body in answers] == [7, 0]


def test_faults_meet_one_request_together(running: Broker, wire: WireClient) -> None:
    running.faults.throttle("Heartbeat", 3)
    running.faults.delay("Heartbeat", 0.01)
    running.faults.error("Heartbeat", BUSY)
    body = wire.ask("Heartbeat", 4, group_id="none")
    assert (body.throttle_time_ms, body.error_code) == (3, BUSY)


def test_an_error_of_a_produce_without_acks_closes(running: Broker, wire: WireClient) -> None:
    running.faults.error("Produce", Code.NOT_LEADER_OR_FOLLOWER)
    wire.send("Produce", 9, acks=0, timeout_ms=1000)
    assert wire.is_closed()


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (lambda faults: faults.error("Prodce", 3), "api is 'Prodce'; did you mean Produce?"),
        (lambda faults: faults.error("Nope", 3), "api is 'Nope'; allowed are Produce, Fetch"),
        (
            lambda faults: faults.error("Produce", "NOT_LEADER"),
            "code is 'NOT_LEADER'; did you mean NOT_LEADER_OR_FOLLOWER?",
        ),
        (
            lambda faults: faults.error("Produce", "NOT_LEADER_OR_FOLOWER"),
            "code is 'NOT_LEADER_OR_FOLOWER'; did you mean NOT_LEADER_OR_FOLLOWER?",
        ),
        (lambda faults: faults.error("Produce", "N"), "code is 'N'; the nearest of Kafka's codes are "),
        (
            lambda faults: faults.error("Produce", "NOPE"),
            r"nearest of Kafka's codes are \w+ \(\d+\), \w+ \(\d+\), \w+ \(\d+\)$",
        ),
        (lambda faults: faults.error("Produce", 9999), "the nearest of Kafka's codes are "),
        (lambda faults: faults.error("Prodce", "X"), "api is 'Prodce'; did you mean Produce?"),
        (lambda faults: faults.error("Produce", 0), "code is 0"),
        (lambda faults: faults.drop("Produce", nth=0), "nth=0"),
        (lambda faults: faults.drop("Produce", times=0), "times=0"),
        (lambda faults: faults.delay("Produce", -1), "seconds=-1"),
        (lambda faults: faults.throttle("Produce", -1), "ms=-1"),
        (lambda faults: faults.throttle("SaslHandshake", 1), "has no throttle_time_ms"),
    ],
)
def test_a_bad_fault_is_refused(running: Broker, add: Any, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        add(running.faults)
    assert running.faults._faults == ()


# --- requests ------------------------------------------------------------------------------------


def test_requests_are_told_by_their_fields(running: Broker, wire: WireClient) -> None:
    wire.client_id = "teller"
    wire.ask("CreateTopics", 7, topics=[new_topic("made")], timeout_ms=1000)
    (told,) = [each for each in running.requests if each.api is Api.CREATE_TOPICS]
    assert (told.version, told.client_id) == (7, "teller")
    assert told.fields["timeout_ms"] == 1000
    assert told.fields["topics"][0]["name"] == "made"
    assert told.fields["topics"][0]["assignments"] == []


def test_records_are_told_by_their_size(running: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
    producer.send("flights", b"x" * 1000, partition=1).get(timeout=PATIENCE)
    producer.close()
    told = next(each for each in running.requests if each.api is Api.PRODUCE)
    (partition,) = told.fields["topic_data"][0]["partition_data"]
    assert partition["index"] == 1
    assert 1000 < partition["records"] < 1200


def test_the_log_keeps_the_last_requests(running: Broker, wire: WireClient) -> None:
    codes(wire, 1)
    (told,) = running.requests
    for n in range(request_log.MOST + 5):
        running._log._kept.append(replace(told, version=n))
    assert len(running.requests) == request_log.MOST
    assert running.requests[0].version == 5


# --- clients -------------------------------------------------------------------------------------


def test_librdkafka_tries_again_after_faults(running: Broker) -> None:
    """An idempotent producer: nothing is lost, and nothing comes twice."""
    running.faults.error("Produce", Code.NOT_LEADER_OR_FOLLOWER)
    running.faults.half("Produce", nth=2)
    settings = {"bootstrap.servers": running.bootstrap_servers, "log_level": 0}
    producer = confluent_kafka.Producer(
        {**settings, "enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 5}
    )
    for n in range(5):
        producer.produce("flights", str(n).encode(), partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    values = [record.value for record in running.store.partition("flights", 0).read(0)]
    assert values == [str(n).encode() for n in range(5)]
    assert len([each for each in running.requests if each.api is Api.PRODUCE]) >= 3


def test_kafka_python_reads_after_a_dropped_fetch(running: Broker) -> None:
    running.store.partition("flights", 0).append(b"1")
    running.faults.drop("Fetch")
    consumer = member(
        "flights",
        bootstrap_servers=running.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        retry_backoff_ms=5,
        reconnect_backoff_ms=5,
    )
    found = until(lambda: consumer.poll(timeout_ms=500))
    assert [record.value for records in found.values() for record in records] == [b"1"]
    consumer.close()


# --- pytest --------------------------------------------------------------------------------------

SUITE = """
import segstore

seen = []

def test_a_topic(segstore_broker, segstore_topic):
    assert segstore_topic.startswith("test_a_topic-")
    assert len(segstore_broker.store.topics()[segstore_topic].partition_ids) == 1
    seen.append((segstore_broker, segstore_topic))

def test_another_of_the_same_broker(segstore_broker, segstore_topic):
    assert seen[0][0] is segstore_broker
    assert seen[0][1] != segstore_topic

def test_a_store(segstore_store):
    segstore_store.create_topic("flights")
    assert isinstance(segstore_store, segstore.Store)
"""


def test_fixtures(run_with_plugin: Run) -> None:
    run_with_plugin(SUITE).assert_outcomes(passed=3)


def test_a_topics_name_is_one_whatever_the_test_is_called(run_with_plugin: Run) -> None:
    run_with_plugin(
        """
        import pytest

        @pytest.mark.parametrize("case", ["a b/c", "ü" * 300])
        def test_case(segstore_topic, segstore_broker, case):
            assert segstore_topic in segstore_broker.store.topics()
        """
    ).assert_outcomes(passed=2)


def test_a_broker_that_a_test_left_stopped(run_with_plugin: Run) -> None:
    run_with_plugin(
        """
        def test_one(segstore_topic, segstore_broker):
            segstore_broker.store.partition(segstore_topic).append(b"1")
            segstore_broker.stop()

        def test_two(segstore_topic, segstore_broker):
            topics = segstore_broker.store.topics()
            assert len([name for name in topics if name.startswith("test_")]) == 2
        """
    ).assert_outcomes(passed=2)
