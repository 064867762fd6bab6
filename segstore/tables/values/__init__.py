"""Decodes values (JSON, Avro, Protobuf, or by a function of the application) to typed columns, and encodes
rows as values.

`serializer("avro", schema)` returns an object that a Producer accepts as `value_serializer`. The object's
method `column(rows)` returns values for `append_batch`.
"""

from __future__ import annotations

from segstore.tables.values.serializer import RowSerializer, serializer

__all__ = ["RowSerializer", "serializer"]
