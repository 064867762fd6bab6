"""Values as typed columns: JSON, Avro, Protobuf, and the application's own functions; and rows as values.

`serializer("avro", schema)` is the `value_serializer` of a Producer. Its `column(rows)` returns values for
`append_batch`.
"""

from __future__ import annotations

from segstore.tables.values.serializer import RowSerializer, serializer

__all__ = ["RowSerializer", "serializer"]
