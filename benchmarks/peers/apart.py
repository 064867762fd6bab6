"""Following a log's end from another process: `python -m benchmarks.peers.apart FOLLOWER WANTED PLACE...`.

FOLLOWER is module:function of this package; called with the PLACEs, it yields as `Log.follow` does. When it
looks, the process says so by a line; once it has WANTED records it writes JSON: when each came (the clock of
all processes of the machine), what they were (count and checksum), and the CPU seconds that this took.
On disk: what the follower opens. Threads: one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from .following import PATIENCE, paced
from .records import Row, checksum
from .turn import APART, CPU, P50, P99, Bench, Works, WrongError, clock

ROOT = Path(__file__).parents[2]


def tail_apart(bench: Bench) -> Works:
    """A writer, and a follower in a process of its own."""
    wanted = bench.effort.followed
    with bench.fresh(synced=False) as log, _follower(log.apart(), wanted) as child:
        began, used = clock(), time.process_time()
        sent = paced(log, bench.records.batches(1, wanted))
        told = json.loads(child.stdout.read() or b"null")
        took, cpu = clock() - began, time.process_time() - used
        if told is None or tuple(told["found"]) != bench.records.checksum(wanted):
            raise WrongError(f"another process has not seen the {wanted:,} records that were appended")
    times = np.subtract(told["seen"], sent) * 1e6
    yield (
        APART,
        {
            P50: float(np.percentile(times, 50)),
            P99: float(np.percentile(times, 99)),
            CPU: 100 * (cpu + told["cpu"]) / took,
        },
    )


@contextmanager
def _follower(follower: tuple[str, ...], wanted: int) -> Iterator[Any]:
    """A process that follows, and looks by now; it ends with the block, or after PATIENCE."""
    function, *places = follower
    command = [sys.executable, "-m", "benchmarks.peers.apart", function, str(wanted), *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
        late = Timer(PATIENCE, child.kill)
        late.start()
        try:
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise WrongError("the follower's process has ended")
            yield child
        finally:
            late.cancel()
            child.kill()


def _take(following: Iterator[list[Row]], wanted: int) -> dict[str, Any]:
    next(following)
    print("ready", flush=True)
    rows: list[Row] = []
    seen: list[float] = []
    used = time.process_time()
    for found in following:
        seen += [clock()] * len(found)
        rows += found
        if len(rows) >= wanted:
            break
    return {"seen": seen, "found": checksum(rows), "cpu": time.process_time() - used}


def main(function: str, wanted: str, *places: str) -> None:
    module, _, name = function.partition(":")
    with closing(getattr(import_module(f".{module}", __package__), name)(*places)) as following:
        print(json.dumps(_take(following, int(wanted))))


if __name__ == "__main__":
    main(*sys.argv[1:])
