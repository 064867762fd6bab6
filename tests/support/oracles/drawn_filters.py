"""Filters of Arrow that are drawn, over the columns of a topic, and tables to try them on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segstore.storage.scans.columns import TOPIC_SCHEMA

PARTITIONS = range(4)
BOOLEAN_NULL = pa.scalar(None, pa.bool_())


def moment(value: int, unit: str = "us", zone: str | None = "UTC") -> pa.Scalar:
    return pa.scalar(value, pa.timestamp(unit, zone))


def drawn_table(rng: random.Random) -> pa.Table:
    rows = 200
    columns = {
        "topic": ["t"] * rows,
        "partition": [rng.choice(PARTITIONS) for _ in range(rows)],
        "offset": [rng.randrange(12) for _ in range(rows)],
        "timestamp": [rng.randrange(-3, 9) for _ in range(rows)],
        "timestamp_type": [rng.randrange(2) for _ in range(rows)],
        "key": [rng.choice([None, b"a", b"b"]) for _ in range(rows)],
        "value": [None] * rows,
        "headers": [None] * rows,
    }
    return pa.table([pa.array(columns[each.name], each.type) for each in TOPIC_SCHEMA], schema=TOPIC_SCHEMA)


def drawn_literal(rng: random.Random, column: str) -> Any:
    if column == "timestamp":
        return moment(rng.choice([500, 1000]) * rng.randrange(-8, 20))
    return rng.choice(
        [rng.randrange(-1, 13), rng.randrange(-2, 25) / 2, pa.scalar(rng.randrange(12), pa.uint8())]
    )


def drawn_leaf(rng: random.Random) -> pc.Expression:
    column = rng.choice(["partition", "offset", "timestamp", "key"])
    field = pc.field(column)
    if column == "key":
        return rng.choice([field == b"a", field.is_valid(), field.is_null(), field > b"a"])
    if rng.random() < 0.1:
        return rng.choice([pc.scalar(True), pc.scalar(False), pc.scalar(BOOLEAN_NULL), field.is_valid()])
    if rng.random() < 0.25:
        kind = TOPIC_SCHEMA.field(column).type
        return field.isin(pa.array(rng.choices([None, *range(12)], k=3), pa.int64()).cast(kind))
    ways: list[Callable[[Any, Any], pc.Expression]] = [
        *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
        *(lambda a, b: a == b, lambda a, b: a != b),
    ]
    literal = pc.scalar(drawn_literal(rng, column))
    pair = (field, literal) if rng.random() < 0.7 else (literal, field)
    return rng.choice(ways)(*pair)


def drawn_filter(rng: random.Random, depth: int) -> pc.Expression:
    if not depth or rng.random() < 0.2:
        return drawn_leaf(rng)
    one, other, third = (drawn_filter(rng, depth - 1) for _ in range(3))
    return rng.choice([one & other, one | other, ~one, pc.if_else(one, other, third), one & other & third])
