"""Sinks of a transfer: what a descriptor is, which methods can serve it, and which methods this machine has.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NamedTuple

from segstore._native import lib
from segstore.errors import InvalidArgumentError, InvalidTypeError, SinkClosedError, SinkError
from segstore.files import Files

# --- methods -----------------------------------------------------------------------------------

# The ways to move bytes from a file to a sink, by name, and how many bytes are moved at a time.

SENDFILE, SPLICE, MMAP, READ = "sendfile", "splice", "mmap", "read"
COPY_FILE_RANGE, ZEROCOPY, IO_URING, AUTO = "copy_file_range", "zerocopy", "io_uring", "auto"

METHODS = (SENDFILE, SPLICE, MMAP, READ, COPY_FILE_RANGE, ZEROCOPY, IO_URING, AUTO)

BUFFER = 1 << 20
"""Bytes that `read` reads at a time."""
WINDOW = 4 << 20
"""Bytes that `mmap`, `zerocopy` and `io_uring` map at a time."""


# --- sinks ------------------------------------------------------------

TCP, UNIX, PIPE, FILE, OTHER = KINDS = ("tcp", "unix", "pipe", "file", "other")
_ALL = frozenset(KINDS)
_NAMES = {
    lib.SEG_SINK_TCP: TCP,
    lib.SEG_SINK_UNIX: UNIX,
    lib.SEG_SINK_PIPE: PIPE,
    lib.SEG_SINK_FILE: FILE,
    lib.SEG_SINK_OTHER: OTHER,
}
_MOST_FD = 2**31 - 1

NEEDS = {
    **dict.fromkeys((SENDFILE, SPLICE, MMAP, READ, AUTO), _ALL),
    COPY_FILE_RANGE: frozenset({FILE}),
    ZEROCOPY: frozenset({TCP}),
    IO_URING: frozenset({TCP}),
}
"""The kinds of sink that each method can serve; "other" sinks (devices) the system may still refuse."""
UNSEEN = frozenset({SENDFILE, MMAP, READ})
"""Methods that are tried without a look at the sink before, which would take calls of its own."""
NO_APPEND = frozenset({SENDFILE, SPLICE, COPY_FILE_RANGE})
"""Methods that the system refuses for a file that was opened with O_APPEND."""


class Sink(NamedTuple):
    """A descriptor, its kind, and whether it was opened with O_APPEND."""

    fd: int
    kind: str
    appends: bool


def descriptor(sink: Any) -> int:
    """The descriptor of a sink: an int, or what has fileno(). Raises InvalidTypeError; SinkError for a closed
    sink.
    """
    fd = sink if isinstance(sink, int) and not isinstance(sink, bool) else _fileno(sink)
    if not 0 <= fd <= _MOST_FD:
        raise SinkError(errno.EBADF, f"the sink is closed, or no file descriptor: {fd}")
    return fd


def _fileno(sink: Any) -> int:
    ssl = sys.modules.get("ssl")
    if ssl is not None and isinstance(sink, ssl.SSLSocket):
        raise InvalidTypeError("sink is an SSLSocket: what goes to its descriptor would not be encrypted")
    try:
        return int(sink.fileno())
    except (AttributeError, TypeError, OSError):
        raise InvalidTypeError(
            f"sink must be a file descriptor or have fileno(), not be {type(sink).__name__}"
        ) from None
    except ValueError:  # a closed file raises this
        return -1


def look_at(files: Files, fd: int) -> Sink:
    """The kind of a descriptor. Raises SinkError where it is none."""
    try:
        kind, appends, _ = files.look_at(fd)
    except OSError as error:
        raise refusal(error) from None
    return Sink(fd, _NAMES[kind], appends)


def unseen(fd: int) -> Sink:
    """A sink for a descriptor that is not looked at."""
    return Sink(fd, OTHER, False)


def kind_of(fd: int) -> str:
    """The kind of a descriptor: "tcp", "unix" (both stream sockets), "pipe", "file" or "other". Raises
    SinkError.
    """
    return look_at(Files(), fd).kind


def check(method: str, sink: Sink) -> None:
    """Raises InvalidArgumentError where the method can't serve the sink."""
    if _serves(method, sink):
        return
    allowed = ", ".join(name for name in METHODS if _serves(name, sink))
    kind = sink.kind + (" opened with O_APPEND" if sink.appends else "")
    raise InvalidArgumentError(f"method={method!r} can't serve this sink, a {kind}: must be one of {allowed}")


def _serves(method: str, sink: Sink) -> bool:
    return sink.kind in NEEDS[method] and not (sink.appends and method in NO_APPEND)


def refusal(error: OSError) -> SinkError:
    """The SinkError for an error that the system gives for a sink."""
    number = error.errno or errno.EIO
    gone = number in (errno.EPIPE, errno.ECONNRESET)
    return (SinkClosedError if gone else SinkError)(number, os.strerror(number))


# --- probing -----------------------------------------------------------------------------------


def transfer_methods() -> dict[str, str | None]:
    """For each method of `PartitionLog.transfer`: None where it is available here, else why it is not."""
    files = Files()
    return {method: files.why_not(method) for method in METHODS}
