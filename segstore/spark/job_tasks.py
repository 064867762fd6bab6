"""Runs the jobs of `spark.jobs` (`latest`, `export`, `reprocess`, `verify`) as Spark tasks. `run` starts one
task for each piece of work.

On disk: tasks read the store. `export` writes to a path of the caller, through Spark. Tasks of `reprocess`
stage rows, that is write them into the store's inbox; the driver then seals them, that is submits them to be
appended. Threads: one, the caller's. The tasks run in Spark's Python workers, which need segstore and access
to the store's file system.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from segstore.archiving.verify import verify as verify_archive
from segstore.archiving.verify import verify_objects
from segstore.config import arguments
from segstore.coordinator.checking import check_internal
from segstore.errors import InvalidTypeError
from segstore.spark.archive_place import is_archive, is_archive_uri
from segstore.spark.columns import arrow_schema, ddl
from segstore.spark.options import parse_options, store_paths
from segstore.spark.sink_store import COLUMNS, PASSED_OVER, StagingSink, parse_sink_options
from segstore.spark.slices import OffsetSlice, SliceReader
from segstore.spark.source import BatchReader, slice_reader
from segstore.storage.check.by_segment import Checked, SegmentToCheck, check_part, check_rest, parts
from segstore.storage.check.check import Finding

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from segstore.archiving.contents import NamedObject
    from segstore.archiving.downloads import Progress
    from segstore.archiving.remote import RemoteFiles
    from segstore.storage.staging import Adoption, Staged

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def run(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Result]) -> list[Result]:
    """Call `work` for each piece, in a Spark task of its own, and return the results in the order of the
    pieces. Pieces, `work` and results are pickled. A task that raises an exception is tried
    spark.task.maxFailures times; then the job fails.
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
    """Group pieces that follow each other, so that there are not too many tasks. Each group except the last
    has at least the size `enough`.
    """
    made: list[list[Piece]] = []
    held = enough
    for piece in pieces:
        if held >= enough:
            made.append([])
            held = 0
        made[-1].append(piece)
        held += size(piece)
    return made


# --- jobs frames -------------------------------------------------------------------------------

# `latest` and `export` make DataFrames that read the source.

_COMMITTED = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def source_options(path: str | os.PathLike[str], topic: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the source's options for a read of a topic: `options`, and defaults by which all committed
    records are read. Raises InvalidTypeError if the value of an option is None, because Spark would ignore
    the option.
    """
    for name, value in options.items():
        if value is None:
            raise InvalidTypeError(f"option {name}=None: must have a value; leave it out for the default")
    place = path if isinstance(path, str) and is_archive_uri(path) else arguments.path("path", path)
    return {**_COMMITTED, **options, "subscribe": topic, "path": place}


def _read(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, options: dict[str, Any]
) -> DataFrame:
    return spark.read.format("segstore").options(**source_options(path, topic, options)).load()


def latest(spark: SparkSession, path: str | os.PathLike[str], topic: str, tombstones: bool) -> DataFrame:
    """Return a DataFrame with the newest record of each key. `segstore.spark.latest` calls this, and
    describes the arguments.
    """
    from pyspark.sql import functions as f

    rows = _read(spark, path, topic, {}).where("key is not null")
    carried = ["value", "headers", "timestamp", "partition", "offset"]
    # The first grouping finds, in each partition, the record of each key with the highest offset. So only
    # these records are shuffled. The second grouping finds, for each key, the latest one by timestamp.
    newest = rows.groupBy("key", "partition").agg(f.max_by(f.struct(*carried), "offset").alias("row"))
    order = f.struct("row.timestamp", "row.partition")
    one = newest.groupBy("key").agg(f.max_by("row", order).alias("row")).select("key", "row.*")
    return one if tombstones else one.where("value is not null")


def export(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    to: str | os.PathLike[str],
    mode: str,
    options: dict[str, Any],
) -> None:
    """Write a topic's committed records as Parquet. `segstore.spark.export` calls this, and describes the
    arguments.
    """
    from pyspark.sql import functions as f

    rows = _read(spark, path, topic, options)
    ms = f.unix_millis("timestamp")
    # `day` is the day in UTC, not in the session's time zone.
    day = f.when(ms >= 0, f.date_from_unix_date(f.floor(ms / 86_400_000).cast("int")))
    rows.withColumn("day", day).write.mode(mode).partitionBy("day").parquet(os.fsdecode(to))


# --- jobs reprocess ----------------------------------------------------------------------------

# `reprocess` reads one topic, calls a function, and writes its results to another topic, all in Spark's
# Python workers. So rows do not pass through the JVM.

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CASTS = {"headers": _HEADERS, "partition": pa.int32()}


@dataclass(frozen=True)
class Work:
    """The work of a task of `reprocess`: it reads a slice, calls the function for each batch, and stages the
    rows that the function returns. The object is pickled and sent to the tasks.
    """

    reader: SliceReader
    function: Callable[[pa.RecordBatch], Any]
    sink: StagingSink

    def __call__(self, part: OffsetSlice) -> Staged | None:
        return self.sink.stage(self._made(part))

    def _made(self, part: OffsetSlice) -> Iterator[pa.RecordBatch]:
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
    """Call `function` with the records of a topic, and append its rows to another topic.
    `segstore.spark.reprocess` calls this, and describes the arguments.
    """
    from pyspark.sql.types import StructType

    held = {name: str(value) for name, value in source_options(path, source, options).items()}
    said = {"path": held["path"], "topic": target, **({} if job_id is None else {"jobId": job_id})}
    said |= {name: value for name, value in held.items() if name.lower() in ("witness", "failondataloss")}
    written = parse_sink_options(said, streaming=False)
    sink = StagingSink.of(written)
    sink.check(["key", "value"])
    asked = parse_options(held)
    plan = BatchReader(asked, arrow_schema(StructType.fromDDL(ddl(True))))
    slices = [part for part in plan.partitions() if isinstance(part, OffsetSlice)]
    staged = run(spark, slices, Work(slice_reader(asked, plan.columns), function, sink))
    job = written.job_id or str(uuid.uuid4())
    return sink.seal(f"spark-job/{job}", [each for each in staged if each is not None])


def fitting(made: Any) -> Iterator[pa.RecordBatch]:
    """Yield `made`, the function's result, as batches with the types of the sink's columns. Raises
    InvalidTypeError.
    """
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


# --- jobs verify -------------------------------------------------------------------------------

# `verify` checks every CRC, record and index of a store, on all executors.

TASK_BYTES = 64 << 20
"""The approximate number of bytes that a task checks. A larger segment is checked by a task of its own."""


def verify(spark: SparkSession, path: str | os.PathLike[str]) -> list[Finding]:
    """Check a store or an archive on all executors. `segstore.spark.verify` calls this, and describes the
    arguments.
    """
    given = path if isinstance(path, str) and is_archive_uri(path) else arguments.path("path", path)
    if is_archive(given):
        return _verify_archive(spark, given)
    roots = store_paths({"path": given})
    tasks = bundles([part for root in roots for part in parts(root)], lambda part: part.size, TASK_BYTES)
    done = (checked for each in run(spark, tasks, _check_all) for checked in each)
    by_part = {checked.part: checked for checked in done}
    return [finding for root in roots for finding in (*check_rest(root, by_part), *check_internal(root))]


def _verify_archive(spark: SparkSession, path: str) -> list[Finding]:
    def check(remote: RemoteFiles, objects: Collection[NamedObject], progress: Progress) -> list[Finding]:
        made = bundles(list(objects), lambda each: max(each.size, 0), TASK_BYTES)
        found = run(spark, [(remote, bundle) for bundle in made], _verify_bundle)
        progress(sum(max(each.size, 0) for each in objects))
        return [finding for findings in found for finding in findings]

    return verify_archive(path, check=check).findings


def _verify_bundle(each: tuple[RemoteFiles, list[NamedObject]]) -> list[Finding]:
    return verify_objects(*each)


def _check_all(bundle: list[SegmentToCheck]) -> list[Checked]:
    return [checked for checked in map(check_part, bundle) if checked is not None]
