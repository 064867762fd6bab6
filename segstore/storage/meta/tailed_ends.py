"""`TailedEnds`: the published ends that one reader has last seen, and its wait until they change.

A wait returns when the ends of one of these partitions have changed, or when the store's writer nudges all
waiting threads because topics were created or deleted, or a group has changed. Publications of other
partitions wake the thread only within C, without Python. The wait in C also reads a new record.

The mapping of `.segstore/ends` is only read. Threads: one, the reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore._native import EndsTailer, address, ffi, lib

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

LOOK = -1
"""The result of a wait that returned because of a nudge or a signal, or spuriously: the ends have not
changed.
"""
LATE = -2
"""The result of a wait that returned because of its timeout."""
_SPINS = 1000


class TailedEnds(EndsTailer):
    """The published ends of some partitions. `wait(nudges, seconds)` is implemented in C
    (_native/tailer.c): it returns the number of a partition whose ends have changed since they were last
    seen, and notes the new ends as seen; LOOK after a nudge or a signal, LATE after `seconds`. With 0 seconds
    or less `wait` does not sleep. `wait` raises OSError. A function that calls it is marked with `calls_out`,
    because a signal handler that runs during the sleep may call the store.

    `came` is the record that the wait has read, None if it has read none: ({key: [record]}, offset, leader
    epoch, log start offset, bytes of the batch, and its arrival in monotonic seconds). The key, (topic,
    partition), is the element of `keys` at the partition's number. The record is a `kind`: a NamedTuple with
    the fields of the consumer's record. If `kind` is None, no record is read.

    If the store is shared, the ends of its shared logs come from `shared`, which is only read, too.

    The `n` partitions are numbered from 0, in the order of `slots`. `content` has a `seg_tailed` for each,
    `last` is the `seg_last_record` of the last wait. `outdated`: a mapped file was replaced, or has grown,
    and a new `TailedEnds` is needed.
    """

    def __init__(self, memory: Any, size: int, slots: list[int], shared: SharedMap | None = None) -> None:
        """`memory` is the mapping, of `size` bytes. Raises LookupError if a slot can't be read now: it is
        damaged, or a publication does not end.
        """
        self.memory, self._size, self.n = memory, size, len(slots)
        self.shared = shared
        self._shared = ffi.NULL if shared is None else shared.c
        self.outdated = False
        self.content = ffi.new("seg_tailed[]", self.n)
        self.last = ffi.new("seg_last_record *")
        for number, slot in enumerate(slots):
            self.content[number].slot, self.content[number].fd = slot, -1
            if lib.seg_read_tailed(memory, size, self._shared, self.content + number, _SPINS) != 1:
                raise LookupError(f"slot {slot} of the published ends can't be read")
        tailer = {"map": memory, "len": size, "tailed": self.content, "n": self.n, "spins": _SPINS}
        self._tailer = ffi.new("seg_tailer *", tailer | {"last": self.last, "shared": self._shared})
        self.tailer = address(self._tailer)
        self.nudges: Callable[[], int] = partial(lib.seg_nudges, memory, size, self._shared)
        """Returns a number that changes with every nudge. Read it first, then look at topics and groups, then
        wait.
        """

    def see(self, ends: Sequence[int]) -> bool:
        """Read the published ends, but note `ends`, the offsets up to which the reader has read, as the last
        seen ends of the logs, so that the next wait returns at once if there is a later record. Return False
        if a slot can't be read now (it is damaged, or a publication does not finish), else True.
        """
        for number, end in enumerate(ends):
            place = self.content + number
            if lib.seg_read_tailed(self.memory, self._size, self._shared, place, _SPINS) != 1:
                return False
            place.words[lib.SEG_TAILED_END] = place.words[lib.SEG_TAILED_STABLE] = end
        return True
