"""Makes record batches from ranges of a topic's partitions, in order of partition and offset.

On disk: only reads. Threads: an iterator belongs to one thread at a time; the iterator's own threads stop
when the iterator is exhausted, closed or dropped. The module imports pyarrow, and is imported only when a
table is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from .columns import BatchMaker
from .crew import in_order
from .piece_reader import PieceReader
from .pieces import ScanPiece, TopicRange, pieces_of


class _Read(NamedTuple):
    """The batches of a piece, up to `next_offset`."""

    piece: ScanPiece
    batches: list[pa.RecordBatch]
    next_offset: int


def batches_of(
    topic: str,
    ranges: Iterable[TopicRange],
    schema: pa.Schema,
    reader: PieceReader,
    finish: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the schema, each with records of one partition. If `finish` is given, the
    thread that has read a batch calls `finish` with the batch, and the result is yielded instead. Raises the
    errors of `PartitionLog.read`, after the records before the error were yielded.
    """
    maker = BatchMaker(topic, schema)

    def read(piece: ScanPiece) -> _Read:
        part = reader.read(piece)
        made = maker.batches(part.partition, part.rows)
        return _Read(piece, made if finish is None else list(map(finish, made)), part.next_offset)

    pieces = pieces_of(ranges, reader.size, reader.committed)
    ended: TopicRange | None = None
    for result in in_order(pieces, read, reader.cost, reader.size):
        if result.piece.of is ended:  # the log has ended before this piece
            continue
        while True:
            yield from result.batches
            if result.next_offset >= result.piece.end:
                break
            remaining = result.piece._replace(start=result.next_offset)
            result = read(remaining)
            if result.next_offset == remaining.start:
                ended = remaining.of
                break
