"""Mirrors to a cluster, which is our own server here: equal offsets and records, or a refusal."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from cli import ok, run, start_program
from fault_proxy import Proxy
from kafka_broker import free_port
from replica_logs import read
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.group.admin import Groups
from segstore.errors import ConfigError, InvalidTopicError, StorageError
from segstore.mirroring.outbound.ready_batch import producer_id, ready_batch
from segstore.records import Columns, decode, encode, scan
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

QUICK = {
    "metadata.max.age.ms": 200,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 50,
    "fetch.max.wait.ms": 50,
    "sync.group.offsets.interval.seconds": 1,
}
ALONE = {"sync.group.offsets.enabled": False}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def mirror_to(store: Any, address: str, topics: Any = ".*", **config: Any) -> segstore.MirrorTo:
    return segstore.mirror_to(store, address, topics, config={**QUICK, **config})


def records(log: segstore.PartitionLog) -> list[segstore.Record]:
    return list(read(log))


def fill(log: segstore.PartitionLog, rng: random.Random, count: int = 400) -> None:
    """Append records of all kinds, alone and in batches small and large."""
    for i in range(count):
        headers: list[tuple[str, bytes | None]] = [("name", b"x" * i), ("null", None)] if i % 3 == 0 else []
        value = None if i % 7 == 0 else rng.randbytes(rng.randrange(60))
        log.append(value, key=None if i % 2 else b"" if i % 5 else b"k%d" % i, headers=headers, timestamp=i)
    for codec in CODECS:
        for batch_bytes in (500, 200_000):
            values = [b"%d of %s " % (i, codec.encode()) * 5 for i in range(count)]
            log.append_batch(values, keys=values[::-1], compression=codec, batch_bytes=batch_bytes)


def test_records_of_all_kinds_have_equal_offsets(store: segstore.Store) -> None:
    store.create_topic("a", 2, {"segment.bytes": 50_000, "max.message.bytes": 300_000, "flush.messages": 100})
    store.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    for number in range(2):
        fill(store.partition("a", number), random.Random(number))
    store.partition("stamped").append_batch([b"%d" % i for i in range(100)])
    with segstore.Consumer(store, "a", group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.poll(PATIENCE * 1000, 10)
        consumer.commit()
    committed = Groups(store).committed("readers")
    with Broker() as broker:
        with mirror_to(store, broker.bootstrap_servers) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
            assert (running.problems, running.error) == ({}, None)
            store.partition("a").append(b"live")
            store.create_topic("later")
            store.partition("later").append(b"new")
            until(lambda: "later" in broker.store.topics())
            assert running.wait_caught_up(PATIENCE * 1000)
            assert {each.lag.records for each in running.partitions()} == {0}
        for topic, number in (("a", 0), ("a", 1), ("stamped", 0), ("later", 0)):
            here, there = store.partition(topic, number), broker.store.partition(topic, number)
            assert records(there) == records(here) != [], topic
            batches, _ = scan(there.stored(0, 1 << 30))
            assert all(batches["size"] <= 300_000)
        assert broker.store.topics()["a"].config["segment.bytes"] == 50_000
        assert "flush.messages" not in broker.store.topics()["a"].config
        theirs = Groups(broker.store).committed("readers")
        assert {tp: at._replace(leader_epoch=-1) for tp, at in committed.items()} == theirs != {}


def test_small_batches_become_one_and_large_ones_stay_as_they_are(store: segstore.Store) -> None:
    store.create_topic("a")
    log = store.partition("a")
    for i in range(1000):
        log.append(b"%d" % i)
    log.append_batch([b"x" * 100] * 1000, compression="zstd", batch_bytes=1 << 20)
    log.append_batch([random.Random(1).randbytes(100) for _ in range(1000)], batch_bytes=1 << 20)
    with Broker() as broker:
        with mirror_to(store, broker.bootstrap_servers) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
        ours, theirs = (each.partition("a").stored(0, 1 << 30) for each in (store, broker.store))
        found, _ = scan(theirs)
        assert found["count"].tolist() == [1000, 1000, 1000]
        last = int(found["size"][-1])
        assert theirs[-last + 61 :] == ours[-last + 61 :]
        assert set(found["producer_id"].tolist()) == {producer_id(store.topics()["a"].topic_id, 0)}
        assert found["base_sequence"].tolist() == [0, 1000, 2000]


def test_sequences_go_round_where_kafka_s_do() -> None:
    values = [b"a", b"b", b"c"]
    (chunk,) = encode(Columns(values, timestamp=5))
    data = bytearray(chunk.data)
    at = (1 << 31) - 1
    data[:8] = at.to_bytes(8, "big")
    for first, sequence in ((at, 0x7FFFFFFF), (at + 1, 0)):
        ready = ready_batch(bytes(data), first, 17, 1 << 20, "t-0")
        batches, _ = scan(ready.data)
        assert batches["base_sequence"].tolist() == [sequence]
        assert (ready.first, ready.next_offset) == (first, at + 3)
        found = decode(bytes(ready.data), batches, "t-0")
        assert list(found.values) == values[first - at :]


def transact(store: segstore.Store, topic: str) -> None:
    with segstore.Producer(store, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"of a transaction", partition=0)
        producer.commit_transaction()


def remove(store: segstore.Store, topic: str) -> None:
    store.partition(topic).append_batch([b"x"] * 10)
    store.partition(topic).delete_records(5)


REFUSED: dict[str, tuple[dict[str, Any], Callable[..., Any], Callable[..., Any], str]] = {
    "compacted": ({"cleanup.policy": "compact"}, lambda s, t: None, lambda b: None, "is compacted, or was"),
    "a transaction": ({}, transact, lambda b: None, "belongs to a transaction"),
    "a log start above 0": ({}, remove, lambda b: None, "begins at 5"),
    "records of others": ({}, lambda s, t: s.partition(t).append(b"x", timestamp=1),
        lambda b: b.create_topic("a").name and b.partition("a").append(b"y", timestamp=1),
        "another record at offset 0"),
    "more records": ({}, lambda s, t: None,
        lambda b: b.create_topic("a").name and b.partition("a").append(b"y"), "the target has other records"),
    "more partitions": ({}, lambda s, t: None, lambda b: b.create_topic("a", 3), "0 to 0 here, and 0 to 2"),
    "its own timestamps": ({}, lambda s, t: None,
        lambda b: b.create_topic("a", 1, {"message.timestamp.type": "LogAppendTime"}), "LogAppendTime"),
    "a record that is too large": ({}, lambda s, t: s.partition(t).append(bytes(5000)),
        lambda b: b.create_topic("a", 1, {"max.message.bytes": 1000}), "max.message.bytes is 1,000"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_t_have_equal_offsets_is_refused(store: segstore.Store, name: str) -> None:
    config, here, there, told = REFUSED[name]
    store.create_topic("a", config=config)
    store.create_topic("good")
    store.partition("good").append(b"good")
    here(store, "a")
    with Broker() as broker:
        there(broker.store)
        held = broker.store.partition("a").end_offset if "a" in broker.store.topics() else 0
        with mirror_to(store, broker.bootstrap_servers) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
            (problem,) = running.problems.values()
            assert told in problem
        assert broker.store.partition("good").end_offset == 1
        if "a" in broker.store.topics():
            assert broker.store.partition("a").end_offset == held


def test_somebody_else_who_writes_is_told(store: segstore.Store) -> None:
    store.create_topic("a")
    log = store.partition("a")
    log.append(b"0")
    with Broker() as broker, mirror_to(store, broker.bootstrap_servers) as running:
        assert running.wait_caught_up(PATIENCE * 1000)
        broker.store.partition("a").append(b"of another")
        log.append(b"1")
        until(lambda: running.problems)
        assert "somebody else writes to it" in running.problems["a-0"]


@pytest.mark.parametrize("which", ["the store", "the target"])
@pytest.mark.parametrize("more", [0, 5, 10, 300])
def test_an_older_copy_that_went_on_is_told(store_dir: Path, tmp_path: Path, which: str, more: int) -> None:
    """Of a store, or of the target, that was restored: records of two pasts are never mixed."""
    target = tmp_path / "target"

    def append(path: Path, what: str, count: int) -> None:
        with segstore.open(path) as store:
            store.ensure_topic("a")
            for number in range(count):
                store.partition("a").append(b"%s %d" % (what.encode(), number))

    def mirrored() -> dict[str, str]:
        with (
            segstore.open(store_dir) as store,
            Broker(target) as broker,
            mirror_to(store, broker.bootstrap_servers, **ALONE) as running,
        ):
            assert running.wait_caught_up(PATIENCE * 1000)
            return dict(running.problems)

    append(store_dir, "before", 20)
    assert mirrored() == {}
    path = store_dir if which == "the store" else target
    shutil.copytree(path, tmp_path / "older")
    append(store_dir, "lost", 10)
    assert mirrored() == {}
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "older", path)
    append(path, "new", more)
    before = [values_of(each) for each in (store_dir, target)]
    problems = mirrored()
    if which == "the target" and not more:  # it gets again what it has lost
        assert problems == {}
        assert values_of(target) == before[0]
    else:
        assert list(problems) == ["a-0"]
        assert [values_of(each) for each in (store_dir, target)] == before


def values_of(path: Path) -> list[bytes | None]:
    with segstore.open(path, "r") as store:
        return [record.value for record in records(store.partition("a"))]


def test_a_topic_that_is_not_there_is_a_problem(store: segstore.Store) -> None:
    with Broker() as broker, mirror_to(store, broker.bootstrap_servers, ["absent"]) as running:
        until(lambda: running.problems)
        assert "is not there in" in running.problems["absent"]
        assert broker.store.topics() == {}


WRONG = {
    "a setting": ({"config": {"fetch.size": 1}}, ConfigError),
    "an internal topic": ({"topics": "__consumer_offsets"}, InvalidTopicError),
    "no store": ({"store": "absent"}, StorageError),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(store: segstore.Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, error = WRONG[name]
    with pytest.raises(error):
        segstore.mirror_to(**{"store": store, "bootstrap": "127.0.0.1:1", **given})


FAULTS: dict[str, Callable[[Proxy, random.Random], None]] = {
    "cut": lambda proxy, rng: proxy.cut(hard=rng.random() < 0.5),
    "torn": lambda proxy, rng: proxy.tear(rng.randrange(1, 3)),
    "after some bytes": lambda proxy, rng: proxy.cut_after(rng.randrange(1, 30_000)),
    "answers lost": lambda proxy, rng: proxy.stall(requests=False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_the_network_doubles_or_loses_a_record(
    store: segstore.Store, name: str, tmp_path: Path
) -> None:
    rng = random.Random(name)
    store.create_topic("a", 2)
    logs = [store.partition("a", number) for number in range(2)]
    with Proxy() as proxy, segstore.open(tmp_path / "target") as target:
        proxy.target = free_port()
        server = segstore.serve(target, port=proxy.target, advertised=proxy.address)
        with server, mirror_to(store, proxy.address, **{"request.timeout.ms": 300}) as running:
            for round in range(4):
                for log in logs:
                    log.append_batch([b"%d of %d" % (i, round) for i in range(200)], batch_bytes=1000)
                FAULTS[name](proxy, rng)
                running.wait_caught_up(400)
                proxy.go_on()
                assert running.wait_caught_up(PATIENCE * 1000), running.error
        for number, log in enumerate(logs):
            assert records(target.partition("a", number)) == records(log)


def test_a_late_request_of_a_killed_mirror_is_no_second_copy(store_dir: Path) -> None:
    """Two mirrors at once are as bad as it gets: each record is there once, and both go on."""
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        log = store.partition("a")
        with Broker() as broker:
            with (
                mirror_to(store, broker.bootstrap_servers, **ALONE) as one,
                mirror_to(store_dir, broker.bootstrap_servers, **ALONE) as other,
            ):
                for round in range(30):
                    for each in (one, other):  # both wait for the next record, and send it at once
                        assert each.wait_caught_up(PATIENCE * 1000)
                        assert each.problems == {}
                    log.append(b"%d" % round)
                for each in (one, other):
                    assert each.wait_caught_up(PATIENCE * 1000)
                    assert each.problems == {}
            assert records(broker.store.partition("a")) == records(log)


def end(store: segstore.Store) -> int:
    return store.partition("a").end_offset if "a" in store.topics() else 0


def test_the_command_goes_on_after_a_kill(store_dir: Path) -> None:
    hears = ("--set", "metadata.max.age.ms=200", "--set", "retry.backoff.ms=5")
    with segstore.open(store_dir) as store, Broker() as broker:
        store.create_topic("a")
        log = store.partition("a")
        to = ("mirror", "--to", broker.bootstrap_servers, "--store", store_dir, "--topics", "a", *hears)
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = end(broker.store)
            process = start_program(*to)
            log.append_batch([b"%d" % i for i in range(3000)], batch_bytes=300)
            until(lambda before=before: end(broker.store) > before)  # type: ignore[misc]
            process.send_signal(number)
            process.communicate(timeout=PATIENCE)
            assert process.returncode == (-9 if number is signal.SIGKILL else 0)
        told = ok(*to, "--once")
        assert "has 1 partitions, 6,000 offsets" in told.stdout
        assert records(broker.store.partition("a")) == records(log)


def test_a_cluster_with_tls_and_sasl_that_one_of_several_addresses_reaches(
    store_dir: Path, tmp_path: Path
) -> None:
    files, users = certificates(tmp_path), {"alice": "p w"}
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "p w",
        "ssl.ca.location": str(files.authority),
    }
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in client.items()))
    with (
        segstore.open(store_dir) as store,
        Broker(security_protocol="SASL_SSL", sasl_users=users, **files.of_server) as broker,
    ):
        store.create_topic("a", 2)
        for number in range(2):
            fill(store.partition("a", number), random.Random(number), 50)
        nobody = f"127.0.0.1:{free_port()}"
        to = ("mirror", "--to", f"{nobody},{broker.bootstrap_servers}", "--store", store_dir, "--once")
        assert "has 2 partitions" in ok(*to, "--command-config", properties).stdout
        for number in range(2):
            there = broker.store.partition("a", number)
            assert records(there) == records(store.partition("a", number)) != []
        for wrong in ({"sasl.password": "no"}, {"ssl.ca.location": str(files.stranger)}):
            given = [part for pair in (client | wrong).items() for part in ("--set", "=".join(pair))]
            result = run(*to, *given)
            assert result.exit_code == 1, result.output
        store.partition("a").append(b"late")
        given = [part for pair in client.items() for part in ("--set", "=".join(pair))]
        ok(*to, *given)
        assert records(broker.store.partition("a"))[-1].value == b"late"


USAGE = {
    "a directory, too": (("127.0.0.1:1", "m", "--to", "127.0.0.1:1"), "--to mirrors --store PATH"),
    "no store": (("--to", "127.0.0.1:1"), "Which store"),
    "an option of the other way": (
        ("--to", "127.0.0.1:1", "-s", "x", "--recreated", "keep"),
        "--recreated is for",
    ),
    "neither": ((), "Missing argument 'BOOTSTRAP'"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage(name: str) -> None:
    arguments, told = USAGE[name]
    result = run("mirror", *arguments)
    assert (result.exit_code, told in result.output) == (2, True), result.output


def test_problems_end_the_command_with_1(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("a", config={"cleanup.policy": "compact"})
    with Broker() as broker:
        result = run("mirror", "--to", broker.bootstrap_servers, "--store", store_dir, "--once")
    assert result.exit_code == 1
    assert "is compacted, or was" in result.stderr


@pytest.mark.parametrize("topics", [(), ("a",)], ids=["without topics", "with one"])
def test_a_wrong_address_is_told(store_dir: Path, topics: tuple[str, ...]) -> None:
    """A store without topics asked nobody: "0 partitions", and the exit code was 0."""
    with segstore.open(store_dir) as store:
        for name in topics:
            store.create_topic(name)
    wrong = f"127.0.0.1:{free_port()}"
    with mirror_to(store_dir, wrong) as running:
        assert not running.wait_caught_up(300)
        until(lambda: running.error)
        assert wrong in str(running.error)
    process = start_program("mirror", "--to", wrong, "--store", store_dir, "--once")
    assert process.stderr is not None
    told = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=PATIENCE)
    assert wrong.encode() in told, (told, rest)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_store_without_topics_is_mirrored_at_once(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    with Broker() as broker:
        told = ok("mirror", "--to", broker.bootstrap_servers, "--store", store_dir, "--once")
        assert "has 0 partitions, 0 offsets" in told.stdout
        assert broker.requests
