"""What the tests of Spark's sink share: rows as Spark sends them, writers without a JVM, tasks of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from segstore.files import Files
from segstore.spark.sink import Message, StreamWriter
from segstore.spark.sink_store import Sink

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KINDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
}


def batch(**columns: Any) -> pa.RecordBatch:
    """Rows of a sink's columns, typed as Spark has them."""
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, KINDS[name]) for name, c in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def sink(
    path: Path | str, topic: str | None = "t", files: Files | None = None, timeout_ms: int = 10_000
) -> Sink:
    return Sink(str(path), topic, timeout_ms, files)


@contextmanager
def task(query: str = "q", number: int | str | None = 0) -> Iterator[None]:
    """This process as a task of a query's micro-batch; None: Spark does not say of which."""
    context = TaskContext._getOrCreate()
    said = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
    context._localProperties = {} if number is None else said
    try:
        yield
    finally:
        TaskContext._taskContext = None


def write(writer: StreamWriter, number: int, tasks: Sequence[Sequence[pa.RecordBatch]]) -> list[Message]:
    """What Spark's tasks answer."""
    messages = []
    for batches in tasks:
        with task(number=number):
            messages.append(writer.write(iter(batches)))
    return messages
