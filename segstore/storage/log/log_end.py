"""`LogEnd`: where the next batch of a log will begin; and `LastRecordEnds`, which come there.

A reader that has read all of a log waits for the next record, which mostly comes in a batch of its own: it is
read within the wait, in C (_native/follow.c). Everything else is left to `storage/log/read.py`.

On disk the log is only read. Threads: any; both never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segstore.files import Handle
from segstore.storage.meta.tailed_ends import FollowedEnds
from segstore.storage.segment.log_view import LogView


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


class LastRecordEnds:
    """The ends that one reader follows, whose waits read the last record of a log: `followed.came`. It has no
    headers. Threads: one.
    """

    def __init__(
        self,
        followed: FollowedEnds,
        keys: Sequence[tuple[str, int]],
        kind: type[tuple[object, ...]],
        committed: bool,
        check_crcs: bool,
    ) -> None:
        """`keys` and `kind` are those of `FollowedEnds`. `committed`: records are only read where no
        transaction is open in the partition.
        """
        followed.keys, followed.kind = tuple(keys), kind
        self.followed = followed
        self._ends: Sequence[LogEnd | None] = ()
        followed.last.committed, followed.last.check_crc = committed, check_crcs

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
