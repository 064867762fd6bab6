"""`scan_polars`: a topic as a LazyFrame of polars.

On disk: only reads, when the frame is collected. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from segstore.errors import Needing
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge
from segstore.storage.store.store import Store
from segstore.tables.package_versions import check_version

if TYPE_CHECKING:
    import polars


def scan_polars(
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
) -> polars.LazyFrame:
    """Return a topic as a LazyFrame, with the columns of `Store.scan`: timestamp is Datetime("ms", "UTC"),
    key and value are Binary, headers is a List of Struct. `store_or_path` is an open store or a directory. A
    directory is opened read-only each time that the frame is collected.

    Records are read only by a collect. Each collect reads up to the present end of each partition. It decodes
    only the columns that the query needs. If the query filters by partition, offset or timestamp, it skips
    reads of records outside of the filter if it can. `partitions`, `start`, `end`, `from_time`, `to_time`,
    `isolation_level` and `check_crcs` are as for `Store.scan`. `values`, `value_schema`, `on_bad` and
    `value_prefix` are as for `segstore.dataset`: they decode each value to columns, which replace the column
    `value`.

    Raises MissingPackageError if pyarrow 19 or later, or polars 1.35 or later, is not installed. Raises the
    errors of `Store.scan`, such as UnknownTopicOrPartitionError. polars raises the errors of a collect, and
    polars 1 puts them into a ComputeError. A directory's store is closed after its records are read. If
    polars' streaming engine stops before the last record, the store may stay open until the next call of
    polars.
    """
    with Needing("polars", "scan_polars"):
        import polars as pl
        from polars.io.plugins import register_io_source
    check_version("scan_polars", "polars", pl.__version__)
    with Needing("pyarrow", "scan_polars"):
        import pyarrow

        from segstore.tables.polars_frames import TopicFrames
        from segstore.tables.table import table_of
    check_version("scan_polars", "pyarrow", pyarrow.__version__)
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
    source = TopicFrames(table_of(store_or_path, topic, values, **terms))
    return register_io_source(source.frames, schema=source.schema, is_pure=True)
