"""The record batches of ranges of a topic's partitions, in order of partition and offset.

On disk: only reads. Threads: an iterator belongs to one thread at a time; its own threads end with it, or
when it is closed or dropped. It imports pyarrow, and is imported only when a table is asked for.
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
    """What was read of a piece, up to `next_offset`."""

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
    """Yield batches of the schema, each of one partition, as what `finish` makes of them in the thread that
    has read them. Raises as `PartitionLog.read`, behind the records before the place that can't be read.
    """
    maker = BatchMaker(topic, schema)

    def read(piece: ScanPiece) -> _Read:
        part = reader.read(piece)
        made = maker.batches(part.partition, part.rows)
        return _Read(piece, made if finish is None else list(map(finish, made)), part.next_offset)

    pieces = pieces_of(ranges, reader.size, reader.committed)
    ended: TopicRange | None = None
    for found in in_order(pieces, read, reader.cost, reader.size):
        if found.piece.of is ended:  # its pieces behind the end were begun before that was known
            continue
        while True:
            yield from found.batches
            if found.next_offset >= found.piece.end:
                break
            rest = found.piece._replace(start=found.next_offset)
            found = read(rest)
            if found.next_offset == rest.start:
                ended = rest.of
                break
