"""`segstore.duckdb`: topics as views of a DuckDB connection. Nothing is on disk.

Threads: any, one at a time for a connection, as DuckDB requires; DuckDB's own threads read the records of its
queries.
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
    """Make a view of each topic for a DuckDB connection, or for the module `duckdb` with its default
    connection. Return the names of the views.

    Each query reads the topic's present records. A directory is opened to read for each query, even while
    another process writes. For topics that were created later, attach again; existing views are replaced.

    `topics` are the topics to attach, or the topics by the names of their views: {"arrivals": "flights-2"}.
    By default all topics are attached, each by its own name (SQL has names with "." or "-" in double quotes),
    except internal topics, such as __consumer_offsets. `values` is as for `segstore.dataset`: one value for
    all topics, or a dict by topic of formats, or of dicts with the keywords `values`, `value_schema`,
    `on_bad` and `value_prefix`. `isolation_level` and `check_crcs` are for all topics.

    The views are temporary: a database file does not get them, so a read-only database can have them too.
    Like other temporary views, they are not visible to a cursor of the connection: attach to the cursor.

    Raises MissingPackageError without duckdb and pyarrow, or with a DuckDB before 1.4.2;
    UnknownTopicOrPartitionError; InvalidArgumentError if a table has the name of a view, or if two names
    differ only in case, which DuckDB ignores; and the errors of `segstore.dataset`. Queries raise DuckDB's
    errors, with the texts of segstore's errors.
    """
    with Needing("duckdb", "segstore.duckdb.attach"):
        import duckdb
    with Needing("pyarrow", "segstore.duckdb.attach"):
        import pyarrow  # noqa: F401
    check_version("segstore.duckdb.attach", "duckdb", duckdb.__version__)
    given: object = connection
    if given is not duckdb and not isinstance(given, duckdb.DuckDBPyConnection):
        raise InvalidTypeError(f"connection={connection!r}: must be a connection of DuckDB")
    views = _views(store_or_path, topics)
    _check_names(connection, views)
    terms = {"isolation_level": isolation_level, "check_crcs": check_crcs}
    decoded = _by_topic(values, views.values())
    in_ms = release(duckdb.__version__) >= (2,)
    with opened(store_or_path) as store:
        found = {
            view: _dataset(store, store_or_path, topic, decoded.get(topic), in_ms, terms)
            for view, topic in views.items()
        }
    for view, each in found.items():
        connection.register(view, each)
    return list(found)


def _views(
    store_or_path: Store | str | os.PathLike[str], topics: Collection[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """Return the topics of the views, by the views' names."""
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
    """Raise InvalidArgumentError if two views, or a view and a table, would have the same name to DuckDB."""
    named: defaultdict[str, list[str]] = defaultdict(list)
    for view in views:
        named[view.lower()].append(view)
    hint = "give other names by topics={'name of the view': 'topic'}"
    for alike in named.values():
        if len(alike) > 1:
            raise InvalidArgumentError(f"views {alike!r}: one name to DuckDB; {hint}")
    taken = connection.sql(_TABLES).fetchall() if named else []
    for (name,) in taken:
        if name.lower() in named:
            raise InvalidArgumentError(
                f"view {name!r}: the database has a table or view of that name; {hint}"
            )


_TABLES = """
    select table_name from duckdb_tables() where not temporary and in_search_path(database_name, schema_name)
    union all
    select view_name from duckdb_views()
    where not temporary and not internal and in_search_path(database_name, schema_name)
"""
"""The tables and views that a temporary view would hide. Temporary ones are not listed, because DuckDB itself
refuses a name that one has.
"""


def _by_topic(values: Any, topics: Collection[str]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return dict.fromkeys(topics, values)
    for topic in values:
        if topic not in topics:
            raise InvalidArgumentError(f"values for {topic!r}: topics are {', '.join(sorted(topics))}")
    return dict(values)


def _keywords(values: Any) -> Mapping[str, Any]:
    """Return the keywords of `table_of` for the `values` of one topic."""
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
    """Return the dataset of a topic. `store` is open for this call only; each scan opens `store_or_path`."""
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
