"""Writes the output file of a command either completely or not at all. Threads: one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from segstore.errors import StorageError


def check_new(path: str, force: bool) -> None:
    """Raise StorageError if the file exists, unless `force`."""
    if os.path.isfile(path) and not force:
        raise StorageError(errno.EEXIST, "The file exists already: --force replaces it", path)


@contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """Yield a stream to which the command writes its output. The path "-" means standard output. A regular
    file is written under another name, and renamed when it is complete. If `path` is a device or a pipe, the
    output is written to it directly.
    """
    if path == "-":
        yield sys.stdout.buffer
        return
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as stream:
            yield stream
        return
    half = f"{path}.part"
    try:
        with _opened(half, path) as stream:
            yield stream
        os.replace(half, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(half)
        raise


def _opened(half: str, path: str) -> BinaryIO:
    try:
        return open(half, "wb")
    except OSError as error:
        parent = os.path.dirname(path)
        reason = error.strerror if os.path.isdir(parent) else f"there is no directory {parent}"
        raise StorageError(error.errno, f"The file can't be made there: {reason}", path) from error
