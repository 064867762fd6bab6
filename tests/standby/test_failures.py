"""Standbys that are killed, left behind, and out of room; and what producers meet over a promotion."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import ok, start_program
from confluent_kafka import KafkaException
from confluent_kafka import Producer as Kafka
from faults import FailingFiles
from mirrors import stored
from producers import send
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.errors import DuplicateSequenceError, OutOfOrderSequenceError, StorageError
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
QUICK = {
    "metadata.max.age.ms": 50,
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
}


@pytest.fixture
def directory(store_dir: Path) -> Path:
    return store_dir


def followed(broker: Broker, directory: Path, **options: Any) -> segstore.Standby:
    config = {**QUICK, **options.pop("config", {})}
    return segstore.follow(broker.bootstrap_servers, directory, config=config, **options)


def caught_up(standby: segstore.Standby, store: segstore.Store, topic: str = "a") -> None:
    """Wait until the standby shows all that the primary has of a topic, and of transactions."""
    for name in {topic, *(each for each in store.topics() if each.startswith("__"))}:
        for number in store.topics()[name].partition_ids:
            end = store.partition(name, number).log_end_offset
            until(lambda n=name, i=number, end=end: name_end(standby, n, i) == end)


def name_end(standby: segstore.Standby, topic: str, number: int) -> int:
    if topic not in standby.store.topics():
        return -1
    return standby.store.partition(topic, number).end_offset


# --- catching up -------------------------------------------------------------------------------


def test_a_standby_that_is_killed_while_it_catches_up_goes_on(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old) as broker:
        broker.store.create_topic("a", 2, {"segment.bytes": 1 << 20})
        for number in range(2):
            for i in range(40):
                broker.store.partition("a", number).append_batch([b"%d" % i * 500] * 100)
        few = ("--set", "fetch.max.bytes=20000", "--set", "max.partition.fetch.bytes=20000")
        follow = ("follow", broker.bootstrap_servers, directory)
        for size in (100_000, 1_000_000, 2_000_000):
            process = start_program(*follow, *few)
            try:
                until(lambda size=size: bytes_in(directory) >= size)
                assert process.poll() is None
            finally:
                process.kill()
                process.communicate()
            assert bytes_in(directory) < bytes_in(old), "it was killed before the end"
        ok(*follow, "--once")
        for number in range(2):
            assert stored(directory, "a", number) == stored(old, "a", number)


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("a-*/*.log"))


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_retention_passes_a_standby_that_is_away(tmp_path: Path, directory: Path, mode: str) -> None:
    old = tmp_path / "p"
    with Broker(old) as broker:
        broker.store.create_topic("a", 1, {"segment.bytes": 1000})
        log = broker.store.partition("a")
        with followed(broker, directory, mode=mode) as standby:
            append(broker, mode, 30)
            caught_up(standby, broker.store)
        with segstore.Producer(broker.store, acks=1) as producer:
            for i in range(50):
                producer.send("a", b"%d" % i * 50)
        if mode == "sync":  # what the standby lacks is not committed, and is not deleted
            assert log.delete_records(log.high_watermark) == 30
        else:
            assert log.delete_records(60) == 60
        with followed(broker, directory, mode=mode) as standby:
            caught_up(standby, broker.store)
            copy = standby.store.partition("a")
            assert (copy.start_offset, copy.end_offset) == (log.start_offset, 80)
            assert copy.read(copy.start_offset).offsets[0] == log.start_offset
            log.delete_records(70)
            until(lambda: copy.start_offset == 70)
            append(broker, mode, 1)
        assert not list(segstore.cut_records(directory)), "nothing was in excess"


def append(broker: Broker, mode: str, count: int) -> None:
    with segstore.Producer(broker.store, acks="all" if mode == "sync" else 1) as producer:
        for future in [producer.send("a", b"%d" % i * 50) for i in range(count)]:
            future.get(PATIENCE)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path, directory: Path, mode: str) -> None:
    old, full = tmp_path / "p", OSError(errno.ENOSPC, "No space left on device")
    files = FailingFiles(("pwrite", "pwritev", "allocate"), full, nth=0)
    with Broker(old) as broker:
        broker.store.create_topic("a", 1, {"segment.bytes": 1000})
        with followed(broker, directory, mode=mode, files=files) as standby:
            append(broker, mode, 3)
            caught_up(standby, broker.store)  # it has made the topic: there is a log whose disk is full
            files.arm(1, 1 << 30)
            with segstore.Producer(broker.store, acks="all" if mode == "sync" else 1) as producer:
                futures = [producer.send("a", b"%d " % i * 50) for i in range(20)]
                until(lambda: "No space left" in told(standby))
                assert not standby.wait(0), "it goes on"
                until(lambda: [future.is_done for future in futures] == [mode == "async"] * 20)
                files.arm(0, 0)
                assert [future.get(PATIENCE).offset for future in futures] == list(range(3, 23))
            caught_up(standby, broker.store)
            until(lambda: told(standby) == "None")
        assert stored(directory, "a", 0) == stored(old, "a", 0)


def told(standby: segstore.Standby) -> str:
    (log,) = (each for each in standby._control.fetchers.logs.values() if each.topic == "a")
    return str(log.error)


# --- producers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["reachable", "dead"])
def test_a_batch_that_is_sent_again_to_the_promoted_store_is_no_second_one(
    tmp_path: Path, directory: Path, old: str
) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        standby = followed(broker, directory)
        log = broker.store.partition("a")
        assert [send(log, 7, sequence, 5).first for sequence in (0, 5, 10)] == [0, 5, 10]
        caught_up(standby, broker.store)
        with standby.promote(old, timeout_ms=LIMIT) as store:
            log = store.partition("a")
            again = send(log, 7, 10, 5)
            assert (again.first, again.duplicate, log.end_offset) == (10, True, 15)
            with pytest.raises(DuplicateSequenceError):  # which clients take for success
                send(log, 7, 0, 5)
            with pytest.raises(OutOfOrderSequenceError):
                send(log, 7, 20, 5)
            assert (send(log, 7, 15, 5).first, log.end_offset) == (15, 20)


def test_no_producer_id_is_given_out_twice_by_two_that_lead(tmp_path: Path, directory: Path) -> None:
    """Its batches would be taken for those of the other producer: also of one that has sent nothing yet, and
    where the first primary leads again.
    """
    first, given = tmp_path / "p", []

    def one(store: segstore.Store, sends: bool) -> None:
        producer = segstore.Producer(store, enable_idempotence=True)
        pid = store_ids(store)
        given.append(pid)
        if sends:
            send(store.partition("a"), pid, 0)
        producer.close()

    with Broker(first, topics=["a"]) as broker:
        one(broker.store, sends=False)
        standby = followed(broker, directory)
        caught_up(standby, broker.store)
        standby.promote("reachable", timeout_ms=LIMIT).close()
    with Broker(directory) as broker:
        one(broker.store, sends=False)
        one(broker.store, sends=True)
        standby = followed(broker, first)
        caught_up(standby, broker.store)
        standby.promote("reachable", timeout_ms=LIMIT).close()
    with segstore.open(first) as store:
        one(store, sends=True)
    assert len(set(given)) == len(given), given


def store_ids(store: segstore.Store) -> int:
    from segstore.coordinator.shared import shared
    from segstore.coordinator.transaction.producer_ids import ProducerIds

    return shared(store, ProducerIds).next()


class Wire:
    """A producer of librdkafka with a transaction of "second" in both partitions, behind one of "first"."""

    def __init__(self, address: str, timeout_ms: int = 60_000) -> None:
        config = {"transactional.id": "x", "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
        self.kafka = Kafka({"bootstrap.servers": address, **config})
        self.kafka.init_transactions(PATIENCE)

    def send(self, value: bytes) -> None:
        self.kafka.begin_transaction()
        self.more(value)

    def more(self, value: bytes) -> None:
        for number in range(2):
            self.kafka.produce("a", value, partition=number)
        assert self.kafka.flush(PATIENCE) == 0

    def commit(self) -> None:
        self.kafka.commit_transaction(PATIENCE)


def continued(wire: Wire, _address: str) -> None:
    wire.more(b"third")
    wire.commit()


def replaced(wire: Wire, address: str) -> None:
    again = Wire(address)
    again.send(b"third")
    again.commit()
    with pytest.raises(KafkaException):
        wire.commit()


ENDS: dict[str, tuple[Callable[[Wire, str], None], list[bytes]]] = {
    "its producer goes on": (continued, [b"first", b"second", b"third"]),
    "another producer has the id": (replaced, [b"first", b"third"]),
    "its time is over": (lambda *_: None, [b"first"]),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("old", ["reachable", "dead"])
def test_a_client_s_transaction_that_is_open_at_a_promotion(
    tmp_path: Path, directory: Path, end: str, old: str
) -> None:
    """It stays open, as Kafka's coordinator has it that moves to another broker."""
    finish, wanted = ENDS[end]
    few = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(tmp_path / "p", topics={"a": 2}) as broker:
        standby = followed(broker, directory, store_config=few)
        address = broker.bootstrap_servers
        wire = Wire(address, 1_000 if finish not in (continued, replaced) else 60_000)
        wire.send(b"first")
        wire.commit()
        wire.send(b"second")
        caught_up(standby, broker.store)
        store = standby.promote(old)
    with store:
        logs = [store.partition("a", number) for number in range(2)]
        assert [log.last_stable_offset for log in logs] == [2, 2]
        with segstore.serve(store, port=int(address.rpartition(":")[2])):
            finish(wire, address)
            until(lambda: all(log.last_stable_offset == log.end_offset for log in logs))
        for log in logs:
            found = log.read(0, isolation_level="read_committed")
            assert [record.value for record in found] == wanted


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_transaction_of_the_process_that_had_the_primary(
    tmp_path: Path, directory: Path, is_decided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided is completed; a transaction whose producer has gone with its process is aborted."""
    with Broker(tmp_path / "p", topics={"a": 2}) as broker, monkeypatch.context() as patch:
        standby = followed(broker, directory)
        producer = segstore.Producer(broker.store, transactional_id="x", max_block_ms=300)
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.send("a", b"only", partition=number)
        producer.flush()
        patch.setattr(MarkerWriter, "write_markers", refuse)
        if is_decided:
            producer.commit_transaction()
        caught_up(standby, broker.store)
        logs = [standby.store.partition("a", number) for number in range(2)]
        assert [log.last_stable_offset for log in logs] == [0, 0]
        patch.undo()
        with standby.promote("dead") as store:
            segstore.Producer(store, transactional_id="x").init_transactions()
            logs = [store.partition("a", number) for number in range(2)]
            assert [log.last_stable_offset for log in logs] == [2, 2]
            found = [list(log.read(0, isolation_level="read_committed").values) for log in logs]
            assert found == [[b"only"] if is_decided else []] * 2


def refuse(*_: object) -> None:
    raise StorageError(errno.ENOSPC, "No space left on device")


def test_a_primary_that_goes_and_comes_again_is_told_once_each(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    with segstore.open(tmp_path / "p") as store:
        store.create_topic("a")
        with segstore.serve(store, port=0) as server:
            port, source = server.port, server.bootstrap_servers
            standby = segstore.follow(source, directory, config=QUICK)
            caught_up(standby, store)
        with standby:
            until(lambda: lines("the standby waits: "))
            assert lines("the standby goes on") == 0
            with segstore.serve(store, port=port):
                until(lambda: lines("the standby goes on"))
                store.partition("a").append(b"x")
                caught_up(standby, store)
                assert (lines("the standby goes on"), standby.error) == (1, None)
