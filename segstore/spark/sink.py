"""The sink "segstore", with PySpark's interfaces: it writes the rows of a batch query, or of the
micro-batches of a streaming query.

Tasks stage rows: they write them into the store's inbox. The driver's commit seals the staged rows: it
submits them to be appended, under an id. Rows are appended only once for an id. The id is the job's id, or
the query id and batch id of a streaming query. Spark may write the same rows more than once, may commit a
micro-batch again if it has lost the commit, and may abort after a failed commit. None of this makes duplicate
records, or removes records from the log.

On disk: the store's inbox (see `sink_store`). Threads: PySpark creates each object on the driver, a new one
for each micro-batch, and sends it to the tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from segstore.errors import ConfigError, IllegalStateError
from segstore.spark.sink_store import StagingSink, check_columns, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from segstore.storage.staging import Staged

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


def writer(given: Mapping[str, str], columns: StructType, overwrite: bool) -> BatchWriter:
    """Return a writer for a batch query. Options, columns and the store are checked now, before tasks start.
    Raises ConfigError.
    """
    options = parse_sink_options(given, streaming=False)
    if overwrite:
        raise ConfigError('mode("overwrite"): a log is only appended to; mode("append") is allowed')
    check_columns(columns, options.topic)
    sink = StagingSink.of(options)
    sink.check(columns.names)
    return BatchWriter(sink, options.job_id or str(uuid.uuid4()))


def stream_writer(given: Mapping[str, str], columns: StructType) -> StreamWriter:
    """Return a writer for a micro-batch. In output mode complete, each micro-batch appends the whole result,
    as in Spark's Kafka sink. Raises ConfigError.
    """
    options = parse_sink_options(given, streaming=True)
    check_columns(columns, options.topic)
    sink = StagingSink.of(options)
    sink.check(columns.names)
    return StreamWriter(sink)


@dataclass
class StagedMessage(WriterCommitMessage):
    """The message of a task to the driver. `staged` are the staged rows, None if the task had no rows. In a
    streaming query, `query` is the query id and `batch` is the batch id.
    """

    staged: Staged | None
    query: str = ""
    batch: int = -1


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the staged rows in `messages`, in the order of the tasks. A failed task's message is None."""
    parts = (message.staged for message in messages if isinstance(message, StagedMessage))
    return [staged for staged in parts if staged is not None]


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query. They are appended only once for a job id, `job`."""

    def __init__(self, sink: StagingSink, job: str) -> None:
        self.sink, self.id = sink, f"spark-job/{job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return StagedMessage(self.sink.stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged rows. When this returns, they are in the log, durable and visible."""
        self.sink.seal(self.id, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.abort(_staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a micro-batch. PySpark creates two objects for each micro-batch: it sends one to the
    tasks, and calls `commit` of the other object.
    """

    def __init__(self, sink: StagingSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        query, batch = _micro_batch()
        return StagedMessage(self.sink.stage(iterator), query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the staged rows. When this returns, they are in the log, durable and visible."""
        queries = {
            (message.query, message.batch) for message in messages if isinstance(message, StagedMessage)
        }
        if len(queries) > 1 or any(batch != batchId for _, batch in queries):
            raise IllegalStateError(f"micro-batch {batchId} was given what tasks wrote for {sorted(queries)}")
        for query, batch in queries:
            self.sink.seal_micro_batch(query, batch, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.sink.abort(_staged(messages))


def _micro_batch() -> tuple[str, int]:
    """Return (query id, batch id) of the running task. The checkpoint of the query has the same ids."""
    context = TaskContext.get()
    query = context and context.getLocalProperty(_QUERY)
    batch = context and context.getLocalProperty(_BATCH)
    if not query or not batch:
        raise IllegalStateError("Spark does not say which query and micro-batch this task is of")
    return query, int(batch)
