"""`LogEnd`: where the next batch of a log will begin; and `LastRecord`, which came there.

A reader that has read all of a log waits for the next record, which mostly comes in a batch of its own: it is
read within the wait, in C (_native/follow.c). Everything else is left to `storage/log/read.py`.

On disk the log is only read. Threads: any; both never change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from segstore._native import ffi, lib
from segstore.files import Handle
from segstore.storage.meta.followed_ends import FollowedEnds
from segstore.storage.segment.log_view import LogView

_NUMBERS = lib.SEG_LAST_NUMBERS
_unpack = ffi.unpack


class LogEnd(NamedTuple):
    """The batch with `offset`, once it is written, begins at byte `position` of an open log. That is a hint:
    the batch itself must have the offset.
    """

    offset: int
    position: int
    handle: Handle


def end_of(view: LogView) -> LogEnd:
    """Return the end of what is visible. Raises OSError where the active segment can't be opened."""
    return LogEnd(view.end_offset, view.end_position, view.segments[-1].handle)


class LastRecord(NamedTuple):
    """A record without headers; `timestamp` in ms, `timestamp_type` 0: CreateTime, 1: LogAppendTime. `size`
    is that of its batch, in bytes, and `start` the log start offset.
    """

    leader_epoch: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    size: int
    start: int


_last_record: Callable[[tuple[Any, ...]], LastRecord] = partial(tuple.__new__, LastRecord)


class LastRecords:
    """The ends that one reader follows, and the record that the last wait has read. Threads: one."""

    def __init__(self, followed: FollowedEnds, committed: bool, check_crcs: bool) -> None:
        """`committed`: records are only read where no transaction is open in the partition."""
        self.followed = followed
        self._ends: Sequence[LogEnd | None] = ()
        followed.last.committed, followed.last.check_crc = committed, check_crcs
        self._numbers = followed.last.numbers
        self._bytes = ffi.buffer(followed.last.bytes, lib.SEG_LAST_ROOM)

    def expect(self, ends: Sequence[LogEnd | None]) -> None:
        """Let the next waits read a record that comes at the end of each partition; None: leave it to others.
        Behind a record that was read the next one is expected.
        """
        places = self.followed.content
        for number in range(self.followed.n):
            places[number].fd = -1  # first: an interrupt may come between these lines
        self._ends = ends  # which keep the files open
        for number, end in enumerate(ends):
            if end is not None:
                place = places[number]
                place.offset, place.position, place.fd = end.offset, end.position, end.handle.fd

    def read_up_to(self, ends: Sequence[LogEnd]) -> bool:
        """Expect records at these ends, up to which all was read, and let the next wait end at once where
        more is published already. Returns False where that can't be told now.
        """
        self.expect(ends)
        return self.followed.see([end.offset for end in ends])

    def take(self) -> LastRecord | None:
        """Return the record that the last wait has read; None where it has read none: then the long way must
        be taken.
        """
        size, offset, timestamp, kind, epoch, start, key, key_end, value, value_end = _unpack(
            self._numbers, _NUMBERS
        )
        if not size:
            return None
        content = self._bytes
        key = None if key < 0 else content[key:key_end]
        value = None if value < 0 else content[value:value_end]
        return _last_record((epoch, offset, timestamp, kind, key, value, size, start))
