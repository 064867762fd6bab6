"""`segstore.duckdb`: makes topics readable as views of a DuckDB connection. Nothing is on disk.

Threads: any, but one at a time per connection, as DuckDB requires. DuckDB reads topics in its own threads.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing
from segstore.storage.meta.topics import check_there
from segstore.storage.store.store import Store
from segstore.tables.package_versions import check_version, release
from segstore.tables.source import opened

if TYPE_CHECKING:
    import duckdb

    from segstore.tables.topic_dataset import TopicDataset


def attach(
    connection: duckdb.DuckDBPyConnection,
    store_or_path: Store | str | os.PathLike[str],
    *,
    topics: Collection[str] | Mapping[str, str] | None = None,
    values: Any = None,
    isolation_level: str = "read_uncommitted",
    check_crcs: bool = True,
) -> list[str]:
    """Create a view for each topic in a DuckDB connection, and return the names of the views. `connection`
    may be the module `duckdb`, which stands for its default connection. Each query reads the records that the
    topic has at the time of the query. If `store_or_path` is a directory, each query opens the store
    read-only, and another process may be writing to it. To get topics that are created later, attach again:
    existing views are replaced.

    `topics` are the topics to attach, or a dict from view names to topics: {"arrivals": "flights-2"}. By
    default all topics are attached under their own names, except internal topics such as __consumer_offsets,
    which Kafka's tools do not list by default either. In SQL, names with "." or "-" need double quotes.

    `values` is the argument `values` of `segstore.dataset` for all topics, or a dict that has for each topic
    either this argument, or a dict of the keyword arguments `values`, `value_schema`, `on_bad` and
    `value_prefix`. `isolation_level` and `check_crcs` are for all topics.

    The views are temporary, so a database file is not changed, and read-only databases can have views too.
    A cursor of the connection does not see them, as it sees no temporary views, so attach to the cursor.

    Raises the errors of `segstore.dataset`; UnknownTopicOrPartitionError; MissingPackageError if duckdb or
    pyarrow is missing, or if DuckDB is older than 1.4.2; and InvalidArgumentError if a view would have the
    name of an existing table or of another view, where DuckDB ignores case. Queries raise DuckDB's errors,
    with segstore's messages.
    """
    with Needing("duckdb", "segstore.duckdb.attach"):
        import duckdb
    with Needing("pyarrow", "segstore.duckdb.attach"):
        import pyarrow  # noqa: F401
    check_version("segstore.duckdb.attach", "duckdb", duckdb.__version__)
    argument: object = connection
    if argument is not duckdb and not isinstance(argument, duckdb.DuckDBPyConnection):
        raise InvalidTypeError(f"connection={connection!r}: must be a connection of DuckDB")
    views = _views(store_or_path, topics)
    _check_names(connection, views)
    terms = {"isolation_level": isolation_level, "check_crcs": check_crcs}
    decoded = _by_topic(values, views.values())
    in_ms = release(duckdb.__version__) >= (2,)
    with opened(store_or_path) as store:
        datasets = {
            view: _dataset(store, store_or_path, topic, decoded.get(topic), in_ms, terms)
            for view, topic in views.items()
        }
    for view, each in datasets.items():
        connection.register(view, each)
    return list(datasets)


def _views(
    store_or_path: Store | str | os.PathLike[str], topics: Collection[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """Return a dict from the name of each view to its topic."""
    with opened(store_or_path) as store:
        known = store.topics()
    if topics is None:
        return {name: name for name, info in known.items() if not info.internal}
    if isinstance(topics, (str, bytes)):
        raise InvalidTypeError(f"topics={topics!r}: must be a list of topics, or a dict of them by view")
    views = dict(topics) if isinstance(topics, Mapping) else {each: each for each in topics}
    for topic in views.values():
        check_there(known, topic)
    return views


def _check_names(connection: duckdb.DuckDBPyConnection, views: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError if two views, or a view and a table, would have the same name for DuckDB."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for view in views:
        by_name[view.lower()].append(view)
    hint = "give other names by topics={'name of the view': 'topic'}"
    for same in by_name.values():
        if len(same) > 1:
            raise InvalidArgumentError(f"views {same!r}: one name to DuckDB; {hint}")
    existing = connection.sql(_TABLES).fetchall() if by_name else []
    for (name,) in existing:
        if name.lower() in by_name:
            raise InvalidArgumentError(
                f"view {name!r}: the database has a table or view of that name; {hint}"
            )


_TABLES = """
    select table_name from duckdb_tables() where not temporary and in_search_path(database_name, schema_name)
    union all
    select view_name from duckdb_views()
    where not temporary and not internal and in_search_path(database_name, schema_name)
"""
"""Selects the tables and views that a temporary view would hide. (DuckDB itself refuses two temporary views
of one name.)
"""


def _by_topic(values: Any, topics: Collection[str]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return dict.fromkeys(topics, values)
    for topic in values:
        if topic not in topics:
            raise InvalidArgumentError(f"values for {topic!r}: topics are {', '.join(sorted(topics))}")
    return dict(values)


def _keywords(values: Any) -> Mapping[str, Any]:
    """Return the keyword arguments of `table_of` for one topic. `values` is what `attach` got for it."""
    if not isinstance(values, Mapping):
        return {"values": values}
    for name in values:
        if name not in _DECODING:
            raise InvalidArgumentError(f"values with {name!r}: allowed are {', '.join(_DECODING)}")
    return values


_DECODING = ("values", "value_schema", "on_bad", "value_prefix")


def _dataset(
    store: Store,
    store_or_path: Store | str | os.PathLike[str],
    topic: str,
    values: Any,
    in_ms: bool,
    terms: Mapping[str, Any],
) -> TopicDataset:
    """Return the dataset of a topic. Its columns are determined by the open `store`, and each scan opens
    `store_or_path`. `in_ms` is the argument of `DuckDBTable`; `terms` are keyword arguments of `table_of`.
    """
    from segstore.tables.duckdb_table import DuckDBTable
    from segstore.tables.table import table_of
    from segstore.tables.topic_dataset import TopicDataset

    def made() -> DuckDBTable:
        return DuckDBTable(table_of(store_or_path, topic, **of_values, **terms), in_ms)

    of_values = _keywords(values)
    try:
        first = table_of(store, topic, **of_values, **terms)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"topic {topic!r}: {error}") from error
    first.source.place = store_or_path
    return TopicDataset(DuckDBTable(first, in_ms), made)
