"""Finds the Arrow type of an Avro schema, and the function that converts fastavro's values to that type.

This module makes fastavro return dates and times as numbers, because Arrow's types have the same units, and
Python's dates have no years above 9999.
Nothing is on disk. Threads: any; only a `_SchemaWalk` has state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import pyarrow as pa

from segstore.errors import InvalidArgumentError

from .decoding import reason_of

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
NUMBERS = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
"""The Arrow types of logical types whose values fastavro returns as numbers."""
NAMED = ("record", "error", "enum", "fixed")
WIDEST = 76
"""The largest number of digits of a decimal in Arrow."""
PYTHON = {bool: "boolean", str: "string", bytes: "bytes", list: "array", dict: "map", Decimal: "bytes"}

Fix = Callable[[Any], Any]


class AvroConversion(NamedTuple):
    """An Arrow type, and the function that converts fastavro's values to it. If they stay unchanged, the
    function is None.
    """

    type: pa.DataType
    fix: Fix | None = None


def parsed(schema: Any) -> Any:
    """Return a parsed schema, in which types have their full names. `schema` is a dict, a list, the name of a
    primitive type, or JSON text. Raises InvalidArgumentError.
    """
    try:
        if isinstance(schema, str) and schema not in PRIMITIVES:
            schema = json.loads(schema)
        return fastavro.parse_schema(schema)
    except Exception as error:
        raise InvalidArgumentError(
            f"value_schema={schema!r:.80}: no Avro schema: {reason_of(error)}"
        ) from error


def read_as_numbers(schema: Any) -> Any:
    """Return a parsed schema without the logical types in NUMBERS, so that fastavro returns numbers."""
    return fastavro.parse_schema(_stripped(schema))


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if _number(schema):
        return schema["type"]
    made = {name: each for name, each in schema.items() if not name.startswith("__")}
    for name in ("items", "values", "type"):
        if isinstance(made.get(name), list | dict):
            made[name] = _stripped(made[name])
    if "fields" in made:
        made["fields"] = [{**field, "type": _stripped(field["type"])} for field in made["fields"]]
    return made


def _number(schema: Mapping[str, Any]) -> pa.DataType | None:
    kind = schema["type"]
    return NUMBERS.get((kind, schema.get("logicalType", ""))) if isinstance(kind, str) else None


def walked(schema: Any) -> tuple[AvroConversion, bool]:
    """Return (the `AvroConversion` of a parsed schema, True if fastavro must return the type's name with each
    value of a named type in a union).
    """
    walk = _SchemaWalk(tagged=False)
    kind = walk.kind(schema)
    if not walk.ambiguous:
        return kind, False
    return _SchemaWalk(tagged=True).kind(schema), True


class _SchemaWalk:
    """Makes the conversions of a schema and of its parts. If `tagged`, fastavro returns a value of a named
    type in a union as a pair (name, value).
    """

    def __init__(self, tagged: bool) -> None:
        self.tagged, self.ambiguous = tagged, False
        self._named: dict[str, AvroConversion | None] = {}

    def kind(self, schema: Any) -> AvroConversion:
        """Return the conversion of `schema`, which is a parsed schema or the name of a schema."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return AvroConversion(PRIMITIVES[schema]) if schema in PRIMITIVES else self._known(schema)
        name = schema["type"]
        if name in NAMED:
            self._named[schema["name"]] = None
            made = self._named[schema["name"]] = self._named_kind(schema)
            return made
        if name == "array":
            return _list(self.kind(schema["items"]))
        if name == "map":
            return _map(self.kind(schema["values"]))
        return _logical(schema) if name in PRIMITIVES else self.kind(name)

    def _known(self, name: str) -> AvroConversion:
        kind = self._named[name]
        if kind is None:
            raise InvalidArgumentError(f"value_schema: {name} has itself as a part, which no Arrow type has")
        return kind

    def _named_kind(self, schema: dict[str, Any]) -> AvroConversion:
        if schema["type"] == "enum":
            return AvroConversion(pa.string())
        if schema["type"] == "fixed":
            return _logical(schema)
        return struct({field["name"]: self.kind(field["type"]) for field in schema["fields"]})

    def _union(self, schemas: list[Any]) -> AvroConversion:
        names = branch_names(schemas)
        branches = {full_name(each): self.kind(each) for each in schemas if full_name(each) in names}
        named = any(full_name(each) not in (*PRIMITIVES, "array", "map") for each in schemas)
        if len(branches) > 1:
            self.ambiguous |= named
            return _one_of(branches, names)
        kind = next(iter(branches.values()), AvroConversion(pa.null()))
        return AvroConversion(kind.type, _untagged(kind.fix)) if named and self.tagged else kind


def full_name(schema: Any) -> str:
    """Return the name of a schema's type; the name of a named type includes its namespace. No two branches of
    a union have the same name.
    """
    if isinstance(schema, str):
        return schema
    return str(schema["name"]) if schema["type"] in NAMED else full_name(schema["type"])


def branch_names(schemas: list[Any]) -> dict[str, str]:
    """Return a dict from the full name of each branch of a union to the name of its field in a struct. The
    field's name is that of the branch without the namespace; if this is not unique, it is the full name. If
    both int and long are branches, both have the field of long. If both float and double are branches, both
    have the field of double.
    """
    branches = {full_name(each): each for each in schemas if each != "null"}
    for narrow, wide in (("int", "long"), ("float", "double")):
        given = branches.get(narrow)
        if wide in branches and (given == narrow or (isinstance(given, dict) and not _number(given))):
            del branches[narrow]
    shorts = [name.rpartition(".")[2] for name in branches]
    return {
        name: short if shorts.count(short) == 1 else name
        for name, short in zip(branches, shorts, strict=True)
    }


def struct(kinds: Mapping[str, AvroConversion]) -> AvroConversion:
    """Return the conversion of a record. `kinds` has the conversions of its fields by their names."""
    fixes = [(name, kind.fix) for name, kind in kinds.items() if kind.fix]

    def fix(row: dict[str, Any]) -> dict[str, Any]:
        for name, change in fixes:
            if row[name] is not None:
                row[name] = change(row[name])
        return row

    return AvroConversion(
        pa.struct([(name, kind.type) for name, kind in kinds.items()]), fix if fixes else None
    )


def _list(item: AvroConversion) -> AvroConversion:
    change = item.fix

    def fix(items: list[Any]) -> list[Any]:
        return [None if each is None else change(each) for each in items]  # type: ignore[misc]

    return AvroConversion(pa.list_(item.type), fix if change else None)


def _map(item: AvroConversion) -> AvroConversion:
    change = item.fix or (lambda value: value)

    def fix(items: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(name, None if each is None else change(each)) for name, each in items.items()]

    return AvroConversion(pa.map_(pa.string(), item.type), fix)


def _untagged(change: Fix | None) -> Fix:
    def fix(value: Any) -> Any:
        inner = value[1] if isinstance(value, tuple) else value
        return change(inner) if change else inner

    return fix


def _one_of(branches: Mapping[str, AvroConversion], names: Mapping[str, str]) -> AvroConversion:
    """Return the conversion of a union. Its type is a struct with a field for each branch. For each value,
    only the field of the value's branch is not null.
    """

    def fix(value: Any) -> dict[str, Any]:
        name, inner = value if isinstance(value, tuple) else (_of_python(value, branches), value)
        change = branches[name].fix
        return {names[name]: change(inner) if change else inner}

    return AvroConversion(pa.struct([(names[name], kind.type) for name, kind in branches.items()]), fix)


def _of_python(value: Any, branches: Mapping[str, AvroConversion]) -> str:
    if isinstance(value, UUID):
        return "string"
    if type(value) in PYTHON:
        return PYTHON[type(value)]
    names = ("int", "long") if isinstance(value, int) else ("double", "float")
    small = isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
    return next(name for name in (names[::-1] if small else names) if name in branches)


def _logical(schema: dict[str, Any]) -> AvroConversion:
    """Return the conversion of a primitive or fixed schema. As Avro requires, a logical type that is not
    allowed for the schema's type is ignored.
    """
    base, logical = schema["type"], schema.get("logicalType")
    if number := _number(schema):
        return AvroConversion(number)
    if logical == "decimal" and base in ("bytes", "fixed"):
        return _decimal(schema)
    if logical == "uuid" and base in ("string", "fixed"):
        return AvroConversion(pa.string(), _uuid)
    return AvroConversion(pa.binary(schema["size"]) if base == "fixed" else PRIMITIVES[base])


def _decimal(schema: dict[str, Any]) -> AvroConversion:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision > WIDEST:
        raise InvalidArgumentError(f"value_schema: a decimal of {precision} digits: Arrow has up to {WIDEST}")
    kind = pa.decimal128 if precision <= 38 else pa.decimal256
    return AvroConversion(kind(precision, scale))


def _uuid(value: Any) -> str:
    return str(UUID(bytes=value) if isinstance(value, bytes) else value)
