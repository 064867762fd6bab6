"""`Decoder` makes columns from values; the functions here find the values that it can't decode.

Nothing is on disk. Threads: any number may use a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from segstore.arrays import np
from segstore.errors import SegstoreError

VALUE = "value"
"""The column of values that are not objects."""

Columns = list[pa.Array]
Make = Callable[[pa.Array], Columns]


class BadValues(Exception):
    """Values that can't be decoded. `reasons` maps the index of a bad value in the array to the
    reason."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"{len(self.reasons)} bad values")


class Decoder(Protocol):
    """Makes columns from values. `schema` has the columns: the fields of an object if `is_object`, else the
    one column `value`.
    """

    schema: pa.Schema
    is_object: bool

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Return the columns `names` of the values in a binary array. A null becomes nulls. Raises BadValues,
        or another exception if the decoder does not know which values are bad.
        """


def reason_of(error: BaseException) -> str:
    """Return the class and text of an exception for one value, without pyarrow's " in row 0"."""
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(" in row 0")


def without(values: pa.Array, rows: Sequence[int]) -> pa.Array:
    """Return an array with nulls in some rows."""
    kept = np.ones(len(values), bool)
    kept[list(rows)] = False
    return pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))


def decoded(make: Make, values: pa.Array) -> tuple[Columns, dict[int, str]]:
    """Return (columns of the values, with nulls for bad values; reasons of the bad values by their index)."""
    bad: dict[int, str] = {}
    while True:
        columns, found = _tried(make, values)
        if columns is not None:
            return columns, bad
        bad |= found
        values = without(values, list(found))


def up_to_bad(make: Make, values: pa.Array) -> tuple[Columns, tuple[int, str] | None]:
    """Return (columns of the values before the first bad value, index and reason of this value, or None
    without a bad value).
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
        if not found:  # each part can be decoded by itself, so no value is bad
            raise
        return None, found


def _searched(make: Make, values: pa.Array, error: Exception, first_only: bool) -> dict[int, str]:
    """Return the reasons of the bad values of an array that `make` can't decode, found by halving. If
    `first_only`, a second half is searched only if the first half has no bad value.
    """
    if values.null_count == len(values):  # no value can be the cause of `error`
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
