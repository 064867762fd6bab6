"""Predicates on a topic's columns, drawn from a seed, that say the same in Python, SQL, polars and pyarrow.

In Python a predicate is applied to one row at a time, by SQL's logic of three values: it holds, it does not
hold, or it is None, because a key is null. Nothing of segstore is imported. Nothing is on disk.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import polars
    import pyarrow.dataset

DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparison that says the same if its sides change places."""
SQL_NAMES = {"offset": '"offset"', "key": '"key"', "partition": '"partition"', "timestamp": '"timestamp"'}
Row = Any
"""A tuple with the names of a topic's columns; its `timestamp` is in ms."""


def moment(us: int) -> datetime:
    """Return a time in µs since the epoch as a datetime."""
    return EPOCH + timedelta(microseconds=us)


def compared(name: str, value: Any) -> Any:
    """Return a row's value as literals are written: times in µs."""
    return value * 1000 if name == "timestamp" else value


# --- literals ------------------------------------------------------------------------------------


def in_sql(name: str, value: Any) -> str:
    if name == "timestamp":
        return f"TIMESTAMPTZ '{moment(value).isoformat(' ')}'"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def in_python(name: str, value: Any) -> Any:
    """Return a literal as polars takes it."""
    return moment(value) if name == "timestamp" else value


def polars_column(name: str, *values: Any) -> polars.Expr:
    """Return a column that is compared with literals. polars compares by the coarser unit, ms, and would cut
    off the µs of the literals.
    """
    import polars

    fine = name == "timestamp" and any(value % 1000 for value in values)
    column = polars.col(name)
    return column.cast(polars.Datetime("us", "UTC")) if fine else column


def in_arrow(name: str, value: Any) -> Any:
    import pyarrow

    if name == "timestamp":
        whole = value % 1000 == 0
        kind = pyarrow.timestamp("ms" if whole else "us", "UTC")
        return pyarrow.scalar(value // 1000 if whole else value, kind)
    return pyarrow.scalar(value, pyarrow.binary() if isinstance(value, bytes) else None)


# --- predicates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicate:
    """What a row must meet. `holds` has the answer for a row: True, False, or None (unknown)."""

    def holds(self, row: Row) -> bool | None:
        raise NotImplementedError

    def names(self) -> list[str]:
        """Return the columns that it is about."""
        raise NotImplementedError

    def sql(self) -> str:
        raise NotImplementedError

    def polars(self) -> polars.Expr:
        raise NotImplementedError

    def arrow(self) -> pyarrow.dataset.Expression:
        raise NotImplementedError


@dataclass(frozen=True)
class Compare(Predicate):
    """A column beside a literal; `turned`: the literal is on the left."""

    name: str
    comparison: str
    value: Any
    turned: bool = False

    def holds(self, row: Row) -> bool | None:
        found = getattr(row, self.name)
        if found is None:
            return None
        return COMPARISONS[self.comparison](compared(self.name, found), self.value)

    def names(self) -> list[str]:
        return [self.name]

    def sql(self) -> str:
        name, value = SQL_NAMES.get(self.name, self.name), in_sql(self.name, self.value)
        if self.turned:
            return f"{value} {FLIPPED[self.comparison]} {name}"
        return f"{name} {self.comparison} {value}"

    def polars(self) -> polars.Expr:
        import polars

        return self._of(polars_column(self.name, self.value), polars.lit(in_python(self.name, self.value)))

    def arrow(self) -> pyarrow.dataset.Expression:
        import pyarrow.compute as pc

        return self._of(pc.field(self.name), pc.scalar(in_arrow(self.name, self.value)))

    def _of(self, column: Any, literal: Any) -> Any:
        if self.turned:
            return COMPARISONS[FLIPPED[self.comparison]](literal, column)
        return COMPARISONS[self.comparison](column, literal)


@dataclass(frozen=True)
class Day(Predicate):
    """The day of a timestamp, in UTC, beside a literal in days since the epoch."""

    comparison: str
    value: int

    def holds(self, row: Row) -> bool | None:
        return COMPARISONS[self.comparison](row.timestamp // DAY_MS, self.value)

    def names(self) -> list[str]:
        return ["timestamp"]

    def _day(self) -> date:
        return EPOCH.date() + timedelta(days=self.value)

    def sql(self) -> str:
        return f"CAST(\"timestamp\" AS DATE) {self.comparison} DATE '{self._day()}'"

    def polars(self) -> polars.Expr:
        import polars

        return COMPARISONS[self.comparison](polars.col("timestamp").dt.date(), polars.lit(self._day()))

    def arrow(self) -> pyarrow.dataset.Expression:
        import pyarrow
        import pyarrow.compute as pc

        day = pc.floor_temporal(pc.field("timestamp"), unit="day")
        literal = pyarrow.scalar(self.value * DAY_MS, pyarrow.timestamp("ms", "UTC"))
        return COMPARISONS[self.comparison](day, pc.scalar(literal))


@dataclass(frozen=True)
class Between(Predicate):
    """A column between two literals, both inclusive."""

    name: str
    low: Any
    high: Any

    def _both(self) -> And:
        return And((Compare(self.name, ">=", self.low), Compare(self.name, "<=", self.high)))

    def holds(self, row: Row) -> bool | None:
        return self._both().holds(row)

    def names(self) -> list[str]:
        return [self.name]

    def sql(self) -> str:
        low, high = in_sql(self.name, self.low), in_sql(self.name, self.high)
        return f"{SQL_NAMES.get(self.name, self.name)} BETWEEN {low} AND {high}"

    def polars(self) -> polars.Expr:
        import polars

        low, high = (polars.lit(in_python(self.name, each)) for each in (self.low, self.high))
        return polars_column(self.name, self.low, self.high).is_between(low, high)

    def arrow(self) -> pyarrow.dataset.Expression:
        return self._both().arrow()


@dataclass(frozen=True)
class In(Predicate):
    """A column that is one of some literals, at least one."""

    name: str
    values: tuple[Any, ...]

    def holds(self, row: Row) -> bool | None:
        found = getattr(row, self.name)
        return None if found is None else compared(self.name, found) in self.values

    def names(self) -> list[str]:
        return [self.name]

    def sql(self) -> str:
        values = ", ".join(in_sql(self.name, each) for each in self.values)
        return f"{SQL_NAMES.get(self.name, self.name)} IN ({values})"

    def polars(self) -> polars.Expr:
        column = polars_column(self.name, *self.values)
        return column.is_in([in_python(self.name, each) for each in self.values])

    def arrow(self) -> pyarrow.dataset.Expression:
        import pyarrow
        import pyarrow.compute as pc

        literals = [in_arrow(self.name, each) for each in self.values]
        if len({each.type for each in literals}) > 1 or self.name == "key":  # is_in says False of a null
            return Or(tuple(Compare(self.name, "=", each) for each in self.values)).arrow()
        values = pyarrow.array([each.as_py() for each in literals], literals[0].type)
        return pc.field(self.name).isin(values)


@dataclass(frozen=True)
class IsNull(Predicate):
    name: str

    def holds(self, row: Row) -> bool | None:
        return getattr(row, self.name) is None

    def names(self) -> list[str]:
        return [self.name]

    def sql(self) -> str:
        return f"{SQL_NAMES.get(self.name, self.name)} IS NULL"

    def polars(self) -> polars.Expr:
        import polars

        return polars.col(self.name).is_null()

    def arrow(self) -> pyarrow.dataset.Expression:
        import pyarrow.compute as pc

        return pc.field(self.name).is_null()


@dataclass(frozen=True)
class And(Predicate):
    parts: tuple[Predicate, ...]

    def holds(self, row: Row) -> bool | None:
        found = [part.holds(row) for part in self.parts]
        return False if False in found else None if None in found else True

    def names(self) -> list[str]:
        return [name for part in self.parts for name in part.names()]

    def sql(self) -> str:
        return "(" + " AND ".join(part.sql() for part in self.parts) + ")"

    def polars(self) -> polars.Expr:
        return _folded(operator.and_, [part.polars() for part in self.parts])

    def arrow(self) -> pyarrow.dataset.Expression:
        return _folded(operator.and_, [part.arrow() for part in self.parts])


@dataclass(frozen=True)
class Or(Predicate):
    parts: tuple[Predicate, ...]

    def holds(self, row: Row) -> bool | None:
        found = [part.holds(row) for part in self.parts]
        return True if True in found else None if None in found else False

    def names(self) -> list[str]:
        return [name for part in self.parts for name in part.names()]

    def sql(self) -> str:
        return "(" + " OR ".join(part.sql() for part in self.parts) + ")"

    def polars(self) -> polars.Expr:
        return _folded(operator.or_, [part.polars() for part in self.parts])

    def arrow(self) -> pyarrow.dataset.Expression:
        return _folded(operator.or_, [part.arrow() for part in self.parts])


@dataclass(frozen=True)
class Not(Predicate):
    part: Predicate

    def holds(self, row: Row) -> bool | None:
        found = self.part.holds(row)
        return None if found is None else not found

    def names(self) -> list[str]:
        return self.part.names()

    def sql(self) -> str:
        return f"(NOT {self.part.sql()})"

    def polars(self) -> polars.Expr:
        return ~self.part.polars()

    def arrow(self) -> pyarrow.dataset.Expression:
        return ~self.part.arrow()


def _folded(join: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    first, *others = parts
    for each in others:
        first = join(first, each)
    return first


# --- draws ---------------------------------------------------------------------------------------

_FAR = {
    "partition": (-1, 0, 4, 7, 1 << 30),
    "offset": (-1, 0, 1, 1 << 31, (1 << 63) - 1, -(1 << 63)),
    "timestamp": (-1_000_001, -1000, -999, 0, 4_102_444_800_000_000, -62_000_000_000_000_000),
    "timestamp_type": (-1, 0, 1, 2),
    "key": (b"", b"\0", b"zzz", b"\xff" * 9),
    "topic": ("", "flights", "t", "u"),
}
"""Literals that no row may have, or few."""
FILTERED = tuple(_FAR)


class Draw(NamedTuple):
    """Draws predicates on some rows: most literals are of a row, or beside one."""

    rng: random.Random
    rows: Sequence[Row]

    def predicate(self, depth: int = 2) -> Predicate:
        if depth and self.rng.random() < 0.6:
            kind = self.rng.choice((And, And, Or, Not))
            if kind is Not:
                return Not(self.predicate(depth - 1))
            return kind(tuple(self.predicate(depth - 1) for _ in range(self.rng.choice((2, 2, 3)))))
        return self._leaf()

    def _leaf(self) -> Predicate:
        name = self.rng.choice((*FILTERED, "offset", "timestamp", "partition"))
        if name == "timestamp" and self.rng.random() < 0.15:
            day = self.literal("timestamp") // 1000 // DAY_MS + self.rng.choice((0, 0, 1))
            return Day(self.rng.choice(tuple(COMPARISONS)), day)
        kind, values = self.rng.random(), sorted(self.literal(name) for _ in range(3))
        if kind < 0.15:
            return Between(name, values[0], values[-1])
        if kind < 0.3:
            return In(name, tuple(values[: self.rng.choice((1, 2, 3))]))
        if name == "key" and kind < 0.6:
            return IsNull(self.rng.choice(("key", "value")))
        return Compare(name, self.rng.choice(tuple(COMPARISONS)), values[0], self.rng.random() < 0.2)

    def literal(self, name: str) -> Any:
        """Return a value of a row, one beside it, or one far from all."""
        found = getattr(self.rng.choice(self.rows), name) if self.rows else None
        if found is None or self.rng.random() < 0.25:
            return self.rng.choice(_FAR[name])
        if isinstance(found, (bytes, str)):
            return found
        beside = self.rng.choice((0, 0, -1, 1))
        if name == "timestamp":
            return found * 1000 + self.rng.choice((0, 0, 1, -1, 1000, -1000))
        return max(-(1 << 63), min((1 << 63) - 1, found + beside))
