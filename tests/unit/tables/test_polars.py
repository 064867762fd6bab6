"""`scan_polars`: what queries of polars give and read, how often, and what is closed when they end early."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from descriptors import opened
from drawn_predicates import STAMP, WHEN, drawn, key, offset, partition, timestamp
from waiting import until

import segstore
from segstore.errors import (
    InvalidArgumentError,
    MissingPackageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.tables.polars_frames import TopicFrames
from segstore.tables.table import Table, table_of

N, PARTITIONS = 200, 3
ENGINES = ("in-memory", "streaming")
HOUR = 3_600_000
FAILED = (segstore.errors.SegstoreError, pl.exceptions.ComputeError)
"""An error of a read, which polars 1 has within its own."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    """A store whose topic t has 200 records in each partition, in batches of 10, a record each half hour."""
    store.create_topic("t", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        fill(store.partition("t", number), range(0, N, 10))
    return store


def fill(log: segstore.PartitionLog, batches: Sequence[int]) -> None:
    for first in batches:
        offsets = range(first, first + 10)
        log.append_batch(
            [None if at % 5 == 0 else b"value %d" % at for at in offsets],
            keys=[None if at % 3 == 0 else b"k" if at % 2 else b"" for at in offsets],
            timestamps=[STAMP + (at - N // 2) * HOUR // 2 for at in offsets],
            headers=[[("a", b"%d" % at), ("b", None)][: at % 3] for at in offsets],
        )


def whole(store: segstore.Store) -> pl.DataFrame:
    frame = pl.from_arrow(store.scan("t").to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def output(program: str, *arguments: str | Path) -> list[str]:
    """Return the lines that a program prints."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


class Read(NamedTuple):
    """One read of a table, and what became of it."""

    columns: Sequence[str] | None
    bounds: Bounds
    rows: list[int]
    ended: list[str]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """The reads of all tables from now on."""
    found: list[Read] = []
    batches = Table.batches

    def noted(
        table: Table, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Any = None
    ) -> Iterator[Any]:
        read = Read(columns, bounds, [], [])
        found.append(read)
        try:
            for whole_batch in batches(table, columns, bounds, finish):
                for at in range(0, whole_batch.num_rows, 10):
                    batch = whole_batch.slice(at, 10)
                    read.rows.append(batch.num_rows)
                    yield batch
            read.ended.append("at the end")
        except GeneratorExit:
            read.ended.append("before")
            raise

    monkeypatch.setattr(Table, "batches", noted)
    return found


# --- what queries give ---------------------------------------------------------------------------

SCHEMA = {
    "topic": pl.String(),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "timestamp": pl.Datetime("ms", "UTC"),
    "timestamp_type": pl.Int8(),
    "key": pl.Binary(),
    "value": pl.Binary(),
    "headers": pl.List(pl.Struct({"key": pl.String(), "value": pl.Binary()})),
}


def test_the_schema_is_known_without_a_read(filled: segstore.Store, reads: list[Read]) -> None:
    frame = segstore.scan_polars(filled, "t")
    assert dict(frame.collect_schema()) == SCHEMA
    assert frame.select("value", offset + 1).collect_schema().names() == ["value", "offset"]
    assert reads == []


def test_records_are_as_they_were_appended(filled: segstore.Store, engine: Any) -> None:
    row = segstore.scan_polars(filled, "t").filter(partition == 1, offset == 11).collect(engine=engine)
    assert row.to_dicts() == [
        {
            "topic": "t",
            "partition": 1,
            "offset": 11,
            "timestamp": WHEN - (N // 2 - 11) * (WHEN - WHEN.replace(hour=21, minute=43)),
            "timestamp_type": 0,
            "key": b"k",
            "value": b"value 11",
            "headers": [{"key": "a", "value": b"11"}, {"key": "b", "value": None}],
        }
    ]


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "all": lambda t: t,
    "some columns, in another order": lambda t: t.select("value", "partition", "offset"),
    "one column twice": lambda t: t.select("value", pl.col("value").alias("again")),
    "how many": lambda t: t.select(pl.len()),
    "how many of a filter": lambda t: t.filter(offset > 77).select(pl.len()),
    "a filter on a column that is not shown": lambda t: t.filter(key == b"k").select("offset"),
    "a filter on what is computed": lambda t: t.filter(offset * 2 > 300, partition < 2),
    "two filters": lambda t: t.filter(offset > 30).select("offset", "value").filter(offset < 40),
    "a filter of none": lambda t: t.filter(offset > 1000),
    "a filter that is null": lambda t: t.filter(offset > pl.lit(None, pl.Int64)),
    "a function of Python": lambda t: t.with_columns(odd=offset % 2).filter(pl.col("odd") == 1),
    "nulls": lambda t: t.filter(pl.col("value").is_null(), key.is_not_null()),
    "headers": lambda t: t.select("offset", "headers").explode("headers").unnest("headers"),
    "headers of a name": lambda t: t.filter(
        pl.col("headers").list.eval(pl.element().struct.field("key") == "b").list.any()
    ),
    "the first": lambda t: t.head(7),
    "none": lambda t: t.head(0),
    "the first across partitions": lambda t: t.head(N + 5),
    "more than there are": lambda t: t.head(10 * N),
    "the first of a filter": lambda t: t.filter(partition == 2).head(7),
    "a filter of the first": lambda t: t.head(N + 20).filter(partition == 1),
    "a filter of the first, none of which": lambda t: t.head(N).filter(partition == 1),
    "columns of the first": lambda t: t.head(7).select("value"),
    "a slice": lambda t: t.slice(N - 5, 10).select("partition", "offset"),
    "the last": lambda t: t.tail(7),
    "groups": lambda t: (
        t.group_by("partition").agg(pl.len(), pl.max("offset"), pl.last("value")).sort("partition")
    ),
    "groups by day": lambda t: t.group_by(timestamp.dt.date()).len().sort("timestamp"),
    "a window": lambda t: t.filter(offset == offset.max().over("partition")),
    "an index of rows": lambda t: t.with_row_index().filter(offset == 3),
    "joined with itself": lambda t: (
        t.filter(offset < 5).join(t, on=["partition", "offset"]).sort("partition", "offset")
    ),
    "twice": lambda t: pl.concat([t.filter(partition == 0), t.filter(offset > 190)]),
    "unique": lambda t: t.select("key").unique().sort("key"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_it_gives_of_the_whole_table(
    filled: segstore.Store, name: str, engine: Any
) -> None:
    query = QUERIES[name]
    found = query(segstore.scan_polars(filled, "t")).collect(engine=engine)
    polars.testing.assert_frame_equal(found, query(whole(filled).lazy()).collect())


def test_drawn_predicates_give_what_they_give_of_the_whole_table(
    filled: segstore.Store, rng: random.Random, reads: list[Read]
) -> None:
    everything, frame = whole(filled), segstore.scan_polars(filled, "t")
    for _ in range(60):
        predicate, engine = drawn(rng), rng.choice(ENGINES)
        wanted = everything.filter(predicate)
        n_rows = rng.choice([None, None, rng.randrange(1, 3 * N)])
        if n_rows is not None:
            wanted = everything.head(n_rows).filter(predicate)
        asked = frame if n_rows is None else frame.head(n_rows)
        found = asked.filter(predicate).collect(engine=engine)
        assert found.equals(wanted), f"{predicate} of {n_rows} rows"
    assert any(read.bounds != ALL for read in reads)


def test_a_topic_without_records_is_an_empty_table(store: segstore.Store, engine: Any) -> None:
    store.create_topic("t", partitions=2)
    found = segstore.scan_polars(store, "t").filter(offset > 3).collect(engine=engine)
    assert (found.height, dict(found.schema)) == (0, SCHEMA)


TERMS: dict[str, dict[str, Any]] = {
    "partitions": {"partitions": [2, 0]},
    "an offset": {"start": 150},
    "up to an offset": {"end": 15},
    "times": {"from_time": WHEN, "to_time": STAMP + 9 * HOUR},
    "committed": {"isolation_level": "read_committed", "check_crcs": False},
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_those_of_scan(filled: segstore.Store, name: str) -> None:
    found = segstore.scan_polars(filled, "t", **TERMS[name]).collect()
    wanted = pl.from_arrow(filled.scan("t", **TERMS[name]).to_arrow())
    assert isinstance(wanted, pl.DataFrame)
    assert found.equals(wanted)
    assert found.height > 0
    assert name == "committed" or found.height < PARTITIONS * N


def test_two_topics_are_joined(filled: segstore.Store, engine: Any) -> None:
    filled.create_topic("u")
    fill(filled.partition("u"), [0])
    t, u = (segstore.scan_polars(filled, name) for name in "tu")
    joined = u.join(t, on="offset").filter(pl.col("partition_right") == 1).collect(engine=engine)
    assert joined.select("topic", "topic_right").unique().rows() == [("u", "t")]
    assert sorted(joined["offset"]) == list(range(10))


def test_a_topic_is_written_to_parquet(filled: segstore.Store, tmp_path: Path) -> None:
    segstore.scan_polars(filled, "t").filter(offset >= 100).sink_parquet(tmp_path / "t.parquet")
    assert pl.read_parquet(tmp_path / "t.parquet").equals(whole(filled).filter(offset >= 100))


# --- what is read --------------------------------------------------------------------------------

ASKED: dict[str, tuple[Callable[[pl.LazyFrame], pl.LazyFrame], set[str] | None, Bounds]] = {
    "all": (lambda t: t, None, ALL),
    "some columns": (lambda t: t.select("value", "offset"), {"value", "offset"}, ALL),
    "a filter": (lambda t: t.filter(offset > 150), None, Bounds(first_offset=151)),
    "columns of a filter": (
        lambda t: t.filter(offset > 150, key == b"k").select("value"),
        {"offset", "key", "value"},
        Bounds(first_offset=151),
    ),
    "a partition": (
        lambda t: t.filter(partition != 1).select("offset"),
        {"partition", "offset"},
        Bounds(frozenset({0, 2})),
    ),
    "a time": (
        lambda t: t.filter(timestamp >= WHEN).select("timestamp"),
        {"timestamp"},
        Bounds(first_time=STAMP),
    ),
    "a filter of the first": (lambda t: t.head(5).filter(offset > 3), None, ALL),
    "another topic": (lambda t: t.filter(pl.col("topic") == "u"), None, Bounds(frozenset())),
}


@pytest.mark.parametrize("name", ASKED)
def test_only_columns_and_bounds_that_are_needed_are_read(
    filled: segstore.Store, reads: list[Read], name: str, engine: Any
) -> None:
    query, columns, bounds = ASKED[name]
    query(segstore.scan_polars(filled, "t")).collect(engine=engine)
    (read,) = reads
    assert read.bounds == bounds
    assert set(read.columns or SCHEMA) == (columns or set(SCHEMA))


NARROWED = {
    "a partition": (partition == 1, 200),
    "the last offsets": (offset >= 190, 30),
    "the last offsets of a partition": ((partition == 2) & (offset >= 190), 10),
    "no partition": (partition == 9, 0),
    "nothing": (pl.lit(False), 0),
}


@pytest.mark.parametrize("name", NARROWED)
def test_records_outside_of_bounds_are_not_given_to_polars(
    filled: segstore.Store, reads: list[Read], name: str
) -> None:
    predicate, rows = NARROWED[name]
    found = segstore.scan_polars(filled, "t").filter(predicate).collect()
    assert found.equals(whole(filled).filter(predicate))
    assert sum(sum(read.rows) for read in reads) == rows


@pytest.mark.parametrize(("wanted", "batches"), [(1, 1), (10, 1), (11, 2), (N, N // 10)])
def test_no_more_batches_are_read_than_the_first_rows_need(
    filled: segstore.Store, reads: list[Read], wanted: int, batches: int, engine: Any
) -> None:
    assert segstore.scan_polars(filled, "t").head(wanted).collect(engine=engine).height == wanted
    (read,) = reads
    assert (len(read.rows), read.ended) == (batches, ["before"])


def test_none_is_read_for_no_rows(filled: segstore.Store, reads: list[Read]) -> None:
    source = TopicFrames(table_of(filled, "t"))
    assert list(source.frames(None, offset > 3, 0, None)) == []
    assert sum(sum(read.rows) for read in reads) == 0


def test_the_size_of_frames_is_a_hint(filled: segstore.Store) -> None:
    source = TopicFrames(table_of(filled, "t"))
    frames = list(source.frames(["offset"], partition == 0, None, 64))
    assert pl.concat(frames)["offset"].to_list() == list(range(N))


def test_a_predicate_may_be_bytes(filled: segstore.Store) -> None:
    source = TopicFrames(table_of(filled, "t"))
    asked = (offset == 11).meta.serialize()
    found = pl.concat(source.frames(["value"], asked, None, None))
    assert found.to_dict(as_series=False) == {"value": [b"value 11"] * PARTITIONS}


def test_each_collect_reads_anew(filled: segstore.Store, engine: Any) -> None:
    frame = segstore.scan_polars(filled, "t").filter(partition == 0)
    assert frame.collect(engine=engine).height == N
    fill(filled.partition("t", 0), [N])
    assert frame.collect(engine=engine).height == N + 10
    filled.add_partitions("t", PARTITIONS + 1)
    filled.partition("t", PARTITIONS).append(b"x")
    assert segstore.scan_polars(filled, "t").filter(partition >= PARTITIONS).collect().height == 1


def test_threads_collect_at_once(filled: segstore.Store) -> None:
    frame, wanted = segstore.scan_polars(filled, "t"), whole(filled)

    def collect(turn: int) -> bool:
        predicate = partition == turn % PARTITIONS
        return frame.filter(predicate).collect(engine=ENGINES[turn % 2]).equals(wanted.filter(predicate))  # type: ignore[call-overload]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(collect, range(24)))


# --- stores that are opened for it ---------------------------------------------------------------


def test_a_directory_is_read_beside_its_writer(filled: segstore.Store, engine: Any) -> None:
    frame = segstore.scan_polars(filled.path, "t")
    assert frame.collect(engine=engine).equals(whole(filled))
    fill(filled.partition("t", 0), [N])
    assert frame.filter(partition != 1).select(pl.len()).collect(engine=engine).item() == 2 * N + 10


ENDS: dict[str, Callable[[pl.LazyFrame, Any], object]] = {
    "at the end": lambda t, engine: t.collect(engine=engine),
    "after the first rows": lambda t, engine: t.head(5).collect(engine=engine),
    "after the first of a filter": lambda t, engine: t.filter(offset > 3).head(5).collect(engine=engine),
    "after a slice": lambda t, engine: t.slice(3, 3).collect(engine=engine),
    "of a filter on partitions": lambda t, engine: t.filter(partition != 1).collect(engine=engine),
    "before it begins": lambda t, engine: t.collect_schema(),
}


@pytest.mark.parametrize("name", ENDS)
def test_files_are_closed(filled: segstore.Store, name: str, engine: Any) -> None:
    path = filled.path
    filled.close()
    ENDS[name](segstore.scan_polars(path, "t"), engine)
    until(lambda: pl.select(1).height and not opened(Path(path)))  # polars drops some with its next call


def test_files_are_closed_after_an_error(
    filled: segstore.Store, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled.path
    filled.close()
    batches = Table.batches

    def failing(table: Table, columns: Any = None, bounds: Any = ALL, finish: Any = None) -> Iterator[Any]:
        yield next(batches(table, columns, bounds, finish))
        raise segstore.errors.SegstoreError("planted")

    monkeypatch.setattr(Table, "batches", failing)
    with pytest.raises(FAILED, match="planted"):
        segstore.scan_polars(path, "t").collect(engine=engine)
    until(lambda: not opened(Path(path)))


def test_a_predicate_that_fails_is_an_error_and_closes_files(filled: segstore.Store, engine: Any) -> None:
    path = filled.path
    filled.close()
    failing = pl.col("value").cast(pl.String).str.to_integer() > 3
    with pytest.raises(pl.exceptions.PolarsError):
        segstore.scan_polars(path, "t").filter(failing).collect(engine=engine)
    until(lambda: not opened(Path(path)))


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
import polars as pl
import segstore
from segstore.tables.table import Table
sys.path.insert(0, sys.argv[3])
from descriptors import opened
from waiting import until

batches, reading = Table.batches, threading.Event()

def endless(table, columns=None, bounds=None, finish=None):
    while True:
        for batch in batches(table, columns):
            reading.set()
            yield batch

Table.batches = endless
place = Path(sys.argv[1])
frame = segstore.scan_polars(place, "t").filter(pl.col("value") == b"another")
interrupter = threading.Thread(target=lambda: (reading.wait(), os.kill(os.getpid(), signal.SIGINT)))
interrupter.start()
try:
    try:
        frame.collect(engine=sys.argv[2])
    except BaseException as error:
        raised = repr(error)
        interrupter.join()
except KeyboardInterrupt as error:  # polars' own handler and Python's both raise
    raised = repr(error)
print(raised)
until(lambda: pl.select(1).height and not opened(place))
print("closed")
"""


@pytest.mark.kind("programs")
def test_ctrl_c_ends_a_collect_and_closes_files(filled: segstore.Store, engine: Any) -> None:
    path = filled.path
    filled.close()
    support = str(Path(sys.modules["descriptors"].__file__ or "").parent)
    child = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path, engine, support], capture_output=True, text=True
    )
    assert child.stdout.splitlines()[-1:] == ["closed"], child.stderr
    assert "KeyboardInterrupt" in child.stdout


def test_a_store_that_was_closed_is_told(filled: segstore.Store, engine: Any) -> None:
    frame = segstore.scan_polars(filled, "t")
    filled.close()
    with pytest.raises((StoreClosedError, pl.exceptions.ComputeError), match="closed"):
        frame.collect(engine=engine)


# --- what is refused -----------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "a number for partitions": (
        "t",
        {"partitions": 1},
        segstore.InvalidTypeError,
        "partitions=1: must be a list of ints",
    ),
    "an unknown topic": ("u", {}, UnknownTopicOrPartitionError, "'u'; there are: t"),
    "an unknown partition": ("t", {"partitions": [7]}, UnknownTopicOrPartitionError, "7"),
    "an isolation level": ("t", {"isolation_level": "dirty"}, InvalidArgumentError, "read_committed"),
    "times that are turned": ("t", {"from_time": 5, "to_time": 3}, InvalidArgumentError, "to_time=3"),
    "a word that is none": ("t", {"colums": ["key"]}, TypeError, "colums"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_when_it_is_called(filled: segstore.Store, name: str) -> None:
    topic, terms, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        segstore.scan_polars(filled, topic, **terms)


@pytest.mark.kind("programs")
@pytest.mark.parametrize("package", ["polars", "pyarrow"])
def test_a_missing_package_is_told(filled: segstore.Store, package: str) -> None:
    code = """
import sys, segstore
sys.modules[sys.argv[2]] = None
try:
    segstore.scan_polars(sys.argv[1], "t")
except segstore.errors.MissingPackageError as error:
    print(error)
"""
    wanted = f"scan_polars needs {package}, which is not installed: pip install {package}"
    assert output(code, filled.path, package) == [wanted]


@pytest.mark.parametrize("version", ["0.20.31", "1.9.0", "1.34.0-beta.2"])
def test_an_old_version_is_told(store: segstore.Store, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "__version__", version)
    with pytest.raises(MissingPackageError, match=rf"{version} is installed: pip install 'polars>=1.35'"):
        segstore.scan_polars(store, "t")


def test_an_old_pyarrow_is_told(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "__version__", "18.1.0")
    with pytest.raises(MissingPackageError, match=r"18.1.0 is installed: pip install 'pyarrow>=19.0'"):
        segstore.scan_polars(store, "t")


@pytest.mark.kind("programs")
def test_polars_and_pyarrow_are_imported_when_they_are_asked_for(filled: segstore.Store) -> None:
    code = """
import sys, segstore
store = segstore.open(sys.argv[1], "r")
print(*[name in sys.modules for name in ("polars", "pyarrow")])
segstore.scan_polars(store, "t")
print(*[name in sys.modules for name in ("polars", "pyarrow")])
"""
    child = subprocess.run(
        [sys.executable, "-c", code, filled.path], capture_output=True, text=True, check=True
    )
    assert child.stdout.splitlines() == ["False False", "True True"]
