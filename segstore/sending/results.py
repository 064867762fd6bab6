"""Converts results of C calls on files to counts and errors. Nothing on disk. Threads: any."""

from __future__ import annotations

import errno
import os
from typing import Protocol


class SentFile(Protocol):
    """An open file, for example a `segstore.files.Handle`."""

    fd: int
    path: str


def sent(result: int, source: SentFile | None = None, of_source: int = errno.EIO) -> int:
    """Return `result`, the number of bytes that were sent. Raises OSError if `result` is negative. The error
    has the path of `source` if the error number is `of_source`.
    """
    if result < 0:
        checked(result, source if -result == of_source else None)
    return int(result)


def checked(result: int, source: SentFile | None) -> int:
    """Return `result`. If `result` is negative, raises OSError with the path of `source`."""
    if result < 0:
        text = os.strerror(-result)
        raise OSError(-result, text, source.path) if source is not None else OSError(-result, text)
    return int(result)
