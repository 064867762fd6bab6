"""`python -m jepsen --seconds 600`: groups whose members fail, one round after the other.

One process has producers of all kinds, and three groups: of members that commit, of members that let it be
done for them, and of exactly-once loops. Members join, leave, pause for too long, vanish, and fence each
other; topics get partitions and lose records. The process is stopped for longer than the sessions of its
members, and killed. Other processes follow it, and are stopped and killed too. What all were told must show
none of the anomalies of Jepsen's Kafka workload, nor of a group's protocol: see `group_histories`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .running import Failed, Round

LIVES, READERS = 3, 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="jepsen", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where stores are made; kept at a failure"
    )
    options = parser.parse_args()
    seed = int(time.time()) if options.first is None else options.first
    until, counts, failed = time.monotonic() + options.seconds, Counter[str](), 0
    while time.monotonic() < until:
        directory = Path(tempfile.mkdtemp(prefix=f"jepsen-{seed}-", dir=options.directory))
        try:
            counts += Round(directory, seed).run(LIVES, READERS)
            shutil.rmtree(directory)
        except Failed as error:
            failed += 1
            print(error, file=sys.stderr)
        seed += 1
        print(f"next seed {seed}: {failed} failed; {dict(counts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
