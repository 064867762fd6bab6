"""What more partitions cost: throughput and memory over 1, 10, 100 and 1,000 of them. A curve, not a target.

Keyed records of 100 bytes, each key always to the same partition, in rounds; then all are polled. Each number
of partitions in a process of its own, whose resident memory is looked at: after all partitions are open, and
at most while it sends. Opening a partition for the first time makes and maps its files: told by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import Results, as_list, random_values

import segstore

RECORDS, ROUNDS = 100_000, 5


def resident() -> float:
    """MiB of this process."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def curve(partitions: int, path: str) -> dict[str, float]:
    """M/s sent and polled, ms that a partition takes to open, MiB."""
    values = as_list(random_values(RECORDS))
    keys = [b"%d" % (i % (4 * partitions)) for i in range(RECORDS)]
    with segstore.open(path) as store:
        store.create_topic("t", partitions=partitions)
        rest, began = resident(), time.perf_counter()
        logs = [store.partition("t", number) for number in range(partitions)]
        opened, at_rest = time.perf_counter() - began, resident()
        sent = [_send(store, values, keys) for _ in range(ROUNDS)]
        grown = max(most for _, most in sent) - at_rest
        began = time.perf_counter()
        assert _polled(store) == RECORDS * ROUNDS == sum(log.end_offset for log in logs)
        polling = time.perf_counter() - began
    return {
        "send": RECORDS / median(seconds for seconds, _ in sent) / 1e6,
        "poll": RECORDS * ROUNDS / polling / 1e6,
        "open_ms": opened / partitions * 1e3,
        "open_mib": at_rest - rest,
        "send_mib": grown,
    }


def _send(store: segstore.Store, values: list[bytes], keys: list[bytes]) -> tuple[float, float]:
    began = time.perf_counter()
    with segstore.Producer(store, linger_ms=5) as producer:
        send = producer.send
        for value, key in zip(values, keys, strict=True):
            send("t", value, key)
        most = resident()
    return time.perf_counter() - began, max(most, resident())


def _polled(store: segstore.Store) -> int:
    count = 0
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        while found := consumer.poll():
            count += sum(map(len, found.values()))
    return count


@pytest.mark.parametrize("partitions", [1, 10, 100, 1_000])
def test_partitions(benchmark: Any, results: Results, tmp_path: Path, partitions: int) -> None:
    command = [sys.executable, __file__, str(partitions), str(tmp_path)]
    told = benchmark.pedantic(lambda: subprocess.check_output(command), rounds=1)
    found = json.loads(told)
    benchmark.extra_info.update(found)
    note = (
        f"keyed, linger_ms=5; polled {found['poll']:.2f} M/s; opened in {found['open_ms']:.2f} ms each; "
        f"memory +{found['open_mib']:.0f} MiB open, +{found['send_mib']:.0f} MiB while sending"
    )
    results.add(benchmark, f"send over {partitions:,} partitions", found["send"], 0, "M/s", True, note)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as directory:
        print(json.dumps(curve(int(sys.argv[1]), directory)))
