"""`reprocess`: from one topic into another through a function, within Spark's Python workers: rows don't pass
through the JVM.

On disk: tasks read the store and stage in its inbox, the caller seals. Threads: one, that of the caller.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segstore.errors import InvalidTypeError
from segstore.spark.columns import arrow_schema, ddl
from segstore.spark.jobs_frames import source_options
from segstore.spark.jobs_run import run
from segstore.spark.options import parse_options
from segstore.spark.sink_options import COLUMNS, PASSED_OVER, parse_sink_options
from segstore.spark.sink_store import Sink
from segstore.spark.slices import Slice, SliceReader
from segstore.spark.source import BatchReader, slice_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from segstore.storage.staging import Adoption, Staged

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CASTS = {"headers": _HEADERS, "partition": pa.int32()}


@dataclass(frozen=True)
class Work:
    """What a task does with its slice; it travels to the tasks."""

    reader: SliceReader
    function: Callable[[pa.RecordBatch], Any]
    sink: Sink

    def __call__(self, part: Slice) -> Staged | None:
        return self.sink.stage(self._made(part))

    def _made(self, part: Slice) -> Iterator[pa.RecordBatch]:
        for batch in self.reader.read(part):
            made = self.function(batch)
            if made is not None:
                yield from fitting(made)


def reprocess(
    spark: SparkSession,
    path: str | os.PathLike[str],
    source: str,
    target: str,
    function: Callable[[pa.RecordBatch], Any],
    job_id: str | None,
    options: dict[str, Any],
) -> Adoption | None:
    """See `segstore.spark.reprocess`."""
    from pyspark.sql.types import StructType

    held = {name: str(value) for name, value in source_options(path, source, options).items()}
    said = {"path": held["path"], "topic": target, **({} if job_id is None else {"jobId": job_id})}
    written = parse_sink_options(said, streaming=False)
    sink = Sink.of(written)
    sink.check(["key", "value"])
    asked = parse_options(held)
    plan = BatchReader(asked, arrow_schema(StructType.fromDDL(ddl(True))))
    slices = [part for part in plan.partitions() if isinstance(part, Slice)]
    staged = run(spark, slices, Work(slice_reader(asked, plan.columns), function, sink))
    job = written.job_id or str(uuid.uuid4())
    return sink.seal(f"spark-job/{job}", [each for each in staged if each is not None])


def fitting(made: Any) -> Iterator[pa.RecordBatch]:
    """What a function gave, as the sink takes it. InvalidTypeError."""
    if isinstance(made, pa.Table):
        made = made.to_batches()
    elif isinstance(made, pa.RecordBatch):
        made = [made]
    for batch in made if hasattr(made, "__iter__") and not isinstance(made, (str, bytes)) else [made]:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidTypeError(
                f"the function gave {type(batch).__name__}: allowed are RecordBatch, Table, several, None"
            )
        yield _fitted(batch)


def _fitted(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name not in (*PASSED_OVER, "topic")]
    wrong = [name for name in names if name not in COLUMNS]
    if wrong or "value" not in names:
        allowed = ", ".join(name for name in COLUMNS if name != "topic")
        raise InvalidTypeError(
            f"the function gave the columns {names}: allowed are {allowed}; value must be there"
        )
    return pa.RecordBatch.from_arrays([_typed(name, batch.column(name)) for name in names], names)


def _typed(name: str, column: pa.Array) -> pa.Array:
    kind, t = column.type, pa.types
    if name in _CASTS:
        try:
            return column.cast(_CASTS[name])
        except pa.ArrowException as error:
            raise InvalidTypeError(
                f"the function gave column {name} as {kind}: must be {_CASTS[name]}"
            ) from error
    if name == "timestamp":
        good = t.is_timestamp(kind)
    else:
        good = t.is_binary(kind) or t.is_string(kind) or t.is_large_binary(kind) or t.is_large_string(kind)
    if not good and not t.is_null(kind):
        allowed = "a timestamp" if name == "timestamp" else "binary or string"
        raise InvalidTypeError(f"the function gave column {name} as {kind}: must be {allowed}")
    return column.cast(pa.timestamp("us", "UTC")) if name == "timestamp" and not good else column
