"""`checkpoint` and `restore`: write a DataFrame to a topic, and read it again without its lineage.

On disk: the topic, through the sink and the source. A record is an Arrow IPC stream of some rows. The record
with the key "schema" is written last: if it exists, the topic has all rows. Threads: one for each call; the
functions that convert batches run in Spark's Python workers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from segstore.errors import InvalidArgumentError, UnknownTopicOrPartitionError
from segstore.spark.options import options_of
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_KEY = b"schema"
_MOST = 4 << 20
"""The approximate size of a record in bytes. A record with a single row may be larger."""
SETTINGS: Mapping[str, Any] = {"compression.type": "lz4", "max.message.bytes": 64 << 20}


def checkpoint(frame: DataFrame, store: Store, topic: str | None, config: Mapping[str, Any]) -> DataFrame:
    """Write a DataFrame to a topic, and return a DataFrame that reads it. `segstore.spark.checkpoint` calls
    this, and describes the arguments.
    """
    spark = frame.sparkSession
    topic = f"frame-{uuid.uuid4().hex}" if topic is None else topic
    store.create_topic(topic, spark.sparkContext.defaultParallelism, {**SETTINGS, **config})
    try:
        rows = frame.mapInArrow(to_ipc, "value binary")
        options = {**options_of(store), "topic": topic}
        rows.write.format("segstore").options(**options).mode("append").save()
        content = {"schema": frame.schema.json()}
        last = store.partition(topic, 0)
        last.append(json.dumps(content).encode(), key=SCHEMA_KEY)
        store.flush()
    except BaseException:
        store.delete_topic(topic)  # This call has created the topic.
        raise
    return restore(spark, store, topic)


def restore(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    """Return a DataFrame that reads a topic. `segstore.spark.restore` calls this, and describes the
    arguments.
    """
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    schema = _parse_datatype_json_string(_schema_of(store, topic))
    assert isinstance(schema, StructType)
    # In a replicated store the sink's rows belong to a transaction, so only committed records are read.
    options = {**options_of(store), "subscribe": topic, "kafka.isolation.level": "read_committed"}
    records = spark.read.format("segstore").options(**options).schema("key binary, value binary").load()
    return records.mapInArrow(from_ipc, schema)


def _schema_of(store: Store, topic: str) -> str:
    if topic not in store.topics():
        raise UnknownTopicOrPartitionError(f"topic {topic!r}: no such topic")
    log = store.partition(topic, 0)
    if log.end_offset > log.start_offset:
        record = log.read(log.end_offset - 1)[0]
        if record.key == SCHEMA_KEY and record.value is not None:
            return str(json.loads(record.value)["schema"])
    raise InvalidArgumentError(f"topic {topic!r} holds no whole DataFrame: checkpoint() came to no end there")


def to_ipc(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode each batch as one or more records of about _MOST bytes. Yield batches with a column `value`."""
    import pyarrow as pa

    for batch in batches:
        for part in parts_of(batch, _MOST):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            value = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([value], ["value"])


def parts_of(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of equal numbers of rows, with about `most` bytes on average."""
    if batch.num_rows:
        rows = max(1, batch.num_rows * most // max(batch.nbytes, 1))
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


def from_ipc(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode records, and yield their rows as batches. The record with the schema is skipped."""
    import pyarrow as pa

    for batch in batches:
        for key, value in zip(batch.column("key"), batch.column("value"), strict=True):
            if not key.is_valid:
                with pa.ipc.open_stream(value.as_buffer()) as reader:
                    yield from reader
