"""`segstore.dataset`: a topic as a `pyarrow.dataset.Dataset`.

On disk: only reads. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore.errors import Needing
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from .topic_dataset import TopicDataset


def dataset(
    store_or_path: Store | str | os.PathLike[str],
    topic: str,
    *,
    values: Any = None,
    partitions: Collection[int] | None = None,
    start: int | Edge = EARLIEST,
    end: int | Edge = LATEST,
    from_time: int | datetime | None = None,
    to_time: int | datetime | None = None,
    isolation_level: str = "read_uncommitted",
    check_crcs: bool = True,
    value_schema: Any = None,
    on_bad: str = "error",
    value_prefix: str = "",
) -> TopicDataset:
    """Return a topic as a `pyarrow.dataset.Dataset`. In a DuckDB query, the table's name is the name of the
    Python variable that has the dataset. polars reads the dataset by `scan_pyarrow_dataset`.

    Each scan of the dataset is a new `Store.scan`: it reads the records that the topic has at that time, and
    raises the errors of `Store.scan`. `partitions`, `start`, `end`, `from_time`, `to_time`, `isolation_level`
    and `check_crcs` are as for `Store.scan`. If `store_or_path` is a directory, each scan opens the store
    read-only, and another process may be writing to it. The dataset of a directory can be pickled; the
    dataset of an open store can't.

    If `values` is not None, each value is decoded to columns, which replace the column `value`. Allowed are:
    - "json": `value_schema` is a pyarrow.Schema, or None to infer the columns from the first 1000 values;
    - "avro": `value_schema` is a schema, or a dict of schemas by the ids in Confluent's prefix;
    - "protobuf": `value_schema` is a message class;
    - a pyarrow.Schema: values are JSON with these columns;
    - a callable that gets a pyarrow.BinaryArray of values without nulls, and returns an array of the same
      length.
    `on_bad` says what happens if a value can't be decoded. With "error" RecordDeserializationError is raised,
    which has the record's offset. With "null" the value's columns are null. With "column" they are null too,
    and a further column `value_error` has the reason. `value_prefix` is put before the names of the columns.

    Raises MissingPackageError if pyarrow, or a package that `values` needs, is missing. Raises
    UnknownTopicOrPartitionError, InvalidArgumentError, and the other errors of `Store.scan`.
    """
    with Needing("pyarrow", "segstore.dataset"):
        from .table import table_of
        from .topic_dataset import TopicDataset
    terms: dict[str, Any] = {
        "partitions": partitions,
        "start": start,
        "end": end,
        "from_time": from_time,
        "to_time": to_time,
        "isolation_level": isolation_level,
        "check_crcs": check_crcs,
        "value_schema": value_schema,
        "on_bad": on_bad,
        "value_prefix": value_prefix,
    }
    rebuild = partial(table_of, store_or_path, topic, values, **terms)
    return TopicDataset(rebuild(), rebuild)
