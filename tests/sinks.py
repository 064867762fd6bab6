"""What the tests of Spark's sink share: rows as Spark sends them, writers without a JVM, tasks of a query."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from faults import MUTATING, FailingFiles
from pyspark import TaskContext

from pyspark_segstore import DefaultSource
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


# --- kills within Spark -----------------------------------------------------------------------


class KilledOnce(DefaultSource):
    """The sink "segstore", killed at change `nth` of its `step` (write, commit): once, while the file `flag`
    is there.
    """

    @classmethod
    def name(cls) -> str:
        return "segstore_killed"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from segstore.spark.sink import stream_writer

        options = dict(self.options.items())
        step, nth, flag = options.pop("step"), int(options.pop("nth")), options.pop("flag")
        return KilledWriter(stream_writer(options, schema).sink, step, nth, flag)


class KilledWriter(StreamWriter):
    def __init__(self, sink: Sink, step: str, nth: int, flag: str) -> None:
        super().__init__(sink)
        self._step, self._nth, self._flag = step, nth, flag

    def _arm(self, step: str) -> None:
        if step == self._step:
            files = FailingFiles(MUTATING, self._kill, self._nth)
            self.sink = replace(self.sink, files=files)

    def _kill(self, name: str, args: Any) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._flag)
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, iterator: Any) -> Message:
        self._arm("write")
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        self._arm("commit")
        super().commit(messages, batchId)
