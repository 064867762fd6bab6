"""`FollowedEnds`: what is published of some partitions, as one follower last saw it; and the wait for more.

A wait ends when the ends of one of these partitions have changed, or when the store's writer nudges all who
wait, since there is news of another kind: topics came or went, or a group has changed. What is published of
other partitions wakes the thread within C only, without Python. A record that came is read within the wait.

The mapping of `.segstore/ends` is only read. Threads: one, the follower's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from segstore._native import ffi, lib
from segstore.mutex import calls_out

LOOK = -1
"""A wait ended, and not because of one of the partitions: there may be other news, a signal, or nothing."""
LATE = -2
"""A wait ended because its time was over."""
_LONGEST_WAIT = 86_400.0  # seconds
_SPINS = 1000


class FollowedEnds:
    """The `n` partitions are numbered from 0, in the order of `slots`. `content` has a `seg_followed` for
    each, and `last` is the `seg_last_record` that the last wait has read.
    """

    def __init__(self, memory: Any, size: int, slots: list[int]) -> None:
        """`memory` is the mapping, of `size` bytes. Raises LookupError where a slot can't be read now: it is
        damaged, or a publication does not end.
        """
        self._memory, self._size, self.n = memory, size, len(slots)
        self.content = ffi.new("seg_followed[]", self.n)
        self.last = ffi.new("seg_last_record *")
        for number, slot in enumerate(slots):
            self.content[number].slot, self.content[number].fd = slot, -1
            if lib.seg_follow(self._memory, self._size, self.content + number, _SPINS) != 1:
                raise LookupError(f"slot {slot} of the published ends can't be read")
        self.nudges: Callable[[], int] = partial(lib.seg_nudges, memory, size)
        """Returns a number that changes with every nudge. Read it first, then look for news, then wait."""

    @calls_out  # a signal handler that runs while this sleeps may call the store
    def wait(self, nudges: int, seconds: float) -> int:
        """Return the number of a partition whose ends have changed since they were last seen here, and see
        them; LOOK after a nudge or a signal, LATE after `seconds`. Raises OSError.
        """
        code = lib.seg_await_record(
            self._memory,
            self._size,
            nudges,
            max(0, int(min(seconds, _LONGEST_WAIT) * 1e9)),
            self.content,
            self.n,
            _SPINS,
            self.last,
        )
        if 0 <= code < self.n:
            return int(code)
        if code == -errno.ETIMEDOUT:
            return LATE
        if code == self.n or -code in (errno.EINTR, errno.EAGAIN):
            return LOOK
        raise OSError(-code, os.strerror(-code))
