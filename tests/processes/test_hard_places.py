"""Promise: a store works, or fails with a clear error, in a hard place: on a read-only mount, on a full disk,
in a directory that is gone, with few descriptors, with names that are no text, with a clock that is set back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest
from mounts import mounting as mounting
from mounts import unshared
from stores import in_child, values

import segstore
from segstore import CorruptRecordError, StorageError

Tell = Callable[[str], None]


READ = "import segstore, sys; s = segstore.open(sys.argv[1], 'r'); print(len(s.partition('t').read(0)))"


@pytest.mark.kind("programs")
@pytest.mark.usefixtures("mounting")
def test_a_reader_on_a_read_only_mount(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"x"] * 100)
    python, path = quote(sys.executable), quote(str(store_dir))
    done = unshared(
        f"mount --bind {path} {path}",
        f"mount -o remount,bind,ro {path} 2>/dev/null || mount -o remount,ro,bind {path}",
        f"! touch {path}/x 2>/dev/null",
        f"{python} -c {quote(READ)} {path}",
        f"! {python} -c 'import segstore, sys; segstore.open(sys.argv[1])' {path}",
    )
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr
    assert "Read-only file system" in done.stderr


FILL = """
import os, sys, segstore
path = sys.argv[1]
store = segstore.open(path)
store.create_topic("t", config={"segment.bytes": 50000})
log, n = store.partition("t"), 0
try:
    while True:
        n += len(log.append_batch([b"%d" % (n + i) for i in range(50)]))
except segstore.StorageError as error:
    full = error.errno
assert log.end_offset == n and n > 1000, n
os.unlink(os.path.join(os.path.dirname(path), "ballast"))
assert log.append(b"%d" % n) == n
store.close()
assert list(segstore.check(path)) == []
with segstore.open(path, "r") as reader:
    log, at = reader.partition("t"), 0
    while at < n:
        found = log.read(at)
        assert [r.value for r in found] == [b"%d" % o for o in range(at, found.next_offset)]
        at = found.next_offset
print(full)
"""


@pytest.mark.kind("programs")
@pytest.mark.usefixtures("mounting")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A real one: what was acknowledged is there, and appends go on once there is room."""
    (tmp_path / "fill.py").write_text(FILL)
    done = unshared(
        "mount -t tmpfs -o size=2m none /mnt",
        "head -c 900000 /dev/zero > /mnt/ballast",
        f"{quote(sys.executable)} {quote(str(tmp_path / 'fill.py'))} /mnt/store",
    )
    assert (done.returncode, done.stdout) == (0, f"{errno.ENOSPC}\n"), done.stderr


def test_a_directory_that_is_removed_under_a_live_store(tmp_path: Path) -> None:
    store = segstore.open(tmp_path / "store")
    store.create_topic("t", config={"segment.bytes": 1000})
    log = store.partition("t")
    log.append(b"before")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StorageError):
        log.append_batch([b"x" * 100] * 100, batch_bytes=200)
    with pytest.raises((StorageError, CorruptRecordError)):
        segstore.open(tmp_path / "store", "r")
    with contextlib.suppress(StorageError):
        store.close()
    assert not (tmp_path / "store").exists()
    with segstore.open(tmp_path / "store") as anew:
        assert anew.topics() == {}


@pytest.mark.kind("kills")
@pytest.mark.parametrize("held", [0, 300], ids=["nothing else is open", "300 other files are open"])
@pytest.mark.parametrize("count", [250, pytest.param(5000, marks=pytest.mark.slow)])
def test_many_partitions_with_few_descriptors(tmp_path: Path, count: int, held: int) -> None:
    """Segments' descriptors are pooled. The pool may keep half of the limit, which is more than is free
    beside 300 other files: then it gives some back for files of other kinds.
    """
    if count > 250 and "CRASH_ROUNDS" not in os.environ:
        pytest.skip("5,000 partitions are for `make crash`")
    path = tmp_path / "store"

    def run(tell: Tell) -> None:
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
        limit = len(os.listdir("/proc/self/fd")) + 96  # beside what the run of the tests has open
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with segstore.open(path) as store:
            store.create_topic("t", count)
            for turn in range(2):
                for p in range(count):
                    store.partition("t", p).append(b"%d.%d" % (p, turn))
        with segstore.open(path) as store:
            for p in range(count):
                assert values(store.partition("t", p)) == [b"%d.0" % p, b"%d.1" % p]
                tell(".")
        with segstore.open(path, "r") as reader:
            assert all(reader.partition("t", p).end_offset == 2 for p in range(count))
        assert len(others) == held

    assert in_child(run)[1] == ["."] * count
    assert list(segstore.check(path)) == []


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe \xe9"
    with segstore.open(path) as store:
        store.create_topic("t", config={"segment.bytes": 300})
        log = store.partition("t")
        for i in range(30):
            log.append(b"%d" % i, key=b"k")
        store.alter_topic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        store.sweep()
        log.delete_records(3)
    assert list(segstore.check(path)) == []
    for given in (path, os.fsdecode(path), Path(os.fsdecode(path))):
        with segstore.open(given, "r") as reader:
            assert values(reader.partition("t"))[-1] == b"29"


def test_a_clock_that_is_set_back(store_dir: Path) -> None:
    """By years, while segments roll by age and go by it: offsets and time look-ups stay right."""
    now = 1_700_000_000_000
    config = {"segment.ms": 1000, "retention.ms": 10**12, "segment.bytes": 2000, "index.interval.bytes": 100}
    clock = lambda: now  # noqa: E731
    stamps = []
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config=config)
        for step in [0, 2000, -(10**11), 5, 3000, 10**11, -4000, 10]:
            now += step
            for _ in range(20):
                stamps.append(now)
                assert store.partition("t").append(b"x") == len(stamps) - 1
            store.sweep()
    with segstore.open(store_dir, clock=clock) as store:
        log = store.partition("t")
        assert [r.timestamp for r in log.read(0)] == stamps
        for stamp in sorted(set(stamps)):
            assert log.offset_for_time(stamp) == next(i for i, s in enumerate(stamps) if s >= stamp)
        assert log.offset_for_time(max(stamps) + 1) is None
