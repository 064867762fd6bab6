"""`LogEnd`: the place of the next batch of a log; and `LastRecordEnds`, which reads new records at the ends
of logs.

A reader at the end of a log waits for the next record, which is mostly alone in its batch. C reads such a
record during the wait (_native/await_record.c). Other batches are read by `storage/log/read.py`, after the wait.

On disk the log is only read. Threads: any for `LogEnd`, which never changes; one for `LastRecordEnds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segstore.files import Handle
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.segment.log_view import LogView


class LogEnd(NamedTuple):
    """The byte `position` of an open log at which the batch with `offset` will begin. It is only a hint, so
    the reader must compare the batch's own offset.
    """

    offset: int
    position: int
    handle: Handle


def end_of(view: LogView) -> LogEnd:
    """Return the end of the visible log. Raises OSError if the active segment can't be opened."""
    return LogEnd(view.end_offset, view.end_position, view.segments[-1].handle)


class LastRecordEnds:
    """The ends of logs at which one reader waits. Its waits read the next record of a log, without headers,
    into `tailed.came`. Threads: one.
    """

    def __init__(
        self,
        tailed: TailedEnds,
        keys: Sequence[tuple[str, int]],
        kind: type[tuple[object, ...]],
        committed: bool,
        check_crcs: bool,
    ) -> None:
        """`keys` and `kind` are passed to `TailedEnds`. `committed`: a record is read only if no
        transaction is open in its partition.
        """
        tailed.keys, tailed.kind = tuple(keys), kind
        self.tailed = tailed
        self._ends: Sequence[LogEnd | None] = ()
        tailed.last.committed, tailed.last.check_crc = committed, check_crcs

    def expect(self, ends: Sequence[LogEnd | None]) -> None:
        """Have the next waits read records from these ends on, one end for each partition, one record at a
        time. With None the waits read no record of that partition.
        """
        places = self.tailed.content
        for number in range(self.tailed.n):
            places[number].fd = -1  # closed first, as an interrupt may come between these lines
        self._ends = ends  # keeps the files open
        for number, end in enumerate(ends):
            if end is not None:
                place = places[number]
                place.offset, place.position, place.fd = end.offset, end.position, end.handle.fd

    def read_up_to(self, ends: Sequence[LogEnd]) -> bool:
        """Call `expect`, for a reader that has read all records up to these ends. The next wait returns at
        once if later records are published already. Return False if the published ends can't be compared with
        these ends now.
        """
        self.expect(ends)
        return self.tailed.see([end.offset for end in ends])
