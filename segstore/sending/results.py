"""Results of C calls on files, as counts and errors. Nothing on disk. Threads: any."""

from __future__ import annotations

import errno
import os
from typing import Protocol


class SentFile(Protocol):
    """An open file: `segstore.files.Handle`."""

    fd: int
    path: str


def sent(result: int, source: SentFile | None = None, of_source: int = errno.EIO) -> int:
    """Return the bytes sent. Raises the OSError of the sink, or of `source` for the error number
    `of_source`.
    """
    if result < 0:
        checked(result, source if -result == of_source else None)
    return int(result)


def checked(result: int, source: SentFile | None) -> int:
    """Return the result. Raises the OSError of `source` if it is negative."""
    if result < 0:
        text = os.strerror(-result)
        raise OSError(-result, text, source.path) if source is not None else OSError(-result, text)
    return int(result)
