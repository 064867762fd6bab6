"""Shared by the tests of Spark's sink: rows as Spark sends them, writers without a JVM, tasks of a query."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from faults import MUTATING, FailingFiles
from pyspark import TaskContext
from waiting import PATIENCE

from pyspark_segstore import DefaultSource
from segstore.files import Files
from segstore.spark.sink import StagedMessage, StreamWriter
from segstore.spark.sink_store import StagingSink
from segstore.spark.source import StreamReader

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
    """Return rows of a sink's columns, with Spark's types."""
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, KINDS[name]) for name, c in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def sink(
    path: Path | str,
    topic: str | None = "t",
    files: Files | None = None,
    timeout_ms: int = int(PATIENCE * 1000),
) -> StagingSink:
    return StagingSink(str(path), topic, timeout_ms, files)


@contextmanager
def task(query: str = "q", number: int | str | None = 0) -> Iterator[None]:
    """Make this process a task of a query's micro-batch; with None, Spark does not tell which one."""
    context = TaskContext._getOrCreate()
    said = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
    context._localProperties = {} if number is None else said
    try:
        yield
    finally:
        TaskContext._taskContext = None


def write(
    writer: StreamWriter, number: int, tasks: Sequence[Sequence[pa.RecordBatch]]
) -> list[StagedMessage]:
    """Write a micro-batch as Spark's tasks do, and return their messages."""
    messages = []
    for batches in tasks:
        with task(number=number):
            messages.append(writer.write(iter(batches)))
    return messages


# --- kills within Spark -----------------------------------------------------------------------


class Kill(NamedTuple):
    """Where a process of Spark is killed, once, while the file `flag` exists.

    `step` "latest", "plan" or "read": when the source is asked for its newest offset, for the tasks of a
    micro-batch, or for a task's rows. "write" or "commit": before the change `nth` that they make on disk for
    micro-batch `batch`. "committed": when commit has done everything.
    """

    step: str
    nth: int
    batch: int
    flag: str

    def at(self, step: str, batch: int | None = None) -> None:
        if step == self.step and batch in (None, self.batch):
            self.now()

    def files(self, step: str, batch: int) -> Files | None:
        wanted = (step, batch) == (self.step, self.batch)
        return FailingFiles(MUTATING, lambda name, args: self.now(), self.nth) if wanted else None

    def now(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.flag)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledOnce(DefaultSource):
    """The data source "segstore", with the fields of a Kill as options."""

    @classmethod
    def name(cls) -> str:
        return "segstore_killed"

    def _given(self) -> tuple[dict[str, str], Kill]:
        options = dict(self.options.items())
        step, nth, batch, flag = (options.pop(name) for name in Kill._fields)
        return options, Kill(step, int(nth), int(batch), flag)

    def schema(self) -> Any:
        from segstore.spark import source

        return source.schema(self._given()[0])

    def streamReader(self, schema: Any) -> StreamReader:
        return KilledReader(*self._given(), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from segstore.spark.sink import stream_writer

        options, kill = self._given()
        return KilledWriter(stream_writer(options, schema).sink, kill)


class KilledReader(StreamReader):
    def __init__(self, options: dict[str, str], kill: Kill, columns: Any) -> None:
        super().__init__(options, columns)
        self._kill = kill

    def latestOffset(self, start: Any, limit: Any) -> Any:
        self._kill.at("latest")
        return super().latestOffset(start, limit)

    def partitions(self, start: Any, end: Any) -> Any:
        self._kill.at("plan")
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        self._kill.at("read")
        return super().read(partition)


class KilledWriter(StreamWriter):
    def __init__(self, sink: StagingSink, kill: Kill) -> None:
        super().__init__(sink)
        self._kill = kill

    def write(self, iterator: Any) -> StagedMessage:
        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        self.sink = replace(self.sink, files=self._kill.files("write", batch))
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        self.sink = replace(self.sink, files=self._kill.files("commit", batchId))
        super().commit(messages, batchId)
        self._kill.at("committed", batchId)
