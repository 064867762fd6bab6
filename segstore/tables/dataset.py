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
    """Return a topic as a `pyarrow.dataset.Dataset`. A DuckDB query names the variable
    that has the dataset; polars reads the dataset by `scan_pyarrow_dataset`.

    Each scan of the dataset is a new `Store.scan`: it reads the records that the topic has then, and
    raises the same errors. `partitions`, `start`, `end`, `from_time`, `to_time`, `isolation_level` and
    `check_crcs` are as for `Store.scan`. Each scan of a directory opens the store read-only; another process
    may be writing it. A dataset of a directory can be pickled; a dataset of an open store can't.

    `values` decodes each value to columns in its place: "json" (with `value_schema`, a pyarrow.Schema, or
    inferred from the first 1000 values), "avro" (`value_schema`: a schema, or a dict of schemas by the ids of
    Confluent's prefix), "protobuf" (`value_schema`: a message class), a pyarrow.Schema (JSON of these
    columns), or a callable that gets a pyarrow.BinaryArray of values without nulls and returns an array of
    the same length. `on_bad` is the treatment of a value that can't be decoded: "error"
    (RecordDeserializationError with its offset), "null", or "column", which has nulls and the reason in a
    column `value_error`. `value_prefix` is put before the names of the columns.

    Raises MissingPackageError without pyarrow, or without a package that `values` need;
    UnknownTopicOrPartitionError; InvalidArgumentError; and the errors of `Store.scan`.
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
