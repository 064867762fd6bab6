"""The table of promises (docs/design.md, "Promises"): crashes, damage, full disks; each line by name."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import FailingFiles
from stores import (
    START_MS,
    Clock,
    killed,
    logs,
    value_of,
    values,
    write_topic,
)

import segstore
from segstore import CorruptRecordError, StorageError

BATCHES = [[b"%d-%d" % (i, j) for j in range(3)] for i in range(4)]


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [value for batch in batches for value in batch]


def left_by_a_kill(tmp_path: Path, target: Path, batches: list[list[bytes]], synced: int) -> Path:
    """A store of one segment, killed; the first `synced` of the batches lie below the recovery point."""
    live = tmp_path / "live"
    store = write_topic(live, batches[:synced], close=False)
    store.flush()
    for batch in batches[synced:]:
        store.partition("t").append_batch(batch)
    killed(live, target)
    store.close()
    return logs(target)[0]


def batch_positions(log: Path) -> list[int]:
    """Where each batch begins, and where the last one ends."""
    data, at, found = log.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return [*found, at]


def quarantined(path: Path) -> list[bytes]:
    there = path / ".segstore" / "quarantine"
    return [p.read_bytes() for p in sorted(there.iterdir())] if there.exists() else []


# --- torn tails and holes ---------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 7, 8, 12, 17, 60, 61, 62, -1], ids=lambda n: f"{n}-bytes-left")
@pytest.mark.parametrize("synced", [0, 2, 3])
def test_torn_tail_is_cut_at_the_last_whole_batch(
    tmp_path: Path, store_dir: Path, left: int, synced: int
) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, synced)
    *_, last, end = batch_positions(log)
    os.truncate(log, last + left if left > 0 else end + left)
    torn = log.stat().st_size - last
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.cut_bytes, done.end_offset, done.quarantined) == (torn, 9, ())
        assert values(store.partition("t")) == flat(BATCHES[:3])
        assert log.stat().st_size == last
        assert store.partition("t").append(b"next") == 9


@pytest.mark.parametrize("zeros", [1, 61, 5000])
def test_a_tail_of_zeros_is_cut(tmp_path: Path, store_dir: Path, zeros: int) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, 1)
    size = log.stat().st_size
    os.truncate(log, size + zeros)
    with segstore.open(store_dir) as store:
        assert store.recovered[0].cut_bytes == zeros
        assert values(store.partition("t")) == flat(BATCHES)
    assert (log.stat().st_size, quarantined(store_dir)) == (size, [])


def test_whole_batches_behind_a_hole_are_quarantined(tmp_path: Path, store_dir: Path) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, 1)
    at = batch_positions(log)
    data = bytearray(log.read_bytes())
    data[at[1] : at[2]] = bytes(at[2] - at[1])
    log.write_bytes(data)
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.end_offset, done.cut_bytes, len(done.quarantined)) == (3, at[4] - at[1], 1)
        assert values(store.partition("t")) == BATCHES[0]
    assert quarantined(store_dir) == [bytes(data[at[1] :])]


def test_recovery_keeps_what_lies_in_later_segments(tmp_path: Path, store_dir: Path) -> None:
    live = tmp_path / "live"
    store = write_topic(live, [[b"x" * 300]] * 9, {"segment.bytes": 1000}, close=False)
    killed(live, store_dir)
    store.close()
    (store_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    (store_dir / ".segstore" / "ends").unlink()  # after a power cut nothing in it need be true
    first, *later = logs(store_dir)
    cut = [log.read_bytes() for log in later]
    os.truncate(first, first.stat().st_size - 1)
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.end_offset, done.removed_segments) == (1, len(later))
    assert len(later) >= 2
    assert quarantined(store_dir) == cut
    assert logs(store_dir) == [first]


def test_a_time_entry_of_a_batch_that_is_gone_goes_too(tmp_path: Path, store_dir: Path) -> None:
    live = tmp_path / "live"
    store = write_topic(live, [[b"x" * 300]] * 4, {"segment.bytes": 1000}, close=False)
    killed(live, store_dir)
    store.close()
    (store_dir / ".segstore" / "ends").unlink()
    first, *later = logs(store_dir)
    for log in later:
        log.unlink()
    os.truncate(first, first.stat().st_size - 1)  # the sealed time index ends with the batch that is cut
    with segstore.open(store_dir) as store:
        end = store.partition("t").end_offset
        assert store.partition("t").offset_for_time(START_MS + 1000) is None
        assert store.partition("t").append(b"y") == end


# --- bit rot ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "unclean", "reader"])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_bit_rot_is_never_cut(tmp_path: Path, how: str, bad: int) -> None:
    path = tmp_path / "store"
    if how == "unclean":
        log = left_by_a_kill(tmp_path, path, BATCHES, 4)
    else:
        write_topic(path, BATCHES)
        log = logs(path)[0]
    at = batch_positions(log)
    data = bytearray(log.read_bytes())
    data[at[bad] + 63] ^= 0x40
    log.write_bytes(data)
    with segstore.open(path, mode="r" if how == "reader" else "rw") as store:
        part = store.partition("t")
        for i, batch in enumerate(BATCHES):
            if i == bad:
                with pytest.raises(CorruptRecordError, match="CRC") as caught:
                    part.read(3 * i + 1)
                error = caught.value
                assert (error.file, error.position) == (str(log), at[bad])
                assert 3 * i <= error.offset <= 3 * i + 1
            else:
                assert list(part.read(3 * i, max_bytes=0).values) == batch
        assert part.end_offset == 12
    assert log.read_bytes() == bytes(data)
    found = segstore.check(path)
    assert (found[0].path, found[0].position) == (str(log), at[bad])
    # The closing entry of the time index may be that batch's.
    assert all(f.path.endswith(".timeindex") for f in found[1:])


def test_a_read_ends_before_a_bad_batch(tmp_path: Path) -> None:
    write_topic(tmp_path / "s", BATCHES)
    log = logs(tmp_path / "s")[0]
    data = bytearray(log.read_bytes())
    data[batch_positions(log)[2] + 63] ^= 1
    log.write_bytes(data)
    with segstore.open(tmp_path / "s", mode="r") as store:
        found = store.partition("t").read(0)
        assert (list(found.values), found.next_offset) == (flat(BATCHES[:2]), 6)


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
        assert error is None or isinstance(error, StorageError), f"{where}: {error!r}"
        if operation != "close":
            end = check_in_use(store, operation, error, where)
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
