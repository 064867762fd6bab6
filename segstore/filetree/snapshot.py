"""Rebuilds the tree from the log, as of any offset that compaction has not reached. On disk: reads only.

Threads: any. Of all records of a key only the last is looked into.
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
    """The tree as the records below `end` make it; `orphans`: chunks of no file, by key."""

    end: int
    nodes: Nodes = field(default_factory=Nodes)
    orphans: list[bytes] = field(default_factory=list)
    next_id: int = 0


def snapshot(log: PartitionLog, end: int | None = None, *, trusted: bool = False) -> Snapshot:
    """As of the offset `end`: what the records before it say. By default all of them.

    OffsetOutOfRangeError where compaction has passed it, unless it is `trusted`; InvalidRecordError for a
    record that is not of a file tree; CorruptRecordError, StorageError.
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
    """Records from `at` up to `end`, some megabytes at a time."""
    while at < end:
        records = log.read(at, _AT_A_TIME)
        at = records.next_offset
        yield records.take(records.offsets < end) if at > end else records


def floor(log: PartitionLog) -> int:
    """The lowest offset as of which the tree is known: all records from there on are in the log.

    Compaction up to an offset keeps the last record of each key before it, so the tree as of that offset is
    whole. Its checkpoint says how far it came; where that was lost, batches that it wrote tell.
    """
    context = log._context
    held, _ = try_offsets(context.files, os.path.join(context.root, names.CLEANER_OFFSETS))
    cleaned = max((held or {}).get((log.topic, log.partition), 0), log.start_offset)
    view = log._source.view
    if cleaned >= view.end_offset or not _was_cleaned(log, min(cleaned, view.end_offset), view.bases[-1]):
        return min(cleaned, view.end_offset)
    return max(view.bases[-1], cleaned)


def _was_cleaned(log: PartitionLog, start: int, end: int) -> bool:
    """Whether compaction wrote any batch of sealed segments from `start` on."""
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

# Reads a file's bytes from the log. On disk: reads only. Threads: any; nothing is locked.


def read_file(log: PartitionLog, path: str, file: File, start: int = 0, length: int = -1) -> Iterator[bytes]:
    """The bytes from `start` on, `length` of them or all, chunk by chunk.

    FileNotFoundError where the file was deleted and compacted away meanwhile; StorageError where a live
    file's chunk is not in the log; CorruptRecordError.
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

# Writes a directory of the tree, as it is or was, as plain files. On disk: files below a target directory
# that was empty or not there. Threads: any.


class Restored(NamedTuple):
    """What was written."""

    files: int
    directories: int
    bytes: int


def restore(log: PartitionLog, held: Snapshot, path: str, target: str | os.PathLike[str]) -> Restored:
    """Write what is at `path` of a snapshot into the directory `target`, synced when it returns.

    FileNotFoundError: nothing is at `path`; FileExistsError: `target` is there and not empty; OSError;
    CorruptRecordError. What was written by then stays.
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
