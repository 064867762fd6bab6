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
    sinks.PIPE: ((inf, methods.SENDFILE),),
    sinks.FILE: ((inf, methods.SENDFILE),),
    sinks.OTHER: ((inf, methods.READ),),
}
"""For each kind: up to so many bytes, this method; the last row has no limit."""


def choose(sink: Sink, count: int) -> str:
    """The method for `count` bytes: never one that this sink would refuse."""
    method = next(method for most, method in TABLE[sink.kind] if count <= most)
    return methods.READ if sink.appends and method in sinks.NO_APPEND else method
