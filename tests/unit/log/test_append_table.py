"""Promise: the table of any engine is appended as by one `append_batch` of lists: with its bytes, visible
together, or not at all. What `to_arrow` gives goes in as it was.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from damage import flip
from stores import START_MS, Clock, tree

import segstore
from segstore.errors import (
    CorruptRecordError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTypeError,
    OffsetMismatchError,
    RecordTooLargeError,
)
from segstore.records.arrow import HEADER_TYPE
from segstore.storage.bulk_import import importing_into

COLUMNS = ["timestamp", "key", "value", "headers"]
Rows = list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]
ROWS: Rows = [
    (b"v", b"k", START_MS, [("h", b"1"), ("h", None), ("é", b"")]),
    (b"", None, START_MS + 1, []),
    (None, b"", -1, [("", b"2" * 50)]),
    (b"a value of more than twelve bytes", b"k", 0, []),
    (b"\xff\0", b"a key of more than twelve bytes", START_MS - 1, [("h", b"\xff")]),
]


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, clock=Clock(START_MS)) as store:
        for topic in ("from", "to", "lists"):
            store.create_topic(topic)
        yield store


def append(log: segstore.PartitionLog, rows: Rows, **how: Any) -> range:
    values, keys, stamps, headers = (list(column) for column in zip(*rows, strict=True))
    return log.append_batch(values, keys, stamps, headers, **how)


def rows_of(log: segstore.PartitionLog) -> Rows:
    return [(r.value, r.key, r.timestamp, r.headers) for r in log.scan()]


def tables(store: segstore.Store) -> dict[str, Callable[[], Any]]:
    """Topic "from" as each engine has it."""
    log, scan = store.partition("from"), store.scan("from")
    table, plain = scan.to_arrow(), log.read(0).to_arrow()
    whole = table.combine_chunks()
    apart = [table.slice(i, 1) for i in range(table.num_rows)]
    return {
        "Records": lambda: log.read(0),
        "Scan": log.scan,
        "TopicScan": lambda: store.scan("from"),
        "to_arrow of Records": lambda: plain,
        "to_arrow of a scan": lambda: table,
        "RecordBatch": lambda: whole.to_batches()[0],
        "RecordBatchReader": lambda: table.to_reader(max_chunksize=2),
        "an array": lambda: whole.to_struct_array().chunk(0),
        "a chunk for each row": lambda: pa.concat_tables(apart),
        "polars": lambda: pl.from_arrow(table),
        "polars, chunks": lambda: pl.concat(map(pl.from_arrow, apart), rechunk=False),
        "polars, columns": lambda: pl.from_arrow(table).select(pl.col(COLUMNS)),
        "pandas": lambda: table.to_pandas(),
        "pandas of Arrow": lambda: table.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas, filtered": lambda: table.to_pandas().loc[lambda frame: frame["offset"] >= 0],
        "DuckDB's relation": lambda: duckdb.from_arrow(table),
        "DuckDB's result": lambda: duckdb.connect().register("t", table).execute("from t"),
        "large": lambda: whole.cast(large_schema(whole.schema)),
    }


def large_schema(schema: pa.Schema) -> pa.Schema:
    pair = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    kinds = {"key": pa.large_binary(), "value": pa.large_binary(), "headers": pa.large_list(pair)}
    return pa.schema([(field.name, kinds.get(field.name, field.type)) for field in schema])


NAMES = [
    *("Records", "Scan", "TopicScan", "to_arrow of Records", "to_arrow of a scan", "RecordBatch"),
    *("RecordBatchReader", "an array", "a chunk for each row", "polars", "polars, chunks"),
    *("polars, columns", "pandas", "pandas of Arrow", "pandas, filtered", "DuckDB's relation"),
    *("DuckDB's result", "large"),
]


@pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")
@pytest.mark.parametrize("name", NAMES)
def test_every_engine(name: str, store: segstore.Store) -> None:
    append(store.partition("from"), ROWS)
    log, lists = store.partition("to"), store.partition("lists")
    append(lists, ROWS)
    made = tables(store)
    assert list(made) == NAMES
    assert log.append_table(made[name]()) == range(5)
    assert rows_of(log) == ROWS
    assert log.stored(0, 1 << 20) == lists.stored(0, 1 << 20)
    assert log.scan().to_arrow(COLUMNS) == store.partition("from").scan().to_arrow(COLUMNS)


def drawn(rng: random.Random) -> Rows:
    def some() -> bytes | None:
        return rng.choice([None, b"", b"v", rng.randbytes(rng.randrange(40))])

    def headers() -> list[tuple[str, bytes | None]]:
        names = rng.choices(["", "h", "é", "more than twelve bytes"], k=rng.choice([0, 0, 1, 3]))
        return [(name, some()) for name in names]

    return [
        (some(), some(), rng.choice([-1, 0, START_MS, START_MS + 7]), headers())
        for _ in range(rng.randrange(1, 80))
    ]


@pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")
@pytest.mark.parametrize("seed", range(8))
def test_drawn_rows_by_each_engine(seed: int, store: segstore.Store) -> None:
    rng = random.Random(seed)
    rows = drawn(rng)
    size, codec = rng.choice([1, 90, 65536]), rng.choice(["none", "lz4", "zstd"])
    append(store.partition("from"), rows)
    append(lists := store.partition("lists"), rows, batch_bytes=size, compression=codec)
    one = lists.stored(0, 1 << 22)
    made = tables(store)
    for name in made:
        store.delete_topic("to")
        store.create_topic("to")
        log = store.partition("to")
        log.append_table(made[name](), batch_bytes=size, compression=codec)
        assert rows_of(log) == rows, f"seed {seed}, {name}"
        assert log.stored(0, 1 << 22) == one, f"seed {seed}, {name}"


def test_many_rows_of_many_chunks_are_one_append(store: segstore.Store) -> None:
    """More than C takes at once, in chunks that are cut without regard to batches."""
    rng = random.Random(5)
    values = [b"%d" % i * rng.randrange(8) for i in range(60_000)]
    headers = [[("a", value), ("b", None)] if len(value) % 3 else None for value in values]
    whole = pa.table({"value": values, "headers": pa.array(headers, HEADER_TYPE), "timestamp": range(60_000)})
    lists, log = store.partition("lists"), store.partition("to")
    lists.append_batch(values, None, list(range(60_000)), headers)
    assert log.append_table(whole.to_reader(max_chunksize=777)) == range(60_000)
    assert log.stored(0, 1 << 26) == lists.stored(0, 1 << 26)


# --- columns -----------------------------------------------------------------------------------

DAY = 86_400_000
STAMPS: dict[str, tuple[Any, int]] = {
    "s": (pa.array([5], pa.timestamp("s")), 5000),
    "ms": (pa.array([5], pa.timestamp("ms", "UTC")), 5),
    "us": (pa.array([5999], pa.timestamp("us")), 5),
    "ns, a zone": (pa.array([5_999_999], pa.timestamp("ns", "Europe/Berlin")), 5),
    "a day": (pa.array([3], pa.int32()).cast(pa.date32()), 3 * DAY),
    "a day in ms": (pa.array([datetime.date(1970, 1, 4)], pa.date64()), 3 * DAY),
    "int64": (pa.array([7]), 7),
    "int32": (pa.array([7], pa.int32()), 7),
    "none": (pa.array([-1]), -1),
}


@pytest.mark.parametrize("name", STAMPS)
def test_timestamps(name: str, store: segstore.Store) -> None:
    column, ms = STAMPS[name]
    log = store.partition("to")
    log.append_table(pa.table({"value": [b"v"], "timestamp": column}))
    assert log.read_one(0).timestamp == ms


def test_columns_that_are_not_there(store: segstore.Store) -> None:
    log = store.partition("to")
    assert log.append_table(pa.table({"value": ["text", None]})) == range(2)
    assert rows_of(log) == [(b"text", None, START_MS, []), (None, None, START_MS, [])]


def test_columns_of_nulls(store: segstore.Store) -> None:
    log, null = store.partition("to"), pa.nulls(1)
    log.append_table(pa.table({"value": null, "key": null, "headers": null}))
    log.append_table(pd.DataFrame({"value": [None], "key": [None], "headers": [None]}))
    log.append_table(pl.DataFrame({"value": [None], "key": [None], "headers": [None]}))
    assert rows_of(log) == [(None, None, START_MS, [])] * 3


def test_a_map_of_duckdb(store: segstore.Store) -> None:
    log = store.partition("to")
    log.append_table(duckdb.sql("select 'v' as value, map(['a', 'b'], ['x'::blob, null]) as headers"))
    assert rows_of(log) == [(b"v", None, START_MS, [("a", b"x"), ("b", None)])]


def test_an_index_that_has_a_name_is_a_column(store: segstore.Store) -> None:
    frame = pd.DataFrame({"value": [b"v"], "key": [b"k"], "timestamp": [3]})
    log = store.partition("to")
    log.append_table(frame.set_index("key"))
    log.append_table(frame.set_index(["key", "timestamp"]))
    assert rows_of(log) == [(b"v", b"k", 3, [])] * 2
    with pytest.raises(InvalidArgumentError, match="column 'id'"):
        log.append_table(frame.rename_axis("id"))


@pytest.mark.parametrize("n", [0, 1])
def test_tables_without_rows(n: int, store: segstore.Store) -> None:
    log = store.partition("to")
    log.append_batch([b"v"] * n)
    empty = store.partition("from").scan().to_arrow()
    assert log.append_table(empty) == range(n, n)
    assert log.append_table(pl.from_arrow(empty)) == range(n, n)
    with pytest.raises(OffsetMismatchError):
        log.append_table(empty, expected_offset=n + 1)


def test_a_log_into_itself(store: segstore.Store) -> None:
    log = store.partition("to")
    append(log, ROWS)
    assert log.append_table(log.scan(), expected_offset=5) == range(5, 10)
    assert rows_of(log) == ROWS * 2


# --- refused -----------------------------------------------------------------------------------


def one(**columns: Any) -> pa.Table:
    return pa.table({"value": [b"a", b"b"], **columns})


def with_null_key() -> pa.Array:
    pairs = pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([b"", b""])], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)


def broken() -> pa.RecordBatchReader:
    """A stream whose last batch is wrong."""
    good = one(timestamp=[1, 2])
    wrong = one(timestamp=pa.array([3, None], pa.int64()))
    return pa.RecordBatchReader.from_batches(good.schema, [*good.to_batches(), *wrong.to_batches()])


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a null timestamp": (
        lambda: one(timestamp=pa.array([1, None], pa.timestamp("us"))),
        InvalidArgumentError,
        r"timestamp\[1\] is null",
    ),
    "a null timestamp in a later batch": (broken, InvalidArgumentError, r"timestamp\[3\] is null"),
    "timestamps of nulls": (
        lambda: one(timestamp=pa.nulls(2)),
        InvalidArgumentError,
        r"timestamp\[0\] is null",
    ),
    "a timestamp before 1970": (
        lambda: one(timestamp=[0, -2]),
        InvalidArgumentError,
        r"timestamp\[1\] is negative: -2",
    ),
    "a time that ms do not reach": (
        lambda: one(timestamp=pa.array([0, 1 << 62], pa.timestamp("s"))),
        InvalidArgumentError,
        "timestamp has a time that int64 ms do not reach",
    ),
    "timestamps of text": (lambda: one(timestamp=["a", "b"]), InvalidTypeError, "timestamp are"),
    "a header's key is null": (
        lambda: one(headers=with_null_key()),
        InvalidArgumentError,
        r"headers\[1\]\[0\] has a null key",
    ),
    "headers of another type": (
        lambda: one(headers=["a", "b"]),
        InvalidTypeError,
        "headers is of Arrow type",
    ),
    "keys are numbers": (lambda: one(key=[1, 2]), InvalidTypeError, "key is of Arrow type int64"),
    "values are numbers": (
        lambda: pa.table({"value": [1]}),
        InvalidTypeError,
        "value is of Arrow type int64",
    ),
    "another column": (
        lambda: one(price=[1, 2]),
        InvalidArgumentError,
        "column 'price': allowed are value, key, timestamp, headers; left out are topic, partition, offset",
    ),
    "a column twice": (
        lambda: pa.table([[b"a"], [b"b"]], names=["value", "value"]),
        InvalidArgumentError,
        "column 'value' is there 2 times",
    ),
    "no value": (lambda: pa.table({"key": [b"k"]}), InvalidArgumentError, "no column 'value' among 'key'"),
    "no column": (lambda: pa.table({}), InvalidArgumentError, "no column 'value' among none"),
    "a list": (lambda: [b"a"], InvalidTypeError, "table is list: allowed is a table of pyarrow"),
    "a dict": (lambda: {"value": [b"a"]}, InvalidTypeError, "table is dict"),
    "None": (lambda: None, InvalidTypeError, "table is NoneType"),
    "a lazy frame": (
        lambda: pl.LazyFrame({"value": [b"a"]}),
        InvalidTypeError,
        "its collect\\(\\) gives one",
    ),
    "a column": (lambda: pl.Series("value", [b"a"]), InvalidTypeError, "table is Series"),
    "an array": (lambda: pa.array([b"a"]), InvalidTypeError, "table is BinaryArray"),
    "objects of pandas": (
        lambda: pd.DataFrame({"value": [object()]}),
        InvalidTypeError,
        "table is DataFrame",
    ),
    "values of pandas that are mixed": (
        lambda: pd.DataFrame({"value": [b"a", 1]}),
        InvalidTypeError,
        "table is DataFrame",
    ),
    "a record that is too large": (
        lambda: one(key=[b"", bytes(2 << 20)]),
        RecordTooLargeError,
        "record 1 makes a batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_of_what_is_refused(name: str, store: segstore.Store, store_dir: Path) -> None:
    make, error, match = REFUSED[name]
    log = store.partition("to")
    log.append_batch([b"before"])
    table, before = make(), tree(store_dir)
    with pytest.raises(error, match=match):
        log.append_table(table)
    assert tree(store_dir) == before
    assert log.append_batch([b"behind"]) == range(1, 2)


def test_a_topic_that_needs_keys(store: segstore.Store) -> None:
    store.create_topic("keyed", config={"cleanup.policy": "compact"})
    log = store.partition("keyed")
    with pytest.raises(InvalidRecordError):
        log.append_table(pl.DataFrame({"value": [b"a", b"b"], "key": [b"k", None]}))
    assert log.append_table(pl.DataFrame({"value": [b"a", None], "key": [b"k", b"k"]})) == range(2)


def test_an_engine_s_own_error_is_raised(store: segstore.Store) -> None:
    log = store.partition("to")
    with pytest.raises(Exception, match="no number"):
        log.append_table(duckdb.sql("select error('no number')::blob as value"))
    assert log.end_offset == 0


def test_an_error_of_a_reader_in_python_is_raised(store: segstore.Store) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"a"]})
        raise LookupError("midway")

    log, schema = store.partition("to"), pa.schema({"value": pa.binary()})
    with pytest.raises(LookupError, match="midway"):
        log.append_table(pa.RecordBatchReader.from_batches(schema, batches()))
    assert log.end_offset == 0


@pytest.mark.parametrize("kind", ["topic", "log"])
def test_damage_under_a_scan_that_is_appended(tmp_path: Path, kind: str) -> None:
    damaged = tmp_path / "damaged"
    with segstore.open(damaged) as made:
        made.create_topic("from")
        for _ in range(3):
            made.partition("from").append_batch([b"v" * 100] * 10)
    file = next((damaged / "from-0").glob("*.log"))
    flip(file, file.stat().st_size // 2)
    with segstore.open(damaged, mode="r") as source, segstore.open(tmp_path / "to") as store:
        store.create_topic("to")
        scan = source.scan("from") if kind == "topic" else source.partition("from").scan()
        with pytest.raises(CorruptRecordError, match="offset 10"):
            store.partition("to").append_table(scan)
        assert store.partition("to").end_offset == 0


# --- other logs --------------------------------------------------------------------------------


def test_a_replicated_log(tmp_path: Path) -> None:
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b"], witness=tmp_path / "w") as store:
        store.create_topic("t")
        log = store.partition("t")
        append(log, ROWS)
        table = log.scan().to_arrow()
        assert log.append_table(pl.from_arrow(table), acks="all", expected_offset=5) == range(5, 10)
        assert log.append_table(table, acks=1, timeout_ms=1000, compression="zstd", batch_bytes=1) == range(
            10, 15
        )
        assert rows_of(log) == ROWS * 3
        with pytest.raises(InvalidArgumentError, match="acks"):
            log.append_table(table, acks=2)


@pytest.mark.parametrize("n", [1, 60_000])
def test_a_guest_s_log(n: int, store_dir: Path) -> None:
    """Of more than 4 MiB the host makes one append."""
    table = pa.table({"value": [b"v" * 100] * n, "headers": pa.array([[("h", None)]] * n, HEADER_TYPE)})
    with segstore.open(store_dir, shared=True) as host:
        host.create_topic("t")
        with segstore.open(store_dir, shared="guest", timeout=60) as guest:
            assert guest.partition("t").append_table(table) == range(n)
        last = host.partition("t").read_one(n - 1)
        assert (last.value, last.headers) == (b"v" * 100, [("h", None)])


def test_staged_tables(store: segstore.Store) -> None:
    """The batches of a reader, one by one: all are visible together."""
    append(store.partition("from"), ROWS)
    table, log = store.scan("from").to_arrow(), store.partition("to")
    with importing_into(store, "to") as (_, stager):
        for batch in table.to_reader(max_chunksize=2):
            assert stager.append_table("to", 0, batch, compression="lz4") == batch.num_rows
        with pytest.raises(InvalidArgumentError, match=r"timestamp\[3\] is null"):
            stager.append_table("to", 0, broken())
        assert log.end_offset == 0
    assert rows_of(log) == ROWS
    with pytest.raises(IllegalStateError):
        stager.append_table("to", 0, table)
