"""Translates the filters that Spark pushes down into conditions on the partitions, offsets and times of a
read, and finds the filters that the read evaluates exactly.

Filters on topic, partition, offset and timestamp can be used. A filter that the read does not evaluate
exactly, because it is on another column or only narrows the read, is returned to Spark, which evaluates it
for each row. Threads: any; the values do not change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import datasource as spark

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_TYPES = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_LEAST, _MOST = -(1 << 63), 1 << 63

_TESTS: dict[type, Callable[[Any, Any], bool]] = {
    spark.EqualTo: operator.eq,
    spark.EqualNullSafe: operator.eq,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.In: lambda value, allowed: value in allowed,
    spark.StringStartsWith: str.startswith,
    spark.StringEndsWith: str.endswith,
    spark.StringContains: operator.contains,
}


@dataclass(frozen=True)
class NumberRange:
    """The numbers from `low` to before `high`."""

    low: int = _LEAST
    high: int = _MOST

    @property
    def limited(self) -> bool:
        return self.low > _LEAST or self.high < _MOST

    def within(self, low: int, high: int) -> NumberRange:
        return NumberRange(max(self.low, low), min(self.high, high))


@dataclass(frozen=True)
class Pushed:
    """The condition of a read: it reads only partitions that pass all `tests`, and records whose offsets and
    timestamps (in ms) are in the ranges `offsets` and `times`. If `nothing` is True, no record passes.
    """

    tests: tuple[spark.Filter, ...] = ()
    offsets: NumberRange = field(default_factory=NumberRange)
    times: NumberRange = field(default_factory=NumberRange)
    nothing: bool = False

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether a record of the partition may pass the filters."""
        held = {"topic": topic, "partition": partition}
        return not self.nothing and all(_passes(test, held) for test in self.tests)


def push(filters: Iterable[spark.Filter]) -> tuple[Pushed, list[spark.Filter]]:
    """Return (the condition that the read evaluates, the list of filters that Spark must evaluate)."""
    pushed, left = Pushed(), []
    for each in filters:
        after, exact = _take(pushed, each)
        pushed = after
        if not exact:
            left.append(each)
    return pushed, left


def _take(pushed: Pushed, each: spark.Filter) -> tuple[Pushed, bool]:
    """Add a filter to `pushed`. Return (the result, True if the read evaluates this filter exactly)."""
    inner = each.child if isinstance(each, spark.Not) else each
    negated = inner is not each
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if isinstance(inner, (spark.IsNull, spark.IsNotNull)):
        if column not in NEVER_NULL:
            return pushed, False
        never = isinstance(inner, spark.IsNull) != negated
        return (replace(pushed, nothing=True) if never else pushed), True
    if type(inner) not in _TESTS or column not in _TYPES or not _typed(inner, _TYPES[column]):
        return pushed, False
    if column in ("topic", "partition"):
        return replace(pushed, tests=(*pushed.tests, each)), True
    if negated:
        return pushed, False
    if column == "offset":
        low, high, exact = _span(inner, lambda value: value, lambda value: value + 1)
        return replace(pushed, offsets=pushed.offsets.within(low, high)), exact
    low, high, exact = _span(inner, _from_ms, _above_ms)
    return replace(pushed, times=pushed.times.within(low, high)), exact


def _typed(inner: Any, kind: type) -> bool:
    """Return whether the filter's values have the type `kind` of the column. A time must have a time zone."""
    values: tuple[Any, ...] = inner.value if isinstance(inner, spark.In) else (inner.value,)
    return bool(values) and all(type(value) is kind and not _zoneless(value) for value in values)


def _zoneless(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is None


def _span(inner: Any, least: Callable[[Any], int], above: Callable[[Any], int]) -> tuple[int, int, bool]:
    """Return (low, high, exact). Only numbers from `low` to before `high` can pass the filter; if `exact` is
    True, all of them pass. `least(value)` returns the smallest number that is not below a value, and
    `above(value)` returns the smallest number above it.
    """
    value = inner.value
    if isinstance(inner, spark.In):
        return least(min(value)), above(max(value)), False
    if isinstance(inner, spark.LessThan):
        return _LEAST, least(value), True
    if isinstance(inner, spark.LessThanOrEqual):
        return _LEAST, above(value), True
    if isinstance(inner, spark.GreaterThan):
        return above(value), _MOST, True
    if isinstance(inner, spark.GreaterThanOrEqual):
        return least(value), _MOST, True
    return least(value), above(value), True


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _from_ms(value: datetime) -> int:
    return -(-_micros(value) // 1000)


def _above_ms(value: datetime) -> int:
    return _micros(value) // 1000 + 1


def _passes(test: Any, held: dict[str, Any]) -> bool:
    if isinstance(test, spark.Not):
        return not _passes(test.child, held)
    return _TESTS[type(test)](held[test.attribute[0]], test.value)
