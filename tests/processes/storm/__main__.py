"""`python -m storm --seconds 600`: storms of Ctrl-C, one after the other, each in a process of its own.

Single and paired interrupts at any moment of appends, flushes, rolls, sweeps, reads, closes, and of what
clients do. After each: what was acknowledged is there, the call is there whole or not at all, later ones go
on, nothing is fenced and nothing hangs; at the end `check` is clean.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .running import KINDS, Failed, run

STEPS = {"logs": 1500, "clients": 100}


def main() -> int:
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument("--only", choices=KINDS, default=None)
    options = parser.parse_args()
    seed = int(time.time()) if options.first is None else options.first
    until, counts, failed = time.monotonic() + options.seconds, Counter[str](), 0
    while time.monotonic() < until:
        kind = options.only or KINDS[seed % len(KINDS)]
        try:
            counts += run(kind, seed, STEPS[kind])
        except Failed as error:
            failed += 1
            print(error, file=sys.stderr)
        seed += 1
        print(f"seed {seed}: {failed} failed; {told(counts)}", flush=True)
    return 1 if failed else 0


def told(counts: Counter[str]) -> str:
    """The interrupts, and the operations, in words."""
    operations = sum(n for name, n in counts.items() if name not in ("interrupts", "single", "paired"))
    return (
        f"{counts['interrupts']:,} interrupts ({counts['single']:,} single, {counts['paired']:,} pairs) "
        f"in {operations:,} operations"
    )


if __name__ == "__main__":
    sys.exit(main())
