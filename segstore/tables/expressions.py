"""Splits Arrow's `Expression`s into elements, such as calls, columns and literals. Nothing is on disk.

pyarrow has no method that returns the parts of an expression. But it can pickle an expression: it makes a
record batch, whose columns are the literals and options, and whose metadata lists the elements in order.
pyarrow 18 to 26 make the same record batch.

Functions without state: safe from any thread. This module imports pyarrow, so it is
imported only when a table is made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Element(NamedTuple):
    """An element of an expression. An element of kind "call" begins a call of the function `name`; elements
    of its arguments follow, and an element of kind "end" ends it. "field_ref" is the column `name`.
    "nested_field_ref" begins the path of a nested field; `name` is the number of "field_ref" elements that
    follow. "literal", and "options" of a call, have a `value`.
    """

    kind: str
    name: str
    value: Any = None


def elements(expression: pc.Expression) -> list[Element] | None:
    """Return the elements of an expression; None if Arrow can't serialize the expression."""
    try:
        (serialized,) = expression.__reduce__()[1]
        batch = pa.ipc.open_file(serialized).get_batch(0)
    except pa.ArrowException:
        return None
    with_value = ("literal", "options")
    return [
        Element(kind, name, batch.column(int(name))[0] if kind in with_value else None)
        for kind, name in _metadata(batch.schema)
    ]


def names_of(expressions: Iterable[pc.Expression]) -> set[str] | None:
    """Return the names of the columns in these expressions; None if Arrow can't serialize one of them."""
    found: set[str] = set()
    for each in expressions:
        parts = elements(each)
        if parts is None:
            return None
        at = 0
        while at < len(parts):
            kind, name, _ = parts[at]
            # The next element is the column; the other elements of the path are fields within this column.
            if kind == "nested_field_ref":
                found.add(parts[at + 1].name)
                at += int(name)
            elif kind == "field_ref":
                found.add(name)
            at += 1
    return found


class _ArrowSchema(ctypes.Structure):
    """The struct ArrowSchema of Arrow's C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all pairs of a schema's metadata. (`Schema.metadata` has only one pair for each key.)"""
    exported = _ArrowSchema()
    place = ctypes.addressof(exported)
    schema._export_to_c(place)
    try:
        return _pairs(exported.metadata)
    finally:
        pa.Schema._import_from_c(place)  # This frees `exported`.


def _pairs(address: int | None) -> list[tuple[str, str]]:
    """Return the (key, value) pairs of metadata at an address, in the format of Arrow's C data interface."""
    if address is None:
        return []

    def number() -> int:
        nonlocal address
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        length = number()
        found = ctypes.string_at(address, length)
        address += length
        return found.decode()

    return [(text(), text()) for _ in range(number())]
