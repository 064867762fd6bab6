"""`SegmentHints`: the indexes of archived segments, in which a reader finds the first byte to read. Each
index is read once.

An index is only a hint, as in a store: if its object is missing or damaged, one warning names the object, and
the segment is read from its beginning. The archive is only read. Threads: one.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore import names
from segstore._native import crc32c
from segstore.archiving.chain import Objects
from segstore.archiving.log_contents import Extent
from segstore.archiving.object_names import TopicIdPartition
from segstore.index.sparse import SealedOffsetIndex, SealedTimeIndex
from segstore.logger import Logger

log = Logger("segstore")

SMALL = 1 << 20
"""A segment of at most this many bytes is read from its beginning, because its index would cost one more
request.
"""
KEPT = 64
"""The number of segments whose indexes are kept in memory."""


class Hint(NamedTuple):
    """The position of a batch's first byte, and the last offset of this batch."""

    position: int
    last_offset: int


class SegmentHints:
    """The indexes of the segments of one partition."""

    def __init__(self, objects: Objects, key: TopicIdPartition) -> None:
        self._objects, self._key = objects, key
        self._offsets: dict[str, SealedOffsetIndex] = {}
        self._times: dict[str, SealedTimeIndex] = {}

    def position(self, extent: Extent, offset: int) -> Hint | None:
        """Return the last indexed batch that ends at or before an offset, or None if there is none, or if the
        extent is a piece or is at most SMALL bytes (its index is not read).
        """
        if extent.segment is None or extent.length <= SMALL or offset <= extent.first:
            return None
        found = self._offset_index(extent).lookup(offset - extent.segment.base)
        return None if found is None else Hint(found[1], extent.segment.base + found[0])

    def position_for_time(self, extent: Extent, timestamp: int) -> Hint | None:
        """Return the batch at which a search for a timestamp of `timestamp` (ms) or later may begin, or None
        if the search must begin with the extent.
        """
        if extent.segment is None or extent.length <= SMALL:
            return None
        found = self._time_index(extent).lookup(timestamp - 1)
        return None if found is None else self.position(extent, extent.segment.base + found[1])

    def end_position(self, extent: Extent, below: int) -> int:
        """Return a position after all batches that begin below an offset."""
        if below >= extent.end or extent.segment is None or extent.length <= SMALL:
            return extent.length
        index = self._offset_index(extent)
        slot, last = 0, index.entries
        while slot < last:  # finds the first entry with an offset not below `below`
            middle = (slot + last) // 2
            if extent.segment.base + index.entry(middle)[0] < below:
                slot = middle + 1
            else:
                last = middle
        # An entry has the last offset of a batch, not its first. So the batch of the found entry may begin
        # below `below`, but the batch of the entry after that begins at or above `below`.
        return index.entry(slot + 1)[1] if slot + 1 < index.entries else extent.length

    def edge(self, extent: Extent, offset: int) -> int:
        """Return the last indexed base offset at or below `offset`."""
        found = self.position(extent, offset - 1)
        return extent.first if found is None else found.last_offset + 1

    def distrust(self, extent: Extent) -> None:
        """Stop using the offset index of a segment, because an entry points to no batch."""
        assert extent.segment is not None
        log.warning(
            "%s: an entry points to no batch: the log is read from its beginning",
            extent.segment.object(self._key, names.INDEX),
        )
        self._offsets[extent.object] = SealedOffsetIndex.of(b"")

    def _offset_index(self, extent: Extent) -> SealedOffsetIndex:
        found = self._offsets.get(extent.object)
        if found is None:
            found = SealedOffsetIndex.of(self._entries(extent, names.INDEX))
            _keep(self._offsets, extent.object, found)
        return found

    def _time_index(self, extent: Extent) -> SealedTimeIndex:
        found = self._times.get(extent.object)
        if found is None:
            found = SealedTimeIndex.of(self._entries(extent, names.TIME_INDEX))
            _keep(self._times, extent.object, found)
        return found

    def _entries(self, extent: Extent, suffix: str) -> bytes:
        """Return the content of an index, or b"" if it is missing or damaged."""
        assert extent.segment is not None
        listed = extent.segment.files.get(suffix)
        if listed is None:
            return b""
        name = extent.segment.object(self._key, suffix)
        try:
            data = self._objects.read(name)
        except FileNotFoundError:
            log.warning("%s is missing: the log is read from its beginning", name)
            return b""
        if (len(data), crc32c(data)) != listed:
            log.warning("%s is damaged: the log is read from its beginning", name)
            return b""
        return data


def _keep(held: dict[str, SealedOffsetIndex] | dict[str, SealedTimeIndex], name: str, found: object) -> None:
    while len(held) >= KEPT:
        held.pop(next(iter(held)))
    held[name] = found  # type: ignore[assignment]
