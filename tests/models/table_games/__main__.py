"""`python -m table_games --games 1000`: plays seeds, all cores at once, and prints what was wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from .play import played

SAID = 50
"""Games between two lines of what was played."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="table_games", description=__doc__)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument("--processes", type=int, default=None, help="by default one for each core")
    parser.add_argument("--engine", action="append", default=[], help="ask only this one; may come again")
    options = parser.parse_args()
    first = int(time.time()) if options.first is None else options.first
    began, failed, counts = time.monotonic(), [], Counter[str]()
    seeds = range(first, first + options.games)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for number, done in enumerate(pool.map(played, seeds, [options.engine] * len(seeds)), 1):
            counts += done.counts
            if done.wrong:
                failed.append(done.seed)
                print(done.wrong, flush=True)
            if number % SAID == 0 or number == len(seeds):
                seconds = time.monotonic() - began
                print(f"{number} games from {first} in {seconds:.0f} s: failed {failed}", flush=True)
    print("; ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
