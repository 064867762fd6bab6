"""Bounds of predicates of polars: of named ones, and of drawn ones, whose records are within them."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from drawn_predicates import MS, STAMP, WHEN, drawn, key, offset, partition, timestamp, topic
from polars.io.plugins import register_io_source

from segstore.integers import INT64_MAX, INT64_MIN
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.tables.polars_bounds import NOTHING, bounds_of

PARTITIONS = range(4)
DAY_MS = 86_400_000
MIDNIGHT = 1_699_920_000_000
"""The time at which the day of STAMP begins."""
BERLIN = ZoneInfo("Europe/Berlin")
SCHEMA = {
    "topic": pl.String(),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "timestamp": pl.Datetime("ms", "UTC"),
    "timestamp_type": pl.Int8(),
    "key": pl.Binary(),
}


def offsets(first: int, last: int = INT64_MAX) -> Bounds:
    return Bounds(first_offset=first, last_offset=last)


def times(first: int = INT64_MIN, last: int = INT64_MAX) -> Bounds:
    return Bounds(first_time=first, last_time=last)


def numbers(*wanted: int) -> Bounds:
    return Bounds(frozenset(wanted))


def asked(predicate: pl.Expr) -> pl.Expr | None:
    """Return the predicate as polars gives it to a source, None if polars keeps it for itself."""
    given: list[pl.Expr | None] = []

    def source(columns: Any, asked: pl.Expr | None, n_rows: Any, batch_size: Any) -> Any:
        given.append(asked)
        yield from ()

    register_io_source(source, schema=SCHEMA).filter(predicate).collect()
    return given[0] if given else None


def found(predicate: pl.Expr) -> Bounds:
    return bounds_of(predicate, "t", lambda: PARTITIONS)


CASES: dict[str, tuple[pl.Expr, Bounds]] = {
    "above": (offset > 5, offsets(6)),
    "from": (offset >= 5, offsets(5)),
    "below": (offset < 5, offsets(0, 4)),
    "up to": (offset <= 5, offsets(0, 5)),
    "equal": (offset == 5, offsets(5, 5)),
    "equal, null is a value": (offset.eq_missing(5), offsets(5, 5)),
    "another": (offset != 5, ALL),
    "the constant first": (pl.lit(5) < offset, offsets(6)),
    "the constant first, from": (pl.lit(5) >= offset, offsets(0, 5)),
    "both": ((offset > 5) & (offset <= 9), offsets(6, 9)),
    "an empty range": ((offset > 5) & (offset < 5), NOTHING),
    "one or the other": ((offset == 5) | (offset == 9), offsets(5, 9)),
    "a part that is not known": ((offset > 5) & (key == b"k"), offsets(6)),
    "or one that is not known": ((offset > 5) | (key == b"k"), ALL),
    "not": (~(offset > 5), offsets(0, 5)),
    "not both": (~((offset > 5) & (partition == 1)), ALL),
    "not one or the other": (~((offset > 5) | (offset < 3)), offsets(3, 5)),
    "not not": (~~((offset > 5) & (key == b"k")), offsets(6)),
    "an exclusive or": ((offset > 5) ^ (partition == 1), ALL),
    "between": (offset.is_between(3, 5), offsets(3, 5)),
    "between, from": (offset.is_between(3, 5, closed="left"), offsets(3, 4)),
    "between, up to": (offset.is_between(3, 5, closed="right"), offsets(4, 5)),
    "between, without both": (offset.is_between(3, 5, closed="none"), offsets(4, 4)),
    "between, turned": (offset.is_between(5, 3), NOTHING),
    "not between": (~offset.is_between(3, 5) & (offset < 9), offsets(0, 8)),
    "in": (offset.is_in([9, 3, 5]), offsets(3, 9)),
    "in a series": (offset.is_in(pl.Series([9, 3]).implode()), offsets(3, 9)),
    "in, with a null": (offset.is_in([9, None]), offsets(9, 9)),
    "in, of none": (offset.is_in([]), NOTHING),
    "not in": (~offset.is_in([3, 5]), ALL),
    "a sum": (offset + 1 > 5, ALL),
    "two columns": (offset > partition, ALL),
    "all of": (pl.all_horizontal(offset > 5, offset < 9, key == b"k"), offsets(6, 8)),
    "any of": (pl.any_horizontal(offset == 5, offset == 9), offsets(5, 9)),
    "when": (pl.when(offset > 5).then(partition == 1).otherwise(False), Bounds(frozenset({1}), 6)),
    "a cast that widens": (partition.cast(pl.Int64) == 1, numbers(1)),
    "a cast to the same": (offset.cast(pl.Int64) > 5, offsets(6)),
    "a cast that narrows": (offset.cast(pl.Int32, strict=False) > 5, ALL),
    "a cast to UInt8": (offset.cast(pl.UInt8, strict=False) < 5, ALL),
    "a cast to text": (offset.cast(pl.String) > "5", ALL),
    "a constant of a smaller type": (offset > pl.lit(3, pl.Int8), offsets(4)),
    "above a fraction": (offset > 5.5, offsets(6)),
    "below a fraction": (offset < 5.5, offsets(0, 5)),
    "from a whole float": (offset >= 5.0, offsets(5)),
    "above a whole float": (offset > 5.0, offsets(6)),
    "equal to a fraction": (offset == 5.5, NOTHING),
    "above a large float": (offset > 2.0**60, ALL),
    "above infinity": (offset > float("inf"), ALL),
    "below no number": (offset < float("nan"), ALL),
    "above a negative number": (offset > -5, offsets(0)),
    "below a negative number": (offset < -5, NOTHING),
    "above the largest": (offset > INT64_MAX, NOTHING),
    "from the largest": (offset >= INT64_MAX, offsets(INT64_MAX)),
    "below 2**63": (offset < 2**63, ALL),
    "of a partition": (partition == 2, numbers(2)),
    "of no partition": (partition == 7, NOTHING),
    "of another partition": (partition != 2, numbers(0, 1, 3)),
    "of later partitions": (partition > 1, numbers(2, 3)),
    "of earlier partitions": (partition < 2, numbers(0, 1)),
    "of some partitions": (partition.is_in([3, 1, 9]), numbers(1, 3)),
    "of none of some partitions": (~partition.is_in([3, 1, 9]), numbers(0, 2)),
    "of partitions between": (partition.is_between(1, 2), numbers(1, 2)),
    "of partitions that are not between": (~partition.is_between(1, 2), numbers(0, 3)),
    "of two partitions, by offset": (
        ((partition == 0) & (offset > 5)) | ((partition == 3) & (offset > 7)),
        Bounds(frozenset({0, 3}), 6),
    ),
    "of a partition that is not there, or": ((partition == 7) | (offset > 5), offsets(6)),
    "since": (timestamp >= WHEN, times(STAMP)),
    "after": (timestamp > WHEN, times(STAMP + 1)),
    "until": (timestamp < WHEN, times(last=STAMP - 1)),
    "at": (timestamp == WHEN, times(STAMP, STAMP)),
    "not since": (~(timestamp >= WHEN), times(last=STAMP - 1)),
    "parts of a ms are cut off, as polars does": (
        timestamp > WHEN + timedelta(microseconds=1999),
        times(STAMP + 2),
    ),
    "before the epoch": (timestamp > datetime(1969, 12, 31, tzinfo=timezone.utc), times(1 - DAY_MS)),
    "of another offset from UTC": (
        timestamp > WHEN.astimezone(timezone(timedelta(hours=-8))),
        times(STAMP + 1),
    ),
    "in another zone": (
        timestamp.dt.convert_time_zone("Europe/Berlin") > WHEN.astimezone(BERLIN),
        times(STAMP + 1),
    ),
    "in another zone, in ms": (
        timestamp.dt.convert_time_zone("Europe/Berlin")
        > pl.lit(WHEN).cast(pl.Datetime("ms", "Europe/Berlin")),
        times(STAMP + 1),
    ),
    "without a zone": (timestamp.dt.replace_time_zone(None) > WHEN.replace(tzinfo=None), times(STAMP + 1)),
    "of a zone's own clock": (
        timestamp.dt.convert_time_zone("Europe/Berlin").dt.replace_time_zone(None)
        > WHEN.replace(tzinfo=None),
        ALL,
    ),
    "a time in us": (timestamp > pl.lit(WHEN, pl.Datetime("us", "UTC")), times(STAMP + 1)),
    "a time in ns": (timestamp > pl.lit(WHEN, pl.Datetime("ns", "UTC")), times(STAMP + 1)),
    "a column in us": (timestamp.cast(pl.Datetime("us", "UTC")) > WHEN, ALL),
    "a number of us": (timestamp.cast(pl.Datetime("us", "UTC")).to_physical() > STAMP, ALL),
    "a time that is made": (
        timestamp >= pl.datetime(2023, 11, 14, time_zone="UTC"),
        times(MIDNIGHT),
    ),
    "a time that is parsed": (
        timestamp >= pl.lit("2023-11-14").str.to_datetime(time_zone="UTC"),
        times(MIDNIGHT),
    ),
    "a time less an hour": (timestamp >= pl.lit(WHEN) - pl.duration(hours=1), times(STAMP - 3_600_000)),
    "a time and an hour": (timestamp < pl.lit(WHEN) + timedelta(hours=1), times(last=STAMP + 3_599_999)),
    "a time and an hour of the column": (timestamp + timedelta(hours=1) > WHEN, ALL),
    "between times": (timestamp.is_between(MS, MS + timedelta(seconds=1)), times(STAMP, STAMP + 1000)),
    "in times": (
        timestamp.is_in(pl.Series([WHEN], dtype=SCHEMA["timestamp"]).implode()),
        times(STAMP, STAMP),
    ),
    "by ms": (timestamp.dt.epoch("ms") > STAMP, times(STAMP + 1)),
    "by its number": (timestamp.to_physical() > STAMP, times(STAMP + 1)),
    "by s": (timestamp.dt.epoch("s") > STAMP // 1000, ALL),
    "cast to a number": (timestamp.cast(pl.Int64) > STAMP, times(STAMP + 1)),
    "of a day": (
        timestamp.dt.date() == date(2023, 11, 14),
        times(MIDNIGHT, MIDNIGHT + DAY_MS - 1),
    ),
    "after a day": (timestamp.dt.date() > date(2023, 11, 14), times(MIDNIGHT + DAY_MS)),
    "up to a day": (timestamp.dt.date() <= date(2023, 11, 14), times(last=MIDNIGHT + DAY_MS - 1)),
    "before a day": (timestamp.dt.date() < date(2023, 11, 14), times(last=MIDNIGHT - 1)),
    "in days": (
        timestamp.dt.date().is_in([date(2023, 11, 14), date(2023, 11, 16)]),
        times(MIDNIGHT, MIDNIGHT + 3 * DAY_MS - 1),
    ),
    "of a zone's day": (
        timestamp.dt.convert_time_zone("Europe/Berlin").dt.date() == date(2023, 11, 14),
        ALL,
    ),
    "of a year": (timestamp.dt.year() == 2023, times(1_672_531_200_000, 1_704_067_199_999)),
    "since a year": (timestamp.dt.year() >= 2023, times(1_672_531_200_000)),
    "since a year beyond calendars": (timestamp.dt.year() >= 12_000, ALL),
    "of a month": (timestamp.dt.month() == 11, ALL),
    "of the topic": (topic == "t", ALL),
    "of another topic": (topic == "u", NOTHING),
    "of no other topic": (topic != "u", ALL),
    "of other topics": (topic != "t", NOTHING),
    "of topics": (topic.is_in(["u", "t"]), ALL),
    "of topics without this one": (topic.is_in(["u", "v"]), NOTHING),
    "of a later topic": (topic > "u", ALL),
    "by key": (key == b"k", ALL),
    "without a key": (key.is_null(), ALL),
    "true": (pl.lit(True), ALL),
    "false": (pl.lit(False), NOTHING),
    "false, or": (pl.lit(False) | (offset > 5), offsets(6)),
    "false, and": (pl.lit(False) & (offset > 5), NOTHING),
    "a comparison that is compared": ((offset > 5) == (key == b"k"), ALL),
    "another name": ((offset > 5).alias("late"), offsets(6)),
}
"""Predicates, and the bounds that are found in them when polars has planned them."""
NULL = pl.lit(None, pl.Int64)
OF_NULL: dict[str, tuple[pl.Expr, Bounds]] = {
    "above": (offset > NULL, NOTHING),
    "not above": (~(offset > NULL), NOTHING),
    "equal": (offset == NULL, NOTHING),
    "equal, a value as others": (offset.eq_missing(NULL), NOTHING),
    "another, a value as others": (offset.ne_missing(NULL), ALL),
    "not equal, a value as others": (~offset.eq_missing(NULL), ALL),
    "between": (offset.is_between(3, NULL), NOTHING),
    "not between": (~offset.is_between(3, NULL), offsets(0, 2)),
    "or a value": ((offset > NULL) | (offset > 8), offsets(9)),
    "a null list": (offset.is_in(pl.lit(None, pl.List(pl.Int64))), NOTHING),
    "in nulls": (offset.is_in(pl.lit(pl.Series([[None, 4]]))), offsets(4, 4)),
    "in nulls, values as others": (offset.is_in(pl.lit(pl.Series([[None, 4]])), nulls_equal=True), ALL),
    "a year": (timestamp.dt.year().eq_missing(pl.lit(None, pl.Int32)), ALL),
}
"""Comparisons with null, as they are written: polars plans them in ways that differ by its version."""


@pytest.mark.parametrize("name", CASES)
def test_bounds_of_a_predicate(name: str) -> None:
    predicate, bounds = CASES[name]
    given = asked(predicate)
    assert given is not None
    assert found(given) == bounds


@pytest.mark.parametrize("name", OF_NULL)
def test_bounds_of_a_comparison_with_null(name: str) -> None:
    predicate, bounds = OF_NULL[name]
    assert found(predicate) == bounds


# --- drawn predicates ----------------------------------------------------------------------------


def table() -> pl.DataFrame:
    """Records of all partitions, around the constants that are drawn and at the ends of int64."""
    far = [INT64_MIN, -1, 0, INT64_MAX - 1, INT64_MAX]
    stamps = [STAMP + hour * 3_600_000 + ms for hour in range(-60, 60, 7) for ms in (-1, 0, 1)]
    rows = [(number, at % 12, stamp) for number in PARTITIONS for at, stamp in enumerate(stamps + far)]
    rows += [(number, at, STAMP) for number in PARTITIONS for at in (2**53, 2**53 + 1, INT64_MAX)]
    frame = pl.DataFrame(rows, schema=["partition", "offset", "timestamp"], orient="row")
    made = pl.lit("t").alias("topic"), pl.lit(0).alias("timestamp_type"), pl.lit(b"k").alias("key")
    return frame.with_columns(*made).select(pl.col(name).cast(SCHEMA[name]) for name in SCHEMA)


RECORDS = table()


def outside(records: pl.DataFrame, bounds: Bounds) -> pl.DataFrame:
    """Return the records that a read within bounds may leave out."""
    within = offset.is_between(bounds.first_offset, bounds.last_offset) & timestamp.to_physical().is_between(
        bounds.first_time, bounds.last_time
    )
    if bounds.partitions is not None:
        within &= partition.is_in(sorted(bounds.partitions))
    return records.filter(~within)


def test_no_record_of_a_drawn_predicate_is_outside_its_bounds(rng: random.Random) -> None:
    narrowed = 0
    for _ in range(300):
        predicate = drawn(rng)
        kept = RECORDS.filter(predicate)
        for each in (predicate, asked(predicate)):
            if each is not None:
                bounds = found(each)
                narrowed += bounds != ALL
                assert outside(kept, bounds).is_empty(), f"{each} has {bounds}"
    assert narrowed > 10


# --- predicates that give no bounds --------------------------------------------------------------


class Strange:
    """A predicate of which nothing is known."""

    def __init__(self, text: str) -> None:
        self.meta, self.text = self, text

    def serialize(self, format: str = "binary") -> Any:
        return self.text if format == "json" else self.text.encode()


STRANGE = {
    "no JSON": "{",
    "another kind of node": '{"Compare": [1]}',
    "two kinds at once": '{"Column": "offset", "Literal": 1}',
    "a node without its parts": '{"BinaryExpr": {"op": "Gt"}}',
    "a list": "[1, 2]",
    "a number": "7",
    "a function without inputs": '{"Function": {"input": [], "function": {"Boolean": "Not"}}}',
    "another end of a range": '{"Function": {"input": [{"Column": "offset"}, 1, 2],'
    ' "function": {"Boolean": {"IsBetween": {"closed": "Odd"}}}}}',
    "a literal of another kind": '{"BinaryExpr": {"left": {"Column": "offset"}, "op": "Gt",'
    ' "right": {"Literal": {"New": 1}}}}',
    "as deep as Python goes": '{"Alias": [' * 5000 + '"x"' + ', "y"]}' * 5000,
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_predicate_that_is_not_known_gives_no_bounds(name: str) -> None:
    assert found(Strange(STRANGE[name])) == ALL  # type: ignore[arg-type]


def test_a_predicate_with_a_function_of_python_gives_no_bounds() -> None:
    called = offset.map_elements(lambda each: hash(each) > 3, return_dtype=pl.Boolean)
    assert found(called & (offset > 5)) == ALL


def test_a_long_predicate_is_not_walked() -> None:
    assert found(offset.is_in(list(range(100, 1000)))) == offsets(100, 999)
    assert found(offset.is_in(list(range(100, 200_000)))) == ALL


def test_partitions_are_asked_for_once_and_only_if_they_are_compared() -> None:
    asked_for: list[int] = []

    def partitions() -> range:
        asked_for.append(1)
        return PARTITIONS

    assert bounds_of(offset > 5, "t", partitions) == offsets(6)
    assert asked_for == []
    assert bounds_of((partition != 1) & (partition < 3), "t", partitions) == numbers(0, 2)
    assert asked_for == [1]
