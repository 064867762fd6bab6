"""The bounds of filters: tight for the forms that engines write, and never narrower than the filter."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from drawn_filters import BOOLEAN_NULL, PARTITIONS, drawn_filter, drawn_table, moment

from segstore.integers import INT64_MAX
from segstore.storage.scans.bounds import ALL, INT64_MIN, Bounds
from segstore.tables.expression_bounds import NOTHING, bounds_of

offset, at, partition, key = (pc.field(name) for name in ("offset", "timestamp", "partition", "key"))


def offsets(first: int, last: int = INT64_MAX) -> Bounds:
    return ALL._replace(first_offset=first, last_offset=last)


def times(first: int = INT64_MIN, last: int = INT64_MAX) -> Bounds:
    return ALL._replace(first_time=first, last_time=last)


def partitions(*numbers: int) -> Bounds:
    return Bounds(frozenset(numbers))


def valid_or_null(column: pc.Expression, condition: Any) -> pc.Expression:
    """As DuckDB 2.0 writes IN."""
    return pc.if_else(column.is_valid(), condition, BOOLEAN_NULL)


several = offset.isin([7, 3, None, 9])
BOUNDED: dict[str, tuple[pc.Expression | None, Bounds]] = {
    "no filter": (None, ALL),
    "from an offset": (offset >= 5, offsets(5)),
    "after an offset": (offset > 5, offsets(6)),
    "up to an offset": (offset <= 5, offsets(0, 5)),
    "before an offset": (offset < 5, offsets(0, 4)),
    "one offset": (offset == 5, offsets(5, 5)),
    "not one offset": (offset != 5, ALL),
    "the literal first": (pc.scalar(5) < offset, offsets(6)),
    "a range": ((offset >= 5) & (offset < 9), offsets(5, 8)),
    "an empty range": ((offset >= 9) & (offset < 5), NOTHING),
    "an empty range or another": (((offset >= 9) & (offset < 5)) | (offset == 7), offsets(7, 7)),
    "one or another": ((offset == 5) | (offset == 9), offsets(5, 9)),
    "not before": (~(offset < 5), offsets(5)),
    "not one or another": (~((offset < 5) | (offset > 9)), offsets(5, 9)),
    "not both": (~((offset >= 5) & (offset <= 9)), ALL),
    "offsets of a list": (several, offsets(3, 9)),
    "offsets of no list": (offset.isin(pa.array([], pa.int64())), NOTHING),
    "not of a list": (~several, ALL),
    "a negative offset": (offset < 0, NOTHING),
    "past the largest offset": (offset > pa.scalar(INT64_MAX), NOTHING),
    "an unsigned literal": (offset >= pa.scalar(5, pa.uint16()), offsets(5)),
    "a fraction": (offset > 1.5, offsets(2)),
    "no whole number": (offset == 1.5, NOTHING),
    "a double that is not exact": (offset > 1e17, ALL),
    "not a number": (offset > float("nan"), ALL),
    "a null": (pc.scalar(pa.scalar(None, pa.int64())) < offset, NOTHING),
    "a column and another": (offset > partition, ALL),
    "a sum": (offset + 1 > 5, ALL),
    "a cast": (offset.cast("int32") > 5, ALL),
    "within a column": (pc.field("offset", "x") > 5, ALL),
    "a column by its number": (pc.field(2) > 5, ALL),
    "valid": (offset.is_valid(), ALL),
    "null": (offset.is_null(), NOTHING),
    "not null": (~offset.is_null(), ALL),
    "another column": (key == b"a", ALL),
    "another column's null": (key.is_null(), ALL),
    "and another column": ((offset > 5) & key.is_valid() & pc.starts_with(key, "a"), offsets(6)),
    "or another column": ((offset > 5) | key.is_valid(), ALL),
    "true": (pc.scalar(True), ALL),
    "false": (pc.scalar(False), NOTHING),
    "null alone": (pc.scalar(None), NOTHING),
    "true, and an offset": (pc.scalar(True) & (offset > 5), offsets(6)),
    "if": (
        pc.if_else(partition == 1, offset > 5, offset > 9),
        Bounds(frozenset(PARTITIONS), 6),
    ),
    "DuckDB's IN": (valid_or_null(offset, offset.isin([4, 8])), offsets(4, 8)),
    "DuckDB's IN of partitions": (
        valid_or_null(partition, partition.isin(pa.array([1, 9], pa.int32()))),
        partitions(1),
    ),
    "DuckDB's moment that none has": (valid_or_null(at, False), NOTHING),
    "from a time": (at >= moment(2_000_000), times(2000)),
    "from a fraction of a ms": (at >= moment(2_000_500), times(2001)),
    "after a fraction of a ms": (at > moment(2_000_500), times(2001)),
    "up to a fraction of a ms": (at <= moment(2_000_500), times(last=2000)),
    "before a time": (at < moment(2_000_000), times(last=1999)),
    "at a time": (at == moment(2_000_000), times(2000, 2000)),
    "before the epoch": (at < moment(-1_500), times(last=-2)),
    "in seconds": (at >= moment(2, "s"), times(2000)),
    "in nanoseconds": (at > moment(2_000_000_001, "ns"), times(2001)),
    "of another zone": (at >= moment(2_000_000, zone="Europe/Berlin"), times(2000)),
    "a time without a zone": (at >= moment(2_000_000, zone=None), ALL),
    "a datetime": (at >= datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc), times(2000)),
    "times of a list": (
        at.isin(pa.array([2_000_500, 1_000_000], pa.timestamp("us", "UTC"))),
        times(1000, 2001),
    ),
    "a partition": (partition == 1, partitions(1)),
    "not a partition": (partition != 1, partitions(0, 2, 3)),
    "partitions from": (partition >= 2, partitions(2, 3)),
    "a partition that is not there": (partition == 9, NOTHING),
    "partitions of a list": (partition.isin([3, 0, 9]), partitions(0, 3)),
    "partitions not of a list": (~partition.isin([3, 0, 9]), partitions(1, 2)),
    "either partition": ((partition == 1) | (partition == 3), partitions(1, 3)),
    "all three": (
        (partition == 1) & (offset < 9) & (at >= moment(0)),
        Bounds(frozenset({1}), 0, 8, 0, INT64_MAX),
    ),
    "either of pairs": (
        ((partition == 1) & (offset > 5)) | ((partition == 2) & (offset < 9)),
        Bounds(frozenset({1, 2})),
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds(name: str) -> None:
    expression, expected = BOUNDED[name]
    assert bounds_of(expression, lambda: PARTITIONS) == expected


def test_partitions_are_asked_for_only_if_the_filter_names_them() -> None:
    def unasked() -> list[int]:
        raise AssertionError

    assert bounds_of((offset > 5) & key.is_valid(), unasked) == offsets(6)


def test_a_long_list_and_a_long_chain() -> None:
    assert bounds_of(offset.isin(range(5, 100_000)), lambda: PARTITIONS) == offsets(5, 99_999)
    chain = offset == 5
    for i in range(6, 1500):
        chain = chain | (offset == i)
    assert bounds_of(chain, lambda: PARTITIONS) == offsets(5, 1499)


# --- drawn filters -------------------------------------------------------------------------------


def within(table: pa.Table, bounds: Bounds) -> pa.Table:
    time = pc.field("timestamp").cast(pa.int64())
    kept = (pc.field("offset") >= bounds.first_offset) & (pc.field("offset") <= bounds.last_offset)
    kept &= (time >= bounds.first_time) & (time <= bounds.last_time)
    if bounds.partitions is not None:
        kept &= pc.field("partition").isin(pa.array(sorted(bounds.partitions), pa.int32()))
    return table.filter(kept)


def test_drawn_filters_keep_only_records_within_their_bounds(rng: random.Random) -> None:
    narrowed = 0
    table = drawn_table(rng)
    for _ in range(400):
        expression = drawn_filter(rng, 3)
        bounds = bounds_of(expression, lambda: PARTITIONS)
        kept = table.filter(expression)
        assert within(kept, bounds) == kept, (expression, bounds)
        narrowed += within(table, bounds).num_rows < table.num_rows
    assert narrowed > 100


def test_what_now_minus_an_interval_gives() -> None:
    since = datetime.now(timezone.utc) - timedelta(minutes=10)
    bounds = bounds_of(at > since, lambda: PARTITIONS)
    exact = (since - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    assert bounds == times(exact + 1)
