"""Disks that fail: a failed sync, a full disk, each call of each operation once."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from background import caught_up
from faults import FailingFiles
from faulty.counts import record
from stores import (
    Clock,
    logs,
    value_of,
    values,
)
from waiting import until

import segstore
from segstore import StorageError

pytestmark = pytest.mark.kind("faults")

# --- fsync ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["append", "flush", "store.flush", "close"])
def test_a_failed_fsync_fences_and_is_not_retried(store_dir: Path, how: str) -> None:
    files = FailingFiles({"sync"}, OSError(errno.EIO, "io"), nth=0)
    store = segstore.open(store_dir, files=files)
    store.create_topic("t", config={"flush.messages": 1} if how == "append" else {})
    part = store.partition("t")
    part.append(b"acknowledged")
    part.flush()
    if how != "append":
        part.append(b"not synced")
    files.arm(1)
    what: Callable[[], object] = {
        "append": lambda: part.append(b"not synced"),
        "flush": part.flush,
        "store.flush": store.flush,
        "close": store.close,
    }[how]
    with pytest.raises(StorageError) as caught:
        what()
    assert caught.value.errno == errno.EIO
    if how != "close":
        counting = CountingSync(files)
        for again in (part.flush, lambda: part.append(b"later"), store.flush):
            with pytest.raises(StorageError, match="fenced"):
                again()
        assert counting.of_logs == 0
        assert list(part.read(0).values)[:1] == [b"acknowledged"]
        store.close()
    assert not (store_dir / ".kafka_cleanshutdown").exists()
    with segstore.open(store_dir) as store:
        assert values(store.partition("t"))[0] == b"acknowledged"
        assert store.partition("t").append(b"after") == store.recovered[0].end_offset


class CountingSync:
    """Counts syncs of log files from now on."""

    def __init__(self, files: FailingFiles) -> None:
        self.of_logs = 0
        files.arm(1, times=1 << 30)
        files.fault = self._seen

    def _seen(self, name: str, args: tuple) -> None:
        self.of_logs += args[0].path.endswith(".log")


# --- disks that refuse ------------------------------------------------------------------


def append_over_rolls(store: segstore.Store) -> None:
    store.partition("t").append_batch([b"b" * 300] * 6, batch_bytes=300)


def compressed(store: segstore.Store) -> None:
    store.partition("t").append_batch([b"b" * 300] * 6, batch_bytes=300, compression="lz4")


OPERATIONS: dict[str, Callable[[segstore.Store], object]] = {
    "append": lambda store: store.partition("t").append(b"x" * 20),
    "append-roll": append_over_rolls,
    "append-compressed": compressed,
    "flush": lambda store: store.flush(),
    "create": lambda store: store.create_topic("u", 3),
    "alter": lambda store: store.alter_topic("t", {"retention.ms": 5}),
    "add-partitions": lambda store: store.add_partitions("t", 3),
    "delete-records": lambda store: store.partition("t").delete_records(15),
    "delete-topic": lambda store: store.delete_topic("other"),
    "close": lambda store: store.close(),
}


def busy_store(path: Path, files: segstore.files.Files) -> segstore.Store:
    """Topic "t" with 20 records, 10 of them synced, in several segments; and a topic "other"."""
    store = segstore.open(path, files=files, clock=Clock(step=1))
    store.create_topic("t", config={"segment.bytes": 1000})
    store.create_topic("other", 2)
    store.partition("other", 1).append(b"o")
    for i in range(20):
        store.partition("t").append(value_of(i, 60))
        if i == 9:
            store.partition("t").flush()
    caught_up(store)
    return store


def faulty_runs(tmp_path: Path, operation: str, names: set[str], fault: OSError) -> Iterator[tuple]:
    """(store, its path, what was raised) with the first, the second... call of `names` failing."""
    for nth in range(1, 200):
        path = tmp_path / f"{operation}-{nth}"
        files = FailingFiles(names, fault, nth=0)
        store = busy_store(path, files)
        error: BaseException | None = None
        files.arm(nth)
        try:
            OPERATIONS[operation](store)
        except BaseException as raised:
            error = raised
        caught_up(store)
        hit = files.hits
        files.arm(0)
        yield nth, store, path, error
        store.close()
        if not hit:
            return
    raise AssertionError("no end")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("names", "fault"),
    [
        pytest.param({"pwrite", "pwritev", "allocate", "mkdir"}, errno.ENOSPC, id="ENOSPC"),
        pytest.param({"truncate", "open", "rename"}, errno.EIO, id="EIO"),
        pytest.param({"sync", "sync_dir", "unlink", "rmdir"}, errno.EIO, id="EIO-sync-unlink"),
    ],
)
def test_each_call_of_an_operation_may_fail_once(
    tmp_path: Path, operation: str, names: set[str], fault: int
) -> None:
    for nth, store, path, error in faulty_runs(tmp_path, operation, names, OSError(fault, "injected")):
        where = f"call {nth}"
        record("failed calls")
        assert error is None or isinstance(error, StorageError), f"{where}: {error!r}"
        if operation != "close":
            end = check_in_use(store, operation, error, where)
            with suppress(StorageError):  # a sync in the background failed
                store.close()
        with segstore.open(path) as store:
            found = values(store.partition("t"))
            assert store.partition("t").end_offset >= 20, where
            start = store.partition("t").start_offset
            assert found[: 20 - start] == [value_of(i, 60) for i in range(start, 20)], where
            assert operation == "close" or store.partition("t").end_offset >= end
        assert segstore.check(path) == [], where


def check_in_use(store: segstore.Store, operation: str, error: BaseException | None, where: str) -> int:
    """The store goes on, or the partition is fenced: what it shows is what was acknowledged."""
    part = store.partition("t")
    appended = 0 if error or not operation.startswith("append") else {"append": 1}.get(operation, 6)
    assert part.end_offset == 20 + appended, where
    for _ in range(3):
        try:
            part.append(b"after")
        except StorageError as error:
            if "fenced" not in str(error):
                raise
            return part.end_offset
    part.append_batch([b"after" * 100] * 5, batch_bytes=100)
    assert part.end_offset == 20 + appended + 8, where
    return part.end_offset


def test_what_failed_is_not_shown_where_it_cannot_be_cut_off(store_dir: Path) -> None:
    files = FailingFiles({"pwrite", "truncate"}, OSError(errno.EIO, "io"), nth=0)
    store = segstore.open(store_dir, files=files)
    store.create_topic("t")
    part = store.partition("t")
    part.append(b"a")
    files.arm(1, times=10)
    with pytest.raises(StorageError):
        part.append(b"b")
    files.arm(0)
    assert part.end_offset == 1
    with segstore.open(store_dir, mode="r") as reader:
        assert reader.partition("t").end_offset == 1
    with pytest.raises(StorageError, match="fenced"):
        part.append(b"c")
    store.close()
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.parametrize("how", ["one", "batch", "zstd"])
def test_a_full_disk(small_disk: Path, how: str, rng: random.Random) -> None:
    path, given = small_disk / "store", []
    with segstore.open(path) as store:
        store.create_topic("t", config={"segment.bytes": 100_000, "index.interval.bytes": 0})
        part = store.partition("t")

        def fill() -> None:
            while True:
                some = [rng.randbytes(997) for _ in range(1 if how == "one" else 20)]
                if how == "one":
                    part.append(some[0])
                else:
                    part.append_batch(some, batch_bytes=4096, compression="zstd" if how == "zstd" else None)
                given.extend(some)

        with pytest.raises(StorageError) as caught:
            fill()
        assert caught.value.errno == errno.ENOSPC
        assert len(given) > 300
        assert part.end_offset == len(given)
        assert values(part) == given
        with pytest.raises(StorageError):
            part.append_batch([rng.randbytes(1000) for _ in range(1000)])
        assert part.end_offset == len(given)
        subprocess.run(["mount", "-o", "remount,size=3m", str(small_disk)], check=True)
        assert part.append(b"room again") == len(given)
    with segstore.open(path) as store:
        assert values(store.partition("t")) == [*given, b"room again"]
        assert store.recovered == ()
    assert segstore.check(path) == []


def test_a_full_disk_from_the_start(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 8192))
    errors = []
    for i in range(3):
        try:
            with segstore.open(small_disk / "store") as store:
                store.create_topic(f"t{i}", 5)
        except StorageError as error:
            errors.append(error.errno)
    assert set(errors) == {errno.ENOSPC}
    (small_disk / "filler").unlink()
    with segstore.open(small_disk / "store") as store:
        store.create_topic("new", 5)
        store.partition("new", 4).append(b"x")
    assert segstore.check(small_disk / "store") == []


def test_a_short_write_at_the_file_size_limit(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        part = store.partition("t")
        part.append_batch([b"a" * 1000] * 40)
        before = logs(store_dir)[0].read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python ignores SIGXFSZ; the first write is cut short, the one that goes on gets EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100_500, hard))
        try:
            with pytest.raises(StorageError) as caught:
                part.append_batch([b"b" * 1000] * 300)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG
        assert logs(store_dir)[0].read_bytes() == before
        assert part.end_offset == 40
        assert part.append_batch([b"c" * 1000] * 300) == range(40, 340)
        assert values(part) == [b"a" * 1000] * 40 + [b"c" * 1000] * 300


class FullDisk(FailingFiles):
    """Takes `left` more bytes of logs and indexes; `full` then, for everything that needs room."""

    def __init__(self) -> None:
        self.left = 1 << 40
        super().__init__({"pwrite", "allocate"}, self._need, nth=1, times=1 << 40)

    def _need(self, name: str, args: tuple[Any, ...]) -> None:
        self.left -= len(args[1]) if name == "pwrite" else args[2]
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("room", [700, 70_000, 135_000, 200_000, 270_000])
def test_a_full_disk_over_a_roll_is_put_back_once_there_is_room(store_dir: Path, room: int) -> None:
    """Taking the append back needs room for an index of the segment that was sealed: it waits for that."""
    files = FullDisk()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"segment.bytes": 1000, "index.interval.bytes": 0})
        log = store.partition("t")
        for i in range(3):
            log.append(value_of(i, 100))
        files.left = room
        for _ in range(3):
            with pytest.raises(StorageError, match=r"[Rr]oom|No space"):
                log.append_batch([b"x" * 100] * 60, batch_bytes=200)
            assert values(log) == [value_of(i, 100) for i in range(3)]
        files.left = 1 << 40
        assert log.append(value_of(3, 100)) == 3
        assert log.append_batch([value_of(i, 100) for i in range(4, 40)], batch_bytes=200) == range(4, 40)
        assert values(log) == [value_of(i, 100) for i in range(40)]


def test_a_store_that_closes_while_an_append_is_owed_recovers_at_the_next_open(store_dir: Path) -> None:
    files = FullDisk()
    store = segstore.open(store_dir, files=files)
    store.create_topic("t", config={"segment.bytes": 1000, "index.interval.bytes": 0})
    log = store.partition("t")
    log.append(value_of(0, 100))
    files.left = 200_000
    with pytest.raises(StorageError):
        log.append_batch([b"x" * 100] * 60, batch_bytes=200)
    assert not log.partition_for_write().writer.is_whole()
    store.close()
    assert not (store_dir / ".kafka_cleanshutdown").exists()
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [value_of(0, 100)]


def test_a_sync_that_failed_in_the_background_is_told_at_the_latest_by_close(tmp_path: Path) -> None:
    files = FailingFiles({"sync"}, OSError(errno.EIO, "io"), nth=0)
    store = segstore.open(tmp_path / "s", files=files)
    store.create_topic("t", config={"flush.ms": 1})
    files.arm()
    store.partition("t").append(b"x")
    until(lambda: store.partition("t").partition_for_write().flushing.failure is not None)
    with pytest.raises(StorageError) as caught:
        store.close()
    assert caught.value.errno == errno.EIO
