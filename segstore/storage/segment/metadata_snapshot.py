"""Snapshots of the metadata, as files (Kafka: Snapshots, FileRawSnapshotWriter, RecordsSnapshotReader;
KIP-630).

On disk, beside the segments of `__cluster_metadata-0`, is `<end offset>-<epoch>.checkpoint`: record batches
with offsets from 0 on and valid CRCs. The first batch is a control batch with the header, the last a control
batch with the footer. The file is written as `.part`, synced and renamed, so that a file with the final name
is complete; later bit rot is found by the CRCs. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from segstore import names
from segstore._native import lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.records import CONTROL_FLAG, Records, decode
from segstore.records.control import (
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    parse_control,
    parse_snapshot_header,
)
from segstore.storage.segment.batch_scan import BAD, ScanStep, walk

CHUNK = 1 << 20
"""Bytes that are read at a time."""


class SnapshotId(NamedTuple):
    """The name of a snapshot of all records below `end_offset`; `epoch` is the leader epoch of the last of
    these records (Kafka: OffsetAndEpoch).
    """

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """Return the file's name."""
        return names.metadata_snapshot(self.end_offset, self.epoch)


def list_snapshots(files: Files, directory: str) -> tuple[list[SnapshotId], list[str]]:
    """Return the snapshots in a directory, in the order of their end offsets, and the names of files that a
    crash left: `.part` files, and files that a broker was about to delete. Raises OSError.
    """
    found, left = [], []
    for name in files.listdir(directory):
        parsed = names.parse_metadata_snapshot(name)
        if parsed is not None and parsed[2] == names.METADATA_SNAPSHOT:
            found.append(SnapshotId(*parsed[:2]))
        elif parsed is not None:
            left.append(name)
    return sorted(found), sorted(left)


def read_snapshot(files: Files, path: str) -> Iterator[Records]:
    """Yield the data records of a snapshot, some batches at a time. The records are complete only if the
    iteration ends without an error. Raises OSError, and CorruptRecordError if a batch is damaged, or if the
    header, the footer or a batch between them is missing.
    """
    header = footer = False
    for step, slot in _batches(files, path):
        if footer:
            _refuse(path, step, slot, "a batch lies behind the snapshot's footer")
        batch = step.batches[slot : slot + 1]
        records = decode(step.data, batch, path, step.position)
        if not batch["attributes"][0] & CONTROL_FLAG:
            if not header:
                _refuse(path, step, slot, "the snapshot does not begin with its header")
            yield records
            continue
        for record in records:
            kind, _ = parse_control(
                record.key, record.value, file=path, position=int(batch["position"][0]), offset=record.offset
            )
            if (kind == SNAPSHOT_HEADER) == header:
                _refuse(path, step, slot, "the snapshot does not begin with its header, or has another one")
            header, footer = True, kind == SNAPSHOT_FOOTER
    if not footer:
        raise CorruptRecordError(path, files.size(path), 0, "the snapshot has no footer: it is not whole")


def _batches(files: Files, path: str) -> Iterator[tuple[ScanStep, int]]:
    """Yield (a step of the scan, the number of a batch in that step) for each batch. Raises
    CorruptRecordError if bytes are no batch, or offsets are missing.
    """
    with files.open(path) as handle:
        end, position, offset = files.size(handle), 0, 0
        for step in walk(files, handle, 0, end, check_crcs=True, chunk=CHUNK):
            for slot, batch in enumerate(step.batches):
                if int(batch["base_offset"]) != offset:
                    _refuse(path, step, slot, f"offset {offset} is missing")
                yield step, slot
                offset = int(batch["last_offset"]) + 1
            position, status = step.stop.position, step.stop.status
            # The next step will have the whole batch that is cut off at the end of this step.
            if status in BAD and (status != lib.SEG_SHORT or position + step.stop.need > end):
                raise CorruptRecordError(path, position, offset, BAD[status])
        if position < end or not end:
            raise CorruptRecordError(path, position, offset, "the file ends within the batch")


def _refuse(path: str, step: ScanStep, slot: int, reason: str) -> None:
    batch: np.void = step.batches[slot]
    raise CorruptRecordError(path, int(batch["position"]), int(batch["base_offset"]), reason)


def check_snapshot(files: Files, path: str) -> None:
    """Read a whole snapshot. Raises OSError, and CorruptRecordError if the file is damaged or incomplete."""
    for _ in read_snapshot(files, path):
        """The iteration checks each batch."""


def last_contained_timestamp(files: Files, path: str) -> int:
    """Return the timestamp (ms) of the last record of the log that a snapshot covers, from its header (Kafka:
    Snapshots.lastContainedLogTimestamp). Raises CorruptRecordError, OSError.
    """
    for step, slot in _batches(files, path):
        first = decode(step.data, step.batches[slot : slot + 1], path, step.position)
        try:
            return parse_snapshot_header(first.values[0])
        except ValueError as error:
            _refuse(path, step, slot, str(error))
    raise AssertionError("a file without batches is refused")


def freeze_snapshot(files: Files, directory: str, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
    """Write a durable snapshot with these bytes (Kafka: FileRawSnapshotWriter.freeze). An existing snapshot
    of this name is replaced. Raises OSError; then a `.part` file may be left.
    """
    path = names.below(directory, snapshot.name)
    part = path + names.PART
    try:
        with files.open_anew(part) as handle:
            position = 0
            for chunk in chunks:
                files.pwrite(handle, chunk, position)
                position += len(chunk)
            files.sync(handle)
        files.rename(part, path)
    except OSError:
        with suppress(OSError):
            files.unlink(part)
        raise
    files.sync_dir(directory)


def remove_snapshots(files: Files, directory: str, found: Iterable[str]) -> None:
    """Remove the files with the names `found` from the directory, durably. Raises OSError."""
    gone = False
    for name in found:
        files.unlink(names.below(directory, name))
        gone = True
    if gone:
        files.sync_dir(directory)
