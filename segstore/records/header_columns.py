"""The headers of many records as C encodes them: flat columns of their names and values; nothing is on disk.

They are immutable once made, as `Column` is: any thread may encode from them.
"""

from __future__ import annotations

from typing import Any

from segstore._native import ffi, held
from segstore.records.column import Column, null_column


class HeaderColumns:
    """The headers of `n` records, flat. `c` is the `seg_header_columns *`."""

    __slots__ = ("_owners", "c", "n")

    def __init__(self, offsets: Any, names: Column, values: Column, ends: Any = None) -> None:
        """`offsets`, int64: where the headers of each record begin, and in an element more where those of the
        last one end; with `ends` only where they begin, and there where they end.
        """
        pointer = held("int64_t[]", offsets)
        until = None if ends is None else held("int64_t[]", ends)
        self.n = len(pointer) - 1 if until is None else len(until)
        self.c = c = ffi.new("seg_header_columns *")
        c.offsets, c.n = pointer, self.n
        if until is not None:
            c.ends = until
        c.names, c.values = names.c[0], values.c[0]
        self._owners = (pointer, names, values, until)

    @property
    def is_empty(self) -> bool:
        """Return whether no record has a header."""
        return int(self.c.names.n) == 0


def no_headers(n: int) -> HeaderColumns:
    """Return the headers of `n` records without any."""
    return HeaderColumns(bytes(8 * (n + 1)), null_column(0), null_column(0))
