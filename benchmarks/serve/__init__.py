"""`segstore serve` beside a real, warm Kafka broker: the same clients, the same work, by turns in one run.

`python -m benchmarks.serve` runs it, as does `make bench-serve`. On disk: both servers' directories, which go
with the run, and results where they are asked for. Threads: one work at a time; each server is a process.
"""

import sys

from benchmarks.steps import ROOT

# Modules here find a broker, and a client's requests, in the rooms of the tests' helpers.
sys.path.extend(str(room) for room in sorted((ROOT / "tests" / "support").iterdir()))
