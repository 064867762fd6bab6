"""Mirrors of our own server: the same bytes in every case, whatever the source does meanwhile."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any

import pytest
from compaction import end_in_gap
from faults import FailingFiles
from mirrors import assert_equal, await_equal, mirror, mirrored, stored
from mirrors import directory as directory
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import ReadOffsets
from segstore.coordinator.shared import shared
from segstore.errors import InvalidArgumentError
from segstore.testing import Broker
from segstore.wire.connection import BrokerConnection

pytestmark = pytest.mark.kind("mirrors")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


def transact(store: segstore.Store, topic: str, rounds: range) -> None:
    with segstore.Producer(store, transactional_id=f"t-{topic}") as producer:
        producer.init_transactions()
        for i in rounds:
            producer.begin_transaction()
            for n in range(5):
                producer.send(topic, b"%d of %d" % (n, i), partition=0)
            producer.flush()
            if i % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def test_every_byte_comes_with_offsets_epochs_ids_and_settings(source: Path, directory: Path) -> None:
    config = {"segment.bytes": 20_000, "retention.ms": 10**12, "min.insync.replicas": 1}
    for _ in range(2):  # two leader epochs
        with segstore.open(source) as store:
            if not store.topics():
                store.create_topic("a", 2, config)
            for codec in CODECS:
                values = [b"%d of %s " % (i, codec.encode()) * 5 for i in range(300)]
                store.partition("a").append_batch(values, compression=codec, batch_bytes=2000)
            transact(store, "a", range(7))
        (source / ".kafka_cleanshutdown").unlink()
    with Broker(source, topics=["b"]) as broker:
        broker.store.partition("b").append(b"one", key=b"k", headers=[("h", None)], timestamp=17)
        with mirrored(broker, directory) as running:
            ours, theirs = running.store, broker.store
            assert {n: i.topic_id for n, i in ours.topics().items()} == {
                n: i.topic_id for n, i in theirs.topics().items() if not i.internal
            }
            assert ours.topics()["a"].config == config
            assert len(list((directory / "a-0").glob("*.log"))) > 2
            for log in (ours.partition("a"), theirs.partition("a")):
                assert log.last_stable_offset == log.end_offset
            logs = (ours.partition("a"), theirs.partition("a"))
            read = [log.read(0, 10**8, isolation_level="read_committed").values for log in logs]
            assert list(read[0]) == list(read[1])
            assert not running.problems
            with segstore.open(directory, mode="r") as reader:
                assert reader.partition("b").read_one(0).value == b"one"
        assert_equal(directory, source)
        assert segstore.check(directory) == []


def test_topics_and_partitions_that_come_later_are_taken_in(directory: Path) -> None:
    with Broker(topics=["flights"]) as broker, mirrored(broker, directory, "fl.*") as running:
        broker.store.create_topic("fleet", 2)
        broker.store.create_topic("other")
        broker.store.partition("fleet", 1).append(b"x")
        until(lambda: "fleet" in running.store.topics())
        broker.store.add_partitions("flights", 3)
        broker.store.partition("flights", 2).append(b"y")
        until(lambda: len(running.partitions()) == 5)
        until(lambda: running.store.partition("flights", 2).end_offset == 1)
        until(lambda: running.store.partition("fleet", 1).end_offset == 1)
        broker.store.alter_topic("fleet", {"retention.ms": 12345})
        until(lambda: running.store.topics()["fleet"].config == {"retention.ms": 12345})
        assert "other" not in running.store.topics()


def test_a_named_topic_that_is_missing_is_told_and_awaited(directory: Path) -> None:
    with Broker() as broker, mirrored(broker, directory, "late") as running:
        assert list(running.problems) == ["late"]
        broker.store.create_topic("late")
        until(lambda: running.problems == {} and len(running.partitions()) == 1)


@pytest.mark.parametrize("recreated", ["keep", "replace"])
def test_a_topic_that_is_made_anew_is_not_mixed(directory: Path, recreated: str) -> None:
    with Broker(topics=["a", "b"]) as broker:
        broker.store.partition("a").append(b"old")
        with mirrored(broker, directory, recreated=recreated) as running:
            before = running.store.topics()["a"].topic_id
            broker.store.delete_topic("a")
            until(lambda: "a" in running.problems)
            assert running.store.partition("a").read_one(0).value == b"old"
            broker.store.create_topic("a", 2)
            broker.store.partition("a").append(b"new")
            broker.store.partition("b").append(b"goes on")
            until(lambda: running.store.partition("b").end_offset == 1)
            if recreated == "keep":
                until(lambda: "made anew" in running.problems["a"])
                assert running.store.topics()["a"].topic_id == before
                assert running.store.partition("a").read_one(0).value == b"old"
            else:
                until(lambda: not running.problems and running.store.topics()["a"].partitions == 2)
                until(lambda: running.store.partition("a").end_offset == 1)
                assert running.store.partition("a").read_one(0).value == b"new"


def test_the_log_start_of_the_source_is_followed(directory: Path, source: Path) -> None:
    with Broker(source) as broker:
        broker.store.create_topic("a", 1, {"segment.bytes": 500})
        log = broker.store.partition("a")
        for i in range(100):
            log.append(b"%03d " % i * 10)
        log.delete_records(40)
        with mirrored(broker, directory) as running:
            ours = running.store.partition("a")
            assert (ours.start_offset, ours.end_offset) == (40, 100)
            log.delete_records(70)
            until(lambda: ours.start_offset == 70)
            assert ours.read_one(70).value == log.read_one(70).value
        log.append_batch([b"%d" % i for i in range(100)], batch_bytes=500)
        log.delete_records(150)  # within a batch, and above what the mirror has
        with mirrored(broker, directory) as running:
            ours = running.store.partition("a")
            assert (ours.start_offset, ours.end_offset) == (150, 200)
            assert [r.value for r in ours.read(150)] == [r.value for r in log.read(150)]


def test_a_source_that_was_set_back_is_followed(source: Path, directory: Path, tmp_path: Path) -> None:
    """What it has lost is cut here, and kept aside, also where the new records reach further."""
    with Broker(source, topics=["a"]) as broker:
        for i in range(10):
            broker.store.partition("a").append(b"%d" % i)
    older = Path(shutil.copytree(source, tmp_path / "older"))
    (older / ".kafka_cleanshutdown").unlink()  # so that a new leader epoch begins
    with Broker(source) as broker:
        for i in range(10, 15):
            broker.store.partition("a").append(b"%d" % i)
        with mirrored(broker, directory):
            pass
    with Broker(older) as broker:
        for i in range(20):
            broker.store.partition("a").append(b"other %d" % i)
        with mirrored(broker, directory) as running:
            await_equal(running, broker.store)
            assert running.store.partition("a").read_one(10).value == b"other 0"
    assert_equal(directory, older)
    assert len(list((directory / ".segstore" / "quarantine").iterdir())) == 1


def test_a_source_that_is_shorter_now_is_followed(source: Path, directory: Path, tmp_path: Path) -> None:
    with Broker(source, topics=["a"]) as broker:
        broker.store.partition("a").append(b"kept")
    older = Path(shutil.copytree(source, tmp_path / "older"))
    with Broker(source) as broker:
        for i in range(5):
            broker.store.partition("a").append(b"%d" % i)
        with mirrored(broker, directory):
            pass
    with Broker(older) as broker, mirror(broker, directory) as running:
        await_equal(running, broker.store)
    assert_equal(directory, older)


ERRORS = (
    *("NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_OUT_OF_RANGE"),
    *("UNKNOWN_TOPIC_ID", "FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH"),
    *("KAFKA_STORAGE_ERROR", "UNKNOWN_SERVER_ERROR", "OFFSET_NOT_AVAILABLE", "CORRUPT_MESSAGE"),
)


@pytest.mark.parametrize("error", ERRORS)
def test_answers_with_errors_end(directory: Path, error: str, source: Path) -> None:
    with Broker(source, topics={"a": 2}) as broker, mirror(broker, directory) as running:
        for api in (
            ("Fetch", "Metadata", "DescribeConfigs") if error == "UNKNOWN_SERVER_ERROR" else ("Fetch",)
        ):
            broker.faults.error(api, error, nth=2, times=2)
        for i in range(20):
            broker.store.partition("a", i % 2).append(b"%d" % i)
        await_equal(running, broker.store)
        assert_equal(directory, source)


@pytest.mark.parametrize("cut", ["drop", "half"])
def test_connections_that_are_cut_are_made_anew(directory: Path, cut: str, source: Path) -> None:
    with Broker(source, topics={"a": 2}) as broker, mirror(broker, directory) as running:
        for api in ("Fetch", "Metadata"):
            getattr(broker.faults, cut)(api, nth=2, times=3)
        for i in range(50):
            broker.store.partition("a", i % 2).append(b"%d " % i * 100)
        await_equal(running, broker.store)
        assert_equal(directory, source)


def test_a_broker_that_restarts_is_found_again(directory: Path, source: Path) -> None:
    with Broker(source, topics=["a"]) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        broker.store.partition("a").append(b"before")
        running = mirror(broker, directory)
        until(lambda: running.partitions() and running.store.partition("a").end_offset == 1)
    with running:
        until(lambda: running.error is not None)
        with segstore.open(source) as store:
            store.partition("a").append(b"meanwhile")
            with segstore.serve(store, port=port):
                await_equal(running, store)
                assert running.lag()[("a", 0)].records == 0
    assert_equal(directory, source)


@pytest.mark.parametrize("version", [4, 6, 11, 12, 13, 17])
def test_brokers_with_older_versions_of_fetch(
    directory: Path, version: int, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = BrokerConnection.version

    def older(self: BrokerConnection, api: str) -> int:
        most = {"Fetch": version, "ListOffsets": 1, "OffsetFetch": 7, "FindCoordinator": 3}
        return min(newest(self, api), most.get(api, 100))

    monkeypatch.setattr(BrokerConnection, "version", older)
    with Broker(source, topics={"a": 2}) as broker:
        log = broker.store.partition("a")
        log.append_batch([b"%d" % i for i in range(100)], batch_bytes=100)
        log.delete_records(30)
        commit(broker.store, 50, "note")
        with mirror(broker, directory, config={"sync.group.offsets.enabled": True}) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
            log.append(b"more")
            await_equal(running, broker.store)
            # Version 4 does not tell of the log start: what is left of its batch is there, too.
            assert running.store.partition("a").start_offset == (30 if version > 4 else 28)
            assert committed(running.store) == (50, "note", -1)
    asked = {each.version for each in broker.requests if each.api.message == "Fetch"}
    assert asked == {version}


def test_a_mirror_of_committed_records_stops_at_an_open_transaction(directory: Path) -> None:
    with Broker(topics=["a"]) as broker, mirrored(broker, directory, isolation="committed") as running:
        transact(broker.store, "a", range(3))
        with segstore.Producer(broker.store, transactional_id="open") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("a", b"open").get(PATIENCE)
            broker.store.partition("a").append(b"behind")
            until(lambda: running.store.partition("a").end_offset == 18)
            until(lambda: running.partitions()[0].source_end_offset == 18)
            assert running.lag()["a", 0].records == 0
            producer.commit_transaction()
        until(lambda: running.store.partition("a").end_offset == 21)


@pytest.mark.parametrize("open_transactions", ["cut", "keep"])
def test_the_end_makes_an_ordinary_store(directory: Path, open_transactions: str) -> None:
    with Broker(topics=["a"]) as broker:
        transact(broker.store, "a", range(3))
        with segstore.Producer(broker.store, transactional_id="open") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("a", b"open").get(PATIENCE)
            with mirrored(broker, directory):
                pass
            producer.abort_transaction()
    with pytest.raises(InvalidArgumentError, match=r"is a mirror of cluster .*end-mirror"):
        segstore.open(directory)
    [ended] = segstore.end_mirror(directory, open_transactions)
    end = 18 if open_transactions == "cut" else 19
    assert (ended.end_offset, ended.cut, len(ended.kept)) == (end, 19 - end, 19 - end)
    with segstore.open(directory) as store:
        log = store.partition("a")
        assert log.leader_epoch == 1
        assert log.append(b"own") == end
        assert len(log.read(0, isolation_level="read_committed")) == (
            11 if open_transactions == "cut" else 10
        )
        with segstore.Producer(store, transactional_id="t-a") as producer:
            producer.init_transactions()
    with pytest.raises(InvalidArgumentError, match="is no mirror"):
        segstore.end_mirror(directory)


def test_an_end_that_was_begun_is_completed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from segstore.mirroring import ending

    with Broker(topics=["a"]) as broker:
        broker.store.partition("a").append(b"x")
        with mirrored(broker, directory):
            pass
        monkeypatch.setattr(ending.ROLE, "remove", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            segstore.end_mirror(directory)
        monkeypatch.undo()
        with pytest.raises(InvalidArgumentError, match="its end was begun"):
            mirror(broker, directory)
        [ended] = segstore.end_mirror(directory)
    assert ended.leader_epoch == 1
    with segstore.open(directory) as store:
        assert store.partition("a").append(b"y") == 1


# --- groups ---------------------------------------------------------------------------------------


def commit(store: segstore.Store, offset: int, note: str = "") -> None:
    at = {segstore.TopicPartition("a", 0): segstore.OffsetAndMetadata(offset, note)}
    shared(store, GroupOffsets).commit("g", at)


def committed(store: segstore.Store) -> segstore.OffsetAndMetadata | None:
    held = ReadOffsets(store) if store.mode == "r" else shared(store, GroupOffsets)
    return held.fetch("g").get(segstore.TopicPartition("a", 0))


def test_groups_go_on_where_they_were(directory: Path) -> None:
    groups = {"config": {"sync.group.offsets.enabled": True}}
    with Broker(topics=["a"]) as broker:
        for i in range(10):
            broker.store.partition("a").append(b"%d" % i)
        commit(broker.store, 3)
        with mirrored(broker, directory, **groups) as running:
            assert committed(running.store) == (3, "", -1)
            commit(broker.store, 7)
            until(lambda: committed(running.store) == (7, "", -1))
            with segstore.open(directory, mode="r") as reader:
                until(lambda: committed(reader) == (7, "", -1))
        with mirrored(broker, directory, **groups) as running:
            assert committed(running.store) == (7, "", -1)
    segstore.end_mirror(directory)
    with segstore.open(directory) as store, segstore.Consumer(store, "a", group_id="g") as consumer:
        assert next(iter(consumer)).value == b"7"


def test_a_wait_is_not_over_by_a_sync_of_groups_that_was_under_way(directory: Path) -> None:
    """It may have begun before the logs were where the groups' offsets are."""
    begun, gates = [], [threading.Event(), threading.Event()]
    groups = {"sync.group.offsets.enabled": True}
    with Broker(topics=["a"]) as broker, mirrored(broker, directory, config=groups) as running:
        control = running._control
        sync = control._groups.sync

        def slow(logs: Any) -> int:
            begun.append(sync)
            gates[len(begun) - 1].wait(PATIENCE)
            return sync(logs)

        control._groups.sync = slow
        control.sync_groups()
        until(lambda: len(begun) == 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(running.wait_caught_up)
            until(lambda: control._news.qsize() == 1)
            gates[0].set()
            until(lambda: len(begun) == 2)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            gates[1].set()
            assert waiting.result(PATIENCE)


# --- disks, chance --------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_the_mirror_goes_on_when_there_is_room(directory: Path, source: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    files = FailingFiles(("pwrite", "pwritev", "allocate"), error, nth=0)
    with Broker(source) as broker:
        broker.store.create_topic("a", 1, {"segment.bytes": 1000})
        with mirrored(broker, directory, files=files) as running:
            files.arm(1, 1 << 30)
            for i in range(20):
                broker.store.partition("a").append(b"%d " % i * 50)
            until(lambda: "No space left" in str(running.partitions()[0].error))
            files.arm(0, 0)
            await_equal(running, broker.store)
            until(lambda: running.partitions()[0].error is None)
        assert_equal(directory, source)


def test_a_disk_that_fails_ends_the_mirror(directory: Path) -> None:
    files = FailingFiles(("pwrite", "pwritev"), OSError(errno.EIO, "broken"), nth=0)
    with Broker(topics=["a"]) as broker, mirrored(broker, directory, files=files) as running:
        files.arm(1, 1 << 30)
        broker.store.partition("a").append(b"x")
        with pytest.raises(segstore.StorageError, match="broken"):
            running.wait(PATIENCE * 1000)
        files.arm(0, 0)


@pytest.mark.parametrize("number", range(3))
def test_whatever_happens_the_bytes_are_equal(
    directory: Path, source: Path, rng: random.Random, number: int
) -> None:
    with Broker(source, topics={"a": 3}) as broker:
        for _ in range(3):
            with mirror(broker, directory) as running:
                for _ in range(12):
                    act(broker, rng)
                await_equal(running, broker.store)
    assert_equal(directory, source)
    for n in range(3):
        assert stored(directory, "a", n)


def act(broker: Broker, rng: random.Random) -> None:
    log = broker.store.partition("a", rng.randrange(3))
    match rng.randrange(7):
        case 0 | 1:
            values = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 200))]
            log.append_batch(values, compression=rng.choice(CODECS), batch_bytes=rng.randrange(100, 5000))
        case 2:
            transact(broker.store, "a", range(rng.randrange(1, 4)))
        case 3:
            fault = rng.choice((broker.faults.drop, broker.faults.half))
            fault(rng.choice(("Fetch", "Metadata")), nth=rng.randrange(1, 4), times=rng.randrange(1, 3))
        case 4:
            broker.faults.error("Fetch", rng.choice(ERRORS), nth=rng.randrange(1, 4), times=1)
        case _:
            log.append(b"one")


@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_r41_a_mirror_reaches_a_source_that_ends_behind_a_gap(
    source: Path, directory: Path, isolation: str
) -> None:
    """Its command with `--once` never ended."""
    end_in_gap(source)
    with Broker(source) as broker, mirror(broker, directory, isolation=isolation) as running:
        assert running.wait_caught_up(PATIENCE * 1000)
        assert [(each.end_offset, each.lag.records) for each in running.partitions()] == [(60, 0)]
        broker.store.partition("t").append(b"and on", key=b"k")
        await_equal(running, broker.store)
    assert_equal(directory, source)


def test_r41_a_source_that_shows_less_than_it_has_is_not_passed_over(source: Path, directory: Path) -> None:
    """An open transaction lies behind the last stable offset: nothing comes, and there is something."""
    with Broker(source, topics=["t"]) as broker, segstore.Producer(broker.store, transactional_id="x") as one:
        broker.store.partition("t").append(b"first")
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"open").get(PATIENCE)
        with mirror(broker, directory, "t", isolation="committed") as running:
            assert running.wait_caught_up(PATIENCE * 1000)
            assert [each.end_offset for each in running.partitions()] == [1]
            one.commit_transaction()
            await_equal(running, broker.store)
