"""The metadata snapshots of one voter, and their encoding (Kafka: KafkaMetadataLog's snapshots,
RecordsSnapshotWriter, RecordsSnapshotReader; KIP-630).

On disk are the `.checkpoint` files beside the voter's metadata log. A snapshot is undamaged if all its CRCs
are valid and it has a footer. A damaged snapshot is ignored, and is removed when the log start offset rises
above its end offset. Threads: any, but one at a time for each directory. Threads that read may run at the
same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError, CorruptRecordError
from segstore.files import Files
from segstore.logger import Logger
from segstore.records import Columns, Template, encode
from segstore.records.control import snapshot_footer, snapshot_header
from segstore.replication.metadata.records import MetadataRecord, decode
from segstore.replication.metadata.records import encode as encode_record
from segstore.storage.segment.metadata_snapshot import (
    CHUNK,
    SnapshotId,
    check_snapshot,
    freeze_snapshot,
    last_contained_timestamp,
    list_snapshots,
    read_snapshot,
    remove_snapshots,
)

log = Logger("segstore")

RECORDS = 1_000
"""The largest number of records in a batch."""


class MetadataSnapshot(NamedTuple):
    """An encoded snapshot, in chunks."""

    id: SnapshotId
    chunks: tuple[bytes, ...]


def make_snapshot(
    snapshot: SnapshotId, records: Iterable[MetadataRecord], last_contained: int, now_ms: int
) -> MetadataSnapshot:
    """Encode a snapshot. Its records get the timestamp `now_ms`. `last_contained` is the timestamp (ms) of
    the last record of the metadata log that the snapshot was made from.
    """
    epoch, offset = snapshot.epoch, 1
    chunks = [bytes(snapshot_header(last_contained, now_ms, epoch).data)]
    for values in _pieces(map(encode_record, records)):
        template = Template(base_offset=offset, leader_epoch=epoch)
        for chunk in encode(Columns(values, timestamp=now_ms), batch_bytes=CHUNK, template=template):
            chunks.append(bytes(chunk.data))
            chunk.release()
        offset += len(values)
    chunks.append(bytes(snapshot_footer(now_ms, offset, epoch).data))
    return MetadataSnapshot(snapshot, tuple(chunks))


def _pieces(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    for value in values:
        piece.append(value)
        if len(piece) == RECORDS:
            yield piece
            piece = []
    if piece:
        yield piece


def records_of(files: Files, path: str) -> Iterator[MetadataRecord]:
    """Yield the records of a snapshot. Raises CorruptRecordError, UnsupportedVersionError, OSError."""
    for records in read_snapshot(files, path):
        for record in records:
            if record.value is None:
                raise CorruptRecordError(path, 0, record.offset, "a metadata record is null")
            yield decode(record.value)


class MetadataSnapshots:
    """The snapshots in a voter's directory. `ids` has the ids of all snapshots, also of damaged snapshots, by
    ascending end offset. Raises OSError.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files, self.directory = files, directory
        self.ids, self._unfinished = list_snapshots(files, directory)
        self.damaged: dict[SnapshotId, Exception] = {}
        """For each snapshot that was checked and is damaged: its id, and the error that the check raised."""
        self._sound: set[SnapshotId] = set()

    def path(self, snapshot: SnapshotId) -> str:
        """Return the path of a snapshot's file."""
        return names.below(self.directory, snapshot.name)

    def forget_before(self, offset: int) -> None:
        """Remove snapshots whose end offset is below `offset`, the log start offset. Remove unfinished files
        that a crash has left, too. Raises OSError.
        """
        unfinished, self._unfinished = self._unfinished, []
        remove_snapshots(self._files, self.directory, unfinished)
        self._keep_only([each for each in self.ids if each.end_offset >= offset])

    def forget_after(self, offset: int) -> None:
        """Remove snapshots whose end offset is above `offset`, because the log was truncated to `offset`.
        Raises OSError.
        """
        self._keep_only([each for each in self.ids if each.end_offset <= offset])

    def _keep_only(self, kept: list[SnapshotId]) -> None:
        gone, self.ids = [each.name for each in self.ids if each not in kept], kept
        remove_snapshots(self._files, self.directory, gone)

    def is_sound(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot is complete and undamaged. Only the first call checks the file."""
        if snapshot not in self._sound and snapshot not in self.damaged:
            try:
                check_snapshot(self._files, self.path(snapshot))
                self._sound.add(snapshot)
            except (CorruptRecordError, OSError) as error:
                log.warning("a snapshot of the metadata can't be used: %s", error)
                self.damaged[snapshot] = error
        return snapshot in self._sound

    def newest(self, start: int, end: int) -> SnapshotId | None:
        """Return the newest undamaged snapshot with `start` <= end offset <= `end`, None if there is none."""
        fitting = [each for each in self.ids if start <= each.end_offset <= end]
        return next((each for each in reversed(fitting) if self.is_sound(each)), None)

    def write(self, snapshot: MetadataSnapshot) -> None:
        """Write a snapshot, durably. Raises OSError."""
        self._freeze(snapshot.id, snapshot.chunks)

    def receive(self, snapshot: SnapshotId, source: MetadataSnapshots) -> None:
        """Copy an undamaged snapshot from another voter, durably (Kafka: FetchSnapshot). Raises OSError."""
        self._freeze(snapshot, source._chunks(snapshot))

    def _freeze(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        freeze_snapshot(self._files, self.directory, snapshot, chunks)
        self.damaged.pop(snapshot, None)
        self._sound.add(snapshot)
        self.ids = sorted({*self.ids, snapshot})

    def _chunks(self, snapshot: SnapshotId) -> Iterator[bytes]:
        with self._files.open(self.path(snapshot)) as handle:
            size, position = self._files.size(handle), 0
            while data := self._files.pread(handle, min(CHUNK, size - position), position):
                yield data
                position += len(data)

    def size(self, snapshot: SnapshotId) -> int:
        """Return the size of a snapshot's file in bytes. Raises OSError."""
        return self._files.size(self.path(snapshot))

    def timestamp(self, snapshot: SnapshotId) -> int | None:
        """Return the timestamp (ms) of the last record that a snapshot was made from. Return None if the
        header of the snapshot is damaged. Raises OSError.
        """
        try:
            return last_contained_timestamp(self._files, self.path(snapshot))
        except CorruptRecordError:
            return None


def no_snapshot(start: int, *found: MetadataSnapshots) -> CorruptCheckpointError:
    """Return the error for a metadata log that begins at `start` if no undamaged snapshot has the records
    below `start`.
    """
    damage = [str(error) for each in found for error in each.damaged.values()]
    return CorruptCheckpointError(
        found[0].directory,
        0,
        f"the metadata log begins at offset {start}, and of what was before there is no sound snapshot, here "
        "or in the other directories that are there: open the store with those too that are away, or put "
        f"back a .checkpoint file from a backup that ends at {start} or later. "
        + ("; ".join(damage) or "There is no such file at all"),
    )
