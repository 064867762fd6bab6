"""`FunctionDecoder`: values as columns, decoded by the application's function on an Arrow column.

Nothing is on disk. Threads: those of the scan call the function, several at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segstore.errors import InvalidArgumentError, InvalidTypeError

from .decoding import VALUE, Columns


class FunctionDecoder:
    """`function` takes a pyarrow.BinaryArray, with null for a null value, and returns a pyarrow.Array or
    ChunkedArray of the same length: of structs, whose fields are the columns, or of another type, the column
    `value`. It is called with an empty array to learn the type, and then with batches of any length. If it
    raises, it is called with parts of the batch until the values are known that it raises for.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        try:
            made = _array(function(pa.array([], pa.binary())))
        except InvalidTypeError:
            raise
        except Exception as error:
            raise InvalidArgumentError(f"values={function!r} fails for an empty column: {error}") from error
        self._type = made.type
        self.is_object = pa.types.is_struct(self._type)
        self.schema = pa.schema(list(self._type) if self.is_object else [(VALUE, self._type)])

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Return columns. Raises InvalidTypeError, and what the function raises."""
        made = _array(self._function(values))
        if len(made) != len(values):
            raise InvalidTypeError(f"values={self._function!r} gave {len(made)} rows for {len(values)}")
        if made.type != self._type:
            made = made.cast(self._type)
        parts = dict(zip(self.schema.names, made.flatten(), strict=True)) if self.is_object else {VALUE: made}
        return [_masked(parts[name], values) for name in names]


def _array(made: Any) -> pa.Array:
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        raise InvalidTypeError(f"values gave {type(made).__name__}: must be a pyarrow.Array or ChunkedArray")
    return made


def _masked(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column with nulls in the rows of null values."""
    if not values.null_count:
        return column
    return pc.if_else(values.is_valid(), column, pa.scalar(None, column.type))
