"""Rebuilds the tree from the log, as of any offset that compaction has not reached. On disk: reads only.

Threads: any. Of all records of a key only the last is looked into.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from segstore import names
from segstore.errors import InvalidRecordError, OffsetOutOfRangeError
from segstore.filetree import wire
from segstore.filetree.nodes import File, Nodes
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
