"""Which run of the kernel this is: until the next, what it has in memory of a synced file is what is on disk.
And whether its clock, which stamps files in steps of a tick before Linux 6.13, tells one change from another.

On disk: nothing. Threads: any.
"""

from __future__ import annotations

import functools
import time

from segstore.files import Files, Handle

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_TICK = 0.001  # seconds: the shortest there is; the longest is 10 ms
_LOOKS = 16


@functools.cache
def boot_id() -> str:
    """Empty where it can't be told. No clock is asked: it may have been set since."""
    files = Files()
    try:
        with files.open(_BOOT_ID) as handle:
            return files.pread(handle, 64, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""


def wait_until_past(files: Files, probe: Handle, ns: int) -> bool:
    """Let whatever is changed from now on have a ctime above `ns`, one of the same file system: at most some
    ms. False where it stays so for longer: a file system that counts seconds, a clock that was set back.
    `probe` is a file to touch. OSError.
    """
    for look in range(_LOOKS):
        if look > 1:  # from 6.13 on the second look is past it: a stamp that was looked at is not given again
            time.sleep(_TICK)
        if files.has_passed(probe, ns):
            return True
    return False
