"""Whether the kernel's clock, which stamps files in steps of a tick before Linux 6.13, tells one change from
another.

On disk: nothing. Threads: any.
"""

from __future__ import annotations

import time

from segstore.files import Files, Handle

_TICK = 0.001  # seconds: the shortest there is; the longest is 10 ms
_LOOKS = 16


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
