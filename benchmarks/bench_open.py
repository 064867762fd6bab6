"""How long opening takes: a clean store of many partitions, and a large partition after a kill."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from harness import Results, by_turns, new_log, random_values, stamps

import segstore
from segstore._native import ffi, lib
from segstore.files import Files

TOPICS, PARTITIONS = 10, 100
APPENDS, RECORDS = 10, 1_000_000  # 1 GiB and a little
CHUNK = 1 << 20


def test_open_clean(benchmark: Any, results: Results, tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store") as store:
        for i in range(TOPICS):
            store.create_topic(f"topic{i}", partitions=PARTITIONS)
            for p in range(PARTITIONS):
                store.partition(f"topic{i}", p).append(b"%d" % p)
    opened: list[segstore.Store] = []

    def close() -> None:
        while opened:
            opened.pop().close()

    def opens() -> None:
        opened.append(segstore.open(tmp_path / "store"))

    def looks() -> None:
        """A look at each file."""
        for path in (tmp_path / "store").rglob("*"):
            path.stat()

    by_turns(benchmark, opens, looks, close, rounds=5)
    assert opened[0].partition("topic9", 99).end_offset == 1
    assert not opened[0].recovered
    close()
    median = benchmark.stats.stats.median
    note = f"median; best {benchmark.stats.stats.min:.2f}"
    results.add(benchmark, f"open {TOPICS * PARTITIONS:,} partitions", median, 1, "s", False, note)


def test_recovery(benchmark: Any, results: Results, tmp_path: Path) -> None:
    root, pristine = tmp_path / "store", tmp_path / "pristine"
    _write_and_die(root)
    shutil.copytree(root, pristine, ignore=shutil.ignore_patterns("*.log"))
    (log,) = root.glob("t-0/*.log")
    files, size = Files(), log.stat().st_size
    store: segstore.Store | None = None

    def crash() -> None:
        nonlocal store
        if store is not None:
            store.close()
            store = None
        for path in [p for p in root.rglob("*") if p.is_file() and p != log]:
            path.unlink()
        shutil.copytree(pristine, root, dirs_exist_ok=True)
        assert log.stat().st_size == size

    def recover() -> None:
        nonlocal store
        store = segstore.open(root)

    def read_and_crc() -> None:
        crc = 0
        with files.open(log) as handle:
            for at in range(0, size, CHUNK):
                data = files.pread(handle, CHUNK, at)
                crc = lib.seg_crc32c(crc, ffi.from_buffer("uint8_t[]", data), len(data))

    ratio, theirs, best = by_turns(benchmark, recover, read_and_crc, crash, rounds=5)
    assert store is not None
    assert store.partition("t", 0).end_offset == APPENDS * RECORDS
    assert store.recovered
    store.close()
    note = f"of reading and CRC-ing {size / 2**30:.2f} GiB in {theirs:.2f} s; best {best:.2f} s"
    results.add(benchmark, "recovery", 1 / ratio, 2, "x", False, note)


def _write_and_die(root: Path) -> None:
    """A process that appends and ends without closing, so that no recovery point is left."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            log = new_log(segstore.open(root), "t", **{"segment.bytes": 2**31 - 1})
            values, times = random_values(RECORDS), stamps(RECORDS)
            for _ in range(APPENDS):
                log.append_batch(values, timestamps=times)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
