"""Which run of the kernel this is: until the next, what it has in memory of a synced file is what is on disk.

On disk: nothing. Threads: any.
"""

from __future__ import annotations

import functools

from segstore.files import Files

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@functools.cache
def boot_id() -> str:
    """Empty where it can't be told. No clock is asked: it may have been set since."""
    files = Files()
    try:
        with files.open(_BOOT_ID) as handle:
            return files.pread(handle, 64, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
