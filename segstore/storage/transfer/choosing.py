"""What "auto" takes, by the kind of the sink and the bytes that there are to send. Nothing on disk.

TABLE is filled from the figures of `segstore bench zero-copy` (benchmarks/results/).
"""

from __future__ import annotations

from math import inf

from segstore.storage.transfer import methods, sinks
from segstore.storage.transfer.sinks import Sink

Choice = tuple[float, str]

TABLE: dict[str, tuple[Choice, ...]] = {
    sinks.TCP: ((inf, methods.SENDFILE),),
    sinks.UNIX: ((inf, methods.SENDFILE),),
    sinks.PIPE: ((inf, methods.SPLICE),),
    sinks.FILE: ((inf, methods.COPY_FILE_RANGE),),
    sinks.OTHER: ((inf, methods.READ),),
}
"""For each kind: up to so many bytes, this method; the last row has no limit."""


def choose(sink: Sink, count: int, device: int) -> str:
    """The method for `count` bytes of a file on `device`: never one that this sink would refuse."""
    method = next(method for most, method in TABLE[sink.kind] if count <= most)
    if method == methods.COPY_FILE_RANGE and sink.device != device:
        method = methods.SENDFILE  # copy_file_range may not cross file systems
    return methods.READ if sink.appends and method in sinks.NO_APPEND else method
