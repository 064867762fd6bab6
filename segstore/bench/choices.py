"""The values that the options of `segstore bench` choose among. Nothing is on disk. Threads: any; immutable.

This module imports no measurement, so that a command's help is shown quickly.
"""

from __future__ import annotations

RUNS = 7
"""The number of runs of each variant. The variants take turns."""
TRANSFER_RUNS = 11
"""The number of runs of a transfer. There are many short runs, so that a disturbance of the machine hits only
some of them, which the interval excludes.
"""

STUDIES = {
    "sequential-writes": "sequential",
    "append-ways": "append_ways",
    "caches": "caches",
    "batching": "batching",
    "compression": "compression",
    "index-interval": "index_interval",
    "partitions": "partitions",
    "failover": "failover",
}
"""The module of each study."""

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "100 B": 100,
    **{f"{n} KiB": n * KIB for n in (1, 4, 10, 16, 64, 256)},
    "1 MiB": MIB,
    "16 MiB": 16 * MIB,
}
CACHES = ("warm", "cold")
SINKS = ("tcp", "unix", "pipe", "file")
WAYS_TO_SEND = ("sendfile", "splice", "mmap", "read", "copy_file_range", "zerocopy", "io_uring", "auto")
"""The methods of `PartitionLog.transfer`, and the methods that are compared with them."""
