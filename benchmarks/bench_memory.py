"""How much anonymous memory a process takes to append and to read a partition far larger than that.

RssAnon of /proc/self/status, sampled by a thread of a process of its own; SEGSTORE_BENCH_GIB sets the size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from harness import Results, new_log, random_values, reads, stamps

import segstore

GIB = float(os.environ.get("SEGSTORE_BENCH_GIB", "10"))
PER_CALL = 100_000
LIMIT_MB = 200


@pytest.mark.slow
@pytest.mark.parametrize("what", ["append", "read"])
def test_memory(benchmark: Any, results: Results, tmp_path_factory: Any, what: str) -> None:
    root = tmp_path_factory.getbasetemp() / "memory"
    command = [sys.executable, __file__, what, str(root), str(GIB)]
    run = lambda: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: E731
    done = benchmark.pedantic(run, rounds=1)
    assert done["bytes"] >= GIB * 2**30
    note = f"RssAnon at most, {done['bytes'] / 2**30:.1f} GiB; {done['before']:.0f} MB before it began"
    results.add(benchmark, f"memory, {what}", done["most"], LIMIT_MB, "MB", False, note)


class Watch(threading.Thread):
    """Samples RssAnon until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.stop = 0.0, threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.005):
            self.most = max(self.most, rss_anon())


def rss_anon() -> float:
    """Resident anonymous megabytes (10^6 bytes) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon"))


def append(root: str, size: float) -> int:
    """Append until the partition has `size` bytes."""
    values, times = random_values(PER_CALL), stamps(PER_CALL)
    with segstore.open(root) as store:
        log = new_log(store, "t")
        while (written := _size(root)) < size:
            log.append_batch(values, timestamps=times)
    return written


def read(root: str, size: float) -> int:
    """Read all of it into columns."""
    with segstore.open(root) as store:
        for records in reads(store.partition("t", 0), 8 << 20):
            assert records.timestamps.sum() > 0
            assert len(records.values[len(records) - 1] or b"") == 100
    return _size(root)


def _size(root: str) -> int:
    return sum(path.stat().st_size for path in Path(root, "t-0").glob("*.log"))


if __name__ == "__main__":
    what, root, gib = sys.argv[1:]
    watch, before = Watch(), rss_anon()
    watch.start()
    total = (append if what == "append" else read)(root, float(gib) * 2**30)
    watch.stop.set()
    watch.join()
    sys.stdout.write(json.dumps({"bytes": total, "most": watch.most, "before": before}))
