"""A source, or a primary, that was restored from an older copy and went on: its follower notices before it
takes a record, cuts what the other side has not got, and has the same records in the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compaction import clean
from descriptors import allowed
from either_follower import await_same, catch_up, follow
from stores import as_the_same, killed, records
from waiting import PATIENCE, until

import segstore
from segstore.replica_fetcher import compared_fetch
from segstore.server.apis import Api
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

KINDS = ("mirror", "standby")
SMALL = {"segment.bytes": 3000}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "file.delete.delay.ms": 0}
FORKS = (
    *((100, 100, 0), (100, 100, 50), (100, 100, 100), (100, 100, 150)),
    *((100, 5, 700), (0, 40, 60), (400, 1500, 1600)),
)
"""Records before the copy, those of the original behind it, and those of the copy."""


def singles(store: segstore.Store, n: int, what: str) -> None:
    for i in range(n):
        store.partition("t").append(b"%s %d" % (what.encode(), i), key=b"k%d" % (i % 7))


def batches(store: segstore.Store, n: int, what: str) -> None:
    values = [b"%s %d" % (what.encode(), i) * 10 for i in range(n)]
    store.partition("t").append_batch(values, batch_bytes=900, compression="zstd")


def transactions(store: segstore.Store, n: int, what: str) -> None:
    with segstore.Producer(store, transactional_id="t") as producer:
        producer.init_transactions()
        for i in range(0, n, 5):
            producer.begin_transaction()
            for j in range(4):  # and a marker
                producer.send("t", b"%s %d" % (what.encode(), i + j), partition=0)
            producer.flush()
            (producer.abort_transaction if i % 3 == 1 else producer.commit_transaction)()


APPENDS: dict[str, Callable[[segstore.Store, int, str], None]] = {
    "singles": singles,
    "batches": batches,
    "transactions": transactions,
}
COPIES: dict[str, Callable[[Path], Path]] = {
    "a store of ours": lambda path: path,
    "a broker of Kafka's, which begins no epoch": as_the_same,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("how", APPENDS)
@pytest.mark.parametrize(("before", "after", "more"), FORKS)
def test_what_the_restored_side_has_not_got_is_cut(
    tmp_path: Path, store_dir: Path, kind: str, copy: str, how: str, before: int, after: int, more: int
) -> None:
    source, append = tmp_path / "p", APPENDS[how]
    with Broker(source) as broker:
        broker.store.create_topic("t", config=SMALL)
        append(broker.store, before, "before")
    older = COPIES[copy](Path(shutil.copytree(source, tmp_path / "older")))
    with Broker(source) as broker:
        append(broker.store, after, "lost")
        catch_up(kind, broker, store_dir)
        lost = [each for each in records(broker.store.partition("t")) if each.offset >= before]
    with Broker(older) as broker:
        append(broker.store, more, "new")
        catch_up(kind, broker, store_dir)
        append(broker.store, 20, "later")
        catch_up(kind, broker, store_dir)
    assert segstore.check(store_dir) == []
    cut = [(each.offset, each.value) for each in segstore.cut_records(store_dir)]
    assert cut == [(each.offset, each.value) for each in lost]


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_is_restored_twice(tmp_path: Path, store_dir: Path, kind: str) -> None:
    """Both went on, and are told apart although both follow the same original."""
    source = tmp_path / "p"
    with Broker(source) as broker:
        broker.store.create_topic("t", config=SMALL)
        singles(broker.store, 30, "before")
    for number in range(3):
        with Broker(Path(shutil.copytree(source, tmp_path / str(number)))) as broker:
            singles(broker.store, 40 + number, f"restored {number}")
            catch_up(kind, broker, store_dir)
    assert len(list(segstore.cut_records(store_dir))) == 40 + 41


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_copy_that_is_restored_twice(tmp_path: Path, store_dir: Path, kind: str) -> None:
    """Each recovery of what counts as the same store begins the same leader epoch, which tells nothing."""
    source = tmp_path / "p"
    with Broker(source) as broker:
        broker.store.create_topic("t", config=SMALL)
        singles(broker.store, 30, "before")
        killed(source, tmp_path / "killed")
    for number in range(3):
        with Broker(killed(tmp_path / "killed", tmp_path / str(number))) as broker:
            singles(broker.store, 40 + number, f"restored {number}")
            assert broker.store.partition("t").leader_epoch == 1
            catch_up(kind, broker, store_dir)
    assert len(list(segstore.cut_records(store_dir))) == 40 + 41


@pytest.mark.parametrize("kind", KINDS)
def test_equal_records_behind_the_fork_hide_no_others(tmp_path: Path, store_dir: Path, kind: str) -> None:
    """Records that came again, at the same offsets and with the same timestamps, are the last ones."""
    source = tmp_path / "p"

    def heartbeats(store: segstore.Store) -> None:
        for i in range(4):
            store.partition("t").append(b"alive", timestamp=17 + i)

    with Broker(source) as broker:
        broker.store.create_topic("t", config=SMALL)
        singles(broker.store, 30, "before")
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    for path, what in ((source, "lost"), (older, "new")):
        with Broker(path) as broker:
            singles(broker.store, 40, what)
            heartbeats(broker.store)
            catch_up(kind, broker, store_dir)


def of_compacted(path: Path) -> Broker:
    broker = Broker(path, log_cleaner_threads=0)
    if "t" not in broker.store.topics():
        broker.store.create_topic("t", config=COMPACTED)
    return broker


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [0, 3, 300])
def test_compaction_at_the_source_is_no_difference(
    tmp_path: Path, store_dir: Path, kind: str, more: int
) -> None:
    with of_compacted(tmp_path / "p") as broker:
        singles(broker.store, 200, "before")
        catch_up(kind, broker, store_dir)
        singles(broker.store, more, "later")
        clean(broker.store)
        catch_up_compacted(kind, broker, store_dir)
    assert list(segstore.cut_records(store_dir)) == []


def catch_up_compacted(kind: str, broker: Broker, directory: Path) -> None:
    """Logs that were compacted apart have the same last record of each key."""
    log = broker.store.partition("t")
    with follow(kind, broker, directory) as running:
        until(lambda: running.store.partition("t").end_offset == log.end_offset)
        assert last(running.store.partition("t")) == last(log)


def last(log: segstore.PartitionLog) -> dict[bytes | None, segstore.Record]:
    return {record.key: record for record in records(log)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", COPIES)
def test_a_compacted_source_that_was_restored(tmp_path: Path, store_dir: Path, kind: str, copy: str) -> None:
    """It has the last records of some keys where this log ends, and none of those below."""
    with of_compacted(tmp_path / "p") as broker:
        singles(broker.store, 100, "before")
    older = COPIES[copy](Path(shutil.copytree(tmp_path / "p", tmp_path / "older")))
    with of_compacted(tmp_path / "p") as broker:
        singles(broker.store, 200, "lost")
        catch_up(kind, broker, store_dir)
    with of_compacted(older) as broker:
        singles(broker.store, 150, "new")
        for _ in range(200):
            broker.store.partition("t").append(b"newer", key=b"k0")
        clean(broker.store)
        catch_up_compacted(kind, broker, store_dir)
    cut = {each.offset for each in segstore.cut_records(store_dir)}
    assert cut >= set(range(100, 300)), "and those below, if nothing says that the other side had them"
    assert cut == set(range(100, 300)) or COPIES[copy] is as_the_same


@pytest.mark.parametrize("kind", KINDS)
def test_retention_at_the_source_is_no_difference(tmp_path: Path, store_dir: Path, kind: str) -> None:
    for before in (90, 97, 100, 130):
        with Broker(tmp_path / f"p{before}") as broker:
            broker.store.create_topic("t", config=SMALL)
            singles(broker.store, 100, "before")
            catch_up(kind, broker, store_dir)
            singles(broker.store, 50, "later")
            broker.store.partition("t").delete_records(before)
            catch_up(kind, broker, store_dir)
        assert list(segstore.cut_records(store_dir)) == []
        shutil.rmtree(store_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched_twice_from_a_source_that_is_the_same(
    tmp_path: Path, store_dir: Path, kind: str
) -> None:
    """One fetch more for each connection: it asks for a few offsets, of all partitions together."""
    with Broker(tmp_path / "p") as broker:
        broker.store.create_topic("t", 20, config=SMALL)
        for number in range(20):
            broker.store.partition("t", number).append_batch([b"x" * 100] * 200, batch_bytes=400)
        with follow(kind, broker, store_dir) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
        broker.clear()
        with follow(kind, broker, store_dir) as running:
            assert running.wait_caught_up(PATIENCE * 1000)
        fetches = [each.fields["topics"] for each in broker.requests if each.api == Api.FETCH]
    asked = [[part["fetch_offset"] for topic in each for part in topic["partitions"]] for each in fetches]
    assert asked[:2] == [[192] * 20, [200] * 20]
    assert all(offset == 200 for each in asked[2:] for offset in each)


@pytest.mark.parametrize("kind", KINDS)
def test_more_restored_logs_than_one_request_compares(tmp_path: Path, store_dir: Path, kind: str) -> None:
    """Each of them waits for an ordinary fetch, which says that the leader's log is shorter."""
    source, count = tmp_path / "p", 2 * compared_fetch.TOGETHER + 1

    def fill(broker: Broker, value: bytes, n: int) -> None:
        for number in range(count):
            broker.store.partition("t", number).append_batch([value] * n)

    def await_ends(running: Any, end: int) -> None:
        until(lambda: "t" in running.store.topics())
        until(lambda: all(running.store.partition("t", n).end_offset == end for n in range(count)))

    with Broker(source) as broker:
        broker.store.create_topic("t", count)
        fill(broker, b"before", 10)
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    with allowed(8 * count), Broker(source) as broker:
        fill(broker, b"lost", 30)
        with follow(kind, broker, store_dir) as running:
            await_ends(running, 40)
    with allowed(8 * count), Broker(older) as broker:
        fill(broker, b"new", 5)
        with follow(kind, broker, store_dir) as running:
            await_ends(running, 15)
            for number in range(count):
                assert list(records(running.store.partition("t", number))) == list(
                    records(broker.store.partition("t", number))
                )


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_cut_is_compared_anew(tmp_path: Path, store_dir: Path, kind: str) -> None:
    """Without another connection or leader epoch: a source that tells no epochs may have led anew between."""
    with Broker(tmp_path / "p") as broker:
        broker.store.create_topic("t", config=SMALL)
        singles(broker.store, 100, "before")
        with follow(kind, broker, store_dir) as running:
            await_same(running, broker)
            (followed,) = (each for each in running._control.fetchers.logs.values() if each.topic == "t")
            broker.clear()
            assert followed.out_of_range(followed.ask(), 0, 90)
            await_same(running, broker)
        fetches = [each.fields["topics"] for each in broker.requests if each.api == Api.FETCH]
    asked = [part["fetch_offset"] for each in fetches for topic in each for part in topic["partitions"]]
    assert 82 in asked, "from some offsets before the cut on"
