"""`python -m wire_storm --seconds 600`: clients against `segstore serve`, one round after the other.

confluent-kafka, kafka-python and segstore's own clients in the serving process send with idempotence and
without, and in transactions; they share two groups, of which one copies records exactly once, and read all
partitions over and over. All others than the server's own go through a proxy. The server is killed, ended
and stopped; so are clients; connections are cut, torn within a message and stalled, and answers are lost.
What all were told must show none of the anomalies that `judge` knows, and `segstore.check` finds nothing.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .defects import DEFECTS
from .running import Failed, Round

FAULTS = 14


def main() -> int:
    parser = argparse.ArgumentParser(prog="wire_storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument("--faults", type=int, default=FAULTS, help="faults in a round")
    parser.add_argument(
        "--defect", default="none", choices=("none", *DEFECTS), help="give the server a defect"
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where stores are made; kept at a failure"
    )
    options = parser.parse_args()
    seed = int(time.time()) if options.first is None else options.first
    until, counts, failed = time.monotonic() + options.seconds, Counter[str](), 0
    while time.monotonic() < until:
        directory = Path(tempfile.mkdtemp(prefix=f"wire-storm-{seed}-", dir=options.directory))
        played = Round(directory, seed, options.defect)
        try:
            counts += played.play(random.Random(f"faults {seed}").choices([*played.faults], k=options.faults))
            shutil.rmtree(directory)
        except Failed as error:
            failed += 1
            print(error, file=sys.stderr)
        seed += 1
        print(f"next seed {seed}: {failed} failed; {dict(counts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
