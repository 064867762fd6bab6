"""Entries of indexes, producer snapshots and checkpoints. On disk: reads only. Threads: one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from segstore import names
from segstore.cli.dump_rows import Row
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.index import OffsetIndex, TimeIndex, txn_index
from segstore.index.sparse import MOST, SparseIndex
from segstore.storage.meta.offset_checkpoints import parse_leader_epochs, parse_offsets
from segstore.storage.producers.producer_snapshot import SnapshotEntry, parse_snapshot

LIMIT = 1 << 31


def base_offset_of(path: str) -> int:
    """The base offset in a file's name, 0 where it has none."""
    parsed = names.parse_segment_file(os.path.basename(path))
    return 0 if parsed is None else parsed[0]


def dump_offset_index(files: Files, path: str) -> Iterator[Row]:
    """Last offset of a batch, and where the batch begins."""
    base = base_offset_of(path)
    for entry in _entries(files, path, OffsetIndex, _log_size(files, path)):
        relative, position = entry.fields
        yield entry.row({"offset": base + relative, "position": position})
    yield from _behind(files, path, OffsetIndex)


def dump_time_index(files: Files, path: str) -> Iterator[Row]:
    """Largest timestamp so far, and the last offset of the batch that has it."""
    base = base_offset_of(path)
    for entry in _entries(files, path, TimeIndex, MOST):
        stamp, relative = entry.fields
        yield entry.row({"timestamp": stamp, "offset": base + relative})
    yield from _behind(files, path, TimeIndex)


class _Entry(NamedTuple):
    number: int
    fields: tuple[int, int]
    valid: bool

    def row(self, cells: dict[str, Any]) -> Row:
        return Row(
            "entry",
            {"entry": self.number, **cells},
            None if self.valid else "out of order, or points outside the log",
        )


def _entries(files: Files, path: str, kind: type[SparseIndex], log_size: int) -> Iterator[_Entry]:
    """Entries up to the zeros of allocated room. An index is believed up to the first that can't be."""
    data = files.read_file(path, LIMIT)
    valid = kind.valid_entries(data, MOST, log_size) if data else 0
    found = kind.parse(data[: max(_used(data, kind), valid * kind.ENTRY.size)])
    for number, fields in enumerate(found):
        yield _Entry(number, fields, number < valid)


def _used(data: bytes, kind: type[SparseIndex]) -> int:
    """Bytes of whole entries before the zeros at the end."""
    return -(-len(data.rstrip(b"\0")) // kind.ENTRY.size) * kind.ENTRY.size


def _behind(files: Files, path: str, kind: type[SparseIndex]) -> Iterator[Row]:
    """What lies behind the entries: room, or a piece of an entry."""
    data = files.read_file(path, LIMIT)
    used = _used(data, kind)
    if used > len(data):
        extra = len(data) % kind.ENTRY.size
        yield Row(
            "damage", {"position": len(data) - extra, "reason": "cut off"}, f"{extra} bytes are no entry"
        )
    elif len(data) - used >= 2 * kind.ENTRY.size:
        yield Row("allocated", {"position": used, "zero_bytes": len(data) - used})


def _log_size(files: Files, path: str) -> int:
    log = path.removesuffix(names.INDEX) + names.LOG
    return files.size(log) if path.endswith(names.INDEX) and files.exists(log) else MOST


def dump_txn_index(files: Files, path: str) -> Iterator[Row]:
    """Aborted transactions."""
    data = files.read_file(path)
    found = txn_index.parse(data, base_offset_of(path))
    fields = txn_index.AbortedTxn._fields
    for entry, values in enumerate(found[list(fields)].tolist()):
        yield Row("aborted", {"entry": entry, **dict(zip(fields, values, strict=True))})
    if (good := len(found) * txn_index.ENTRY.itemsize) != len(data):
        reason = "no entry of an aborted transaction"
        yield Row("damage", {"position": good, "reason": reason}, reason)


def dump_snapshot(files: Files, path: str) -> Iterator[Row]:
    """A producer an entry."""
    try:
        entries = parse_snapshot(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for held in entries:
        yield Row("producer", dict(zip(SnapshotEntry._fields, held, strict=True)))


def dump_epochs(files: Files, path: str) -> Iterator[Row]:
    """Leader epochs and where they begin."""
    try:
        entries = parse_leader_epochs(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for epoch, start in entries:
        yield Row("leader epoch", {"leader_epoch": epoch, "start_offset": start})


def dump_offsets(files: Files, path: str) -> Iterator[Row]:
    """Offsets by partition."""
    try:
        entries = parse_offsets(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for (topic, partition), offset in entries.items():
        yield Row("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _damage(error: CorruptCheckpointError) -> Row:
    place = {"line": error.line} if error.line else {}
    return Row("damage", {**place, "reason": error.reason}, error.reason)


SMALL: dict[str, Callable[[Files, str], Iterator[Row]]] = {
    names.INDEX: dump_offset_index,
    names.TIME_INDEX: dump_time_index,
    names.TXN_INDEX: dump_txn_index,
    names.SNAPSHOT: dump_snapshot,
}
