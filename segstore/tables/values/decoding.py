"""The protocol `Decoder`, of objects that decode values to columns, and functions that find the values that
a decoder can't decode ("bad" values).

Nothing is on disk. Threads: any number of threads may use a decoder at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from segstore.arrays import np
from segstore.errors import SegstoreError

VALUE = "value"
"""The name of the topic's column of values, and of the only decoded column if values are not objects."""

Columns = list[pa.Array]
Make = Callable[[pa.Array], Columns]


class BadValues(Exception):
    """Some values of an array can't be decoded. `reasons` maps the index of each of them to the reason."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"{len(self.reasons)} bad values")


class Decoder(Protocol):
    """Decodes values to columns. `schema` has the columns. If `is_object`, values are objects, and their
    fields are the columns; else there is one column, `value`.
    """

    schema: pa.Schema
    is_object: bool

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Decode the values in a binary array, and return the columns `names`. For a null value the columns
        are null. Raises BadValues; or another exception if the decoder does not know which values are bad.
        """


def reason_of(error: BaseException) -> str:
    """Return the class and text of an exception that one value has caused, without pyarrow's " in row 0"."""
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(" in row 0")


def without(values: pa.Array, rows: Sequence[int]) -> pa.Array:
    """Return a copy of an array with nulls at the indexes `rows`."""
    kept = np.ones(len(values), bool)
    kept[list(rows)] = False
    return pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))


def decoded(make: Make, values: pa.Array) -> tuple[Columns, dict[int, str]]:
    """Decode values by the function `make`. Return (columns, in which bad values are null; a dict from the
    index of each bad value to the reason).
    """
    bad: dict[int, str] = {}
    while True:
        columns, found = _tried(make, values)
        if columns is not None:
            return columns, bad
        bad |= found
        values = without(values, list(found))


def up_to_bad(make: Make, values: pa.Array) -> tuple[Columns, tuple[int, str] | None]:
    """Decode values by the function `make`, up to the first bad value. Return (columns of the values before
    it; its index and the reason, as a tuple). The second member is None if there is no bad value.
    """
    first = None
    while True:
        columns, found = _tried(make, values, first_only=True)
        if columns is not None:
            return columns, first
        first = min(found.items())
        values = values.slice(0, first[0])


def _tried(make: Make, values: pa.Array, first_only: bool = False) -> tuple[Columns | None, dict[int, str]]:
    try:
        return make(values), {}
    except BadValues as error:
        return None, error.reasons
    except (MemoryError, SegstoreError):
        raise
    except Exception as error:
        found = _searched(make, values, error, first_only)
        # If nothing was found, each half can be decoded by itself, so no value is the cause of the error.
        if not found:
            raise
        return None, found


def _searched(make: Make, values: pa.Array, error: Exception, first_only: bool) -> dict[int, str]:
    """Find the bad values of an array that `make` can't decode, by decoding its halves. Return a dict from
    their indexes to the reasons. If `first_only`, a second half is decoded only if the first half has no bad
    value.
    """
    if values.null_count == len(values):  # There is no value that could be the cause of `error`.
        return {}
    if len(values) == 1:
        return {0: reason_of(error)}
    found: dict[int, str] = {}
    half = len(values) // 2
    for at, part in ((0, values.slice(0, half)), (half, values.slice(half))):
        _, bad = _tried(make, part, first_only)
        found |= {at + i: reason for i, reason in bad.items()}
        if found and first_only:
            break
    return found
