"""Finds the descriptors that this process has open below a path, and tells those of others apart: the number
of all descriptors says nothing, since other threads open and close theirs.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def opened(place: Path) -> list[str]:
    """Return the paths of descriptors that lead to `place`, or below it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if Path(path).is_relative_to(place)]


def never_blocks(fd: str) -> bool:
    """Return whether a descriptor is of a pipe that never blocks, by which librdkafka wakes its threads: in a
    process with clients of its own these come and go. Raises FileNotFoundError.
    """
    if not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
        return False
    flags = re.search(r"^flags:\s+(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
    return flags is not None and bool(int(flags[1], 8) & os.O_NONBLOCK)


@contextmanager
def allowed(count: int) -> Iterator[None]:
    """Raise this process's limit to `count` descriptors; an ordinary user begins with 1,024.

    Skips the test if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"the hard limit of descriptors is {hard}, and {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
