"""`TailedEnds`: waits until the published ends of some partitions change, for a thread that reads these
partitions.

A wait returns when the ends of one of these partitions have changed, or at a nudge: a wake-up of all waiting
threads without a publication, because topics were created or deleted, or a group has changed. If only other
partitions were published, the C code goes on waiting without calling Python. The C code also reads the new
record.

The memory mapping of `.segstore/ends` is only read. Threads: one, the reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore._native import EndsTailer, address, ffi, lib

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

LOOK = -1
"""The result of a wait that ended although no log end has changed: because of a nudge, a signal or a spurious
wake-up.
"""
LATE = -2
"""The result of a wait that ended because of its timeout."""
_SPINS = 1000


class TailedEnds(EndsTailer):
    """Waits for changes of the published ends of some partitions, which are numbered from 0 in the order of
    `slots`.

    `wait(nudges, seconds)` is implemented in C (_native/tailer.c). It sleeps until the ends of a partition
    differ from the last seen ends, stores the new ends as the last seen ends, and returns the partition's
    number. It returns LOOK after a signal, or if `nudges()` no longer returns `nudges`; LATE after
    `seconds`. If `seconds` is 0 or less, it does not sleep. Raises OSError. A function that calls `wait` is
    marked with `calls_out`, because a signal handler that runs during the sleep may call the store.

    `came` is None, or, if the wait has read a record, ({key: [record]}, offset, leader epoch, log start
    offset, bytes of the batch, time of arrival in monotonic seconds). The key, (topic, partition), is
    `keys[number]` for the partition's number. The record is of the class `kind`, a NamedTuple with the fields
    of the consumer's record. If `kind` is None, no record is read.

    `shared` is the mapping of the shared file, which has the ends of shared logs; None if the store is not
    shared. `n` is the number of partitions. `content` has a `seg_tailed` for each partition. `last` is a
    `seg_last_record`, into which the C code writes the record of the last wait. `outdated`: whether a mapped
    file was replaced or has grown, so that a new `TailedEnds` is needed.
    """

    def __init__(self, memory: Any, size: int, slots: list[int], shared: SharedMap | None = None) -> None:
        """`memory` is the memory mapping of `.segstore/ends`, of `size` bytes. Raises LookupError if a slot
        is damaged, or if a writer's publication does not end while this waits for it.
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
        """Returns a number that changes with each nudge (a wake-up without a publication). To miss no nudge,
        call this first, then look at topics and groups, then call `wait` with the number.
        """

    def see(self, ends: Sequence[int]) -> bool:
        """Store `ends` as the last seen log end offsets, because the thread has read each partition up to its
        offset in `ends`. If a partition has a later record, the next wait returns at once. Return False if a
        slot can't be read now, because it is damaged, or because a publication is under way and does not end;
        else True.
        """
        for number, end in enumerate(ends):
            place = self.content + number
            if lib.seg_read_tailed(self.memory, self._size, self._shared, place, _SPINS) != 1:
                return False
            place.words[lib.SEG_TAILED_END] = place.words[lib.SEG_TAILED_STABLE] = end
        return True
