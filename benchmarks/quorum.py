"""In-sync replicas against a quorum: what an acknowledgement costs by the number of directories, and what one
slow disk does to it.

    python -m benchmarks.quorum [DIRECTORY]

prints the table of docs/replication.md, "In-sync replicas or a quorum?". Records are acknowledged by in-sync
replicas, with flush.messages=1; a record of the metadata is acknowledged by a majority of voters. Both are
synced before they count, one after the other, all directories below DIRECTORY.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import segstore
from segstore.files import Files, Handle

DIRECTORIES = (1, 2, 3, 5)
COUNT, WARM = 200, 20
SLOW = 0.02
"""Seconds that each sync of the slow disk takes longer."""
RECORD = b"v" * 100


class SlowDisk(Files):
    """Files, of which those below the path `slow` are synced later."""

    slow = ""

    def sync(self, handle: Handle) -> None:
        if self.slow and handle.path.startswith(self.slow):
            time.sleep(SLOW)
        super().sync(handle)


def timed(work: Callable[[int], object]) -> tuple[float, float]:
    """Return p50 and p99 of `work`, ms."""
    took = []
    for number in range(WARM + COUNT):
        began = time.perf_counter()
        work(number)
        took.append(1000 * (time.perf_counter() - began))
    took = took[WARM:]
    return median(took), quantiles(took, n=100)[98]


def measured(base: Path, directories: int) -> list[str]:
    """Return a row: copies of a record, then p50 and p99 of both, all disks alike, and one slow."""
    files = SlowDisk()
    paths = [base / f"{directories}-{number}" for number in range(directories)]
    config = {"min.insync.replicas": directories // 2 + 1}
    with segstore.open_replicated(paths, config=config, files=files) as store:
        store.create_topic("t", config={"flush.messages": 1}, assignments={0: list(range(directories))})
        log: Any = store.partition("t")
        kept = store.replicated.kept

        def both() -> list[str]:
            found = [timed(lambda number: log.append(RECORD)), timed(kept.set_producer_id)]
            return [f"{p50:.2f} / {p99:.2f}" for p50, p99 in found]

        row = both()
        files.slow = f"{paths[-1]}/"
        row += both() if directories > 1 else ["–", "–"]
        files.slow = ""
    return [str(directories), *row]


def main() -> None:
    """Print the table."""
    print("| directories | in-sync replicas | a majority | one disk slow: in-sync replicas | a majority |")
    print("|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as base:
        for directories in DIRECTORIES:
            print(f"| {' | '.join(measured(Path(base), directories))} |", flush=True)
    print(f"\np50 / p99 of {COUNT} records, ms, each synced before it counts; a slow disk takes", end=" ")
    print(f"{SLOW * 1000:g} ms longer for each sync.")


if __name__ == "__main__":
    main()
