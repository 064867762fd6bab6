"""A full disk: what frees space works on it, an open and a close do. `FullFiles` stands for the file system;
`processes/test_full_file_systems` has real ones.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from full_files import BLOCK, FullFiles
from full_stores import QUIET, fill, filled, noted
from stores import killed, values
from waiting import until

import segstore
from segstore import StorageError
from segstore.files.reserve import SIZE

DISKS = [
    pytest.param({}, id="ENOSPC"),
    pytest.param({"error": errno.EDQUOT}, id="EDQUOT"),
    pytest.param({"renames": True}, id="renames take a block"),
    pytest.param({"greedy": True}, id="others take blocks"),
    pytest.param({"greedy": True, "renames": True}, id="both"),
]


def reserved(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob(".segstore/reserve.*"))


def delete_records(store: segstore.Store) -> None:
    log = store.partition("t")
    assert log.delete_records(log.end_offset - 1) == log.start_offset == 59


def delete_topic(store: segstore.Store) -> None:
    store.delete_topic("t")
    assert "t" not in store.topics()


def sweep(store: segstore.Store) -> None:
    done = {(each.topic, each.partition): each for each in store.sweep()}
    assert {key: each.error for key, each in done.items()} == {("t", 0): None, ("t", 1): None}
    assert all(each.deleted_segments > 2 for each in done.values())


def alter_topic(store: segstore.Store) -> None:
    store.alter_topic("t", {"retention.bytes": 3000})
    sweep(store)


FREEING = [
    pytest.param(delete_records, {}, id="delete_records"),
    pytest.param(delete_topic, {}, id="delete_topic"),
    pytest.param(sweep, {"retention.bytes": 3000}, id="sweep"),
    pytest.param(sweep, {"retention.bytes": 3000, "file.delete.delay.ms": 60_000}, id="sweep, delayed"),
    pytest.param(alter_topic, {}, id="alter_topic"),
]


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize(("free", "config"), FREEING)
def test_space_is_freed_without_space(
    store_dir: Path, free: Callable[[segstore.Store], None], config: dict[str, Any], disk: dict[str, Any]
) -> None:
    files = FullFiles(**disk)
    with filled(store_dir, files, **config) as store:
        before = files.free
        free(store)
        until(lambda: files.free > before)
        assert not list(store_dir.glob("t-*/*.deleted"))
        # As soon as there is room, appends go on in the open store.
        at = store.partition("u").end_offset
        assert store.partition("u").append(b"again") == at
    with segstore.open(store_dir) as again:
        assert values(again.partition("u"))[-1] == b"again"


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_store_on_a_full_disk_opens_is_read_whole_and_closes(
    store_dir: Path, tmp_path: Path, how: str, disk: dict[str, Any]
) -> None:
    store = filled(tmp_path / "live", FullFiles(**disk))
    held = {key: values(store.partition(*key)) for key in [(t, n) for t in "tu" for n in range(2)]}
    if how == "killed":
        killed(tmp_path / "live", store_dir)
        store.close()
    else:
        store.close()
        os.rename(tmp_path / "live", store_dir)
    files = FullFiles(**disk)
    files.fill()
    with segstore.open(store_dir, files=files, config=QUIET) as opened:
        assert {key: values(opened.partition(*key)) for key in held} == held
        delete_topic(opened)
    assert files.refused


def test_a_roll_of_the_only_segment_makes_room_too(store_dir: Path) -> None:
    """Retention by time of a log that has one segment rolls first."""
    files = FullFiles()
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t", config={"retention.ms": 1, "file.delete.delay.ms": 0})
        store.partition("t").append(b"x" * 50_000, timestamp=1000)
        files.fill()
        store.sweep()
        assert (store.partition("t").start_offset, store.sweep_states()["t", 0].error) == (1, None)


def test_without_its_reserve_a_store_opens_and_takes_it_when_there_is_room(store_dir: Path) -> None:
    """As an older segstore's store, or one whose disk was full for long."""
    filled(store_dir, FullFiles()).close()
    assert reserved(store_dir) >= SIZE - 4 * BLOCK
    for path in store_dir.glob(".segstore/reserve.*"):
        path.unlink()
    files = FullFiles()
    files.free = 2
    with segstore.open(store_dir, files=files, config=QUIET):
        assert reserved(store_dir) <= 4 * BLOCK
    segstore.open(store_dir).close()
    assert reserved(store_dir) == SIZE


def test_log_data_takes_nothing_of_the_reserve(store_dir: Path) -> None:
    files = FullFiles()
    with filled(store_dir, files) as store:
        for _ in range(50):
            with pytest.raises(StorageError):
                store.partition("u").append(b"x" * 5000)
        # A piece is lent to the note of the full disk, and is taken again when that has gone.
        assert reserved(store_dir) >= SIZE - 2 * BLOCK
        with pytest.raises(StorageError):
            store.create_topic("new", partitions=10)


def test_a_copy_has_a_reserve_of_its_own_and_no_note(store_dir: Path, tmp_path: Path) -> None:
    with filled(store_dir, FullFiles()) as store:
        noted(store_dir)
        assert segstore.check(store_dir) == []
        segstore.copy(store.path, tmp_path / "copy")
    ours = tmp_path / "copy" / ".segstore"
    assert not (ours / "full").exists()
    assert reserved(tmp_path / "copy") == SIZE


# --- calls of the system that find no room --------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["mkdir", "allocate", "pwrite", "open"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_a_topic_that_has_no_room_is_not_there_and_may_be_made_later(
    store_dir: Path, call: str, nth: int, number: int
) -> None:
    """Its first call, or a later one, finds no room, and all calls after it."""
    files = FailingFiles((call,), OSError(number, os.strerror(number)), nth=0)
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        before = sorted(path.name for path in store_dir.iterdir())
        files.arm(nth, 1 << 30)
        caught: StorageError | None = None
        try:
            store.create_topic("new", partitions=4)
        except StorageError as error:
            caught = error
        assert (caught is not None) == bool(files.hits)
        assert caught is None or (caught.errno, "new" in store.topics()) == (number, False)
        files.arm(0, 0)
        if "new" in store.topics():
            store.delete_topic("new")
        store.create_topic("new", partitions=4)
        for partition in range(4):
            assert store.partition("new", partition).append(b"y") == 0
        assert store.partition("t").append(b"x") == 1
        assert set(before) <= {path.name for path in store_dir.iterdir()}
    assert segstore.check(store_dir) == []


def append_for_ever(log: segstore.PartitionLog) -> None:
    for _ in range(100_000):
        log.append(b"x")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_index_that_has_no_room_to_grow_refuses_the_append_and_it_is_told(
    store_dir: Path, number: int
) -> None:
    files = FailingFiles(("allocate",), OSError(number, os.strerror(number)), nth=0)
    config = {"index.interval.bytes": 1, "segment.bytes": 1 << 28}
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t", config=config)
        log = store.partition("t")
        log.append(b"x")
        files.arm(1, 1 << 30)
        with pytest.raises(StorageError) as caught:
            append_for_ever(log)
        assert caught.value.errno == number
        end = log.end_offset
        assert os.strerror(number) in str(store.stats()[0].error)
        files.arm(0, 0)
        assert log.append(b"y") == end
    assert segstore.check(store_dir) == []


# --- the files of a full disk, damaged ------------------------------------------------------------


def link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": Path.touch,
    "garbage": lambda path: path.write_bytes(b"\xff" * 70_000),
    "a link": link,
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
}


@pytest.mark.parametrize("name", ["reserve.0", "reserve.7", "full"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_the_files_of_a_full_disk_keeps_nothing_from_being_done(
    store_dir: Path, tmp_path: Path, name: str, damage: str
) -> None:
    filled(tmp_path / "before", FullFiles()).close()
    os.rename(tmp_path / "before", store_dir)
    path = store_dir / ".segstore" / name
    path.unlink(missing_ok=True)
    DAMAGES[damage](path)
    assert segstore.check(store_dir) == []
    with segstore.open(store_dir, "r") as reader:
        assert values(reader.partition("t"))
        assert reader.stats()[0].error is None
    files = FullFiles()
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        files.fill()
        with pytest.raises(StorageError):
            fill(store.partition("u"))
        delete_topic(store)
        files.make_room()
        store.partition("u").append(b"there is room")
    assert segstore.check(store_dir) == []
    assert not (store_dir / "elsewhere").exists()


def test_a_reader_leaves_the_reserve_alone(store_dir: Path) -> None:
    files = FullFiles()
    with filled(store_dir, files) as store:
        noted(store_dir)
        held = {path.name: path.stat().st_size for path in store_dir.glob(".segstore/reserve.*")}
        with segstore.open(store_dir, "r", files=files) as reader:
            assert values(reader.partition("t")) == values(store.partition("t"))
            assert reader.stats()[0].error
        assert held == {path.name: path.stat().st_size for path in store_dir.glob(".segstore/reserve.*")}


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["it has no id yet", "it has written before"])
def test_a_producer_shows_a_full_disk_at_once_and_goes_on_when_there_is_room(
    store_dir: Path, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    """KAFKA_STORAGE_ERROR is retriable in Kafka, too: no record fails before delivery_timeout_ms."""
    files = FullFiles()
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t")
        with segstore.Producer(store, retry_backoff_ms=5) as producer:
            if not first:
                producer.send("t", b"x").get(60)
            files.fill()
            futures = [producer.send("t", b"%d" % i * 5000) for i in range(20)]
            try:
                until(lambda: retries(producer) > 3, seconds=20)
                assert not any(future.is_done for future in futures)
                error = str(store.stats()[0].error)
            finally:
                files.make_room()
            assert [future.get(60).offset for future in futures] == [n + (not first) for n in range(20)]
        said = [line for each in caplog.records if "can't be written now" in (line := each.getMessage())]
        assert len(said) == 1
        assert "No space left on device" in said[0]
        assert "No space left on device" in error


def retries(producer: segstore.Producer) -> float:
    return float(producer.metrics()["producer-metrics"]["record-retry-total"])
