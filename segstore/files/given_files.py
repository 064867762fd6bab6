"""Files outside of any store, whose paths users give, and files in memory, for libraries that read secrets
only from files.

Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from segstore.files.handle import Handle
from segstore.idle_files import with_descriptors


def is_there(path: str) -> bool:
    """Return whether there is a file or directory at the path."""
    return os.path.exists(path)


def check_regular(path: str) -> None:
    """Raise OSError (EINVAL) if the path is a directory, a device or a pipe. Links are followed."""
    # The open of a pipe may wait for ever, and bytes that were read from a pipe can't be read again.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def read_given(path: str, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes. The path may be a symbolic link, unlike the path
    of a store's file. Raises OSError: EFBIG for a larger file, EINVAL for a file that is not regular, ENOENT
    for a path that no file can have.
    """
    try:
        check_regular(path)
        with with_descriptors(lambda: open(path, "rb")) as file:
            data = file.read(most + 1)
    except ValueError:  # `open` raises ValueError if the path has a NUL or half of a surrogate pair
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", path)
    return data


@contextmanager
def memory_file(data: bytes | memoryview) -> Iterator[str]:
    """Context manager: yield the path of a file in memory that has the bytes `data`. The file exists during
    the block. Raises OSError.
    """
    with with_descriptors(lambda: os.fdopen(os.memfd_create("segstore", os.MFD_CLOEXEC), "wb")) as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def in_memory(data: bytes | memoryview) -> Handle:
    """Return a handle to read `data` from a file in memory, or from an unnamed temporary file on systems
    without memfd_create. Raises OSError.
    """
    if hasattr(os, "memfd_create"):
        with memory_file(data) as path:
            return Handle(path, os.O_RDONLY)
    import tempfile  # This slow import is needed only on systems without memfd_create.

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return Handle(file.name, os.O_RDONLY)
