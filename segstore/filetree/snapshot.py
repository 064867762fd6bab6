"""`snapshot`: the tree as of any offset that compaction has not reached, rebuilt from the log; reading its
files, and restoring them as plain ones.

On disk: reads the log; `restore` writes plain files below a target directory. Threads: any; nothing is
locked. Of all records of a key only the last is decoded.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from segstore import names
from segstore.errors import InvalidRecordError, OffsetOutOfRangeError
from segstore.files import Files
from segstore.filetree import nodes
from segstore.filetree import nodes as wire
from segstore.filetree.nodes import Directory, File, Nodes, clean_path, error
from segstore.records import Records
from segstore.storage.meta.offset_checkpoints import try_offsets
from segstore.storage.store.partition_log import PartitionLog

_AT_A_TIME = 4 << 20
_HAS_HORIZON = 1 << 6


@dataclass
class Snapshot:
    """The tree that the records below `end` make; `orphans`: chunks of no file, by key."""

    end: int
    nodes: Nodes = field(default_factory=Nodes)
    orphans: list[bytes] = field(default_factory=list)
    next_id: int = 0


def snapshot(log: PartitionLog, end: int | None = None, *, trusted: bool = False) -> Snapshot:
    """Return the tree as of the offset `end`, from the records before it; by default from all.

    Raises OffsetOutOfRangeError where compaction has passed `end`, unless it is `trusted`;
    InvalidRecordError for a record that is not of a file tree; CorruptRecordError, StorageError.
    """
    now = log.end_offset
    end = now if end is None else end
    if end > now or (end < now and not trusted and end < floor(log)):
        raise OffsetOutOfRangeError(end, floor(log), now, f"{log.topic}, as files,")
    last = _Last()
    for records in chunks(log, log.start_offset, end):
        last.take(records)
    return last.built(end)


class _Last:
    """The last record of each key."""

    def __init__(self) -> None:
        self.paths: dict[bytes, bytes | None] = {}
        self.chunks: dict[bytes, int] = {}

    def take(self, records: Records) -> None:
        keys, offsets = records.keys.tolist(), records.offsets.tolist()
        values = records.values
        gone = (values.lengths < 0).tolist()
        for i, key in enumerate(keys):
            if key is not None and key[:1] == wire.PATH_TAG:
                self.paths[key] = values[i]
            elif key is None or len(key) != wire.CHUNK_KEY_BYTES or key[:1] != wire.CHUNK_TAG:
                raise InvalidRecordError(f"offset {offsets[i]}: {key!r:.80} is no key of a file tree")
            elif gone[i]:
                self.chunks.pop(key, None)
            else:
                self.chunks[key] = offsets[i]

    def built(self, end: int) -> Snapshot:
        made = Snapshot(end)
        for key, value in self.paths.items():
            if value is not None:
                try:
                    path, node = wire.parse_path(key, value)
                except ValueError as error:
                    raise InvalidRecordError(str(error)) from None
                if isinstance(node, File):
                    node = self._placed(node)
                made.nodes.put(path, node)
        owned = {(file.id, n) for file in made.nodes.files() for n in range(len(file.chunks))}
        known = {key: wire.chunk_of(key) for key in self.chunks}
        made.orphans = [key for key, chunk in known.items() if chunk not in owned]
        ids = [file.id for file in made.nodes.files()] + [file_id for file_id, _ in known.values()]
        made.next_id = max([end, *(file_id + 1 for file_id in ids)])
        return made

    def _placed(self, file: File) -> File:
        keys = (wire.chunk_key(file.id, n) for n in range(wire.chunk_count(file)))
        return file._replace(chunks=tuple(self.chunks.get(key, -1) for key in keys))


def chunks(log: PartitionLog, at: int, end: int) -> Iterator[Records]:
    """Yield the records from `at` up to `end`, some megabytes at a time."""
    while at < end:
        records = log.read(at, _AT_A_TIME)
        at = records.next_offset
        yield records.take(records.offsets < end) if at > end else records


def floor(log: PartitionLog) -> int:
    """Return the lowest offset as of which the tree is known: the log has all records from there on.

    Compaction up to an offset keeps the last record of each key before it, so the tree as of that offset is
    whole. The cleaner's checkpoint says how far compaction came; where that was lost, the batches that it
    wrote show it.
    """
    context = log._context
    held, _ = try_offsets(context.files, os.path.join(context.root, names.CLEANER_OFFSETS))
    cleaned = max((held or {}).get((log.topic, log.partition), 0), log.start_offset)
    view = log._source.view
    if cleaned >= view.end_offset or not _was_cleaned(log, min(cleaned, view.end_offset), view.bases[-1]):
        return min(cleaned, view.end_offset)
    return max(view.bases[-1], cleaned)


def _was_cleaned(log: PartitionLog, start: int, end: int) -> bool:
    """Whether compaction wrote any batch of the sealed segments from `start` on."""
    at = start
    for records in chunks(log, start, end):
        batches = records.batches
        first, ends = batches["base_offset"], batches["last_offset"] + 1
        begins = np.concatenate(([at], ends[:-1]))
        holes = (first > begins) | (batches["count"] != ends - first)
        if bool((holes | (batches["attributes"] & _HAS_HORIZON != 0)).any()):
            return True
        at = int(ends[-1]) if len(ends) else at
    return False


# --- reading -----------------------------------------------------------------------------------

# Reads a file's bytes from the log.


def read_file(log: PartitionLog, path: str, file: File, start: int = 0, length: int = -1) -> Iterator[bytes]:
    """Yield the bytes from `start` on, `length` of them or all, chunk by chunk.

    Raises FileNotFoundError where the file was deleted and compacted away meanwhile; StorageError where the
    log lacks a chunk of a live file; CorruptRecordError.
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

# Writes a directory of the tree, as of any snapshot, as plain files, below a target directory that is empty
# or missing.


class Restored(NamedTuple):
    """The files and bytes that were written."""

    files: int
    directories: int
    bytes: int


def restore(log: PartitionLog, held: Snapshot, path: str, target: str | os.PathLike[str]) -> Restored:
    """Write what a snapshot has at `path` into the directory `target`; it is synced on return.

    Raises FileNotFoundError where the snapshot has nothing at `path`; FileExistsError where `target` is not
    empty; OSError; CorruptRecordError. The files that were written by then stay.
    """
    path, root, files = clean_path(path), os.path.abspath(os.fspath(target)), log._context.files
    nodes = list(held.nodes.walk(path))
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
    return Restored(count, len(directories), size)


def _write(files: Files, log: PartitionLog, path: str, file: File, target: str) -> int:
    with files.open_anew(target) as handle:
        at = 0
        for part in read_file(log, path, file):
            files.pwrite(handle, part, at)
            at += len(part)
        files.sync(handle)
    return at
