"""Sinks (the sockets, pipes and files that transfers send to): finds the kind of a descriptor, and makes the
errors of sinks.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NamedTuple

from segstore._native import lib
from segstore.errors import InvalidTypeError, SinkClosedError, SinkError
from segstore.files import Files
from segstore.integers import INT32_MAX

TCP, UNIX, PIPE, FILE, OTHER = KINDS = ("tcp", "unix", "pipe", "file", "other")
_NAMES = {
    lib.SEG_SINK_TCP: TCP,
    lib.SEG_SINK_UNIX: UNIX,
    lib.SEG_SINK_PIPE: PIPE,
    lib.SEG_SINK_FILE: FILE,
    lib.SEG_SINK_OTHER: OTHER,
}


class Sink(NamedTuple):
    """A descriptor, its kind, and whether it was opened with O_APPEND."""

    fd: int
    kind: str
    appends: bool


def descriptor(sink: Any) -> int:
    """Return the descriptor of a sink: an int, or an object with fileno(). Raises InvalidTypeError, and
    SinkError if the sink is closed.
    """
    fd = sink if isinstance(sink, int) and not isinstance(sink, bool) else _fileno(sink)
    if not 0 <= fd <= INT32_MAX:
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
    except ValueError:  # fileno() of a closed file raises ValueError
        return -1


def look_at(files: Files, fd: int) -> Sink:
    """Return the sink of a descriptor, with its kind. Raises SinkError if the descriptor is not open."""
    try:
        kind, appends, _ = files.look_at(fd)
    except OSError as error:
        raise refusal(error) from None
    return Sink(fd, _NAMES[kind], appends)


def unseen(fd: int) -> Sink:
    """Return a sink for a descriptor, without a call that finds its kind."""
    return Sink(fd, OTHER, False)


def kind_of(fd: int) -> str:
    """Return the kind of a descriptor: "tcp", "unix" (both stream sockets), "pipe", "file" or "other". Raises
    SinkError.
    """
    return look_at(Files(), fd).kind


def refusal(error: OSError) -> SinkError:
    """Return the SinkError for a system error of a sink."""
    number = error.errno or errno.EIO
    gone = number in (errno.EPIPE, errno.ECONNRESET)
    return (SinkClosedError if gone else SinkError)(number, os.strerror(number))
