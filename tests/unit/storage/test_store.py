"""Topics: made, listed, altered, extended, deleted; a broker's directories; what open and close leave."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from faults import MUTATING, FailingFiles
from partitions import GOLDEN
from stores import killed, logs, tree, values
from waiting import until

import segstore
from segstore import ConfigError, StorageError, StoreClosedError, UnknownTopicOrPartitionError


def test_create_and_list(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        assert store.topics() == {}
        made = store.create_topic("b", 3, {"compression.type": "zstd", "segment.bytes": "1048576"})
        store.create_topic("a")
        assert list(store.topics()) == ["a", "b"]
        assert store.topics()["b"] == made
        assert made.partition_ids == (0, 1, 2)
        assert made.config == {"compression.type": "zstd", "segment.bytes": 1048576}
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode) as store:
            assert list(store.topics()) == ["a", "b"]
            assert store.topics()["b"] == made


@pytest.mark.parametrize("name", ["x" * 249, "a", "A.b_c-9", "a-0", "t.json", "-", "__mine", "con"])
def test_topic_names(store_dir: Path, name: str) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic(name, 2)
        store.partition(name, 1).append(b"x")
    with segstore.open(store_dir) as store:
        assert list(store.topics()) == [name]
        assert values(store.partition(name, 1)) == [b"x"]
        store.delete_topic(name)
        assert store.topics() == {}
    assert [p.name for p in store_dir.iterdir() if p.name.startswith(name[:1])] in ([], [".lock"])


def test_names_that_look_alike_stay_apart(store_dir: Path) -> None:
    topics = ["a", "a-0", "a-0-0", "a.b", "a.b-0"]
    with segstore.open(store_dir) as store:
        for name in topics:
            store.create_topic(name, 2)
            store.partition(name, 1).append(name.encode())
        store.delete_topic("a-0")
    with segstore.open(store_dir) as store:
        assert list(store.topics()) == sorted(set(topics) - {"a-0"})
        for name in store.topics():
            assert values(store.partition(name, 1)) == [name.encode()]


def test_alter(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 500, "retention.ms": 7})
        log = store.partition("t")
        store.alter_topic("t", {"segment.bytes": None, "compression.type": "gzip"})
        assert store.topics()["t"].config == {"retention.ms": 7, "compression.type": "gzip"}
        log.append_batch([bytes(100)] * 50, batch_bytes=100)
        assert len(logs(store_dir)) == 1
        assert {a & 7 for a in log.read(0).batches["attributes"].tolist()} == {1}
        store.alter_topic("t", {"segment.bytes": 500})
        log.append(b"")
        assert len(logs(store_dir)) == 2
        with pytest.raises(ConfigError):
            store.alter_topic("t", {"segment.bytes": 600, "nope": 1})
        assert store.topics()["t"].config["segment.bytes"] == 500
    with segstore.open(store_dir) as store:
        assert store.topics()["t"].config == {
            "segment.bytes": 500, "retention.ms": 7, "compression.type": "gzip"
        }  # fmt: skip


def test_add_partitions(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        before = store.create_topic("t", 2, {"retention.ms": 7})
        store.partition("t", 1).append(b"one")
        after = store.add_partitions("t", 4)
        assert (after.partition_ids, after.config, after.topic_id) == (
            (0, 1, 2, 3), before.config, before.topic_id
        )  # fmt: skip
        assert store.partition("t", 3).append(b"three") == 0
    with segstore.open(store_dir) as store:
        assert [values(store.partition("t", p)) for p in range(4)] == [[], [b"one"], [], [b"three"]]


def test_a_topic_whose_deletion_could_not_begin_stays(tmp_path: Path) -> None:
    """What is appended to it then is not deleted by the next open."""
    for nth in range(1, 100):
        path = tmp_path / f"store-{nth}"
        files = FailingFiles(MUTATING, OSError(errno.EIO, "Input/output error"), 0)
        with segstore.open(path, files=files) as store:
            store.create_topic("t")
            files.arm(nth)
            with suppress(StorageError):
                store.delete_topic("t")
            files.arm(0)
            there = "t" in store.topics()
            if there:
                store.partition("t").append(b"acknowledged")
        with segstore.open(path) as store:
            assert ("t" in store.topics()) == there, f"call {nth}"
            assert not there or values(store.partition("t")) == [b"acknowledged"]
        assert segstore.check(path) == []
        if not there:
            break
    assert nth > 3


def test_what_a_deletion_has_left_is_not_the_next_topics(tmp_path: Path) -> None:
    for nth in range(1, 100):
        path = tmp_path / f"store-{nth}"
        files = FailingFiles(MUTATING, OSError(errno.EIO, "Input/output error"), 0)
        with segstore.open(path, files=files) as store:
            store.create_topic("t", 3)
            store.partition("t", 2).append(b"old")
            files.arm(nth)
            with suppress(StorageError):
                store.delete_topic("t")
            failed = files.hits
            files.arm(0)
            if "t" not in store.topics():
                store.create_topic("t", 3)
                assert [values(store.partition("t", p)) for p in range(3)] == [[]] * 3, f"call {nth}"
        segstore.open(path).close()
        assert segstore.check(path) == []
        if not failed:
            break
    assert nth > 10


def test_no_topic_and_no_partition_is_made_in_part(store_dir: Path) -> None:
    """Whatever call the disk has no room for: all of them, or none and nothing of them on disk."""
    files = FailingFiles(MUTATING, OSError(errno.ENOSPC, "No space left on device"), 0)
    with segstore.open(store_dir, files=files) as store:
        for nth in range(1, 100):
            name, other = f"t{nth}", f"u{nth}"
            files.arm(nth)
            with suppress(StorageError):
                store.create_topic(other)
            assert len(list(store_dir.glob(f"{other}-*"))) == (other in store.topics())
            files.arm(0)
            store.create_topic(name)
            files.arm(nth)
            with suppress(StorageError):
                store.add_partitions(name, 3)
            failed = files.hits
            files.arm(0)
            there = [p.name for p in store_dir.glob(f"{name}-*")]
            assert len(there) == store.topics()[name].partitions == (1 if failed else 3)
            if not failed:
                break
        else:
            raise AssertionError("no end")
        assert nth > 10


def test_a_log_that_is_held_is_not_that_of_the_next_topic(tmp_path: Path) -> None:
    """Whose deletion failed midway: it was given out for the topic that was made anew."""
    files = FailingFiles({"rename"}, OSError(errno.EIO, "injected"), nth=0)
    with segstore.open(tmp_path / "store", files=files) as store:
        store.create_topic("t")
        held = store.partition("t")
        held.append(b"old")
        files.arm(3)  # the settings say that it is deleted, twice; its directory stays
        with pytest.raises(StorageError):
            store.delete_topic("t")
        store.create_topic("t")
        assert store.partition("t").append(b"new") == 0
        with pytest.raises(StoreClosedError):
            held.append(b"old")


def test_delete_with_open_logs(store_dir: Path) -> None:
    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as reader:
        store.create_topic("t")
        log, seen = store.partition("t"), reader.partition("t")
        log.append(b"x")
        records = [log.read(0), seen.read(0)]
        store.delete_topic("t")
        assert [list(r.values) for r in records] == [[b"x"]] * 2
        for use in (
            lambda: log.append(b"y"), lambda: log.read(0), lambda: log.end_offset, lambda: seen.read(0),
            lambda: seen.end_offset, lambda: log.delete_records(1), log.flush,
        ):  # fmt: skip
            with pytest.raises(StoreClosedError):
                use()
        for side in (store, reader):
            with pytest.raises(UnknownTopicOrPartitionError):
                side.partition("t")
        assert not [p for p in store_dir.iterdir() if p.is_dir() and p.name != ".segstore"]


def test_a_topic_made_anew_begins_empty_for_all(store_dir: Path) -> None:
    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as reader:
        for i in range(3):
            store.create_topic("t", 2)
            old, seen = store.partition("t"), reader.partition("t")
            assert (old.end_offset, seen.end_offset) == (0, 0)
            old.append(b"%d" % i)
            assert [values(old), values(seen)] == [[b"%d" % i]] * 2
            if i < 2:
                store.delete_topic("t")
                store.create_topic("t")
                with pytest.raises(StoreClosedError):
                    seen.read(0)
                with pytest.raises(StoreClosedError):
                    old.append(b"lost")
                store.delete_topic("t")
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"2"]


def test_delete_records_stays(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 500})
        log = store.partition("t")
        log.append_batch([b"%d" % i * 50 for i in range(10)], batch_bytes=1)
        assert log.delete_records(7) == 7
        assert log.delete_records(3) == 7
        assert (log.start_offset, log.read(7).offsets[0]) == (7, 7)
        first, second, *_ = [int(p.stem) for p in logs(store_dir)]
        assert first <= 7 < second
    with segstore.open(store_dir) as store:
        assert store.partition("t").start_offset == 7
        assert store.partition("t").delete_records(-1) == 10
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert (log.start_offset, log.end_offset, log.append(b"")) == (10, 10, 10)


def test_an_unclean_open_begins_a_new_epoch(tmp_path: Path, store_dir: Path) -> None:
    with segstore.open(tmp_path / "live") as store:
        store.create_topic("t")
        store.partition("t").append(b"0")
        killed(tmp_path / "live", store_dir)
    for clean in (True, False):
        with segstore.open(store_dir) as store:
            store.partition("t").append(b"")
            epochs = store.partition("t").read(0).batches["leader_epoch"].tolist()
        assert epochs == ([0, 1] if clean else [0, 1, 1])


def test_a_clean_open_and_close_changes_nothing_of_a_partition(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 500})
        store.partition("t").append_batch([bytes(100)] * 10, batch_bytes=1)
    before = tree(store_dir / "t-0")
    for use in (False, True):
        with segstore.open(store_dir) as store:
            if use:
                values(store.partition("t"))
            assert store.recovered == ()
        assert tree(store_dir / "t-0") == before


# --- a broker's directories --------------------------------------------------------------------


def broker(path: Path, *partitions: str) -> Path:
    for name in partitions:
        shutil.copytree(GOLDEN / "clean" / name, path / name)
    return path


def test_settings_for_a_broker_topic_of_which_one_partition_is_there(store_dir: Path) -> None:
    broker(store_dir, "flights-none-1")
    with segstore.open(store_dir) as store:
        topic = store.alter_topic("flights-none", {"retention.ms": 5})
        assert (topic.partition_ids, topic.ours) == ((1,), True)
        end = store.partition("flights-none", 1).end_offset
    with segstore.open(store_dir) as store:
        assert store.topics()["flights-none"] == topic
        assert store.partition("flights-none", 1).append(b"x") == end
    assert not (store_dir / "flights-none-0").exists()


@pytest.mark.parametrize("metadata", ["empty", "missing"])
def test_a_broker_partition_without_topic_id(store_dir: Path, metadata: str) -> None:
    broker(store_dir, "edge-0")
    path = store_dir / "edge-0" / "partition.metadata"
    path.unlink()
    if metadata == "empty":
        path.touch()
    with segstore.open(store_dir) as store:
        assert store.topics()["edge"].topic_id == ""
        store.partition("edge").append(b"x")
        store.alter_topic("edge", {"retention.ms": 5})
    with segstore.open(store_dir) as store:
        assert store.topics()["edge"].config == {"retention.ms": 5}


def test_closed_stores_say_so(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    log = store.partition("t")
    log.append(b"x")
    store.close()
    store.close()
    for use in (
        lambda: log.append(b""), lambda: log.read(0), store.topics, lambda: store.partition("t"),
        lambda: store.create_topic("u"), store.flush, log.flush,
    ):  # fmt: skip
        with pytest.raises(StoreClosedError):
            use()
    assert not os.path.exists(store_dir / "u-0")


def test_intervals_of_any_length(store_dir: Path) -> None:
    with segstore.open(store_dir, config={"log.flush.offset.checkpoint.interval.ms": 2**63 - 1}) as store:
        store.create_topic("t", config={"flush.ms": 2**63 - 2})
        store.partition("t").append(b"x")
        store.alter_topic("t", {"flush.ms": 0})
        store.partition("t").append(b"y")
        assert until(store.context.scheduler._running.locked)
