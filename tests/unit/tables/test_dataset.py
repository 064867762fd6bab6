"""`segstore.dataset`: a topic as a `pyarrow.dataset.Dataset`."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pytest
from drawn_filters import drawn_filter
from table_reads import RECORDS, Read

import segstore
from segstore.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    InvalidTypeError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.scans.columns import TOPIC_SCHEMA

offset, partition, key = (pc.field(name) for name in ("offset", "partition", "key"))


def scanned(place: Path) -> pa.Table:
    with segstore.open(place, mode="r") as store:
        return store.scan("flights").to_arrow()


# --- every method --------------------------------------------------------------------------------

FEW = pc.field("offset") < 2
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "schema": lambda d: d.schema == TOPIC_SCHEMA,
    "partition_expression": lambda d: d.partition_expression.equals(pc.scalar(True)),
    "to_table": lambda d: d.to_table().num_rows == 3 * RECORDS,
    "to_batches": lambda d: sum(batch.num_rows for batch in d.to_batches()) == 3 * RECORDS,
    "scanner": lambda d: d.scanner(["offset"], FEW).to_table().num_rows == 6,
    "head": lambda d: d.head(2)["value"].to_pylist() == [b"v0-0", b"v0-1"],
    "take": lambda d: d.take([RECORDS, 1])["value"].to_pylist() == [b"v1-0", b"v0-1"],
    "count_rows": lambda d: (d.count_rows(), d.count_rows(FEW)) == (3 * RECORDS, 6),
    "filter": lambda d: d.filter(FEW).filter(pc.field("partition") == 1).to_table().num_rows == 2,
    "sort_by": lambda d: (
        d.sort_by([("offset", "descending")]).to_table()["offset"].to_pylist()
        == sorted(d.to_table()["offset"].to_pylist(), reverse=True)
    ),
    "children": lambda d: d.children == [],
    "join": lambda d: (
        d.filter(FEW)
        .join(pds.dataset(pa.table({"offset": [1], "name": ["one"]})), "offset", join_type="inner")
        .to_table()
        .num_rows
        == 3
    ),
    "join_asof": lambda d: (
        d.filter(pc.field("partition") == 0)
        .join_asof(
            pa.table({"offset": [5], "partition": pa.array([0], pa.int32()), "name": ["five"]}),
            on="offset",
            by="partition",
            tolerance=-3,
        )
        .to_table()["name"]
        .to_pylist()
        .count("five")
        == 4
    ),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "get_fragments": lambda d: d.get_fragments(),
    "replace_schema": lambda d: d.replace_schema(TOPIC_SCHEMA),
}
IN_CPP: dict[str, Callable[[Any], Any]] = {
    "a scanner of Arrow's": lambda d: pds.Scanner.from_dataset(d).to_table(),
    "a union": lambda d: pds.UnionDataset(d.schema, [d, d]).to_table(),
    "a union by function": lambda d: pds.dataset([d, d]).to_table(),
    "fragments": lambda d: next(iter(d._get_fragments(None))).to_table(),
}


def test_every_public_name_of_a_dataset_is_tried() -> None:
    names = {name for name in dir(pds.UnionDataset) if not name.startswith("_")}
    assert names == {*ANSWERS, *REFUSED}


@pytest.mark.parametrize("name", ANSWERS)
def test_it_answers(name: str, place: Path) -> None:
    assert ANSWERS[name](segstore.dataset(place, "flights"))


@pytest.mark.parametrize("name", REFUSED | IN_CPP)
def test_it_refuses(name: str, place: Path) -> None:
    with pytest.raises(InvalidTypeError, match="a topic is read by its dataset's own"):
        (REFUSED | IN_CPP)[name](segstore.dataset(place, "flights"))


def test_the_right_side_of_a_join_of_arrows(place: Path) -> None:
    with pytest.raises((InvalidTypeError, pa.ArrowInvalid), match=r"own scanner|headers"):
        pds.dataset(pa.table({"offset": [1]})).join(segstore.dataset(place, "flights"), "offset")


CHILD = """
import sys
import segstore
import pyarrow.dataset as pds
dataset = segstore.dataset(sys.argv[1], "flights")
for name in dir(pds.Dataset):
    if name in ("__init__", "__new__", "__class__"):
        continue
    try:
        value = getattr(dataset, name)
        if callable(value):
            value()
    except Exception as error:
        print(name, type(error).__name__)
print("all")
"""


@pytest.mark.kind("programs")
def test_no_name_of_a_dataset_ends_the_process(place: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(place)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout.split()[-1]) == (0, "all"), ran.stdout + ran.stderr


# --- what is read --------------------------------------------------------------------------------

PROJECTED: dict[str, tuple[Any, pc.Expression | None, list[str]]] = {
    "no columns": (None, None, TOPIC_SCHEMA.names),
    "a column": (["value"], None, ["value"]),
    "in another order": (["value", "offset"], None, ["offset", "value"]),
    "none": ([], None, []),
    "a column and a filter": (["value"], offset > 5, ["offset", "value"]),
    "none, and a filter": ([], key.is_valid(), ["key"]),
    "an expression": ({"next": offset + 1, "k": key}, None, ["offset", "key"]),
    "an expression and a filter": ({"next": offset + 1}, partition == 1, ["partition", "offset"]),
    "a column by its number": ({"third": pc.field(2)}, None, TOPIC_SCHEMA.names),
    "a filter by a column's number": (["value"], pc.field(2) > 5, TOPIC_SCHEMA.names),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_the_columns_that_are_read(name: str, place: Path, reads: list[Read]) -> None:
    columns, condition, expected = PROJECTED[name]
    whole = scanned(place)
    found = segstore.dataset(place, "flights").to_table(columns=columns, filter=condition)
    assert [read.columns for read in reads] == [expected]
    assert found == pds.dataset(whole).to_table(columns=columns, filter=condition)


PRUNED = {
    "an offset": (offset >= RECORDS - 5, 3 * 5),
    "a range": ((offset >= 7) & (offset < 20), 3 * 13),
    "a partition": (partition == 1, RECORDS),
    "a partition and a range": ((partition != 1) & (offset > 7) & (offset <= 20), 2 * 13),
    "a time": (pc.field("timestamp") >= pa.scalar(50_000, pa.timestamp("ms", "UTC")), 3 * 10),
    "nothing": (offset < 0, 0),
    "a key": (key == b"k1", 3 * RECORDS),
}


@pytest.mark.parametrize("name", PRUNED)
def test_the_records_that_are_read(name: str, place: Path, reads: list[Read]) -> None:
    condition, expected = PRUNED[name]
    found = segstore.dataset(place, "flights").to_table(filter=condition)
    assert sum(sum(read.rows) for read in reads) == expected
    assert found == scanned(place).filter(condition)


def test_rows_are_counted_without_a_column(place: Path, reads: list[Read]) -> None:
    dataset = segstore.dataset(place, "flights")
    assert (dataset.count_rows(), dataset.scanner().count_rows()) == (3 * RECORDS, 3 * RECORDS)
    assert [read.columns for read in reads] == [[], []]


def test_drawn_filters_give_what_arrow_gives(place: Path, rng: random.Random) -> None:
    whole, dataset = scanned(place), segstore.dataset(place, "flights")
    for _ in range(60):
        condition = drawn_filter(rng, 3)
        columns = rng.sample(TOPIC_SCHEMA.names, rng.randrange(1, 5))
        rows = rng.choice([7, 100_000])
        found = dataset.to_table(columns=columns, filter=condition, batch_size=rows)
        assert found == whole.filter(condition).select(columns), condition
        assert dataset.count_rows(condition) == found.num_rows, condition


def test_the_terms_of_a_scan(place: Path) -> None:
    dataset = segstore.dataset(place, "flights", partitions=[1], start=5, to_time=9_000)
    assert dataset.to_table()["value"].to_pylist() == [b"v1-%d" % each for each in range(5, 9)]


def test_what_was_appended_since_is_there(store: segstore.Store) -> None:
    store.create_topic("t")
    log = store.partition("t", 0)
    dataset, beside = segstore.dataset(store, "t"), segstore.dataset(store.path, "t")
    for count in range(1, 4):
        log.append(b"v")
        assert (dataset.count_rows(), beside.count_rows()) == (count, count)
    store.add_partitions("t", 2)
    store.partition("t", 1).append(b"w")
    assert dataset.to_table(filter=partition >= 1)["value"].to_pylist() == [b"w"]


# --- others that read it -------------------------------------------------------------------------


def test_polars_and_pandas(place: Path, reads: list[Read]) -> None:
    dataset = segstore.dataset(place, "flights")
    lazy = polars.scan_pyarrow_dataset(dataset).filter(polars.col("offset") >= RECORDS - 2)
    assert lazy.select("value").collect()["value"].to_list() == [
        b"v%d-%d" % (each, RECORDS - i) for each in range(3) for i in (2, 1)
    ]
    assert (reads[-1].columns, sum(reads[-1].rows)) == (["offset", "value"], 6)
    frame = dataset.to_table(columns=["partition", "offset"]).to_pandas()
    assert frame.groupby("partition")["offset"].max().tolist() == [RECORDS - 1] * 3


def test_pickle(place: Path) -> None:
    dataset = segstore.dataset(place, "flights", start=3).filter(partition == 1)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.to_table() == dataset.to_table()
    assert again.count_rows() == RECORDS - 3


def test_an_open_store_is_not_pickled(store: segstore.Store) -> None:
    store.create_topic("t")
    with pytest.raises(TypeError):
        pickle.dumps(segstore.dataset(store, "t"))


def test_written_as_files(place: Path, tmp_path: Path) -> None:
    dataset = segstore.dataset(place, "flights")
    pds.write_dataset(dataset.to_batches(), tmp_path / "out", schema=dataset.schema, format="parquet")
    assert pds.dataset(tmp_path / "out").count_rows() == 3 * RECORDS


# --- errors --------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a column": (lambda d: d.to_table(["nope"]), InvalidArgumentError, "column 'nope': allowed are topic"),
    "a column of a filter": (
        lambda d: d.to_table(filter=pc.field("nope") == 1),
        InvalidArgumentError,
        "column 'nope': allowed are topic",
    ),
    "a column of an expression": (
        lambda d: d.to_table({"x": pc.field("nope")}),
        InvalidArgumentError,
        "column 'nope'",
    ),
    "one string": (lambda d: d.to_table("offset"), InvalidTypeError, "columns='offset': must be a list"),
    "no expressions": (lambda d: d.to_table({"x": 3}), InvalidTypeError, "columns="),
    "a number": (lambda d: d.to_table(3), InvalidTypeError, "columns=3"),
    "a filter that is none": (lambda d: d.to_table(filter="offset > 3"), InvalidTypeError, "filter='offset"),
    "a filter of another type": (lambda d: d.to_table(filter=offset + 1), InvalidTypeError, "not int64"),
    "a filter that Arrow can't evaluate": (
        lambda d: d.to_table(filter=offset == "a"),
        InvalidArgumentError,
        r'\(offset == "a"\): .* \(int64, string\)',
    ),
    "an option": (lambda d: d.to_table(batchsize=3), InvalidArgumentError, "batchsize: allowed are"),
    "no rows": (lambda d: d.to_table(batch_size=0), InvalidArgumentError, "batch_size=0"),
    "a place past the end": (lambda d: d.take([3 * RECORDS]), InvalidArgumentError, "indices="),
    "a place before the beginning": (lambda d: d.take([0, -1]), InvalidArgumentError, "indices="),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name: str, place: Path) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call(segstore.dataset(place, "flights"))


def test_no_topic(place: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'arrivals'"):
        segstore.dataset(place, "arrivals")


def test_a_store_that_was_closed(place: Path) -> None:
    with segstore.open(place) as store:
        dataset = segstore.dataset(store, "flights")
    with pytest.raises(StoreClosedError):
        dataset.to_table()


def test_a_corrupt_batch(damaged: Path) -> None:
    with pytest.raises(CorruptRecordError, match="offset 2000"):
        segstore.dataset(damaged, "large").to_table(["value"])
