"""`TypedColumns`: replaces the column `value` by columns of decoded values.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from segstore.choices import ON_BAD
from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError, RecordDeserializationError
from segstore.storage.scans.columns import TOPIC_SCHEMA

from .values.decoding import VALUE, Columns, Decoder, decoded, up_to_bad

WAY_OUT = 'on_bad="null" or on_bad="column" passes it by; value_schema says other types'
ERROR = "value_error"
"""If `on_bad` is "column", the column with this name has the reason for each value that can't be decoded."""
PLACE = ("partition", "offset")


class TypedColumns:
    """The columns of a topic, in which decoded columns replace `value`. The constructor raises
    InvalidArgumentError if two columns have the same name.

    If `on_bad` is "error", only the selected columns are decoded, so errors in other columns of a value are
    not found. If `on_bad` is "null" or "column", all columns are decoded, so that the nulls do not depend on
    the selection.
    """

    def __init__(self, decoder: Decoder, on_bad: str, value_prefix: str) -> None:
        self._decoder = decoder
        self._on_bad = arguments.one_of("on_bad", on_bad, ON_BAD)
        if not isinstance(value_prefix, str):
            raise InvalidTypeError(f"value_prefix={value_prefix!r}: must be a str")
        prefix = value_prefix if decoder.is_object else ""
        self._fields = {prefix + field.name: field.name for field in decoder.schema}
        self._made = {*self._fields, *((ERROR,) if on_bad == "column" else ())}
        made = [pa.field(prefix + field.name, field.type) for field in decoder.schema]
        made += [(ERROR, pa.string())] if on_bad == "column" else []
        at = TOPIC_SCHEMA.get_field_index(VALUE)
        self.schema = pa.schema([*list(TOPIC_SCHEMA)[:at], *made, *list(TOPIC_SCHEMA)[at + 1 :]])
        names = self.schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidArgumentError(
                f"the decoded values have columns that are there already: {', '.join(twice)}; "
                'value_prefix="v_" gives them other names'
            )

    def stored(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the topic's columns that must be read to make `columns`."""
        plain = [name for name in columns if name not in self._made]
        if len(plain) == len(columns):
            return plain
        return list(dict.fromkeys([*plain, VALUE, *(PLACE if self._on_bad == "error" else ())]))

    def batch(self, topic: str, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return a batch with the columns `columns`. It is made from `batch`, which has the columns
        `stored(columns)`. Raises RecordDeserializationError.
        """
        wanted = pa.schema([self.schema.field(name) for name in columns])
        made = self._decoded(topic, batch, columns)
        found = [made[name] if name in made else batch.column(name) for name in columns]
        return pa.RecordBatch.from_arrays(found, schema=wanted)

    def _decoded(self, topic: str, batch: pa.RecordBatch, columns: Sequence[str]) -> dict[str, Any]:
        asked = [name for name in columns if name in self._fields]
        names = asked if self._on_bad == "error" else list(self._fields)
        fields = [self._fields[name] for name in names]
        values = batch.column(VALUE).cast(pa.binary())
        made, bad = self._without_bad(topic, batch, values, fields)
        arrays = dict(zip(names, made, strict=True))
        if ERROR in columns and self._on_bad == "column":
            arrays[ERROR] = pa.array(
                [bad.get(i) for i in range(len(values))] if bad else pa.nulls(len(values))
            )
            arrays[ERROR] = arrays[ERROR].cast(pa.string())
        return arrays

    def _without_bad(
        self, topic: str, batch: pa.RecordBatch, values: Any, fields: Sequence[str]
    ) -> tuple[Columns, dict[int, str]]:
        def make(values: pa.Array) -> Columns:
            return self._decoder.columns(values, fields)

        if self._on_bad != "error":
            return decoded(make, values)
        made, first = up_to_bad(make, values)
        if first is None:
            return made, {}
        at, reason = first
        partition, offset = (batch.column(name)[at].as_py() for name in PLACE)
        raise RecordDeserializationError(topic, partition, offset, VALUE, reason, WAY_OUT)
