"""`salvage`: makes archived segments from pieces whose segment has left the store's log, so that the records
of these pieces stay in the archive.

The pieces of each of these segments are copied into a `.log` object of the archive, without indexes. Threads:
any; functions without state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from segstore import names
from segstore.archiving.claim import WritableObjects
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment
from segstore.archiving.stretches import crc_of
from segstore.errors import CorruptArchiveError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def salvage(
    objects: WritableObjects,
    key: TopicIdPartition,
    pieces: tuple[ArchivedPiece, ...],
    begins: int,
    name: Callable[[], str],
    since: int,
    time: int,
) -> list[ArchivedSegment]:
    """Join the pieces of each segment, upload the joined bytes as a segment, and return the entries of the
    uploaded segments. `retired` of an entry is "retention" if all its offsets are below `begins`, the first
    offset of the store's log, else "replaced". Raises ArchiveError, CorruptArchiveError.
    """
    made = []
    for base, run in groupby(pieces, key=lambda each: each.base):
        found = _Joined(objects, tuple(run))
        latest = max(each.max_timestamp for each in found.pieces)
        end = found.pieces[-1].end
        segment = ArchivedSegment(base, end, name(), {}, latest, since)
        size = objects.write(segment.object(key, names.LOG), found)
        why = "retention" if end <= begins else "replaced"
        made.append(segment._replace(files={names.LOG: (size, found.crc)}).retire(time, why))
    return made


class _Joined:
    def __init__(self, objects: WritableObjects, pieces: tuple[ArchivedPiece, ...]) -> None:
        self._objects, self.pieces = objects, pieces
        self.crc = 0

    def __iter__(self) -> Iterator[Buffer]:
        crc = 0
        for each in self.pieces:
            try:
                data = self._objects.read_range(each.object, each.at, each.length)
            except FileNotFoundError:
                raise CorruptArchiveError(each.object, "it is missing") from None
            if len(data) < each.length or crc_of(data) != each.crc:
                raise CorruptArchiveError(each.object, f"its bytes from {each.at} on are damaged or cut off")
            crc = crc_of(data, crc)
            yield data
        self.crc = crc
