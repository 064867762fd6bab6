"""Reads a file's bytes from the log. On disk: reads only. Threads: any; nothing is locked."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from segstore.filetree import wire
from segstore.filetree.nodes import File, error
from segstore.storage.store.partition_log import PartitionLog


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
            if record.key == wire.chunk_key(file.id, number) and record.value is not None:
                return record.value
    raise error(errno.ENOENT, path, f"file {file.id} was deleted, and its chunk {number} compacted away")
