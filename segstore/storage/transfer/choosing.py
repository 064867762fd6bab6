"""What "auto" takes, by the kind of the sink and the bytes that there are to send. Nothing on disk.

TABLE is what `segstore bench zero-copy` recommends (benchmarks/results/zero-copy.json, Linux 6.18, 2 cores,
warm): sendfile everywhere, which no other method beat without losing in the other measure. At 64 KiB a
transfer, in MB/s, and the sender's CPU as a part of `read`'s:

    sink   sendfile     splice       mmap         read         copy_file_range
    tcp    1,794 0.61   1,035 1.07   1,007 1.10   1,107 1.00   -
    unix   3,667 0.32   1,899 0.67   1,247 1.00   1,253 1.00   -
    pipe   2,746 0.32   2,106 0.41     985 1.08   1,016 1.00   -
    file   1,790 0.89   1,200 1.24   1,277 1.21   1,590 1.00   1,875 0.85

From 1 MiB on all methods are near one another. To a Unix socket 16 MiB at a time go faster by mmap (3,643 to
2,362 MB/s), for more of the sender's CPU.
"""

from __future__ import annotations

from math import inf

from segstore.storage.transfer import methods, sinks
from segstore.storage.transfer.sinks import Sink

Choice = tuple[float, str]

TABLE: dict[str, tuple[Choice, ...]] = {
    sinks.TCP: ((inf, methods.SENDFILE),),
    sinks.UNIX: ((inf, methods.SENDFILE),),
    sinks.PIPE: ((inf, methods.SENDFILE),),
    sinks.FILE: ((inf, methods.SENDFILE),),
    sinks.OTHER: ((inf, methods.READ),),
}
"""For each kind: up to so many bytes, this method; the last row has no limit."""


def choose(sink: Sink, count: int) -> str:
    """The method for `count` bytes: never one that this sink would refuse."""
    method = next(method for most, method in TABLE[sink.kind] if count <= most)
    return methods.READ if sink.appends and method in sinks.NO_APPEND else method
