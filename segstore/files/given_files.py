"""Files that users name, of no store's; and files in memory, for libraries that take secrets from files only.

Threads: any.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


def read_given(path: str, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes; unlike a store's files it may be a link. Raises
    OSError: EFBIG where it is larger.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", path)
    return data


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """Return the path of a file with these bytes, which lies on no disk, while the block runs. Raises
    OSError.
    """
    with os.fdopen(os.memfd_create("segstore", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
