"""`LogEnd`: where the next batch of a log will begin; and `LastRecord`, which came there.

A reader that has read all of a log waits for the next record, which mostly comes in a batch of its own: it is
read within the wait, in C (_native/follow.c). Everything else is left to `storage/log/read.py`.

On disk the log is only read. Threads: any; both never change.
"""

from __future__ import annotations

from collections.abc import Callable
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


_log_end: Callable[[tuple[Any, ...]], LogEnd] = partial(tuple.__new__, LogEnd)  # a call of C


def end_of(view: LogView) -> LogEnd:
    """Return the end of what is visible. Raises OSError where the active segment can't be opened."""
    return LogEnd(view.end_offset, view.end_position, view.segments[-1].handle)


class LastRecord(NamedTuple):
    """A record without headers; `timestamp` in ms, `timestamp_type` 0: CreateTime, 1: LogAppendTime. `size`
    is that of its batch, in bytes, `start` the log start offset, and `end` is behind the record.
    """

    leader_epoch: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    size: int
    start: int
    end: LogEnd


_last_record: Callable[[tuple[Any, ...]], LastRecord] = partial(tuple.__new__, LastRecord)


class LastRecords:
    """The ends that one reader follows, and the record that the last wait has read. Threads: one."""

    def __init__(self, followed: FollowedEnds, committed: bool, check_crcs: bool) -> None:
        """`committed`: records are only read where no transaction is open in the partition."""
        self.followed = followed
        self._ends: list[LogEnd | None] = [None] * followed.n
        followed.last.committed, followed.last.check_crc = committed, check_crcs
        self._numbers, self._bytes = followed.last.numbers, followed.last.bytes

    def expect(self, number: int, end: LogEnd | None) -> None:
        """Let the next wait read the record that comes at `end` of a partition; None: leave it to others."""
        if self._ends[number] is end:
            return
        place = self.followed.content[number]
        place.fd = -1  # first: an interrupt may come between these lines
        self._ends[number] = end  # which keeps the file open
        if end is not None:
            place.offset, place.position = end.offset, end.position
            place.fd = end.handle.fd

    def take(self, number: int, end: LogEnd) -> LastRecord | None:
        """Return the record of partition `number` that the last wait has read at `end`; None where it has
        read none: then the long way must be taken.
        """
        size, timestamp, kind, epoch, start, key_at, key_end, value_at, value_end = _unpack(
            self._numbers, _NUMBERS
        )
        if not size or self._ends[number] is not end:
            return None
        content = self._bytes
        key = None if key_at < 0 else _unpack(content + key_at, key_end - key_at)
        value = None if value_at < 0 else _unpack(content + value_at, value_end - value_at)
        after = _log_end((end.offset + 1, end.position + size, end.handle))
        return _last_record((epoch, timestamp, kind, key, value, size, start, after))
