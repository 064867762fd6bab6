"""`segstore.testing.Broker` goes away and comes back: one address, one store, clients that go on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer
from waiting import PATIENCE, until

import segstore
from segstore.errors import (
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    ListenError,
    StoreClosedError,
)
from segstore.server.apis import Api
from segstore.testing import Broker, broker


@pytest.fixture
def running(store_dir: Path) -> Iterator[Broker]:
    with Broker(store_dir, topics={"flights": 2}) as running:
        yield running
    assert segstore.check(store_dir) == []


def is_there(broker: Broker) -> bool:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE):
            return True
    except ConnectionRefusedError:
        return False


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


# --- where it is -----------------------------------------------------------------------------------


def test_a_port_of_the_tests_own() -> None:
    port = free_port()
    for _ in range(2):  # one test after the other
        with Broker(port=port) as running:
            assert running.bootstrap_servers == f"127.0.0.1:{port}"
            assert is_there(running)


def test_a_port_that_is_taken_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_in_memory", lambda: str(tmp_path))
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            Broker(port=port)
    assert list(tmp_path.iterdir()) == []


def test_listeners_keep_the_ports_that_they_were_given() -> None:
    names = {"listener_security_protocol_map": "INNER:PLAINTEXT,OUTER:PLAINTEXT"}
    with Broker(listeners="INNER://127.0.0.1:0,OUTER://127.0.0.1:0", **names) as running:
        assert running._running is not None
        before = running._running[1].ports
        assert running.bootstrap_servers == f"127.0.0.1:{before[0]}"
        running.stop()
        running.start()
        assert running._running[1].ports == before
        assert is_there(running)


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"port": 1234, "listeners": "PLAINTEXT://127.0.0.1:0"}, InvalidArgumentError, "port=1234"),
        ({"port": 70_000}, InvalidArgumentError, "70000"),
        ({"port": "9092"}, InvalidTypeError, "port"),
        ({"port": True}, InvalidTypeError, "port"),
        ({"brokers": 3}, ConfigError, "brokers=3: a Broker is one node"),
        ({"num_brokers": 3}, ConfigError, "num_brokers=3: a Broker is one node"),
    ],
    ids=repr,
)
def test_bad_input_leaves_nothing(
    settings: dict[str, Any], error: type[Exception], told: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(broker, "_in_memory", lambda: str(tmp_path))
    with pytest.raises(error, match=told):
        Broker(**settings)
    assert list(tmp_path.iterdir()) == []


# --- stop and start ----------------------------------------------------------------------------------


def test_it_goes_away_and_comes_back(running: Broker) -> None:
    running.store.partition("flights", 1).append(b"before")
    address, store = running.bootstrap_servers, running.store
    for _ in range(2):
        running.stop()
        assert not is_there(running)
        assert running.bootstrap_servers == address
        assert repr(running) == f"Broker('{address}', stopped)"
        with pytest.raises(IllegalStateError, match=r"stopped\) has no open store: start\(\) it"):
            running.store  # noqa: B018
    with pytest.raises(StoreClosedError):
        store.partition("flights", 1).append(b"late")
    running.start()
    again = running.store
    running.start()
    assert running.store is again is not store
    assert is_there(running)
    assert running.bootstrap_servers == address
    assert [record.value for record in running.store.partition("flights", 1)] == [b"before"]


@pytest.mark.parametrize("stopped", [False, True])
def test_the_end_is_for_good(stopped: bool) -> None:
    with Broker() as running:
        if stopped:
            running.stop()
        root = Path(running._path)
        assert root.is_dir()
    assert not root.exists()
    assert not is_there(running)
    running.stop()
    running.close()
    with pytest.raises(ClientClosedError, match="closed"):
        running.start()
    with pytest.raises(IllegalStateError, match="closed"):
        running.store  # noqa: B018


def test_a_port_that_was_taken_meanwhile(running: Broker) -> None:
    """The broker stays stopped, and may be started later."""
    running.stop()
    host, _, port = running.bootstrap_servers.rpartition(":")
    with closing(socket.create_server((host, int(port)))), pytest.raises(ListenError, match=port):
        running.start()
    assert "stopped" in repr(running)
    running.start()
    assert running.store.topics().keys() >= {"flights"}


def test_faults_and_requests_stay(running: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
    producer.send("flights", b"1", partition=0).get(timeout=PATIENCE)
    before = len(running.requests)
    running.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED")
    running.stop()
    running.start()
    assert len(running.requests) >= before
    with pytest.raises(Exception, match="TopicAuthorizationFailed"):
        producer.send("flights", b"2", partition=0).get(timeout=PATIENCE)
    producer.close()


# --- clients -------------------------------------------------------------------------------------------


def confluent(to: Broker, **settings: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        "bootstrap.servers": to.bootstrap_servers,
        "log_level": 0,
        "reconnect.backoff.max.ms": 100,
        **named,
    }


def values(consumer: confluent_kafka.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    until(lambda: found.extend(m.value() for m in consumer.consume(100, 0.1)) or len(found) >= count)
    return found


def test_a_record_that_is_sent_to_nobody_arrives_later(running: Broker) -> None:
    producer = confluent_kafka.Producer(confluent(running, enable_idempotence=True))
    producer.produce("flights", b"1", partition=0)
    assert producer.flush(PATIENCE) == 0
    running.stop()
    errors: list[object] = []
    producer.produce("flights", b"2", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(0.2) == 1
    assert errors == []
    running.start()
    assert producer.flush(PATIENCE) == 0
    assert errors == [None]
    assert [record.value for record in running.store.partition("flights", 0)] == [b"1", b"2"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_of_a_group_goes_on(running: Broker, protocol: str) -> None:
    """With the offsets that it has committed; a member of a classic group does not join again."""
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    consumer = confluent_kafka.Consumer(confluent(running, enable_auto_commit=False, **settings))
    consumer.subscribe(["flights"])
    running.store.partition("flights", 0).append(b"1")
    assert values(consumer, 1) == [b"1"]
    consumer.commit(asynchronous=False)
    running.stop()
    running.clear()
    running.start()
    running.store.partition("flights", 0).append(b"2")
    assert values(consumer, 1) == [b"2"]
    assert {each.partition for each in consumer.assignment()} == {0, 1}
    assert all(request.api is not Api.JOIN_GROUP for request in running.requests)
    consumer.close()
    other = confluent_kafka.Consumer(confluent(running, **settings))
    other.subscribe(["flights"])
    assert values(other, 1) == [b"2"]
    other.close()


def test_a_transaction_goes_on(running: Broker) -> None:
    producer = confluent_kafka.Producer(confluent(running, transactional_id="x"))
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce("flights", b"1", partition=0)
    assert producer.flush(PATIENCE) == 0
    running.stop()
    running.start()
    assert running.store.partition("flights", 0).last_stable_offset == 0
    producer.produce("flights", b"2", partition=0)
    producer.commit_transaction(PATIENCE)
    read = running.store.partition("flights", 0).read(0, isolation_level="read_committed")
    assert list(read.values) == [b"1", b"2"]


def test_kafka_python_goes_on(running: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
    consumer = KafkaConsumer(
        "flights", bootstrap_servers=running.bootstrap_servers, auto_offset_reset="earliest", group_id=None
    )
    producer.send("flights", b"1", partition=0).get(timeout=PATIENCE)
    assert next(consumer).value == b"1"
    running.stop()
    running.start()
    producer.send("flights", b"2", partition=0).get(timeout=PATIENCE)
    assert next(consumer).value == b"2"
    consumer.close()
    producer.close()


def test_clients_in_the_process_end_with_their_store(running: Broker) -> None:
    consumer = segstore.Consumer(running.store, "flights", group_id="g", auto_offset_reset="earliest")
    assert consumer.poll() == {}
    running.stop()
    with pytest.raises(StoreClosedError):
        consumer.poll()
    running.start()
    running.store.partition("flights").append(b"1")
    with segstore.Consumer(running.store, "flights", group_id="g", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(PATIENCE * 1000)
