"""`python -P -m archive_judge --rounds 1000`: rounds of a store, its archive, and what is restored of it.

A writer appends to topics of all kinds, ends transactions, commits offsets, compacts, deletes topics and
makes them anew; an archiver archives, sometimes two at once; restores come at the end of each round. All are
killed at random and at calls of the archive's objects, and sometimes the store is lost, and what was restored
takes its place. What the archiver was told to be archived must be in what is restored, equal, and
`segstore.check` finds nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .defects import DEFECTS
from .running import Failed, Rounds

TOGETHER = 10
"""Rounds of one store and one archive."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="archive_judge", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument(
        "--defect", default="none", choices=("none", *DEFECTS), help="a defect of the archiver"
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where stores are made; kept at a failure"
    )
    options = parser.parse_args()
    seed = int(time.time()) if options.first is None else options.first
    counts, failed, left = Counter[str](), list[int](), options.rounds
    while left > 0:
        directory = Path(tempfile.mkdtemp(prefix=f"archive-{seed}-", dir=options.directory))
        try:
            counts += Rounds(directory, seed, defect=options.defect).play(min(left, TOGETHER))
            shutil.rmtree(directory)
        except Failed as error:
            failed.append(seed)
            print(error, file=sys.stderr, flush=True)
        seed, left = seed + 1, left - TOGETHER
        print(f"next seed {seed}: failed {failed}; {dict(counts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
