"""Which start of the machine this is. On disk: nothing; reads /proc. Threads: any."""

from __future__ import annotations

import uuid
from functools import cache


@cache
def boot_id() -> str:
    """The kernel's name of this start. Empty where it can't be told. No clock is asked: it may have been set
    since.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


@cache
def boot() -> int:
    """A number of 63 bits that this start has, and no other; 0 where it can't be told."""
    try:
        return uuid.UUID(boot_id()).int & (1 << 63) - 1
    except ValueError:
        return 0
