"""`Decoder`: makes columns out of values; and the search for the values that it can't decode.

Nothing is on disk. Threads: a decoder may be used by any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from segstore.arrays import np
from segstore.errors import SegstoreError

VALUE = "value"
"""The column of values that are no objects."""

Columns = list[pa.Array]
Make = Callable[[pa.Array], Columns]


class BadValues(Exception):
    """Values that can't be decoded: `reasons` by their number in the array."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"{len(self.reasons)} bad values")


class Decoder(Protocol):
    """`schema` has the columns of decoded values; `is_object`: they are the fields of an object, else the one
    column `value`.
    """

    schema: pa.Schema
    is_object: bool

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Return the columns `names` of a binary array, with nulls in the rows of its nulls. Raises
        BadValues, or any other exception if it does not know which of the values are bad.
        """


def reason_of(error: BaseException) -> str:
    """Return what an exception says, after its class; pyarrow's row is that of a value alone."""
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(" in row 0")


def without(values: pa.Array, rows: Sequence[int]) -> pa.Array:
    """Return an array with nulls in some rows."""
    kept = np.ones(len(values), bool)
    kept[list(rows)] = False
    return pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))


def decoded(make: Make, values: pa.Array) -> tuple[Columns, dict[int, str]]:
    """Return the columns of values, in which bad values are null, and what is wrong with the bad ones, by
    their number.
    """
    bad: dict[int, str] = {}
    while True:
        columns, found = _tried(make, values)
        if columns is not None:
            return columns, bad
        bad |= found
        values = without(values, list(found))


def up_to_bad(make: Make, values: pa.Array) -> tuple[Columns, tuple[int, str] | None]:
    """Return the columns of the values before the first bad one, and the number and reason of that one."""
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
        if not found:  # the parts are good: whatever failed was no value
            raise
        return None, found


def _searched(make: Make, values: pa.Array, error: Exception, first_only: bool) -> dict[int, str]:
    """Return the bad ones of values that can't be decoded together, by halves; at least the first of them."""
    if values.null_count == len(values):  # no value is bad: the decoder is
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
