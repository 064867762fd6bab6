"""How much disk, memory and how many reads a store needs; counted, never timed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from faults import CountingFiles
from stores import killed

import segstore

pytestmark = pytest.mark.kind("limits")

MIB = 1 << 20


def read_bytes(files: CountingFiles) -> Counter[str]:
    """Bytes that were asked of each file, by suffix."""
    found: Counter[str] = Counter()
    for name, args in files.calls:
        if name == "pread":
            found[Path(args[0].path).suffix] += args[1]
    return found


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 empty partitions, closed cleanly."""
    path = tmp_path_factory.mktemp("thousand") / "store"
    with segstore.open(path) as store:
        store.create_topic("t", 1000)
    return path


def used(path: Path) -> int:
    """On disk, of what is there throughout: an open store's checkpoints come and go."""
    total = 0
    for p in path.rglob("*"):
        with suppress(FileNotFoundError):
            total += p.stat().st_blocks * 512
    return total


def test_a_thousand_partitions_take_little_disk(thousand: Path) -> None:
    assert used(thousand) < 20_000_000
    assert segstore.check(thousand) == []


def test_a_thousand_partitions_with_a_record_each(tmp_path: Path, thousand: Path) -> None:
    path = killed(thousand, tmp_path / "store")
    before = len(os.listdir("/proc/self/fd"))
    with segstore.open(path, config={"max.open.files": 50}) as store:
        for p in range(1000):
            store.partition("t", p).append(b"x")
        assert used(path) < 200_000_000
        assert len(os.listdir("/proc/self/fd")) < before + 60
    assert used(path) < 30_000_000


def test_a_clean_open_reads_no_segment(thousand: Path) -> None:
    files = CountingFiles()
    with segstore.open(thousand, files=files):
        asked = read_bytes(files)
        opened = {Path(args[0]).suffix for name, args in files.calls if name == "open"}
    assert not opened & {".log", ".index", ".timeindex", ".snapshot"}
    # For each partition 44 bytes of partition.metadata, and 64 bytes of its slot in .segstore/ends. That file
    # is read before it is mapped, since an error of the disk would be a SIGBUS in the mapping.
    assert sum(asked.values()) < 120_000


def flushed_then_killed(path: Path, target: Path, tail: int) -> int:
    """Three segments of 1 MiB, synced; then `tail` more records of 1,000 bytes; killed. Bytes of its logs."""
    store = segstore.open(path)
    store.create_topic("t", config={"segment.bytes": MIB})
    log = store.partition("t")
    while log.end_offset < 3500:
        log.append_batch([bytes(1000)] * 100)
    store.flush()
    for _ in range(tail):
        log.append(bytes(1000))
    killed(path, target)
    store.close()
    return sum(p.stat().st_size for p in target.rglob("*.log"))


def test_an_unclean_open_reads_one_segment_at_most(tmp_path: Path, store_dir: Path) -> None:
    size = flushed_then_killed(tmp_path / "live", store_dir, 5)
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        assert store.recovered[0].recovery_point == 3500
        read = Counter({a[0].path: 0 for n, a in files.calls if n == "pread" and a[0].path.endswith(".log")})
        for name, args in files.calls:
            if name == "pread" and args[0].path.endswith(".log"):
                read[args[0].path] += args[1]
        assert store.partition("t").end_offset == 3505
    *sealed, active = sorted(store_dir.rglob("*.log"))
    assert size > 3 * MIB
    assert len(sealed) == 3
    assert set(read) == {str(active)}
    assert sum(read.values()) < 3 * active.stat().st_size + 65536


def test_a_rolls_flush_is_not_of_what_came_behind_it(store_dir: Path) -> None:
    """However late the background comes to it: Kafka's flushUptoOffsetExclusive."""
    files, late = CountingFiles(), []
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"segment.bytes": MIB})
        log = store.partition("t")
        store.context.scheduler.soon = late.append
        log.append_batch([bytes(1000)] * 1500)
        log.append(b"before the flush")
        assert late
        store.flush()
        log.append(b"behind it")
        files.calls.clear()
        for task in late:
            task()
        assert not [args for name, args in files.calls if name.startswith("sync")]


CHILD = """
import re, sys
import numpy as np
import segstore

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

path, what, codec = sys.argv[1:]
with segstore.open(path) as store:
    if what == "append":
        store.create_topic("t", config={"segment.bytes": 64 << 20})
    log = store.partition("t")
    column = np.zeros((20_000, 1000), np.uint8)
    column[:, :500] = np.random.default_rng(1).integers(0, 255, (20_000, 500), np.uint8)
    start, most = anonymous(), 0
    if what == "append":
        for _ in range(15):
            log.append_batch(column, compression=codec)
            most = max(most, anonymous())
    else:
        at = 0
        while at < log.end_offset:
            found = log.read(at, 4 << 20)
            at, last = found.next_offset, found.values[-1]
            most = max(most, anonymous())
        assert at == 300_000
    print(most - start)
"""


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_memory_does_not_grow_with_what_is_appended_or_read(store_dir: Path, codec: str) -> None:
    for what in ("append", "read"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(store_dir), what, codec],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        grown = int(re.findall(r"-?\d+", done.stdout)[-1])
        assert grown < 100, f"{what} of 300 MB: {grown} MiB of resident anonymous memory"
