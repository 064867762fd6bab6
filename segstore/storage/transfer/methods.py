"""Methods of a transfer: how bytes move from a file to a sink (a socket, pipe or file), the sinks that each
method serves, and the methods that this machine has.

Nothing is on disk. Threads: any. `METHODS` are the methods of `PartitionLog.transfer`, by name; a caller of
`storage.transfer.transfer` may pass a `Method` of its own, as `segstore bench zero-copy` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.storage.transfer.senders import Mmap, ReadWriteSender, Splice, Straight, TransferSender
from segstore.storage.transfer.sinks import FILE, KINDS, OTHER, PIPE, Sink

SENDFILE, SPLICE, MMAP, READ = "sendfile", "splice", "mmap", "read"
COPY_FILE_RANGE, AUTO = "copy_file_range", "auto"


class Method(NamedTuple):
    """A method of a transfer: `make` returns the sender for one transfer to a sink, and raises OSError if the
    system lacks or forbids a call that the method needs.
    """

    name: str
    make: Callable[[Files, Sink], TransferSender]
    kinds: frozenset[str] = frozenset(KINDS)
    """The kinds of sink that the method can serve; the system may still refuse an "other" sink (a device)."""
    looks: bool = True
    """Whether a transfer first finds out the kind of the sink. That takes some system calls."""
    appends: bool = True
    """Whether the system lets the method write to a file that was opened with O_APPEND."""

    def serves(self, sink: Sink) -> bool:
        """Return whether the method can send to this sink."""
        return sink.kind in self.kinds and (self.appends or not sink.appends)


def _sendfile(files: Files, sink: Sink) -> TransferSender:
    return Straight(files.sendfile, sink)


def _splice(files: Files, sink: Sink) -> TransferSender:
    return Straight(files.splice, sink) if sink.kind == PIPE else Splice(files, sink)


def _copy_file_range(files: Files, sink: Sink) -> TransferSender:
    return Straight(files.append_range, sink)


# --- auto --------------------------------------------------------------------------------------

# "auto" takes the method that `segstore bench zero-copy` recommends (benchmarks/results/zero-copy.json, Linux
# 6.18, 2 cores, warm): sendfile for all sinks. Of the two measures, speed and CPU, no other method was better
# in one without being worse in the other. The table has the speed in MB/s at 64 KiB per transfer, and the
# sender's CPU time divided by the CPU time of "read":
#
#     sink   sendfile     splice       mmap         read         copy_file_range
#     tcp    1,794 0.61   1,035 1.07   1,007 1.10   1,107 1.00   -
#     unix   3,667 0.32   1,899 0.67   1,247 1.00   1,253 1.00   -
#     pipe   2,746 0.32   2,106 0.41     985 1.08   1,016 1.00   -
#     file   1,790 0.89   1,200 1.24   1,277 1.21   1,590 1.00   1,875 0.85
#
# From 1 MiB per transfer on, all methods have nearly the same speed. There is one exception: 16 MiB per
# transfer to a Unix socket are faster by mmap (3,643 MB/s) than by sendfile (2,362 MB/s), but need more CPU
# time of the sender.


def choose(sink: Sink) -> str:
    """Return the method that "auto" uses for this sink."""
    return READ if sink.kind == OTHER or sink.appends else SENDFILE


def _auto(files: Files, sink: Sink) -> TransferSender:
    return METHODS[choose(sink)].make(files, sink)


# --- the methods -------------------------------------------------------------------------------

METHODS = {
    method.name: method
    for method in (
        Method(SENDFILE, _sendfile, looks=False, appends=False),
        Method(SPLICE, _splice, appends=False),
        Method(MMAP, Mmap, looks=False),
        Method(READ, ReadWriteSender, looks=False),
        Method(COPY_FILE_RANGE, _copy_file_range, frozenset({FILE}), appends=False),
        Method(AUTO, _auto),
    )
}


def check(method: Method, sink: Sink) -> None:
    """Raise InvalidArgumentError if the method can't serve the sink."""
    if method.serves(sink):
        return
    allowed = ", ".join(name for name, other in METHODS.items() if other.serves(sink))
    kind = sink.kind + (" opened with O_APPEND" if sink.appends else "")
    raise InvalidArgumentError(
        f"method={method.name!r} can't serve this sink, a {kind}: must be one of {allowed}"
    )


def transfer_methods() -> dict[str, str | None]:
    """Return a dict with the name of each method of `PartitionLog.transfer`. The value is None if the method
    is available here, else the reason why it is not.
    """
    files = Files()
    return {method: files.why_not(method) for method in METHODS}
