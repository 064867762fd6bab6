"""Encodes rows as Avro values, by fastavro.

Nothing is on disk. Functions without state: safe from any thread.

A row is a dict, or an item of the list that a table's `to_pylist` returns. In such an item a map is a list of
pairs, and a value of a union with several types is a dict with a field for each type.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import fastavro

from .avro_types import branch_names, full_name, parsed

Encode = Callable[[Any], bytes]


def encoder(schema: Any, before: bytes) -> Encode:
    """Return a function that encodes a row. The result begins with the bytes `before`. Raises
    InvalidArgumentError.
    """
    made = parsed(schema)
    rows = _AvroRows(made)

    def encode(row: Any) -> bytes:
        stream = io.BytesIO()
        stream.write(before)
        fastavro.schemaless_writer(stream, made, rows.row(made, row), strict_allow_default=True)
        return stream.getvalue()

    return encode


class _AvroRows:
    """Converts rows to values that fastavro can write."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._learn(schema)

    def _learn(self, schema: Any) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._learn(each)
        elif isinstance(schema, dict):
            if "name" in schema:
                self._named[schema["name"]] = schema
            inner = [field["type"] for field in schema.get("fields", ())]
            self._learn([*inner, *(schema[name] for name in ("items", "values", "type") if name in schema)])

    def row(self, schema: Any, value: Any) -> Any:
        """Convert a value of a schema to one that fastavro can write."""
        if value is None:
            return None
        if isinstance(schema, list):
            return self._of_union(schema, value)
        if isinstance(schema, str):
            return self.row(self._named[schema], value) if schema in self._named else value
        kind = schema["type"]
        if kind == "fixed" and schema.get("logicalType") == "uuid":
            return UUID(value).bytes if isinstance(value, str) else value
        if kind in ("record", "error"):
            return self._record(schema, value)
        if kind == "array":
            return [self.row(schema["items"], each) for each in value]
        if kind == "map":
            return {name: self.row(schema["values"], each) for name, each in dict(value).items()}
        return self.row(kind, value) if isinstance(kind, dict | list) else value

    def _record(self, schema: dict[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: self.row(kinds[name], each) if name in kinds else each for name, each in value.items()}

    def _of_union(self, schemas: list[Any], value: Any) -> Any:
        names = branch_names(schemas)
        kinds = {full_name(each): each for each in schemas if each != "null"}
        if len(names) < 2:
            return self.row(kinds[next(iter(names))], value) if names else value
        if not isinstance(value, Mapping) or set(value) != set(names.values()):
            return value  # This value is not from `to_pylist`. fastavro can write it unchanged.
        name = next(name for name, short in names.items() if value[short] is not None)
        made = self.row(kinds[name], value[names[name]])
        return (name, made) if isinstance(made, dict) and name != "map" else made
