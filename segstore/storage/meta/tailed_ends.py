"""`FollowedEnds`: what is published of some partitions, as one follower last saw it; and the wait for more.

A wait ends when the ends of one of these partitions have changed, or when the store's writer nudges all who
wait, since there is news of another kind: topics came or went, or a group has changed. What is published of
other partitions wakes the thread within C only, without Python. A record that came is read within the wait.

The mapping of `.segstore/ends` is only read. Threads: one, the follower's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore._native import Follower, address, ffi, lib

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

LOOK = -1
"""A wait ended, and not because of one of the partitions: there may be other news, a signal, or nothing."""
LATE = -2
"""A wait ended because its time was over."""
_SPINS = 1000


class FollowedEnds(Follower):
    """`wait(nudges, seconds)` is C's (_native/follower.c): it returns the number of a partition whose ends
    have changed since they were last seen here, and sees them; LOOK after a nudge or a signal, LATE after
    `seconds`; 0 or less is a look. It raises OSError. Whoever calls it is marked by `calls_out`: a signal
    handler that runs while it sleeps may call the store.

    `came` is what that wait has read, None where it has read nothing: ({key: [record]}, offset, leader epoch,
    log start offset, bytes of the batch, and when it came, in monotonic seconds). The key is that of `keys`
    with the partition's number, (topic, partition), and the record a `kind`: a NamedTuple with the fields of
    the consumer's record. Where `kind` is None nothing is made.

    If the store is shared, the ends of its shared logs are those of `shared`, which is only read, too.

    The `n` partitions are numbered from 0, in the order of `slots`. `content` has a `seg_followed` for
    each, `last` is the `seg_last_record` of the last wait. `outdated`: another file has the
    name of one that is mapped, or has grown, and a follower must begin anew.
    """

    def __init__(self, memory: Any, size: int, slots: list[int], shared: SharedMap | None = None) -> None:
        """`memory` is the mapping, of `size` bytes. Raises LookupError where a slot can't be read now: it is
        damaged, or a publication does not end.
        """
        self.memory, self._size, self.n = memory, size, len(slots)
        self.shared = shared
        self._shared = ffi.NULL if shared is None else shared.c
        self.outdated = False
        self.content = ffi.new("seg_followed[]", self.n)
        self.last = ffi.new("seg_last_record *")
        for number, slot in enumerate(slots):
            self.content[number].slot, self.content[number].fd = slot, -1
            if lib.seg_follow(memory, size, self._shared, self.content + number, _SPINS) != 1:
                raise LookupError(f"slot {slot} of the published ends can't be read")
        follower = {"map": memory, "len": size, "followed": self.content, "n": self.n, "spins": _SPINS}
        self._follower = ffi.new("seg_follower *", follower | {"last": self.last, "shared": self._shared})
        self.follower = address(self._follower)
        self.nudges: Callable[[], int] = partial(lib.seg_nudges, memory, size, self._shared)
        """Returns a number that changes with every nudge. Read it first, then look for news, then wait."""

    def see(self, ends: Sequence[int]) -> bool:
        """See what is published, but for the ends of the logs: these were last seen at the offsets `ends`.
        Returns False where a slot can't be read now, as in `__init__`.
        """
        for number, end in enumerate(ends):
            place = self.content + number
            if lib.seg_follow(self.memory, self._size, self._shared, place, _SPINS) != 1:
                return False
            place.words[lib.SEG_FOLLOWED_END] = place.words[lib.SEG_FOLLOWED_STABLE] = end
        return True
