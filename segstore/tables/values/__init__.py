"""Values as typed columns: JSON, Avro, Protobuf, and the application's own functions; and rows as values.

`serializer("avro", schema)` is the `value_serializer` of a Producer, and its `column(rows)` are the values
that `append_batch` takes.
"""

from __future__ import annotations

from segstore.tables.values.serializer import RowSerializer, serializer

__all__ = ["RowSerializer", "serializer"]
