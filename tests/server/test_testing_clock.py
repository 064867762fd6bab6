"""`segstore.testing.Clock`: what is due by a test's clock is done when `advance` returns, and not before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.testing import Broker, Clock

HOUR_MS = 3_600_000
SESSION_MS = 30_000
STABLE = "Stable"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def running(store_dir: Path, clock: Clock) -> Iterator[Broker]:
    settings = {"group_min_session_timeout_ms": 1, "offsets_retention_minutes": 60}
    with Broker(store_dir, {"flights": 1}, clock=clock, **settings) as running:
        yield running
    assert segstore.check(store_dir) == []


# --- the clock -----------------------------------------------------------------------------------------


def test_it_stands_still() -> None:
    before = time.time_ns() // 1_000_000
    clock = Clock()
    assert before <= clock() <= time.time_ns() // 1_000_000
    at = clock()
    time.sleep(0.002)
    assert clock() == at
    clock.advance(0)
    clock.advance(1500)
    assert clock() == at + 1500
    assert repr(Clock(1_700_000_000_000)) == "Clock(1700000000000)"


@pytest.mark.parametrize("wrong", [-1, 1 << 63, 1.5, "1", True, None], ids=repr)
def test_no_time_to_pass(wrong: Any) -> None:
    clock = Clock(1000)
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match="ms"):
        clock.advance(wrong)
    assert clock() == 1000


@pytest.mark.parametrize("wrong", [time.time, 1000, "now"], ids=repr)
def test_no_clock(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"segstore\.testing\.Clock"):
        Broker(clock=wrong)


def test_brokers_share_it_until_they_are_closed(clock: Clock) -> None:
    log = {}
    with Broker(topics=["a"], clock=clock) as one:
        with Broker(topics=["a"], clock=clock) as other:
            for each in (one, other):
                each.store.alter_topic("a", {"retention.ms": 1000})
                log[each] = each.store.partition("a")
                log[each].append(b"1")
            clock.advance(1001)
            assert [each.start_offset for each in log.values()] == [1, 1]
        log[one].append(b"2")
        clock.advance(1001)
        assert log[one].start_offset == 2
    clock.advance(1)


# --- groups --------------------------------------------------------------------------------------------


class Member:
    """A member of a group that sends heartbeats when it is told to. It is the only one of its group."""

    def __init__(self, to: Broker, group_id: str) -> None:
        host, _, port = to.bootstrap_servers.rpartition(":")
        self._wire, self._group = WireClient(host, int(port)), group_id
        kind = structs("JoinGroupRequest").JoinGroupRequestProtocol
        joined = self._wire.ask(
            "JoinGroup",
            3,
            group_id=group_id,
            member_id="",
            protocol_type="consumer",
            protocols=[kind(name="range", metadata=b"")],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
        )
        self._who = {"group_id": group_id, "member_id": joined.member_id}
        self._generation = joined.generation_id
        self._wire.ask("SyncGroup", 2, **self._who, generation_id=self._generation, assignments=[])

    def heartbeat(self) -> int:
        code: int = self._wire.ask("Heartbeat", 2, **self._who, generation_id=self._generation).error_code
        return code

    def close(self) -> None:
        self._wire.close()


def test_a_session_ends_when_time_passes(running: Broker, clock: Clock) -> None:
    """The member that has sent a heartbeat in between keeps its session. A group that has neither members nor
    offsets is gone.
    """
    silent, alive = Member(running, "silent"), Member(running, "alive")
    groups = segstore.Groups(running.store)
    clock.advance(SESSION_MS - 1)
    assert alive.heartbeat() == Code.NONE
    assert [(each.group_id, each.state) for each in groups.list()] == [("alive", STABLE), ("silent", STABLE)]
    clock.advance(1)
    assert [(each.group_id, each.state) for each in groups.list()] == [("alive", STABLE)]
    assert silent.heartbeat() == Code.UNKNOWN_MEMBER_ID
    assert alive.heartbeat() == Code.NONE
    silent.close()
    alive.close()


def test_a_session_does_not_end_by_the_time_of_the_machine(running: Broker, monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "SESSION_MS", 1)
    member = Member(running, "g")
    time.sleep(0.01)
    assert member.heartbeat() == Code.NONE
    member.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_client_whose_session_has_ended_comes_back(running: Broker, clock: Clock, protocol: str) -> None:
    lost: list[object] = []
    settings = {"group.id": "g", "group.protocol": protocol, "auto.offset.reset": "earliest", "log_level": 0}
    if protocol == "classic":
        settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": running.bootstrap_servers, **settings})
    consumer.subscribe(["flights"], on_lost=lambda _, partitions: lost.extend(partitions))
    running.store.partition("flights").append(b"1")
    assert until(lambda: (m := consumer.poll(0.1)) is not None and m.value() == b"1")
    clock.advance(HOUR_MS)
    assert until(lambda: consumer.poll(0.1) is not None or lost)
    running.store.partition("flights").append(b"2")
    assert until(lambda: (m := consumer.poll(0.1)) is not None and m.value() == b"2")
    consumer.close()


def test_offsets_of_a_group_without_members_expire(running: Broker, clock: Clock) -> None:
    with segstore.Consumer(running.store, group_id="g") as consumer:
        consumer.assign([segstore.TopicPartition("flights", 0)])
        consumer.commit({segstore.TopicPartition("flights", 0): segstore.OffsetAndMetadata(0)})
    groups = segstore.Groups(running.store)
    clock.advance(HOUR_MS - 1)
    assert [each.group_id for each in groups.list()] == ["g"]
    clock.advance(1)
    assert groups.list() == ()


def test_a_restart_begins_a_session_anew(running: Broker, clock: Clock) -> None:
    member = Member(running, "g")
    clock.advance(SESSION_MS - 1)
    running.stop()
    clock.advance(SESSION_MS)
    running.start()
    groups = segstore.Groups(running.store)
    assert [each.state for each in groups.list()] == [STABLE]
    clock.advance(SESSION_MS)
    assert groups.list() == ()
    member.close()


# --- logs and producers ----------------------------------------------------------------------------------


def test_retention_deletes_when_time_passes(running: Broker, clock: Clock) -> None:
    """The bytes are gone, too, after file.delete.delay.ms."""
    running.store.alter_topic("flights", {"retention.ms": HOUR_MS})
    log = running.store.partition("flights")
    producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers})
    producer.produce("flights", b"1", timestamp=clock())
    assert producer.flush(PATIENCE) == 0
    clock.advance(HOUR_MS)
    assert (log.start_offset, log.end_offset) == (0, 1)
    clock.advance(1)
    assert (log.start_offset, log.end_offset) == (1, 1)
    partition = Path(running.store.path) / "flights-0"
    assert list(partition.glob("*.deleted"))
    clock.advance(60_000)
    assert not list(partition.glob("*.deleted"))


def test_compaction_keeps_the_latest_of_a_key_once_it_may(running: Broker, clock: Clock) -> None:
    settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": HOUR_MS, "segment.ms": 1}
    running.store.create_topic("latest", config={**settings, "min.cleanable.dirty.ratio": 0.0})
    log = running.store.partition("latest")
    for value in (b"1", b"2"):
        log.append(value, key=b"k", timestamp=clock())
        clock.advance(2)
    log.append(b"3", key=b"other", timestamp=clock())
    clock.advance(HOUR_MS - 10)
    assert [record.value for record in log] == [b"1", b"2", b"3"]
    clock.advance(20)
    assert [record.value for record in log] == [b"2", b"3"]


def test_records_of_the_brokers_time(running: Broker, clock: Clock) -> None:
    running.store.alter_topic("flights", {"message.timestamp.type": "LogAppendTime"})
    producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers})
    for _ in range(2):
        clock.advance(HOUR_MS)
        producer.produce("flights", b"1")
        assert producer.flush(PATIENCE) == 0
    stamps = [record.timestamp for record in running.store.partition("flights")]
    assert stamps == [clock() - HOUR_MS, clock()]


def test_a_transaction_times_out_when_time_passes(running: Broker, clock: Clock) -> None:
    settings = {"transactional.id": "x", "transaction.timeout.ms": SESSION_MS, "log_level": 0}
    producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers, **settings})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce("flights", b"1")
    assert producer.flush(PATIENCE) == 0
    log = running.store.partition("flights")
    clock.advance(SESSION_MS)
    assert log.last_stable_offset == 0
    clock.advance(1)
    assert log.last_stable_offset == log.end_offset == 2
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(PATIENCE)
    assert list(log.read(0, isolation_level="read_committed").values) == []


def test_ids_of_producers_expire(store_dir: Path, clock: Clock) -> None:
    settings = {"producer_id_expiration_ms": HOUR_MS, "transactional_id_expiration_ms": 2 * HOUR_MS}
    with Broker(store_dir, ["flights"], clock=clock, **settings) as running:
        of = {"bootstrap.servers": running.bootstrap_servers, "transactional.id": "x"}
        producer = confluent_kafka.Producer(of)
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.produce("flights", b"1")
        producer.commit_transaction(PATIENCE)

        def ids() -> tuple[int, list[str]]:
            with WireClient(*address(running)) as wire:
                topics = [
                    structs("DescribeProducersRequest").TopicRequest(name="flights", partition_indexes=[0])
                ]
                (topic,) = wire.ask("DescribeProducers", 0, topics=topics).topics
                listed = wire.ask("ListTransactions", 0, state_filters=[], producer_id_filters=[])
                names = [each.transactional_id for each in listed.transaction_states]
                return len(topic.partitions[0].active_producers), names

        clock.advance(HOUR_MS - 1)
        assert ids() == (1, ["x"])
        clock.advance(1)
        assert ids() == (0, ["x"])
        clock.advance(HOUR_MS)
        assert ids() == (0, [])
    assert segstore.check(store_dir) == []


def address(of: Broker) -> tuple[str, int]:
    host, _, port = of.bootstrap_servers.rpartition(":")
    return host, int(port)
