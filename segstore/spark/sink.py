"""The sink "segstore" with PySpark's interfaces: a writer of a batch, and a writer of a stream's
micro-batches.

Tasks stage rows, that is write them into the store's inbox. The driver's commit seals the staged rows, that
is submits them to be appended, once for an id: the job's id, or the stream's query id and batch id. Spark may
call write more than once for the same rows, commit a micro-batch again if it has forgotten the commit, and
abort after a commit that failed. None of these calls doubles or removes records of the log.

On disk: the store's inbox, see `sink_store`. Threads: PySpark makes each object on the driver, a new one for
each micro-batch, and sends it to the tasks.
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
    """Return a writer of a batch. Options, columns and the store are checked here, before tasks start. Raises
    ConfigError.
    """
    options = parse_sink_options(given, streaming=False)
    if overwrite:
        raise ConfigError('mode("overwrite"): a log is only appended to; mode("append") is allowed')
    check_columns(columns, options.topic)
    sink = StagingSink.of(options)
    sink.check(columns.names)
    return BatchWriter(sink, options.job_id or str(uuid.uuid4()))


def stream_writer(given: Mapping[str, str], columns: StructType) -> StreamWriter:
    """Return a writer of a micro-batch. Output mode complete appends the whole result each time, as Spark's
    Kafka sink does. Raises ConfigError.
    """
    options = parse_sink_options(given, streaming=True)
    check_columns(columns, options.topic)
    sink = StagingSink.of(options)
    sink.check(columns.names)
    return StreamWriter(sink)


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's staged rows, or None if it had no rows; for a stream, also its query and micro-batch."""

    staged: Staged | None
    query: str = ""
    batch: int = -1


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the staged rows in the order of the tasks; a failed task has no message."""
    parts = (message.staged for message in messages if isinstance(message, StagedMessage))
    return [staged for staged in parts if staged is not None]


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch. For each job id, `job`, rows are written once."""

    def __init__(self, sink: StagingSink, job: str) -> None:
        self.sink, self.id = sink, f"spark-job/{job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return StagedMessage(self.sink.stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Seal the rows; on return all of them are in the log, durable and visible."""
        self.sink.seal(self.id, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.abort(_staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch. PySpark makes two objects for each micro-batch: it sends the first to the tasks,
    and the second commits.
    """

    def __init__(self, sink: StagingSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        query, batch = _micro_batch()
        return StagedMessage(self.sink.stage(iterator), query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Seal the rows; on return all of them are in the log, durable and visible."""
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
    """Return query id and batch id of the running task, which are also in the query's checkpoint."""
    context = TaskContext.get()
    query = context and context.getLocalProperty(_QUERY)
    batch = context and context.getLocalProperty(_BATCH)
    if not query or not batch:
        raise IllegalStateError("Spark does not say which query and micro-batch this task is of")
    return query, int(batch)
