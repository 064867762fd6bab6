"""`CommitWriter`: makes the bytes of a commit or a state of an archive: a header, and pieces.

The bytes become one object of the archive. Threads: one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from segstore.archiving.commit_format import pack_header
from segstore.archiving.object_names import CommitName, TopicIdPartition
from segstore.archiving.pieces import ArchivedPiece
from segstore.archiving.state import ArchivedPartition, ArchivedTopic, Versions, Way, header_of
from segstore.archiving.stretches import LogStretch

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ObjectBody:
    """The bytes of an object; they can be iterated several times."""

    def __init__(self, header: bytes, stretches: Iterable[LogStretch]) -> None:
        self._header, self._stretches = header, tuple(stretches)

    def __iter__(self) -> Iterator[Buffer]:
        yield self._header
        for each in self._stretches:
            yield from each.parts()

    @property
    def pieces_at(self) -> int:
        """Return the position at which the pieces begin."""
        return len(self._header)


class CommitWriter:
    """Collects the changes of a commit, or the content of a state. The suffix of `name` shows which of the
    two is made.
    """

    def __init__(self, name: CommitName, time: int) -> None:
        self.name, self.time = name, time
        self.topics: list[ArchivedTopic] = []
        self.files: dict[str, Versions] = {}
        self.forgotten: list[tuple[str, str]] = []
        self.ways: tuple[Way, ...] = ()
        self.header: dict[str, Any] = {}
        self._entries: dict[TopicIdPartition, dict[str, Any]] = {}
        self._stretches: list[LogStretch] = []
        self._size = 0

    def piece(self, base: int, stretch: LogStretch) -> ArchivedPiece:
        """Add a stretch (a range of a segment's batches) to this commit. Return the piece that it becomes."""
        at = self._size
        self._stretches.append(stretch)
        self._size += stretch.length
        return ArchivedPiece(
            str(self.name), at, stretch.length, stretch.crc, base, stretch.position, stretch.first,
            stretch.end, stretch.max_timestamp,
        )  # fmt: skip

    def partition(self, entry: ArchivedPartition, pieces: Iterable[ArchivedPiece], drop_before: int) -> None:
        """Add the entry of a partition. `pieces` and `drop_before` are as in `ArchivedPartition.to_json`."""
        self._entries[entry.key] = entry.to_json(pieces, drop_before)

    def body(self) -> ObjectBody:
        """Return the object's bytes. Nothing may be added after this call."""
        self.header = header_of(
            self.name, self.time, self.topics, self._entries.values(), self.files, self.forgotten, self.ways
        )
        return ObjectBody(pack_header(self.header), self._stretches)
