"""The values that users can choose by the options of `segstore bench`. Nothing is on disk. Threads: any;
immutable.

This module imports no measurement, so that a command's help is shown quickly.
"""

from __future__ import annotations

RUNS = 7
"""The default number of runs of each variant. All variants run once before a variant runs again."""
TRANSFER_RUNS = 11
"""The default number of runs of a transfer. There are many short runs, so that other work on the machine
disturbs only some of them. The values of these runs are outside of the interval.
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
"""Name of a study -> its module."""

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
"""The methods of `PartitionLog.transfer`, and two more methods that are compared with these."""
