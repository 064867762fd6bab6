"""`history`: reads the changes of a file tree from the log, one by one. On disk: only reads.

Threads: any.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from segstore.errors import InvalidRecordError, OffsetOutOfRangeError
from segstore.filetree import nodes
from segstore.filetree.nodes import File, Node, clean_path, lies_below
from segstore.filetree.snapshot import floor, snapshot
from segstore.records import Record, Records
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge, given_bound, reads
from segstore.storage.store.partition_log import PartitionLog


class TreeChange(NamedTuple):
    """A change of a file tree. `what` is create, rename, mkdir or delete; snapshots at `offset` and later
    include the change; `timestamp` is ms since the epoch.

    `source` is the old path of a renamed file or directory; `replaced` is True if a file was at `path`
    before.
    """

    offset: int
    timestamp: int
    what: str
    path: str
    size: int = 0
    source: str = ""
    replaced: bool = False


def history(
    log: PartitionLog, path: str = "/", start: int | Edge = EARLIEST, end: int | Edge = LATEST
) -> Iterator[TreeChange]:
    """Yield the changes at `path` and below it in the records from `start` up to `end`, in order.

    By default `start` is the first offset that compaction has not reached. Raises OffsetOutOfRangeError for a
    bound below that offset or above the log's end, and InvalidRecordError for a record of another kind.
    """
    path = clean_path(path)
    lowest, now = floor(log), log.end_offset
    start = given_bound("start", start, lowest, now)
    end = given_bound("end", end, lowest, now)
    if not lowest <= start <= end <= now:
        raise OffsetOutOfRangeError(start if start < lowest else end, lowest, now, f"{log.topic}, as files,")
    nodes_by_path = dict(snapshot(log, start).nodes.walk("/"))
    for records in reads(log, start, end):
        for batch in _batches(records):
            for change in _changes(batch, nodes_by_path):
                if _concerns(change, path):
                    yield change


def _concerns(change: TreeChange, path: str) -> bool:
    return any(at == path or lies_below(at, path) for at in (change.path, change.source) if at)


def _batches(records: Records) -> Iterator[list[Record]]:
    """For each batch, yield its path records. The changes of one batch were made together."""
    indexes, batch = records.batch_indexes().tolist(), []
    for i, record in enumerate(records):
        if (record.key or b"")[:1] == nodes.PATH_TAG:
            batch.append(record)
        if batch and (i + 1 == len(indexes) or indexes[i + 1] != indexes[i]):
            # The change gets the offset of the batch's last record, because a snapshot has the change only if
            # it has the whole batch. Tombstones of chunks may follow the last path record.
            yield [*batch[:-1], batch[-1]._replace(offset=record.offset)]
            batch = []


def _changes(batch: list[Record], nodes_by_path: dict[str, Node]) -> Iterator[TreeChange]:
    done, stamp = batch[-1].offset + 1, batch[-1].timestamp
    deleted: dict[str, Node] = {}
    put: list[tuple[str, Node]] = []
    for record in batch:
        key = record.key or b""
        try:
            if record.value is None:
                deleted[key[1:].decode()] = nodes_by_path.pop(key[1:].decode())
            else:
                put.append(nodes.parse_path(key, record.value))
        except KeyError:
            continue  # a tombstone of a path whose earlier record was removed by compaction
        except ValueError as error:
            raise InvalidRecordError(f"offset {record.offset}: {error}") from None
    # A rename writes the tombstones and the new paths in the same order, so that a moved directory can be
    # matched with its old path.
    sources: dict[object, deque[str]] = defaultdict(deque)
    for path, node in deleted.items():
        sources[_same(node)].append(path)
    for path, node in put:
        before = nodes_by_path.get(path)
        nodes_by_path[path] = node
        source = sources[_same(node)].popleft() if sources[_same(node)] else ""
        deleted.pop(source, None)
        what = "rename" if source else "create" if isinstance(node, File) else "mkdir"
        yield TreeChange(done, stamp, what, path, _size(node), source, before is not None)
    for path, node in deleted.items():
        yield TreeChange(done, stamp, "delete", path, _size(node))


def _size(node: Node) -> int:
    return node.size if isinstance(node, File) else 0


def _same(node: Node) -> object:
    """Return the part of a node that does not change in a rename."""
    return node.id if isinstance(node, File) else ("directory", node.time)
