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
    """Return a topic as a `pyarrow.dataset.Dataset`, which DuckDB finds by the name of the variable that has
    it, and polars reads by `scan_pyarrow_dataset`. The other arguments are those of `Store.scan`, each scan
    of the dataset is one more `Store.scan`: it has what was appended since, and raises what that raises.

    A directory is opened to read for each scan, beside a writer too. A dataset of a directory can be pickled;
    one of a store that is open can't.

    `values` decodes each value to columns in its place: "json" (with `value_schema`, a pyarrow.Schema, or
    inferred from the first 1000 values), "avro" (`value_schema`: a schema, or a dict of schemas by the ids of
    Confluent's prefix), "protobuf" (`value_schema`: a message class), a pyarrow.Schema (JSON of these
    columns), or a callable that gets a pyarrow.BinaryArray of values without nulls and returns an array of
    the same length. `on_bad` says what becomes of a value that can't be decoded: "error"
    (RecordDeserializationError with its offset), "null", or "column", which has nulls and the reason in a
    column `value_error`. `value_prefix` is put before the names of the columns.

    Raises MissingPackageError without pyarrow, or what `values` need; UnknownTopicOrPartitionError;
    InvalidArgumentError; and as `Store.scan`.
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
