"""`LogEnd`: the offset and file position at which the next batch of a log will begin; and `LastRecordEnds`,
which reads new records at the ends of logs.

A reader at the end of a log waits for the next batch. Most such batches have one record, which C reads during
the wait (_native/await_record.c). Other batches are read by `storage/log/read.py`, after the wait.

On disk the log is only read. Threads: any for `LogEnd`, which never changes; one for `LastRecordEnds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segstore.files import Handle
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.segment.log_view import LogView


class LogEnd(NamedTuple):
    """The byte `position` in an open log file at which the batch with base offset `offset` will begin. The
    position is only a hint, so the reader must compare `offset` with the offset in the batch.
    """

    offset: int
    position: int
    handle: Handle


def end_of(view: LogView) -> LogEnd:
    """Return the end of the visible log. Raises OSError if the active segment can't be opened."""
    return LogEnd(view.end_offset, view.end_position, view.segments[-1].handle)


class LastRecordEnds:
    """The ends of logs at which one reader waits. A wait puts the next record of a log into `TailedEnds.came`
    only if that record is the only one of its batch and has no headers. Threads: one.
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
        """Make the next waits read records from `ends` on, one record at a time. `ends` has one item for each
        partition; if the item is None, the waits read no record of that partition.
        """
        places = self.tailed.content
        for number in range(self.tailed.n):
            # First every `fd` is set to -1: if an interrupt ends this method early, no `fd` may be the number
            # of a closed file.
            places[number].fd = -1
        self._ends = ends  # the reference keeps the files open
        for number, end in enumerate(ends):
            if end is not None:
                place = places[number]
                place.offset, place.position, place.fd = end.offset, end.position, end.handle.fd

    def read_up_to(self, ends: Sequence[LogEnd]) -> bool:
        """Call `expect` for a reader that has read all records below `ends`. If later records are published
        already, the next wait returns at once. Return False if a published end can't be read now, else True.
        """
        self.expect(ends)
        return self.tailed.see([end.offset for end in ends])
