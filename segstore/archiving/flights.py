"""`UploadsUnderWay`: uploads of segments that run while the archiver goes on.

No list of segments names a segment before its upload is complete. Threads: the archiver's, and those of
`Uploads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from queue import Empty, SimpleQueue

from segstore.archiving.claim import WritableObjects
from segstore.archiving.counts import ArchiverCounts
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.partition_archive import PartitionArchive
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.uploads import Done, SealedSegment, Uploads, upload_segment
from segstore.errors import SegstoreError, copy_of
from segstore.files import Files


class UploadsUnderWay:
    """The running uploads of segments, and the finished uploads until `land` adds them to their partition."""

    def __init__(
        self, objects: WritableObjects, files: Files, uploads: Uploads, counts: ArchiverCounts
    ) -> None:
        self._objects, self._files, self._uploads, self._counts = objects, files, uploads, counts
        self._ended: SimpleQueue[Done[ArchivedSegment]] = SimpleQueue()
        self._under_way: dict[int, tuple[SealedSegment, str]] = {}

    @property
    def names(self) -> set[str]:
        """Return the ids of the running uploads. The names of the uploaded objects contain these ids."""
        return {name for _, name in self._under_way.values()}

    @property
    def is_waiting(self) -> bool:
        """Return whether an upload is still running."""
        return self._ended.qsize() < len(self._under_way)

    def begin(
        self, number: int, name: str, each: SealedSegment, partition: PartitionArchive, time: int
    ) -> None:
        """Begin an upload. `number` must be unique, and `name` is the upload's id."""
        self._under_way[number] = each, name
        partition.flying.add((each.local.base_offset, each.source))
        call = partial(upload_segment, self._objects, self._files, each, name, time)
        self._uploads.begin(number, call, self._ended)

    def land(self, partitions: Mapping[TopicIdPartition, PartitionArchive]) -> None:
        """Add the completed uploads to their partitions. A failed upload begins again at a later
        `Archiver.tick`. Raises an upload's error if it is neither a SegstoreError nor an OSError.
        """
        while True:
            try:
                done = self._ended.get_nowait()
            except Empty:
                return
            sealed, _ = self._under_way.pop(done.number)
            if (each := partitions.get(sealed.key)) is not None:
                self._take(each, sealed, done)

    def _take(self, each: PartitionArchive, sealed: SealedSegment, done: Done[ArchivedSegment]) -> None:
        each.flying.discard((sealed.local.base_offset, sealed.source))
        if done.result is not None:
            each.ready[done.result.base, done.result.source] = done.result
            self._counts.segments += 1
            return
        each.ends = None  # makes the next `Archiver.tick` plan the partition again
        if done.error is not None and not isinstance(done.error, SegstoreError | OSError):
            raise copy_of(done.error)
