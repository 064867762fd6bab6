"""`bounds_of`: the bounds of partitions, offsets and timestamps that a predicate of polars implies.

The predicate is read as the JSON that polars itself makes. A part that this module does not understand
excludes no record. Records outside of the bounds are not read, and polars applies the predicate to the
records that are read.

On disk: nothing. Threads: no state. This module imports polars, so it is imported only when
polars asks for records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import reduce
from typing import Any, NamedTuple

import polars as pl

from segstore.integers import INT64_MAX, INT64_MIN
from segstore.storage.scans.bounds import ALL, Bounds

Node = Mapping[str, Any]
NOTHING = Bounds(frozenset())
DAY_MS = 86_400_000
_EXACT = 1 << 53
"""Below this number every integer is exactly a float. Above it, two offsets may become the same float, so
comparisons with floats would be wrong.
"""
_LARGEST = 1 << 20
"""The size, in bytes, of the largest predicate that is read. The bounds of a longer predicate, such as a list
of a million keys, may take more time than they save.
"""
_OPPOSITE = {"Lt": "GtEq", "GtEq": "Lt", "Gt": "LtEq", "LtEq": "Gt", "Eq": "NotEq", "NotEq": "Eq"}
_TURNED = {"Lt": "Gt", "Gt": "Lt", "LtEq": "GtEq", "GtEq": "LtEq", "Eq": "Eq", "NotEq": "NotEq"}
_OF_DAYS = {"Date": "day", "Year": "year"}
_OF_VALIDITY = {"EqValidity": "Eq", "NotEqValidity": "NotEq"}
_BETWEEN = {"Both": ("GtEq", "LtEq"), "Left": ("GtEq", "Lt"), "Right": ("Gt", "LtEq"), "None": ("Gt", "Lt")}
_AND = {"And", "LogicalAnd", "AllHorizontal"}
_OR = {"Or", "LogicalOr", "AnyHorizontal"}
_UNITS = {"offset": "number", "partition": "number", "timestamp": "UTC", "topic": "text"}


def bounds_of(predicate: pl.Expr, topic: str, partitions: Callable[[], Iterable[int]]) -> Bounds:
    """Return bounds that contain all records of a topic for which `predicate` is true. The function
    `partitions` returns the topic's partitions; it is called only if the predicate compares partitions.
    """
    try:
        if len(predicate.meta.serialize()) > _LARGEST:
            return ALL
        tree = json.loads(predicate.meta.serialize(format="json"))
        return _BoundsWalk(topic, partitions).bounds(tree, True)
    except (pl.exceptions.PolarsError, ValueError, TypeError, LookupError, RecursionError):
        return ALL  # The predicate has no JSON, or polars has another version with other JSON.


class Span(NamedTuple):
    """The integers that a column has for records at which it equals a constant, from `first` to `last`, for
    example all ms of a day. If `last` is below `first`, the column can't equal the constant.
    """

    first: int
    last: int


class _BoundsWalk:
    """Computes bounds for the nodes of a predicate's tree. The bounds of a node contain all records for which
    the node's value is `wanted`, which is True or False. For records outside of the bounds the node's value
    is null or the opposite.
    """

    def __init__(self, topic: str, partitions: Callable[[], Iterable[int]]) -> None:
        self._topic, self._partitions = topic, partitions
        self._known: frozenset[int] | None = None

    def bounds(self, node: Any, wanted: bool) -> Bounds:
        kind, inner = _only(node)
        if kind == "Alias":
            return self.bounds(inner[0], wanted)
        if kind == "BinaryExpr":
            return self._binary(inner["op"], inner["left"], inner["right"], wanted)
        if kind == "Function":
            return self._function(*_only(inner["function"]), inner["input"], wanted)
        if kind == "Ternary":
            return self._ternary(inner, wanted)
        if kind == "Literal":
            return self._literal(_constant(node), wanted)
        return ALL

    def _literal(self, value: pl.Series | None, wanted: bool) -> Bounds:
        if value is None or value.dtype not in (pl.Boolean, pl.Null):
            return ALL
        return ALL if value.item() is wanted else NOTHING

    def _binary(self, op: str, left: Node, right: Node, wanted: bool) -> Bounds:
        if op in _AND | _OR:
            return self._several(op, (left, right), wanted)
        return self._comparison(op, left, right, wanted)

    def _several(self, op: str, parts: Sequence[Node], wanted: bool) -> Bounds:
        found = (self.bounds(part, wanted) for part in parts)
        return reduce(_both if (op in _AND) is wanted else _either, found)

    def _ternary(self, parts: Mapping[str, Node], wanted: bool) -> Bounds:
        then = _both(self.bounds(parts["predicate"], True), self.bounds(parts["truthy"], wanted))
        return _either(then, self.bounds(parts["falsy"], wanted))

    def _function(self, family: str, which: Any, inputs: Sequence[Node], wanted: bool) -> Bounds:
        if family != "Boolean":
            return ALL
        name, options = _only(which)
        if name == "Not":
            return self.bounds(inputs[0], not wanted)
        if name in _AND | _OR:
            return self._several(name, inputs, wanted)
        if name == "IsBetween":
            ends = zip(_BETWEEN[options["closed"]], inputs[1:], strict=True)
            found = [self._comparison(op, inputs[0], end, wanted) for op, end in ends]
            return reduce(_both if wanted else _either, found)
        if name == "IsIn" and not options["nulls_equal"]:
            return self._is_in(inputs[0], inputs[1], wanted)
        return ALL

    def _comparison(self, op: str, left: Node, right: Node, wanted: bool) -> Bounds:
        plain = _OF_VALIDITY.get(op, op)
        if plain not in _OPPOSITE:
            return ALL
        column, value = _column(left), _constant(right)
        if column is None:
            plain, column, value = _TURNED[plain], _column(right), _constant(left)
        if column is None or value is None:
            return ALL
        if value.null_count():
            return _of_null(op, column[1], wanted)
        return self._compared(*column, plain if wanted else _OPPOSITE[plain], value)

    def _compared(self, column: str, unit: str, op: str, value: pl.Series) -> Bounds:
        if unit == "text":
            same = op in ("Eq", "NotEq") and value.dtype == pl.String
            return NOTHING if same and (value.item() == self._topic) is not (op == "Eq") else ALL
        span = _span(unit, value)
        if span is None:
            return ALL
        if op == "NotEq":
            return self._without(column, range(span.first, span.last + 1))
        return self._within(column, *_interval(op, span))

    def _is_in(self, item: Node, values: Node, wanted: bool) -> Bounds:
        column, found = _column(item), _constant(values)
        if column is None or found is None or found.dtype not in (pl.List, pl.Array):
            return ALL
        if found.null_count():
            return NOTHING
        return self._listed(*column, found.item().drop_nulls().sort(), wanted)

    def _listed(self, column: str, unit: str, listed: pl.Series, wanted: bool) -> Bounds:
        if not len(listed):
            return NOTHING if wanted else ALL
        if unit == "text":
            known = listed.dtype == pl.String
            return NOTHING if known and (self._topic in listed.to_list()) is not wanted else ALL
        least, most = _span(unit, listed.head(1)), _span(unit, listed.tail(1))
        if least is None or most is None or unit == "float":
            return ALL
        if column == "partition" and unit == "number":
            numbers = set(listed.to_list())
            return Bounds(self._all() & numbers if wanted else self._all() - numbers)
        return self._within(column, least.first, most.last) if wanted else ALL

    def _within(self, column: str, low: int, high: int) -> Bounds:
        if column == "partition":
            return Bounds(frozenset(each for each in self._all() if low <= each <= high))
        low, high = max(low, 0 if column == "offset" else INT64_MIN), min(high, INT64_MAX)
        if low > high:
            return NOTHING
        if column == "offset":
            return Bounds(first_offset=low, last_offset=high)
        return Bounds(first_time=low, last_time=high)

    def _without(self, column: str, numbers: range) -> Bounds:
        return Bounds(self._all().difference(numbers)) if column == "partition" else ALL

    def _all(self) -> frozenset[int]:
        if self._known is None:
            self._known = frozenset(self._partitions())
        return self._known


def _both(one: Bounds, other: Bounds) -> Bounds:
    met = one.meet(other)
    empty = met.first_offset > met.last_offset or met.first_time > met.last_time
    return NOTHING if empty or met.partitions == frozenset() else met


def _either(one: Bounds, other: Bounds) -> Bounds:
    if NOTHING in (one, other):
        return other if one == NOTHING else one
    return one.join(other)


def _of_null(op: str, unit: str, wanted: bool) -> Bounds:
    """Return the bounds of a comparison of a column with null."""
    if op not in _OF_VALIDITY:
        return NOTHING
    # For these two operators null equals null, so a column without nulls differs from null in all records.
    # Only a "day" or "year" column can have nulls, for timestamps outside of polars' calendar.
    return NOTHING if (op == "EqValidity") is wanted and unit not in _OF_DAYS.values() else ALL


def _interval(op: str, span: Span) -> tuple[int, int]:
    if op == "Eq":
        return span
    if op in ("Lt", "LtEq"):
        return INT64_MIN, span.first - 1 if op == "Lt" else span.last
    return span.last + 1 if op == "Gt" else span.first, INT64_MAX


def _only(node: Any) -> tuple[str, Any]:
    """Return (name, content) of a node. In polars' JSON (serde) a node is a dict with one item, or, if it has
    no content, a string. Return ("", None) for anything else.
    """
    if isinstance(node, str):
        return node, None
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    return "", None


# --- columns --------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A column, or calls and casts of a column that do not change its order. The unit of its values is
    "number", "float", "text", "day" (of UTC) or "year" (of UTC). For timestamps in ms it is the name of the
    time zone, "" if they have none.
    """

    name: str
    unit: str


def _column(node: Any) -> _Column | None:
    kind, inner = _only(node)
    if kind == "Column":
        return _Column(inner, _UNITS[inner]) if inner in _UNITS else None
    if kind == "Alias":
        return _column(inner[0])
    if kind == "Cast":
        found = _column(inner["expr"])
        return found and _cast(found, inner["dtype"])
    if kind == "Function":
        found = _column(inner["input"][0])
        return found and _called(found, *_only(inner["function"]))
    return None


def _cast(column: _Column, dtype: Any) -> _Column | None:
    kind, to = _only(dtype)
    name, inner = _only(to if kind == "Literal" else None)
    if name == "Datetime" and inner[0] == "Milliseconds" and _is_time(column):
        return column._replace(unit=_zone(inner[1]))
    if name in ("Int64", "Int128") and (column.unit == "number" or _is_time(column)):
        return column._replace(unit="number")
    to_float = name == "Float64" or (name == "Unknown" and inner == "Float")
    return column._replace(unit="float") if to_float and column.unit in ("number", "float") else None


def _called(column: _Column, family: str, which: Any) -> _Column | None:
    if not _is_time(column):
        return None
    name, options = _only(which)
    if family == "ToPhysical" or (name == "TimeStamp" and options == "Milliseconds"):
        return column._replace(unit="number")
    if name == "ConvertTimeZone":
        return column._replace(unit=_zone(options))
    # In another time zone, days, years and times of day are not those of UTC.
    if column.unit not in ("UTC", ""):
        return None
    if name == "ReplaceTimeZone" and options[0] is None:
        return column._replace(unit="")
    return column._replace(unit=_OF_DAYS[name]) if name in _OF_DAYS else None


def _is_time(column: _Column) -> bool:
    return column.name == "timestamp" and column.unit not in ("number", "float", "day", "year")


def _zone(zone: Any) -> str:
    return str(zone["inner"]) if isinstance(zone, dict) else ""


# --- constants ------------------------------------------------------------------------------------


def _constant(node: Any) -> pl.Series | None:
    """Return the value of a constant expression, which polars computes, as a series with one row. Return None
    if the expression is not certainly constant.
    """
    if not _is_constant(node):
        return None
    value = pl.select(pl.Expr.deserialize(json.dumps(node).encode(), format="json")).to_series()
    return value if len(value) == 1 else None


def _is_constant(node: Any) -> bool:
    kind, inner = _only(node)
    if kind == "BinaryExpr":
        return _is_constant(inner["left"]) and _is_constant(inner["right"])
    if kind == "Function":
        family = _only(inner["function"])[0]
        return family in ("TemporalExpr", "StringExpr", "Negate") and all(map(_is_constant, inner["input"]))
    if kind == "Cast":
        return _only(inner["dtype"])[0] == "Literal" and _is_constant(inner["expr"])
    return kind == "Literal" or (kind == "Alias" and _is_constant(inner[0]))


def _span(unit: str, value: pl.Series) -> Span | None:
    """Return the `Span` of a column of this unit for the constant `value`. Return None if the type of the
    constant is unknown, or if polars converts one of the two before it compares them.
    """
    dtype = value.dtype
    if unit == "float":
        number = value.item() if dtype == pl.Float64 else math.inf
        return Span(math.ceil(number), math.floor(number)) if abs(number) < _EXACT else None
    if unit in ("number", "year"):
        return _of_number(unit, value.item()) if dtype.is_integer() else None
    if unit == "day":
        day = value.to_physical().item() * DAY_MS if dtype == pl.Date else None
        return None if day is None else Span(day, day + DAY_MS - 1)
    if dtype == pl.Datetime("ms", unit or None):
        return Span(*[value.to_physical().item()] * 2)
    return None


def _of_number(unit: str, number: int) -> Span | None:
    if unit == "number":
        return Span(number, number)
    if not date.min.year <= number < date.max.year:
        return None
    first, after = (date(year, 1, 1) - date(1970, 1, 1) for year in (number, number + 1))
    return Span(first.days * DAY_MS, after.days * DAY_MS - 1)
