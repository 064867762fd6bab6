"""The process that is killed: it appends flights, and prints on standard output what was acknowledged.

On disk: the store that it is given. Threads: one. Run as `python -m segstore.demo.child PATH RECORDS`. It
ends by itself when its standard input is closed: the process that is to kill it may come too late.
"""

from __future__ import annotations

import sys

import numpy as np

import segstore
from segstore.demo.flights import PARTITIONS, TOPIC, load

ROWS = 4096


def append_all(path: str, records: int) -> None:
    """Append in order of time; a line "partition next-offset" for each call that returned."""
    held = load(records)
    with segstore.open(path) as store:
        logs = [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        for start in range(0, len(held), ROWS):
            for p, log in enumerate(logs):
                first, last = np.searchsorted(held.rows[p], [start, start + ROWS]).tolist()
                if first == last:
                    continue
                part = held.parts[p].slice(first, last)
                acknowledged = log.append_batch(part.values, keys=part.keys, timestamps=part.timestamps)
                print(p, acknowledged.stop, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    append_all(sys.argv[1], int(sys.argv[2]))
