"""Which start of the machine this is. On disk: nothing; reads /proc. Threads: any."""

from __future__ import annotations

import uuid
from functools import cache


@cache
def boot() -> int:
    """A number of 63 bits that this start has, and no other; 0 where it can't be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return uuid.UUID(file.read().strip()).int & (1 << 63) - 1
    except (OSError, ValueError):
        return 0
