"""`python -m queue_judge --rounds 1000`: rounds of one share group, one after the other.

Its consumers are threads and coroutines in the process that has the store, and confluent-kafka and raw
clients in processes of their own, behind a proxy; they accept, release, reject, renew and forget. Consumers
and the store's process are killed and stopped, connections are cut, torn and stalled; records are deleted,
topics swept and widened, the wall clock steps. What all were told must show that no record was lost, none was
delivered again once it was told to be done with, none was held by two at a time, and delivery counts rise by
one up to the limit, but for one a crash: see `queue_histories`. `segstore.check` finds nothing.
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
from .plan import Plan
from .running import Failed, Round


def main() -> int:
    parser = argparse.ArgumentParser(prog="queue_judge", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument(
        "--defect", default="none", choices=("none", *DEFECTS), help="give the store's process a defect"
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where stores are made; kept at a failure"
    )
    options = parser.parse_args()
    seed = int(time.time()) if options.first is None else options.first
    counts, failed = Counter[str](), list[int]()
    for _ in range(options.rounds):
        directory = Path(tempfile.mkdtemp(prefix=f"queue-{seed}-", dir=options.directory))
        try:
            counts += Round(directory, Plan.drawn(seed, options.defect)).play()
            shutil.rmtree(directory)
        except Failed as error:
            failed.append(seed)
            print(error, file=sys.stderr, flush=True)
        seed += 1
        print(f"next seed {seed}: failed {failed}; {dict(counts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
