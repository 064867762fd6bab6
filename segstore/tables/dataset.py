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
) -> TopicDataset:
    """Return a topic as a `pyarrow.dataset.Dataset`, which DuckDB finds by the name of the variable that has
    it, and polars reads by `scan_pyarrow_dataset`. The other arguments are those of `Store.scan`, each scan
    of the dataset is one more `Store.scan`: it has what was appended since, and raises what that raises.

    A directory is opened to read for each scan, beside a writer too. A dataset of a directory can be pickled;
    one of a store that is open can't.

    Raises MissingPackageError without pyarrow; UnknownTopicOrPartitionError; and as `Store.scan`.
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
    }
    rebuild = partial(table_of, store_or_path, topic, values, **terms)
    return TopicDataset(rebuild(), rebuild)
