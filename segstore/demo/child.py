"""The program of the process that the demo kills. It appends flights, and prints the acknowledged offsets on
standard output.

On disk: the store at PATH. Threads: one. Run as `python -m segstore.demo.child PATH RECORDS`. The process
loads the flights, and begins to append when it has read a line from its standard input. After the last append
it exits when its standard input is closed, for example because the demo has exited.
"""

from __future__ import annotations

import sys

import numpy as np

import segstore
from segstore.demo.flights import PARTITIONS, TOPIC, load

ROWS = 4096


def append_all(path: str, records: int) -> None:
    """Read a line from standard input, and append the flights in order of time. After each append print a
    line "partition next-offset".
    """
    flights = load(records)
    if not sys.stdin.readline():
        return
    with segstore.open(path) as store:
        logs = [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        for start in range(0, len(flights), ROWS):
            for p, log in enumerate(logs):
                first, last = np.searchsorted(flights.rows[p], [start, start + ROWS]).tolist()
                if first == last:
                    continue
                part = flights.parts[p].slice(first, last)
                acknowledged = log.append_batch(part.values, keys=part.keys, timestamps=part.timestamps)
                print(p, acknowledged.stop, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    append_all(sys.argv[1], int(sys.argv[2]))
