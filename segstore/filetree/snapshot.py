"""`snapshot`: rebuilds the tree from the log as of any offset that compaction has not reached. Files of a
snapshot can be read, and restored as plain files.

On disk: the log is only read; `restore` writes plain files below a target directory. Threads: any; nothing is
locked. Only the last record of each key is decoded.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from segstore.arrays import np
from segstore.config import arguments
from segstore.errors import InvalidRecordError, OffsetOutOfRangeError
from segstore.files import Files
from segstore.filetree import nodes
from segstore.filetree.nodes import Directory, File, Node, Nodes, clean_path, error
from segstore.storage.scans.scan import LATEST, Edge, given_bound, reads
from segstore.storage.store.last_records import LastRecord, last_records
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

_HAS_HORIZON = 1 << 6


@dataclass
class TreeSnapshot:
    """The tree of the records below `end`; `orphans` are the keys of chunks that belong to no file."""

    end: int
    nodes: Nodes = field(default_factory=Nodes)
    orphans: list[bytes] = field(default_factory=list)
    next_id: int = 0


def snapshot(log: PartitionLog, end: int | Edge = LATEST, *, trusted: bool = False) -> TreeSnapshot:
    """Return the tree as of the offset `end`, from the records before it; by default from all records.

    Raises CorruptRecordError and StorageError. Raises InvalidRecordError for a record of another kind, and
    OffsetOutOfRangeError if `end` is above the log's end, or if compaction has passed `end`. If `trusted`,
    compaction is not considered.
    """
    now = log.end_offset
    end = given_bound("end", end, log.start_offset, now)
    if end > now or (end < now and not trusted and end < floor(log)):
        raise OffsetOutOfRangeError(end, floor(log), now, f"{log.topic}, as files,")
    last = last_records(log, end, valued=lambda key: key[:1] == nodes.PATH_TAG).settled
    return _built(last, end)


def _built(last: Mapping[bytes, LastRecord], end: int) -> TreeSnapshot:
    """Return the tree that the last records of all keys describe."""
    chunk_at = _chunk_offsets(last)
    made = TreeSnapshot(end)
    for key, record in last.items():
        if key[:1] == nodes.PATH_TAG and record.value is not None:
            path, node = _parsed(key, record.value)
            made.nodes.put(path, _placed(node, chunk_at) if isinstance(node, File) else node)
    owned = {(file.id, n) for file in made.nodes.files() for n in range(len(file.chunks))}
    known = {key: nodes.chunk_of(key) for key in chunk_at}
    made.orphans = [key for key, chunk in known.items() if chunk not in owned]
    ids = [file.id for file in made.nodes.files()] + [file_id for file_id, _ in known.values()]
    made.next_id = max([end, *(file_id + 1 for file_id in ids)])
    return made


def _chunk_offsets(last: Mapping[bytes, LastRecord]) -> dict[bytes, int]:
    """Return the offsets, by key, of the chunks that were not deleted. Raises InvalidRecordError for an
    invalid key.
    """
    offsets = {}
    for key, record in last.items():
        if key[:1] != nodes.PATH_TAG:
            if len(key) != nodes.CHUNK_KEY_BYTES or key[:1] != nodes.CHUNK_TAG:
                raise InvalidRecordError(f"offset {record.at}: {key!r:.80} is no key of a file tree")
            if record.value is not None:
                offsets[key] = record.at
    return offsets


def _parsed(key: bytes, value: bytes) -> tuple[str, Node]:
    try:
        return nodes.parse_path(key, value)
    except ValueError as error:
        raise InvalidRecordError(str(error)) from None


def _placed(file: File, chunk_at: Mapping[bytes, int]) -> File:
    keys = (nodes.chunk_key(file.id, n) for n in range(nodes.chunk_count(file)))
    return file._replace(chunks=tuple(chunk_at.get(key, -1) for key in keys))


def floor(log: PartitionLog) -> int:
    """Return the lowest offset as of which the tree is known.

    Compaction up to an offset keeps the last record of each key before that offset, so the tree as of the
    offset is whole. The cleaner's checkpoint has that offset. If the checkpoint was lost, the batches that
    compaction has written give the offset.
    """
    assert isinstance(log.store, Store)
    cleaned = max(log.store._cleaned().get((log.topic, log.partition), 0), log.start_offset)
    view = log.source.view
    if cleaned >= view.end_offset or not _was_cleaned(log, min(cleaned, view.end_offset), view.bases[-1]):
        return min(cleaned, view.end_offset)
    return max(view.bases[-1], cleaned)


def _was_cleaned(log: PartitionLog, start: int, end: int) -> bool:
    """Return whether compaction has written a batch of the log from `start` up to `end`."""
    at = start
    for records in reads(log, start, end):
        batches = records.batches
        first, ends = batches["base_offset"], batches["last_offset"] + 1
        begins = np.concatenate(([at], ends[:-1]))
        holes = (first > begins) | (batches["count"] != ends - first)
        if bool((holes | (batches["attributes"] & _HAS_HORIZON != 0)).any()):
            return True
        at = int(ends[-1]) if len(ends) else at
    return False


# --- reading -----------------------------------------------------------------------------------

# `read_file` reads a file's bytes from the log.


def read_file(log: PartitionLog, path: str, file: File, start: int = 0, length: int = -1) -> Iterator[bytes]:
    """Yield `length` bytes from byte `start` on, chunk by chunk; the default is the whole file.

    Raises CorruptRecordError. Raises OSError (EIO) if the log lacks a chunk of a live file, and
    FileNotFoundError if the file was deleted and a chunk was compacted away.
    """
    end = file.size if length < 0 else min(file.size, start + length)
    size = file.chunk_bytes
    while start < end:
        number = start // size
        data = _chunk(log, path, file, number)
        part = data[start - number * size : min(end - number * size, size)]
        if not part:
            raise error(errno.EIO, path, f"chunk {number} of file {file.id} is short")
        yield part
        start += len(part)


def _chunk(log: PartitionLog, path: str, file: File, number: int) -> bytes:
    offset = file.chunks[number]
    if offset < 0:
        raise error(errno.EIO, path, f"chunk {number} of file {file.id} is not in the log")
    if offset >= log.start_offset:
        records = log.read(offset, 0)
        if len(records) and records.offsets[0] == offset:
            record = records[0]
            if record.key == nodes.chunk_key(file.id, number) and record.value is not None:
                return record.value
    raise error(errno.ENOENT, path, f"file {file.id} was deleted, and its chunk {number} compacted away")


# --- restoring ---------------------------------------------------------------------------------

# `restore` writes a directory of a snapshot as plain files below a target directory, which must be empty or
# missing.


class RestoredTree(NamedTuple):
    """The number of files, directories and bytes that `restore` has written."""

    files: int
    directories: int
    bytes: int


def restore(log: PartitionLog, seen: TreeSnapshot, path: str, target: str | os.PathLike[str]) -> RestoredTree:
    """Write a snapshot's files at `path` and below into the directory `target`. On return all files are
    synced.

    Raises CorruptRecordError and OSError. Raises FileNotFoundError if the snapshot has no node at `path`,
    and FileExistsError if `target` is not empty. After an error the files that were already written stay.
    """
    path, root, files = clean_path(path), arguments.path("target", target), log.context.files
    nodes = list(seen.nodes.walk(path))
    if not nodes:
        raise error(errno.ENOENT, path)
    if files.exists(root) and files.listdir(root):
        raise error(errno.EEXIST, root, "is not empty")
    files.ensure_directory(root)
    count = size = 0
    for at, node in nodes:
        below = at[len(path) :].strip("/")
        if isinstance(node, File):
            size += _write(files, log, at, node, os.path.join(root, below or at.rpartition("/")[2]))
            count += 1
        elif below:
            files.mkdir(os.path.join(root, below))
    directories = [at[len(path) :].strip("/") for at, node in nodes if isinstance(node, Directory)]
    for below in reversed(directories):
        files.sync_dir(os.path.join(root, below))
    files.sync_dir(os.path.dirname(root))
    return RestoredTree(count, len(directories), size)


def _write(files: Files, log: PartitionLog, path: str, file: File, target: str) -> int:
    with files.open_anew(target) as handle:
        at = 0
        for part in read_file(log, path, file):
            files.pwrite(handle, part, at)
            at += len(part)
        files.sync(handle)
    return at
