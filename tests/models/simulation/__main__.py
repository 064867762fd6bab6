"""`python -m simulation --seeds 200 --steps 5000`: plays seeds, all cores at once, and shrinks what fails."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .model import Wrong
from .play import play_seed
from .shrink import report


def played(seed: int, steps: int) -> tuple[int, str, int]:
    """The seed, what went wrong ("" for nothing), and the steps that did something."""
    logging.disable(logging.CRITICAL)
    try:
        return seed, "", sum(play_seed(seed, steps).counts.values())
    except Wrong as error:
        return seed, str(error), 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    options = parser.parse_args()
    first = int(time.time()) if options.first is None else options.first
    began, done, failed = time.monotonic(), 0, []
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, TextColumn("{task.fields[failed]} failed")) as progress,
        ProcessPoolExecutor(os.cpu_count()) as pool,
    ):
        task = progress.add_task(f"seeds from {first}", total=options.seeds, failed=0)
        jobs = [pool.submit(played, seed, options.steps) for seed in range(first, first + options.seeds)]
        for job in as_completed(jobs):
            seed, wrong, steps = job.result()
            done += steps
            if wrong:
                failed.append(seed)
                progress.console.print(f"seed {seed}: {wrong}", markup=False, highlight=False)
            progress.update(task, advance=1, failed=len(failed))
    seconds = time.monotonic() - began
    print(
        f"{options.seeds} seeds from {first}, {done} steps in {seconds:.0f} s: {len(failed)} failed {failed}"
    )
    for seed in failed[:3]:
        logging.disable(logging.CRITICAL)
        print(report(seed, options.steps))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
