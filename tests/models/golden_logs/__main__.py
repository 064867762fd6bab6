"""`python -m golden_logs` makes all runs and writes hashes.json beside this file; with `--dump DIRECTORY` it
writes the files and answers of one run (`--kind appends --seed 17`), to be compared with those of another
version by `diff -r`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.progress import track

from .runs import HASHES, KINDS, run


def hashed(kind: str, seed: int) -> str:
    """Return the hash of a run, whose faults are not logged."""
    logging.disable(logging.CRITICAL)
    return run(kind, seed).hash()


def write() -> None:
    """Make all hashes anew."""
    wanted = [(kind, seed) for kind, (_, seeds) in KINDS.items() for seed in range(seeds)]
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(hashed, *zip(*wanted, strict=True))
        for (kind, _), one in zip(wanted, track(made, "logs", len(wanted)), strict=True):
            found[kind].append(one)
    HASHES.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


def dump(kind: str, seed: int, directory: Path) -> None:
    """Write the files of a run, and its answers, a line each."""
    logging.disable(logging.CRITICAL)
    files, answers = run(kind, seed)
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    (directory / "answers").write_text("".join(answer + "\n" for answer in answers), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="golden_logs", description=__doc__)
    parser.add_argument("--dump", type=Path, help="write one run there, and no hashes")
    parser.add_argument("--kind", choices=list(KINDS), default="appends")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.dump:
        dump(options.kind, options.seed, options.dump)
    else:
        write()


if __name__ == "__main__":
    main()
