"""`FunctionDecoder`: decodes values to columns by a function of the application, which gets an Arrow array.

Nothing is on disk. Threads: several threads of a scan may call the function at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError

from .decoding import VALUE, Columns


class FunctionDecoder:
    """A decoder that calls `function`. The function gets a pyarrow.BinaryArray without nulls, and returns a
    pyarrow.Array or ChunkedArray of the same length. If this is an array of structs, the structs' fields are
    the columns; if it has another type, it is the column `value`.

    The function is first called with an empty array, to find out the type. Then it is called for each batch,
    with the batch's values that are not null. If it raises an exception, it is called again with parts of the
    batch, until the bad values are found.
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
        """Decode the values, and return the columns `names`. Raises InvalidTypeError, and the exceptions of
        the function.
        """
        there = values.drop_null()
        made = _array(self._function(there))
        if len(made) != len(there):
            raise InvalidTypeError(f"values={self._function!r} gave {len(made)} rows for {len(there)}")
        if made.type != self._type:
            made = made.cast(self._type)
        if len(there) < len(values):
            made = made.take(_places(values))
        parts = dict(zip(self.schema.names, made.flatten(), strict=True)) if self.is_object else {VALUE: made}
        return [parts[name] for name in names]


def _places(values: pa.Array) -> pa.Array:
    """Return an array that has, for each value, its index in the array without nulls; null if it is null."""
    valid = np.asarray(values.is_valid())
    return pa.array(np.cumsum(valid) - 1, mask=~valid)


def _array(made: Any) -> pa.Array:
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        raise InvalidTypeError(f"values gave {type(made).__name__}: must be a pyarrow.Array or ChunkedArray")
    return made
