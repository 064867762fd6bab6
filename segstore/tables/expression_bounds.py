"""Computes the `Bounds` of partitions, offsets and timestamps that a filter, an Arrow `Expression`, implies.
Nothing is on disk.

All records that Arrow's filter would keep are within the bounds: a part of the expression that this module
does not understand excludes no record.

Functions without state: safe from any thread. This module imports pyarrow, so it is
imported only when a table is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segstore.integers import INT64_MAX
from segstore.storage.scans.bounds import ALL, INT64_MIN, Bounds
from segstore.storage.scans.columns import TOPIC_SCHEMA

from .expressions import Element, elements

NOTHING = Bounds(frozenset(), INT64_MAX, -1, INT64_MAX, INT64_MIN)
"""Bounds that no record can be within. Their union with any bounds is equal to these bounds."""
_NEVER_NULL = {each.name for each in TOPIC_SCHEMA if not each.nullable}
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1000**2, "ns": 1000**3}
_EXACT_DOUBLES = 1 << 53


class Truth(NamedTuple):
    """Bounds of the records for which a condition is true, and bounds of the records for which the condition
    is false. If the condition is null for a record, the record may be outside of both.
    """

    true: Bounds
    false: Bounds


_UNKNOWN = Truth(ALL, ALL)


def bounds_of(expression: pc.Expression | None, partitions: Callable[[], Collection[int]]) -> Bounds:
    """Return bounds that contain all records that a filter keeps. The function `partitions` returns the
    topic's partitions; it is called only if the filter has a condition on the column `partition`.
    """
    parts = None if expression is None else elements(expression)
    if parts is None:
        return ALL
    calls: list[tuple[str, list[Any]]] = [("", [])]
    for part in parts:
        if part.kind == "call":
            calls.append((part.name, []))
        elif part.kind == "end":
            name, arguments = calls.pop()
            calls[-1][1].append(_called(name, arguments, partitions))
        else:
            calls[-1][1].append(part)
    return _truth(calls[0][1][0]).true if len(calls[0][1]) == 1 else ALL


def _called(name: str, arguments: list[Any], partitions: Callable[[], Collection[int]]) -> Truth | None:
    """Return the `Truth` of a call of Arrow's function `name`; None if it can't be computed."""
    if any(isinstance(each, Element) and each.kind == "nested_field_ref" for each in arguments):
        return None
    if name in _LOGIC:
        rule, count = _LOGIC[name]
        return rule(*map(_truth, arguments)) if len(arguments) == count else None
    if name in _COMPARED and len(arguments) == 2:
        return _comparison(name, arguments, partitions)
    if not arguments or not _is_column(arguments[0]):
        return None
    column = arguments[0].name
    if name in ("is_valid", "is_null") and column in _NEVER_NULL:
        return Truth(ALL, NOTHING) if name == "is_valid" else Truth(NOTHING, ALL)
    if name == "is_in" and len(arguments) == 2 and arguments[1].kind == "options":
        return _is_in(column, arguments[1].value, partitions)
    return None


def _is_column(argument: object) -> bool:
    return isinstance(argument, Element) and argument.kind == "field_ref"


def _truth(argument: Any) -> Truth:
    if isinstance(argument, Truth):
        return argument
    if not isinstance(argument, Element) or argument.kind != "literal":
        return _UNKNOWN
    if not argument.value.is_valid:
        return Truth(NOTHING, NOTHING)
    if not pa.types.is_boolean(argument.value.type):
        return _UNKNOWN
    return Truth(ALL, NOTHING) if argument.value.as_py() else Truth(NOTHING, ALL)


# --- logic ---------------------------------------------------------------------------------------


def _meet(one: Bounds, other: Bounds) -> Bounds:
    return _closed(one.meet(other))


def _closed(bounds: Bounds) -> Bounds:
    """Return `bounds`, or NOTHING if no record can be within them."""
    nothing = bounds.partitions is not None and not bounds.partitions
    nothing |= bounds.first_offset > bounds.last_offset or bounds.first_time > bounds.last_time
    return NOTHING if nothing else bounds


def _and(one: Truth, other: Truth) -> Truth:
    return Truth(_meet(one.true, other.true), one.false.join(other.false))


def _or(one: Truth, other: Truth) -> Truth:
    return Truth(one.true.join(other.true), _meet(one.false, other.false))


def _if_else(condition: Truth, then: Truth, otherwise: Truth) -> Truth:
    return Truth(
        _meet(condition.true, then.true).join(_meet(condition.false, otherwise.true)),
        _meet(condition.true, then.false).join(_meet(condition.false, otherwise.false)),
    )


_LOGIC: dict[str, tuple[Callable[..., Truth], int]] = {
    "and": (_and, 2),
    "and_kleene": (_and, 2),
    "or": (_or, 2),
    "or_kleene": (_or, 2),
    "invert": (lambda of: Truth(of.false, of.true), 1),
    "if_else": (_if_else, 3),
}
"""Arrow's logical functions, by name: for each the corresponding function of `Truth`s, and the number of its
arguments.
"""


# --- comparisons ---------------------------------------------------------------------------------


class ComparisonForms(NamedTuple):
    """A comparison operator, its negation, and the operator with the same meaning for exchanged sides."""

    holds: Callable[[Any, Any], bool]
    negated: str
    exchanged: str


_COMPARED = {
    "equal": ComparisonForms(operator.eq, "not_equal", "equal"),
    "not_equal": ComparisonForms(operator.ne, "equal", "not_equal"),
    "less": ComparisonForms(operator.lt, "greater_equal", "greater"),
    "less_equal": ComparisonForms(operator.le, "greater", "greater_equal"),
    "greater": ComparisonForms(operator.gt, "less_equal", "less"),
    "greater_equal": ComparisonForms(operator.ge, "less", "less_equal"),
}


def _comparison(
    name: str, arguments: Sequence[Any], partitions: Callable[[], Collection[int]]
) -> Truth | None:
    column, literal = arguments
    if not _is_column(column):
        column, literal, name = literal, column, _COMPARED[name].exchanged
    if not _is_column(column) or not isinstance(literal, Element) or literal.kind != "literal":
        return None
    if not literal.value.is_valid:
        return Truth(NOTHING, NOTHING)
    value = _comparable(column.name, literal.value)
    if value is None:
        return None

    def bounds(name: str) -> Bounds:
        return _compared(column.name, name, value, partitions)

    return Truth(bounds(name), bounds(_COMPARED[name].negated))


def _comparable(column: str, literal: pa.Scalar) -> Fraction | int | None:
    """Return a literal as a number; if it is a timestamp, in ms. Return None if Arrow's comparison of the
    literal with the column is not exact.
    """
    if _is_whole(column, literal.type):
        return literal.as_py() if column != "timestamp" else _in_ms(literal.value, literal.type)
    if column not in ("partition", "offset") or not pa.types.is_float64(literal.type):
        return None
    value = literal.as_py()
    return Fraction(value) if abs(value) < _EXACT_DOUBLES else None  # NaN also gives None.


def _is_whole(column: str, kind: pa.DataType) -> bool:
    """Return whether `kind` is a type of integers or of times that Arrow compares with the column exactly."""
    if column == "timestamp":
        return bool(pa.types.is_timestamp(kind) and kind.tz is not None)
    return column in ("partition", "offset") and bool(pa.types.is_integer(kind))


def _in_ms(moment: int, kind: pa.DataType) -> Fraction:
    return Fraction(moment * 1000, _PER_SECOND[kind.unit])


def _compared(
    column: str, name: str, value: Fraction | int, partitions: Callable[[], Collection[int]]
) -> Bounds:
    if column == "partition":
        holds = _COMPARED[name].holds
        return _closed(Bounds(frozenset(each for each in partitions() if holds(each, value))))
    first = {"equal": ceil(value), "greater": floor(value) + 1, "greater_equal": ceil(value)}
    last = {"equal": floor(value), "less": ceil(value) - 1, "less_equal": floor(value)}
    return _between(column, first.get(name), last.get(name))


def _between(column: str, first: int | None, last: int | None) -> Bounds:
    """Return the bounds of records whose value in `column` is from `first` to `last`, both included. None
    stands for no limit.
    """
    lowest = 0 if column == "offset" else INT64_MIN
    since = lowest if first is None else max(first, lowest)
    until = INT64_MAX if last is None else min(last, INT64_MAX)
    if column == "offset":
        return _closed(ALL._replace(first_offset=since, last_offset=until))
    return _closed(ALL._replace(first_time=since, last_time=until))


def _is_in(column: str, options: pa.Scalar, partitions: Callable[[], Collection[int]]) -> Truth | None:
    values = options["value_set"].values
    if not _is_whole(column, values.type):
        return None
    if column == "partition":
        known, named = frozenset(partitions()), set(values.to_pylist())
        return Truth(_closed(Bounds(known & named)), _closed(Bounds(known - named)))
    whole = values.cast(pa.int64()) if column == "timestamp" else values
    first, last = (pc.min_max(whole)[each].as_py() for each in ("min", "max"))
    if first is None:
        return Truth(NOTHING, ALL)
    if column == "timestamp":
        # The range is rounded to whole ms outwards, because Arrow may cast the values to ms.
        first, last = floor(_in_ms(first, values.type)), ceil(_in_ms(last, values.type))
    return Truth(_between(column, first, last), ALL)
