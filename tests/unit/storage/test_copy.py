"""`segstore.copy`: a snapshot of one moment, beside a live writer; it is complete or not there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from background import caught_up
from cli import ok, run
from partitions import Partition, broker_partitions
from stores import START_MS, Clock, committed_values, in_child, records, stamps, tree, value_of, values

import segstore
from segstore.errors import StorageError
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.context import wall_clock
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction

# One of each root: all that lies in it is copied.
WHOLE_ROOTS = [source for source in broker_partitions() if source.path.name == "flights-txn-0"]
SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    """Where a copy goes; it must be sound."""
    yield tmp_path / "copy"
    if (tmp_path / "copy").exists():
        assert segstore.check(tmp_path / "copy") == []
        assert not (tmp_path / "copy.copying").exists()


def fill(store: segstore.Store, topic: str, n: int, partition: int = 0) -> None:
    for i in range(n):
        store.partition(topic, partition).append(value_of(i, 100), key=b"k%d" % i)


@pytest.mark.kind("kills")
@pytest.mark.parametrize("state", ["open", "closed", "killed"])
def test_a_copy_holds_what_the_store_holds(state: str, store_dir: Path, copied: Path) -> None:
    store = segstore.open(store_dir, clock=Clock())
    store.create_topic("t", 2, {**SMALL, "compression.type": "zstd"})
    store.create_topic("empty", 3)
    fill(store, "t", 40)
    fill(store, "t", 3, 1)
    store.partition("t").delete_records(12)
    caught_up(store)
    if state == "closed":
        store.close()
    before = stamps(store_dir)
    source = store_dir
    if state == "killed":
        source = store_dir.parent / "killed"
        in_child(lambda tell: __import__("shutil").copytree(store_dir, source))
        (source / ".lock").unlink()
    made = segstore.copy(source, copied)
    assert stamps(store_dir) == before
    assert made.partitions == 5
    with segstore.open(copied) as copy:
        assert {n: (t.topic_id, t.config) for n, t in copy.topics().items()} == {
            n: (t.topic_id, t.config) for n, t in segstore.open(store_dir, mode="r").topics().items()
        }
        log = copy.partition("t")
        assert (log.start_offset, log.end_offset) == (12, 40)
        assert values(log) == [value_of(i, 100) for i in range(12, 40)]
        assert log.append(b"goes on") == 40
        assert values(copy.partition("t", 1)) == [value_of(i, 100) for i in range(3)]
    store.close()


def test_what_comes_after_the_moment_is_not_in_the_copy(store_dir: Path, copied: Path) -> None:
    with segstore.open(store_dir) as store:
        for name in ("a", "b"):
            store.create_topic(name, config=SMALL)
            fill(store, name, 10)

        def more(_: int) -> None:  # while "a" is copied, both grow
            fill(store, "a", 8)
            fill(store, "b", 8)

        segstore.copy(store_dir, copied, progress=more)
        assert store.partition("b").end_offset > 10
    with segstore.open(copied) as copy:
        assert [copy.partition(name).end_offset for name in ("a", "b")] == [10, 10]


def test_a_transaction_is_in_all_of_its_partitions_or_in_none(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2)
        logs = [store.partition("t", n) for n in range(2)]
        done = threading.Event()

        def commit() -> None:
            at = 0
            while not done.is_set():
                for log in logs:
                    template = Template(TRANSACTIONAL_FLAG, producer_id=1, producer_epoch=0, base_sequence=at)
                    append_batches(log, Columns([b"%d" % at]), template=template)
                end_transaction(logs, 1, 0, 0, True)
                at += 1

        writer = threading.Thread(target=commit)
        writer.start()
        try:
            for i in range(10):
                segstore.copy(store_dir, tmp_path / f"copy-{i}")
        finally:
            done.set()
            writer.join()
    for i in range(10):
        with segstore.open(tmp_path / f"copy-{i}", mode="r") as copy:
            found = [committed_values(copy.partition("t", n)) for n in range(2)]
            assert found[0] == found[1]
        assert segstore.check(tmp_path / f"copy-{i}") == []


def test_producer_state_goes_along(store_dir: Path, copied: Path) -> None:
    template = Template(producer_id=9, producer_epoch=2, base_sequence=0)
    once = Columns([b"once"], timestamps=[wall_clock()])  # an old producer would be forgotten
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        append_batches(store.partition("t"), once, template=template)
        segstore.copy(store_dir, copied)
    with segstore.open(copied) as copy:
        again = append_batches(
            copy.partition("t"), Columns([b"once"], timestamps=[START_MS]), template=template
        )
        assert (again.first, again.duplicate) == (0, True)


def test_segments_may_go_meanwhile(store_dir: Path, copied: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=SMALL)
        fill(store, "t", 40)
        log, told = store.partition("t"), []

        def drop(size: int) -> None:
            told.append(size)
            if len(told) == 2:
                log.delete_records(30)

        segstore.copy(store_dir, copied, progress=drop)
    with segstore.open(copied) as copy:
        assert copy.partition("t").start_offset == 30
        assert values(copy.partition("t")) == [value_of(i, 100) for i in range(30, 40)]


@pytest.mark.parametrize("broker_partition", WHOLE_ROOTS, ids=lambda s: s.id, indirect=True)
def test_a_broker_s_directory(broker_partition: Partition, copied: Path) -> None:
    before = tree(broker_partition.root)
    segstore.copy(broker_partition.root, copied)
    assert tree(broker_partition.root) == before
    with segstore.open(copied, mode="r") as copy:
        log = copy.partition(broker_partition.topic, broker_partition.index)
        assert [r.offset for r in records(log)] == [e.offset for e in broker_partition.expected()]
        assert not copy.topics()[broker_partition.topic].ours


def test_a_failed_copy_leaves_nothing_and_the_next_one_works(store_dir: Path, copied: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=SMALL)
        fill(store, "t", 20)

        def fail(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            segstore.copy(store_dir, copied, progress=fail)
        assert not list(store_dir.parent.glob("copy*"))
        (store_dir.parent / "copy.copying").mkdir()
        (store_dir.parent / "copy.copying" / "left").write_text("by a kill")
        copied.mkdir()  # an empty directory may be there
        assert segstore.copy(store_dir, copied).bytes > 0


def test_nothing_is_overwritten(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir):
        with pytest.raises(StorageError, match="exists already"):
            segstore.copy(store_dir, store_dir)
        (tmp_path / "file").mkdir()
        (tmp_path / "file" / "mine").write_text("stays")
        with pytest.raises(StorageError, match="exists already"):
            segstore.copy(store_dir, tmp_path / "file")
    assert (tmp_path / "file" / "mine").read_text() == "stays"
    with pytest.raises(StorageError):
        segstore.copy(tmp_path / "missing", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("where", ["inner", ".segstore/inner", "t-0/inner", "u-0", "link/u-0"])
def test_a_store_is_not_copied_into_itself(where: str, store_dir: Path, tmp_path: Path) -> None:
    """It would be a topic of it, or stay for ever."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    if where.startswith("link"):
        (tmp_path / "link").symlink_to(store_dir)
        target = tmp_path / where
    else:
        target = store_dir / where
    with pytest.raises(segstore.StorageError, match="into itself"):
        segstore.copy(store_dir, target)
    assert not target.exists()
    with segstore.open(store_dir, "r") as store:
        assert list(store.topics()) == ["t"]


def test_the_command(store_dir: Path, copied: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        assert "1 partition, 1 segment" in ok("copy", copied, "-s", store_dir).stderr
        again = run("copy", copied, "-s", store_dir)
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert run("copy", "-s", store_dir).exit_code == 2
