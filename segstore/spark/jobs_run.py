"""Runs Python work as Spark tasks, one Spark task for each piece of it: on a cluster as on one machine.

On disk: nothing of its own. Threads: one, that of the caller; the work runs in Spark's Python workers, which
need segstore and the file system that it is about.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def run(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Result]) -> list[Result]:
    """`work` of each piece, in order. Pieces, work and results travel pickled. What a task raises fails the
    job, once Spark has tried it as often as it is set to (spark.task.maxFailures).
    """
    if not pieces:
        return []
    held = list(pieces)

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            for i in batch.column(0).to_pylist():
                result = pickle.dumps(work(held[i]))
                yield pyarrow.RecordBatch.from_pydict(
                    {"piece": pyarrow.array([i], pyarrow.int64()), "result": [result]}
                )

    n = len(held)
    rows = spark.range(0, n, 1, n).mapInArrow(each, "piece bigint, result binary").collect()
    found = {row.piece: pickle.loads(row.result) for row in rows}
    return [found[i] for i in range(n)]


def bundles(pieces: Sequence[Piece], size: Callable[[Piece], int], enough: int) -> list[list[Piece]]:
    """Pieces side by side until they have `enough`, so that a task is worth its start."""
    made: list[list[Piece]] = []
    held = enough
    for piece in pieces:
        if held >= enough:
            made.append([])
            held = 0
        made[-1].append(piece)
        held += size(piece)
    return made
