"""Finds the descriptors that this process has open below a path. The number of all descriptors says nothing,
since other threads open and close theirs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def opened(place: Path) -> list[str]:
    """Return the paths of descriptors that lead to `place`, or below it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if Path(path).is_relative_to(place)]
