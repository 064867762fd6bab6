"""How a batch query is planned and read, without a JVM: what filters leave to read, and how it is divided
among tasks.
"""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark import EPOCH, schema
from stores import START_MS, Clock

import segstore
from segstore.coordinator.structs import TopicPartition

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import datasource as spark

from segstore.spark import source
from segstore.spark.columns import arrow_schema
from segstore.spark.filters import push
from segstore.spark.options import parse_options
from segstore.spark.plan import PlannedRange, divide
from segstore.spark.source import FilteringReader, reader

N = 60
PER_BATCH = 5


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Topics "aa" (2 partitions) and "b", 60 records each in batches of 5, small segments. Stamps rise in
    aa-0, fall in aa-1, and leap in b, whose first ten offsets are deleted.
    """
    path = tmp_path_factory.mktemp("plan") / "store"
    with segstore.open(path, clock=Clock()) as store:
        for topic in ("aa", "b"):
            store.create_topic(topic, partitions=2 if topic == "aa" else 1, config={"segment.bytes": 600})
        orders = {("aa", 0): range(N), ("aa", 1): range(N, 0, -1), ("b", 0): [i * 37 % N for i in range(N)]}
        for (topic, partition), order in orders.items():
            stamps = [START_MS + 10 * i for i in order]
            for at in range(0, N, PER_BATCH):
                log = store.partition(topic, partition)
                log.append_batch([b"v"] * PER_BATCH, timestamps=stamps[at : at + PER_BATCH])
        store.partition("b").delete_records(10)
    yield path
    assert list(segstore.check(path)) == []


def rows_of(made: Any) -> list[tuple[str, int, int, int]]:
    """(topic, partition, offset, ms) of all that the tasks of a reader read, each in a process of its own."""
    found = []
    for part in made.partitions():
        task, part = pickle.loads(pickle.dumps((made.read, part)))
        for batch in task(part):
            found += [
                (
                    r["topic"],
                    r["partition"],
                    r["offset"],
                    (r["timestamp"] - EPOCH) // timedelta(milliseconds=1),
                )
                for r in batch.to_pylist()
            ]
    return found


def filtering(root: Path, **given: str) -> FilteringReader:
    options = parse_options({"path": str(root), "subscribePattern": ".*", **given})
    return FilteringReader(options, arrow_schema(schema()))


# --- filters --------------------------------------------------------------------------------

COLUMNS = ("topic", "partition", "offset", "timestamp")
COMPARISONS: dict[Any, Any] = {
    spark.EqualTo: operator.eq,
    spark.EqualNullSafe: operator.eq,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
}
VALUES = {
    "topic": st.sampled_from(["aa", "b", "c", ""]),
    "partition": st.integers(-1, 2),
    "offset": st.integers(-2, N + 2),
    "timestamp": st.builds(
        lambda us: EPOCH + timedelta(milliseconds=START_MS, microseconds=us),
        st.integers(-500, 10_000 * (N + 1)),
    ),
}


@st.composite
def some_filter(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(COLUMNS))
    kind = draw(st.sampled_from([*COMPARISONS, spark.In, spark.IsNull, spark.IsNotNull, "text"]))
    if kind == "text":
        kind = draw(st.sampled_from([spark.StringStartsWith, spark.StringEndsWith, spark.StringContains]))
        made = kind(("topic",), draw(st.sampled_from(["", "a", "b", "ab"])))
    elif kind is spark.In:
        made = kind((column,), tuple(draw(st.lists(VALUES[column], min_size=1, max_size=3))))
    elif kind in COMPARISONS:
        made = kind((column,), draw(VALUES[column]))
    else:
        made = kind((column,))
    return spark.Not(made) if draw(st.booleans()) else made


def passes(test: Any, row: tuple[str, int, int, int]) -> bool:
    """What Spark says of a row."""
    if isinstance(test, spark.Not):
        return not passes(test.child, row)
    held = dict(zip(COLUMNS, row, strict=True))[test.attribute[0]]
    if test.attribute[0] == "timestamp":
        held = EPOCH + timedelta(milliseconds=held)
    if isinstance(test, (spark.IsNull, spark.IsNotNull)):
        return isinstance(test, spark.IsNotNull)
    if isinstance(test, spark.In):
        return held in test.value
    texts = {
        spark.StringStartsWith: str.startswith,
        spark.StringEndsWith: str.endswith,
        spark.StringContains: str.__contains__,
    }
    return bool((COMPARISONS | texts)[type(test)](held, test.value))


@pytest.fixture(scope="module")
def everything(root: Path) -> list[tuple[str, int, int, int]]:
    found = rows_of(filtering(root))
    assert len(found) == 3 * N - 10
    return found


@pytest.mark.kind("costly unit tests")
@settings(max_examples=150)
@given(filters=st.lists(some_filter(), max_size=4))
def test_filters_leave_what_spark_would(
    filters: list[Any], root: Path, everything: list[tuple[str, int, int, int]]
) -> None:
    made = filtering(root)
    left = list(made.pushFilters(filters))
    assert all(any(each is one for one in filters) for each in left)
    found = [row for row in rows_of(made) if all(passes(each, row) for each in left)]
    assert found == [row for row in everything if all(passes(each, row) for each in filters)]


KEPT: dict[str, tuple[Any, bool]] = {
    "offset =": (spark.EqualTo(("offset",), 3), False),
    "offset in": (spark.In(("offset",), (3, 5)), True),
    "offset <>": (spark.Not(spark.EqualTo(("offset",), 3)), True),
    "partition <>": (spark.Not(spark.EqualTo(("partition",), 3)), False),
    "partition in": (spark.In(("partition",), (0, 1)), False),
    "topic like": (spark.StringStartsWith(("topic",), "a"), False),
    "timestamp <": (spark.LessThan(("timestamp",), EPOCH), False),
    "a time without a zone": (spark.LessThan(("timestamp",), EPOCH.replace(tzinfo=None)), True),
    "key =": (spark.EqualTo(("key",), b"k"), True),
    "key is null": (spark.IsNull(("key",)), True),
    "headers": (spark.IsNotNull(("headers",)), True),
    "topic is null": (spark.IsNull(("topic",)), False),
    "timestampType =": (spark.EqualTo(("timestampType",), 1), True),
    "a field of that name": (spark.EqualTo(("x", "offset"), 1), True),
    "a number that is none": (spark.EqualTo(("partition",), True), True),
    "a fraction": (spark.GreaterThan(("offset",), 1.5), True),
    "null": (spark.EqualNullSafe(("offset",), None), True),
    "in, with null": (spark.In(("partition",), (0, None)), True),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_goes_back_to_spark(name: str) -> None:
    made, back = KEPT[name]
    assert push([made])[1] == ([made] if back else [])


PRUNED: dict[str, tuple[list[Any], dict[str, int]]] = {
    "an offset": ([spark.EqualTo(("offset",), 42)], {"aa-0": 1, "aa-1": 1, "b-0": 1}),
    "a topic": ([spark.EqualTo(("topic",), "b")], {"b-0": 50}),
    "a partition": ([spark.EqualTo(("partition",), 1)], {"aa-1": 60}),
    "late stamps of a log in order": (
        [spark.EqualTo(("topic",), "aa"), spark.GreaterThan(("timestamp",), EPOCH + timedelta(days=40000))],
        {},
    ),
    "from a time on": (
        [
            spark.EqualTo(("partition",), 0),
            spark.EqualTo(("topic",), "aa"),
            spark.GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=START_MS + 550)),
        ],
        {"aa-0": 5},
    ),
    "offsets below the first": ([spark.LessThan(("offset",), 10)], {"aa-0": 10, "aa-1": 10}),
    "null": ([spark.IsNull(("offset",))], {}),
}


@pytest.mark.parametrize("name", PRUNED)
def test_tasks_get_only_what_may_pass(name: str, root: Path) -> None:
    made = filtering(root)
    filters, expected = PRUNED[name]
    made.pushFilters(filters)
    assert {f"{p.topic}-{p.partition}": p.end - p.start for p in made.partitions()} == expected


TAKES: dict[str, tuple[bool, dict[str, str], bool]] = {
    "the setting is on, the option too": (True, {"filterPushdown": "true"}, True),
    "the option is off": (True, {"filterPushdown": "false"}, False),
    "no option: as PySpark keeps scans apart": (True, {}, source.SCANS_APART),
    "the setting is off": (False, {"filterPushdown": "true"}, False),
}


@pytest.mark.parametrize("name", TAKES)
def test_who_is_asked_for_filters(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark fails a query whose reader has pushFilters where the setting is off."""
    setting, option, takes = TAKES[name]
    if setting:
        monkeypatch.setitem(sys.modules, source._PUSHDOWN_WORKER, sys)
    made = reader({"path": str(root), "subscribe": "b", **option}, schema())
    assert (type(made).pushFilters is not spark.DataSourceReader.pushFilters) == takes


# --- sharing --------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    ends=st.lists(st.integers(0, 400), min_size=1, max_size=6),
    least=st.none() | st.integers(1, 30),
    most=st.none() | st.integers(1, 120),
    step=st.integers(1, 50),
)
def test_parts_are_the_whole(ends: list[int], least: int | None, most: int | None, step: int) -> None:
    ranges = [PlannedRange(TopicPartition("t", p), 7, 7 + end) for p, end in enumerate(ends)]
    parts = divide(ranges, least, most, lambda whole, offset: max(offset - offset % step, 0))
    for whole in ranges:
        mine = [part for part in parts if part.partition == whole.partition]
        assert all(part.size for part in mine)
        assert sum(part.size for part in mine) == whole.size
        assert [part.start for part in mine[1:]] == [part.end for part in mine[:-1]]
        for part in mine[1:]:
            assert part.start % step == 0 or (most is not None and step > most)
        if mine:
            assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
    if most is not None:
        assert all(part.size <= most for part in parts)
    if least is not None and step == 1 and sum(ends) >= 10 * least:
        assert len(parts) >= min(least, len(parts) + 1) - len(ranges)


SHARED: dict[str, tuple[dict[str, str], list[str]]] = {
    "one each": ({}, ["aa-0 0-60", "aa-1 0-60", "b-0 10-60"]),
    "fewer wanted": ({"minPartitions": "2"}, ["aa-0 0-60", "aa-1 0-60", "b-0 10-60"]),
    "six": (
        {"minPartitions": "6"},
        ["aa-0 0-30", "aa-0 30-60", "aa-1 0-30", "aa-1 30-60", "b-0 10-35", "b-0 35-60"],
    ),
    "at the edges of batches": (
        {"maxRecordsPerPartition": "33", "subscribePattern": "b"},
        ["b-0 10-40", "b-0 40-60"],
    ),
    "within a batch where it is larger": (
        {"maxRecordsPerPartition": "4", "startingOffsets": '{"b":{"0":50}}', "subscribePattern": "b"},
        ["b-0 50-54", "b-0 54-55", "b-0 55-59", "b-0 59-60"],
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared(name: str, root: Path) -> None:
    options, expected = SHARED[name]
    made = filtering(root, **options)
    parts = made.partitions()
    assert [f"{p.topic}-{p.partition} {p.start}-{p.end}" for p in parts] == expected
    offsets = [(row[0], row[1], row[2]) for row in rows_of(made)]
    assert offsets == [(p.topic, p.partition, at) for p in parts for at in range(p.start, p.end)]


def test_nothing_to_read_is_read_too(root: Path) -> None:
    made = filtering(root, subscribePattern="none")
    assert made.partitions() == []
    assert list(made.read(spark.InputPartition(None))) == []
