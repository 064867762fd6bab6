"""Standbys of our own server: these have what the primary has, take its place, and the old one comes back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mirrors import stored
from waiting import PATIENCE, until

import segstore
from segstore.errors import (
    DemotedError,
    DisconnectedError,
    InvalidArgumentError,
    ReadOnlyError,
    SegstoreError,
    StaleDirectoryError,
)
from segstore.files import Files
from segstore.storage.meta.fence import Fence
from segstore.storage.meta.promotion import PROMOTION
from segstore.storage.meta.role import ROLE
from segstore.storage.store.primary import Primary
from segstore.testing import Broker
from segstore.threads import Background
from segstore.wire.cluster import Cluster

pytestmark = pytest.mark.kind("mirrors")

QUICK = {
    "metadata.max.age.ms": 50,
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "sync.topic.configs.interval.seconds": 1,
    "lease.interval.ms": 20,
}
LIMIT = PATIENCE * 1000


@pytest.fixture
def directory(store_dir: Path) -> Path:
    return store_dir


def followed(source: str | Broker, directory: Path, **options: Any) -> segstore.Standby:
    address = source if isinstance(source, str) else source.bootstrap_servers
    return segstore.follow(address, directory, config=QUICK, **options)


def values(store: segstore.Store, topic: str) -> list[bytes | None]:
    return list(store.partition(topic).read(0, 10**8).values)


def test_all_topics_come_also_internal_ones_and_are_read_only(tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append_batch([b"1", b"2"])
        consumer = segstore.Consumer(broker.store, "a", group_id="g", auto_offset_reset="earliest")
        assert consumer.poll(LIMIT)
        consumer.commit()
        consumer.close()
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
            assert "__consumer_offsets" in standby.store.topics()
            until(lambda: standby.store.partition("a").end_offset == 2)
            assert values(standby.store, "a") == [b"1", b"2"]
            broker.store.partition("a").append(b"3")
            until(lambda: standby.store.partition("a").end_offset == 3)
            until(lambda: standby.total_lag().records == 0)
            with pytest.raises(ReadOnlyError):
                standby.store.create_topic("mine")
            with pytest.raises(SegstoreError):
                standby.store.partition("a").append(b"mine")
            broker.store.delete_topic("a")
            until(lambda: "a" not in standby.store.topics())


def test_a_topic_that_is_being_deleted_has_no_lag_any_more(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its deletion and the next look at what is followed, lags are told and noted."""
    with Broker(tmp_path / "p", topics=["a", "b"]) as broker, followed(broker, directory) as standby:
        assert standby.wait_caught_up(LIMIT)
        monkeypatch.setattr(standby._control.fetchers, "follow", lambda *_: None)
        broker.store.delete_topic("a")
        until(lambda: "a" not in standby.store.topics())
        assert [*standby.lag()] == [("b", 0)]
        assert standby.total_lag().records == 0
        assert standby.wait_caught_up(LIMIT)
        assert "b-0" in standby.store.metrics()
        standby._note()


def test_a_reachable_primary_hands_over_and_comes_back(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old, topics=["a"]) as broker:
        log = broker.store.partition("a")
        log.append_batch([b"%d" % i for i in range(100)])
        consumer = segstore.Consumer(broker.store, "a", group_id="g", auto_offset_reset="earliest")
        consumer.poll(LIMIT, max_records=40)
        consumer.commit()
        consumer.close()
        standby = followed(broker, directory)
        assert standby.wait_caught_up(LIMIT)
        store = standby.promote("reachable", "a test", timeout_ms=LIMIT)
        try:
            assert values(store, "a") == [b"%d" % i for i in range(100)]
            with pytest.raises(DemotedError):
                log.append(b"late")
            assert store.partition("a").append(b"new") == 100
            with segstore.Consumer(store, "a", group_id="g") as again:
                found = [record for records in again.poll(LIMIT).values() for record in records]
                assert found[0].offset == 40
            promotion = PROMOTION.read(Files(), str(directory))
            assert promotion is not None
            assert (promotion.told, promotion.reason) == (True, "a test")
        finally:
            store.close()
    with pytest.raises(DemotedError):
        segstore.open(old)
    with Broker(directory) as leads, followed(leads, old) as back:
        assert back.wait_caught_up(LIMIT)
        until(lambda: back.store.partition("a").end_offset == 101)
        assert not list(back.excess())
        assert stored(old, "a", 0) == stored(directory, "a", 0)


@pytest.mark.parametrize("api", ["BeginQuorumEpoch", "ListOffsets"])
def test_a_promotion_asks_again_where_an_answer_is_lost(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """The primary may have been fenced all the same: a promotion that gave up would leave nobody to lead."""
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        standby = followed(broker, directory)
        assert standby.wait_caught_up(LIMIT)
        ask, lost = Cluster.ask, []

        def losing(cluster: Cluster, name: str, **fields: Any) -> Any:
            answer = ask(cluster, name, **fields)
            if name == api and len(lost) < 2:
                lost.append(name)
                raise DisconnectedError("the answer is lost")
            return answer

        monkeypatch.setattr(Cluster, "ask", losing)
        with standby.promote("reachable", timeout_ms=LIMIT) as store:
            assert (len(lost), values(store, "a")) == (2, [b"1"])


def test_what_a_dead_primary_had_alone_is_cut_and_told(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old, topics=["a"]) as broker:
        broker.store.partition("a").append_batch([b"both"] * 3)
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        broker.store.partition("a").append(b"alone", key=b"k")
    with segstore.promote(directory, "dead") as store:
        assert store.partition("a").append(b"new") == 3
    with Broker(directory) as leads, followed(leads, old) as back:
        until(lambda: values(back.store, "a") == [b"both"] * 3 + [b"new"])
        (told,) = back.excess()
        assert (*told[:3], told.key, told.value) == ("a", 0, 3, b"k", b"alone")
    assert segstore.check(old) == []


def test_a_cut_of_many_records_starts_few_threads(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before: a thread for the message of each record, while nothing was fetched: minutes for some thousands
    on a busy machine, on which the thread of a message has ended before the next one comes.
    """
    old, count, started = tmp_path / "p", 300, list[str]()
    plain = Background.start

    def start(self: Background) -> None:
        plain(self)
        started.append(self.name)
        if self.name == "segstore-log":
            self.join(PATIENCE)

    with Broker(old, topics=["a"]) as broker:
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        broker.store.partition("a").append_batch([b"alone"] * count)
    segstore.promote(directory, "dead").close()
    monkeypatch.setattr(Background, "start", start)
    with Broker(directory) as leads, followed(leads, old) as back:
        until(lambda: back.store.partition("a").end_offset == 0)
        until(lambda: sum("cut, since" in record.getMessage() for record in caplog.records) == count)
    assert started.count("segstore-log") < count / 10


def test_topics_that_only_the_old_primary_has_are_kept_and_told(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old, topics=["a", "again"]) as broker:
        broker.store.partition("a").append(b"both")
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        broker.store.create_topic("alone", partitions=2)
        for number in range(2):
            broker.store.partition("alone", number).append(b"alone-%d" % number)
        broker.store.delete_topic("again")
        broker.store.create_topic("again")
        broker.store.partition("again").append(b"other id")
    segstore.promote(directory, "dead").close()
    with Broker(directory) as leads, followed(leads, old) as back:
        until(lambda: "alone" not in back.store.topics())
        expected = [("again", 0, b"other id"), ("alone", 0, b"alone-0"), ("alone", 1, b"alone-1")]
        until(lambda: [(*told[:2], told.value) for told in back.excess()] == expected)
        leads.store.partition("a").append(b"more")
        leads.store.create_topic("later")
        until(lambda: "later" in back.store.topics())
        leads.store.delete_topic("a")
        until(lambda: "a" not in back.store.topics())
        assert len(list(back.excess())) == len(expected), "a deletion by the primary is no excess"
    assert len(list(segstore.cut_records(old))) == len(expected)
    assert segstore.check(old) == []


def test_a_copy_is_told_where_a_crash_came_before_it_was_noted(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "p"
    with Broker(old, topics=["a"]) as broker:
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        broker.store.partition("a").append(b"alone")
    segstore.promote(directory, "dead").close()
    monkeypatch.setattr(segstore.Standby, "_log_cut_records", lambda *_: None)  # the crash comes before it
    with Broker(directory) as leads, followed(leads, old) as back:
        # Nothing is appended behind the cut: only a whole fetch tells how far the leader shows its log.
        assert back.wait_caught_up(LIMIT)
        assert back.total_lag() == (0, 0, 0)
    assert [told.value for told in segstore.cut_records(old)] == [b"alone"]


def test_a_crash_in_a_promotion_is_completed(tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        role = ROLE.read(Files(), str(directory))
        assert role is not None
        vars_ = {**vars(role), "promoting": 77, "old": "dead"}
        ROLE.write(Files(), str(directory), type(role)(**vars_))
        with pytest.raises(InvalidArgumentError, match="promotion was begun"):
            followed(broker, directory)
    with segstore.promote(directory, "reachable") as store:
        store.partition("a").append(b"2")
        assert store.partition("a").read(0).leader_epochs.tolist() == [0, 77]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: segstore.open(path).close(), InvalidArgumentError),
        (lambda path: (path.mkdir(), (path / "x").write_text("")), InvalidArgumentError),
    ],
    ids=["a store of its own", "other files"],
)
def test_other_directories_are_refused(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception]
) -> None:
    directory = tmp_path / "d"
    make(directory)
    before = sorted(str(path) for path in directory.rglob("*"))
    with Broker(topics=["a"]) as broker, pytest.raises(error):
        followed(broker, directory)
    assert sorted(str(path) for path in directory.rglob("*")) == before


def test_a_directory_that_has_taken_over_does_not_follow_its_old_primary(
    tmp_path: Path, directory: Path
) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        with followed(broker, directory) as standby:
            assert standby.wait_caught_up(LIMIT)
        segstore.promote(directory, "dead").close()
        with pytest.raises(StaleDirectoryError):
            followed(broker, directory)


def test_a_lease_promotes_and_a_low_token_is_refused(tmp_path: Path, directory: Path) -> None:
    tokens: list[int | None] = [None]
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        standby = followed(broker, directory, lease=lambda: tokens[0])
        assert standby.wait_caught_up(LIMIT)
        tokens[0] = 0
        until(lambda: "fencing token 0" in str(standby.lease_error))
        assert standby.promoted is None
        tokens[0] = 900
        until(lambda: standby.promoted is not None)
        assert standby.promoted is not None
        with standby.promoted as store:
            store.partition("a").append(b"2")
            assert store.partition("a").read(0).leader_epochs.tolist() == [0, 900]


def test_nobody_answers(directory: Path) -> None:
    with pytest.raises(DisconnectedError):
        followed("127.0.0.1:1", directory)
    shutil.rmtree(directory, ignore_errors=True)
    segstore.open(directory).close()


def test_sync_waits_for_the_standby(tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        with followed(broker, directory, mode="sync") as standby:
            assert standby.wait_caught_up(LIMIT)
            with segstore.Producer(broker.store, acks="all") as producer:
                assert producer.send("a", b"2").get(timeout=PATIENCE).offset == 1
            logs = standby._control.fetchers.logs.values()
            assert [each.replica.log_end_offset for each in logs if each.topic == "a"] == [2]


def test_another_process_takes_the_directory(tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append(b"1")
        standby = followed(broker, directory)
        assert standby.wait_caught_up(LIMIT)
        result = run_segstore("promote", str(directory), "--old", "dead", "--yes")
        assert result.returncode == 0, result.stderr
        assert standby.wait(LIMIT)
    with segstore.open(directory) as store:
        assert values(store, "a") == [b"1"]


def test_a_promoted_store_tells_the_old_primary_that_was_said_to_be_dead(
    tmp_path: Path, directory: Path
) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        log = broker.store.partition("a")
        log.append(b"1")
        standby = followed(broker, directory)
        assert standby.wait_caught_up(LIMIT)
        with standby.promote("dead") as store, segstore.serve(store, port=0):
            until(lambda: getattr(PROMOTION.read(Files(), str(directory)), "told", False))
            with pytest.raises(DemotedError):
                log.append(b"2")


def run_segstore(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "segstore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_standby_that_connects_anew_behind_the_fence_takes_over(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        standby = followed(broker, directory)
        assert standby.wait_caught_up(LIMIT)
        demote = Primary.demote

        def demoted(primary: Primary, fence: Fence) -> None:
            demote(primary, fence)
            standby._control._on_connection = -1  # as when its connection has ended: it registers anew

        monkeypatch.setattr(Primary, "demote", demoted)
        standby.promote("reachable", timeout_ms=LIMIT / 4).close()
