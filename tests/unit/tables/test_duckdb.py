"""DuckDB reads topics: by a variable's name, registered, and as views that are attached."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from table_reads import RECORDS, Read
from waiting import until

import segstore
from segstore.errors import InvalidArgumentError, InvalidTypeError, UnknownTopicOrPartitionError
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.tables.duckdb_table import DuckDBTable
from segstore.tables.table import Table


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'Europe/Berlin'")
        yield connection


def answer(connection: Any, query: str) -> list[tuple[Any, ...]]:
    return list(connection.sql(query).fetchall())


# --- what is asked of a scan ---------------------------------------------------------------------

ALL_COLUMNS = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
T0 = "timestamptz '1970-01-01 00:00:00+00'"
PUSHED: dict[str, tuple[str, int, Bounds]] = {
    "all": ("true", 3 * RECORDS, ALL),
    "an offset": ('"offset" >= 50', 30, ALL._replace(first_offset=50)),
    "an exact offset": ('"offset" = 50', 3, ALL._replace(first_offset=50, last_offset=50)),
    "a range": ('"offset" between 5 and 9', 15, ALL._replace(first_offset=5, last_offset=9)),
    "the other side": ('9 > "offset"', 27, ALL._replace(last_offset=8)),
    "not": ('not ("offset" < 50)', 30, ALL._replace(first_offset=50)),
    "several offsets": ('"offset" in (5, 7, 11)', 9, ALL._replace(first_offset=5, last_offset=11)),
    "or": ('"offset" = 5 or "offset" = 9', 6, ALL._replace(first_offset=5, last_offset=9)),
    "a partition": ("partition = 1", RECORDS, Bounds(frozenset({1}))),
    "not a partition": ("partition <> 1", 2 * RECORDS, Bounds(frozenset({0, 2}))),
    "several partitions": ("partition in (0, 2, 9)", 2 * RECORDS, Bounds(frozenset({0, 2}))),
    "partitions from": ("partition >= 1", 2 * RECORDS, Bounds(frozenset({1, 2}))),
    "a partition and offsets": (
        'partition = 1 and "offset" < 5',
        5,
        Bounds(frozenset({1}), 0, 4),
    ),
    "a time": (
        "timestamp >= '1970-01-01 00:00:50+00'",
        30,
        ALL._replace(first_time=50_000),
    ),
    "a time of the connection's zone": (
        "timestamp < '1970-01-01 01:00:10'",
        30,
        ALL._replace(last_time=9_999),
    ),
    "a time without a zone": (
        "timestamp >= timestamp '1970-01-01 01:00:50'",
        30,
        ALL._replace(first_time=50_000),
    ),
    "an interval before a time": (
        f"timestamp > {T0} + interval 1 minute - interval 10 seconds",
        29,
        ALL._replace(first_time=50_001),
    ),
    "up to a fraction of a ms": (
        f"timestamp <= {T0} + interval 10001500 microseconds",
        32,
        ALL._replace(last_time=10_001),
    ),
    "from a fraction of a ms": (
        f"timestamp >= {T0} + interval 10001500 microseconds",
        148,
        ALL._replace(first_time=10_002),
    ),
    "a key": ("key = '\\x6b\\x31'::blob", 3, ALL),
    "no key": ("key is null", RECORDS, ALL),
    "a key, and an offset": ('key is not null and "offset" > 50', 18, ALL._replace(first_offset=51)),
    "a prefix of the topic": ("topic like 'fl%'", 3 * RECORDS, ALL),
    "a condition that stays with DuckDB": ('"offset" % 2 = 0', 3 * RECORDS // 2, ALL),
}


@pytest.mark.parametrize("name", PUSHED)
def test_filters_are_pushed_down(
    name: str, place: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]
) -> None:
    condition, rows, bounds = PUSHED[name]
    segstore.duckdb.attach(connection, place)
    assert answer(connection, f"select count(*) from flights where {condition}") == [(rows,)]
    assert [read.bounds for read in reads] == [bounds]


def test_what_came_in_the_last_minutes(
    store: segstore.Store, connection: duckdb.DuckDBPyConnection, reads: list[Read]
) -> None:
    store.create_topic("t")
    store.partition("t", 0).append(b"old", timestamp=1000)
    store.partition("t", 0).append(b"new")
    segstore.duckdb.attach(connection, store)
    query = "select value from t where timestamp > now() - interval 10 minutes"
    assert answer(connection, query) == [(b"new",)]
    assert reads[0].bounds.first_time > 1_000_000_000_000
    assert reads[0].rows == [1]


SELECTED = {
    "a column": ("value", ["value"]),
    "two, in another order": ('value, "offset"', ["offset", "value"]),
    "an aggregate": ('max("offset"), min(key)', ["offset", "key"]),
    "all": ("*", ALL_COLUMNS[1:]),
}


@pytest.mark.parametrize("name", SELECTED)
def test_only_the_columns_that_are_named_are_read(
    name: str, place: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]
) -> None:
    selected, columns = SELECTED[name]
    segstore.duckdb.attach(connection, place)
    assert answer(connection, f"select {selected} from flights")
    assert [read.columns for read in reads] == [columns]


def test_records_are_counted_without_their_values(
    place: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]
) -> None:
    segstore.duckdb.attach(connection, place)
    assert answer(connection, "select count(*) from flights") == [(3 * RECORDS,)]
    assert [read.columns for read in reads] == [[]]


def test_the_plan_has_projections_and_filters(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    segstore.duckdb.attach(connection, place)
    query = 'explain (format json) select value from flights where partition = 1 and "offset" > 7'
    (scan,) = scans(json.loads(answer(connection, query)[0][1]))
    told = {name: str(value) for name, value in scan["extra_info"].items()}
    assert "value" in told["Projections"]
    assert "headers" not in told["Projections"]
    assert "partition" in told["Filters"]
    assert "offset" in told["Filters"]


def scans(plan: Any) -> Iterator[dict[str, Any]]:
    for node in plan if isinstance(plan, list) else [plan]:
        if "Filters" in node.get("extra_info", {}):
            yield node
        yield from scans(node.get("children", []))


# --- ways to name a topic ------------------------------------------------------------------------


def test_a_variable(place: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]) -> None:
    flights = segstore.dataset(place, "flights")
    query = 'select count(value), max("offset") from flights where partition = 2 and "offset" < 5'
    assert connection.sql(query).fetchall() == [(5, 4)]
    assert duckdb.sql(query).fetchall() == [(5, 4)]
    assert [read.bounds for read in reads] == [Bounds(frozenset({2}), 0, 4)] * 2
    assert flights.count_rows() == 3 * RECORDS


def test_register(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    connection.register("departures", segstore.dataset(place, "flights", partitions=[0]))
    assert answer(connection, "select count(*) from departures") == [(RECORDS,)]


def test_a_topic_joined_with_itself(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    segstore.duckdb.attach(connection, place)
    query = """
        select count(*), count(distinct b.value)
        from flights a join flights b on a."offset" = b."offset" + 1 and a.partition = b.partition
        where a.key is null
    """
    assert answer(connection, query) == [(3 * (RECORDS // 3 - 1), 3 * (RECORDS // 3 - 1))]


def test_all_columns_as_they_are_stored(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    segstore.duckdb.attach(connection, place)
    query = 'select * replace (epoch_ms(timestamp) as timestamp) from flights where "offset" = 4 limit 1'
    headers = [{"key": "n", "value": b"4"}]
    assert answer(connection, query) == [("flights", 0, 4, 4000, 0, b"k4", b"v0-4", headers)]


NAMES = ["a.b", "with-dash", "select", "Upper", "_9"]


def test_names_that_sql_quotes(store: segstore.Store, connection: duckdb.DuckDBPyConnection) -> None:
    for name in NAMES:
        store.create_topic(name)
        store.partition(name, 0).append(name.encode())
    assert sorted(segstore.duckdb.attach(connection, store)) == sorted(NAMES)
    for name in NAMES:
        assert answer(connection, f'select topic, value from "{name}"') == [(name, name.encode())]


def test_topics_that_are_chosen(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    with segstore.open(place) as store:
        store.create_topic("other")
    assert segstore.duckdb.attach(connection, place, topics=["other"]) == ["other"]
    assert segstore.duckdb.attach(connection, place, topics={"o": "other", "f": "flights"}) == ["o", "f"]
    assert answer(connection, "select count(*) from f") == [(3 * RECORDS,)]
    assert segstore.duckdb.attach(connection, place, topics=[]) == []


def test_a_topic_that_was_made_later(store: segstore.Store, connection: duckdb.DuckDBPyConnection) -> None:
    store.create_topic("one")
    assert segstore.duckdb.attach(connection, store) == ["one"]
    store.create_topic("two")
    store.partition("one", 0).append(b"v")
    assert sorted(segstore.duckdb.attach(connection, store)) == ["one", "two"]
    store.partition("two", 0).append(b"w")
    assert answer(connection, "select value from one union all select value from two") == [(b"v",), (b"w",)]


def test_internal_topics_only_by_name(store: segstore.Store, connection: duckdb.DuckDBPyConnection) -> None:
    store.create_topic("t")
    store.partition("t", 0).append(b"v")
    with segstore.Consumer(store, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        until(lambda: consumer.poll(0.1) or None)
        consumer.commit()
    assert segstore.duckdb.attach(connection, store) == ["t"]
    internal = ["__consumer_offsets"]
    assert segstore.duckdb.attach(connection, store, topics=internal) == internal
    assert answer(connection, "select count(*) > 0 from __consumer_offsets") == [(True,)]


# --- connections ---------------------------------------------------------------------------------


def test_the_default_connection(place: Path) -> None:
    assert segstore.duckdb.attach(duckdb, place, topics={"segstore_flights": "flights"})
    try:
        assert answer(duckdb, "select count(*) from segstore_flights") == [(3 * RECORDS,)]
    finally:
        duckdb.unregister("segstore_flights")


def test_cursors_have_their_own(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    segstore.duckdb.attach(connection, place)
    cursor = connection.cursor()
    with pytest.raises(duckdb.CatalogException):
        answer(cursor, "select * from flights")
    segstore.duckdb.attach(cursor, place)
    assert answer(cursor, "select count(*) from flights") == [(3 * RECORDS,)]


def test_a_database_that_is_only_read(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "of.duckdb"
    with duckdb.connect(file) as writing:
        writing.execute("create table airlines as select 'AA' as name")
        segstore.duckdb.attach(writing, place)
    with duckdb.connect(file, read_only=True) as reading:
        assert answer(reading, "select view_name from duckdb_views() where not internal") == []
        segstore.duckdb.attach(reading, place)
        assert answer(reading, "select count(*) from flights, airlines") == [(3 * RECORDS,)]


def test_several_threads(place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("set threads = 4")
    found: list[list[tuple[Any, ...]]] = []

    def query() -> None:
        cursor = connection.cursor()
        segstore.duckdb.attach(cursor, place)
        sums = 'select partition, sum("offset") from flights group by all order by all'
        found.extend(answer(cursor, sums) for _ in range(5))

    threads = [threading.Thread(target=query) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[(each, sum(range(RECORDS))) for each in range(3)]] * 20


# --- ends ----------------------------------------------------------------------------------------


def test_a_limit_ends_the_read(large: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]) -> None:
    segstore.duckdb.attach(connection, large)
    assert answer(connection, "select value from large limit 3") == [(bytes(1000),)] * 3
    assert [read.ended for read in reads] == [[True]]
    assert sum(reads[0].rows) < 40_000
    assert [thread for thread in threading.enumerate() if thread.name.startswith("Dummy")] == []


def test_a_query_that_is_interrupted(
    large: Path, connection: duckdb.DuckDBPyConnection, reads: list[Read]
) -> None:
    segstore.duckdb.attach(connection, large)

    def interrupt() -> None:
        until(lambda: reads or None)
        while not ended.wait(0.01):
            connection.interrupt()

    ended = threading.Event()
    beside = threading.Thread(target=interrupt)
    beside.start()
    try:
        with pytest.raises(duckdb.InterruptException):
            answer(connection, "select max(a.value || b.value || c.value) from large a, large b, large c")
    finally:
        ended.set()
        beside.join()
    until(lambda: all(read.ended for read in reads) or None)
    assert answer(connection, "select count(*) from large") == [(40_000,)]


def in_another_process(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


PROGRAM = """
import sys
import duckdb, segstore
connection = duckdb.connect()
segstore.duckdb.attach(connection, sys.argv[1])
print(len(connection.sql("select value from large limit 3").fetchall()))
batches = segstore.dataset(sys.argv[1], "large").to_batches()
print(next(batches).num_rows > 0)
reader = segstore.dataset(sys.argv[1], "large").scanner().to_reader()
print(reader.read_next_batch().num_rows > 0)
connection.execute("select * from large").fetchone()
"""


@pytest.mark.kind("programs")
def test_a_process_ends_after_a_limit(large: Path) -> None:
    ran = in_another_process(PROGRAM, str(large))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "3\nTrue\nTrue\n", "")


# --- errors --------------------------------------------------------------------------------------


def test_a_corrupt_batch_is_named(damaged: Path, connection: duckdb.DuckDBPyConnection) -> None:
    segstore.duckdb.attach(connection, damaged)
    with pytest.raises(duckdb.Error, match=r"corrupt batch at position \d+, offset 2000"):
        answer(connection, "select max(value) from large")


def test_a_topic_that_is_gone(store: segstore.Store, connection: duckdb.DuckDBPyConnection) -> None:
    store.create_topic("t")
    segstore.duckdb.attach(connection, store)
    store.delete_topic("t")
    with pytest.raises(duckdb.Error, match="no topic 't'"):
        answer(connection, "select * from t")


def with_table(connection: duckdb.DuckDBPyConnection, place: Path) -> None:
    connection.execute("create table Flights (a int)")
    segstore.duckdb.attach(connection, place)


def with_view(connection: duckdb.DuckDBPyConnection, place: Path) -> None:
    connection.execute("create view flights as select 1")
    segstore.duckdb.attach(connection, place)


WRONG: dict[str, tuple[Callable[[Any, Path], Any], type[Exception], str]] = {
    "no connection": (
        lambda c, place: segstore.duckdb.attach(3, place),  # type: ignore[arg-type]
        InvalidTypeError,
        "connection=3: must be a connection of DuckDB",
    ),
    "no topic": (
        lambda c, place: segstore.duckdb.attach(c, place, topics=["arrivals"]),
        UnknownTopicOrPartitionError,
        "'arrivals'",
    ),
    "one string": (
        lambda c, place: segstore.duckdb.attach(c, place, topics="flights"),
        InvalidTypeError,
        "topics='flights'",
    ),
    "views that differ in case": (
        lambda c, place: segstore.duckdb.attach(c, place, topics={"a": "flights", "A": "flights"}),
        InvalidArgumentError,
        "views \\['a', 'A'\\]: one name to DuckDB; give other names by topics=",
    ),
    "values that say no columns": (
        lambda c, place: segstore.duckdb.attach(c, place, values="json"),
        InvalidArgumentError,
        "topic 'flights': values=\"json\" infers",
    ),
    "values of another topic": (
        lambda c, place: segstore.duckdb.attach(c, place, values={"arrivals": "json"}),
        InvalidArgumentError,
        "values for 'arrivals': topics are flights",
    ),
    "a table of that name": (with_table, InvalidArgumentError, "view 'Flights': the database has a table"),
    "a view of that name": (with_view, InvalidArgumentError, "view 'flights': the database has a table"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name: str, place: Path, connection: duckdb.DuckDBPyConnection) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call(connection, place)
    assert answer(connection, "from duckdb_views() where temporary and not internal") == []


def test_a_duckdb_that_is_too_old(
    place: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.3.2")
    with pytest.raises(segstore.MissingPackageError, match=r"duckdb 1\.4\.2 or later, and 1\.3\.2 is"):
        segstore.duckdb.attach(connection, place)


def test_the_finer_timestamps_of_older_versions(
    place: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    init = DuckDBTable.__init__

    def noted(self: DuckDBTable, table: Table, in_ms: bool) -> None:
        made.append(in_ms)
        init(self, table, in_ms)

    monkeypatch.setattr(duckdb, "__version__", "1.5.6")
    with monkeypatch.context() as patched:
        patched.setattr(DuckDBTable, "__init__", noted)
        segstore.duckdb.attach(connection, place)
    assert made == [False]
    for condition, rows, _ in PUSHED.values():
        assert answer(connection, f"select count(*) from flights where {condition}") == [(rows,)], condition
    shown = answer(connection, "select min(timestamp), max(timestamp), count(*) from flights")
    monkeypatch.undo()
    segstore.duckdb.attach(connection, place)
    assert answer(connection, "select min(timestamp), max(timestamp), count(*) from flights") == shown


def test_topics_are_strings_that_no_query_makes(
    place: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count asks for the first column."""
    segstore.duckdb.attach(connection, place)
    kinds = answer(connection, "select distinct topic, typeof(topic) from flights")
    assert kinds == [("flights", "VARCHAR")]
    (whole,) = answer(connection, "select count(*) from flights")
    assert answer(connection, "select count(*) from flights where topic like 'fl%' and topic < 'g'") == [
        whole
    ]
    assert answer(connection, "select count(*) from flights where topic = 'others'") == [(0,)]
    rows = connection.sql("select topic, partition from flights").to_arrow_table()
    assert rows.schema.field("topic").type == pa.string()
    made = []
    monkeypatch.setattr("segstore.storage.scans.columns.pa.repeat", lambda *told: made.append(told))
    assert answer(connection, "select count(*) from flights") == [whole]
    assert {value.type for _, value in made} <= {pa.int8()}


WITHOUT = """
import sys
import segstore
assert not {"duckdb", "pyarrow", "segstore.duckdb"} & set(sys.modules)
sys.modules[sys.argv[1]] = None
try:
    if sys.argv[2] == "attach":
        segstore.duckdb.attach(None, "x")
    else:
        segstore.dataset("x", "t")
except segstore.MissingPackageError as error:
    print(error)
"""
MISSING = {
    "attach without duckdb": ("duckdb", "attach", "segstore.duckdb.attach needs duckdb"),
    "attach without pyarrow": ("pyarrow", "attach", "segstore.duckdb.attach needs pyarrow"),
    "a dataset without pyarrow": ("pyarrow", "dataset", "segstore.dataset needs pyarrow"),
}


@pytest.mark.kind("programs")
@pytest.mark.parametrize("name", MISSING)
def test_a_package_that_is_missing(name: str) -> None:
    package, call, message = MISSING[name]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, call],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout == f"{message}, which is not installed: pip install {package}\n", ran.stderr


def test_the_module_is_there_by_each_import() -> None:
    import segstore.duckdb as one
    from segstore import duckdb as other

    assert one is other is segstore.duckdb
