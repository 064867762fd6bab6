"""What this process has open of a place; what in all is no question: other threads open and close theirs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def opened(place: Path) -> list[str]:
    """The paths of descriptors that lead to `place`, or below it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # one that listed the others
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if Path(path).is_relative_to(place)]
