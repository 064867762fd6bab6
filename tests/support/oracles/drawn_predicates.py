"""Draws predicates of polars on the columns of a topic's table, whose records are around STAMP."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import polars as pl

from segstore.integers import INT64_MAX, INT64_MIN

STAMP = 1_700_000_000_000
WHEN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)
"""The time of STAMP."""
MS = pl.lit(WHEN).cast(pl.Datetime("ms", "UTC"))
offset, partition, timestamp = pl.col("offset"), pl.col("partition"), pl.col("timestamp")
topic, key = pl.col("topic"), pl.col("key")
ORDERS: dict[str, Callable[[Any, Any], pl.Expr]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def drawn_time(rng: random.Random) -> Any:
    when = WHEN + timedelta(hours=rng.randint(-60, 60), microseconds=rng.choice([0, 0, 1, 999, 1000, -1]))
    literal = pl.lit(when)
    return rng.choice(
        [
            when,
            when.astimezone(timezone(timedelta(hours=5))),
            literal + timedelta(minutes=rng.randint(-90, 90)),
            literal.cast(pl.Datetime("ns", "UTC")),
            pl.lit(None, pl.Datetime("ms", "UTC")),
        ]
    )


def drawn_day(rng: random.Random) -> Any:
    return date(2023, 11, 14) + timedelta(days=rng.randint(-3, 3))


def drawn_number(rng: random.Random) -> Any:
    whole = rng.choice(
        [rng.randint(-2, 13), rng.choice([INT64_MIN, 2**53, 2**53 + 1, INT64_MAX - 1, INT64_MAX])]
    )
    odd = [rng.uniform(-1, 12), float(rng.randint(0, 11)), float("inf"), 2.0**53, 2.0**63]
    return rng.choice([whole, whole, rng.choice(odd), pl.lit(None, pl.Int64)])


COLUMNS: list[tuple[pl.Expr, Callable[[random.Random], Any]]] = [
    (offset, drawn_number),
    (offset.cast(pl.Float64), drawn_number),
    (partition, lambda rng: rng.randint(-1, 5)),
    (partition.cast(pl.Int64), lambda rng: rng.choice([rng.randint(-1, 5), rng.uniform(-1, 5)])),
    (timestamp, drawn_time),
    (timestamp.dt.date(), drawn_day),
    (timestamp.dt.replace_time_zone(None).dt.date(), drawn_day),
    (timestamp.dt.epoch("ms"), lambda rng: STAMP + rng.randint(-60, 60) * 3_600_000),
    (timestamp.dt.epoch("s"), lambda rng: STAMP // 1000 + rng.randint(-60, 60) * 3_600),
    (topic, lambda rng: pl.lit(rng.choice("stu"))),
    (key, lambda rng: rng.choice([b"k", b"l"])),
]


def drawn(rng: random.Random, depth: int = 3) -> pl.Expr:
    """Return comparisons of columns and constants, joined to a depth."""
    if depth and rng.random() < 0.7:
        one, other = drawn(rng, depth - 1), drawn(rng, depth - 1)
        return rng.choice(
            [
                one & other,
                one & other,
                one | other,
                ~one,
                one ^ other,
                pl.when(one).then(other).otherwise(~one),
            ]
        )
    column, constant = rng.choice(COLUMNS)
    kind = rng.randrange(6)
    if kind == 0:
        closed: Any = rng.choice(["both", "left", "right", "none"])
        return column.is_between(constant(rng), constant(rng), closed=closed)
    if kind == 1 and column is partition:
        return column.is_in([constant(rng) for _ in range(rng.randrange(4))])
    order = ORDERS[rng.choice(list(ORDERS))]
    if kind == 2:
        value = constant(rng)
        return order(value if isinstance(value, pl.Expr) else pl.lit(value), column)
    return order(column, constant(rng))
