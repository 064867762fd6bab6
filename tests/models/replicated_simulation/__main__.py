"""`python -m replicated_simulation --seeds 200 --steps 100`: plays seeds, on all cores by default, and
shrinks what fails.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from simulation.model import Wrong

from .play import play_seed
from .shrinking import report

TOLD = 100
"""Seeds after which it is told how far the run is."""


def played(seed: int, steps: int) -> tuple[int, str, int]:
    """The seed, what went wrong ("" for nothing), and the steps that did something."""
    logging.disable(logging.CRITICAL)
    try:
        return seed, "", sum(play_seed(seed, steps).counts.values())
    except Wrong as error:
        return seed, str(error), 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="replicated_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    first = int(time.time()) if options.first is None else options.first
    began, done, failed = time.monotonic(), 0, []
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(played, seed, options.steps) for seed in range(first, first + options.seeds)]
        for finished, job in enumerate(as_completed(jobs), 1):
            seed, wrong, steps = job.result()
            done += steps
            if finished % TOLD == 0:
                print(f"{finished} seeds, {done} steps, {len(failed)} failed", flush=True)
            if wrong:
                failed.append(seed)
                print(f"seed {seed}: {wrong}", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{options.seeds} seeds from {first}, {done} steps in {seconds:.0f} s: {len(failed)} failed {failed}"
    )
    logging.disable(logging.CRITICAL)
    for seed in failed[:3]:
        print(report(seed, options.steps), flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
