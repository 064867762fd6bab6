"""One record in one batch, the short way: no arrays and no columns of one element; nothing on disk.

Each call has its own arguments for C: safe from any thread, and within a call of the same thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from segstore._native import ffi, held, lib
from segstore.errors import InvalidTypeError
from segstore.records.column import FIXED, NULLS
from segstore.records.columns import Header, headers_of_one
from segstore.records.encode import c_template, compressed, fill_template
from segstore.records.encoded import PLAIN, Encoded, Template, check_plain, checked
from segstore.records.header import BATCH, HEADER_SIZE

_ROOM = HEADER_SIZE + 64
"""Bytes of a batch with one record, above those of its key, value and headers."""
_KINDS = (bytes, bytearray, memoryview)


class _Arguments:
    """Arguments of seg_encode: a call's own, for a signal's handler may come into it, and append too."""

    def __init__(self) -> None:
        self.key, self.value = ffi.new("seg_column *"), ffi.new("seg_column *")
        self.key.n = self.value.n = 1
        self.left = ffi.new("int64_t[2]")
        self.taken = self.left + 1
        self.sequenced = ffi.new("seg_template *")
        self.templates: dict[tuple[Template, int], Any] = {}

    def template(self, template: Template, codec: int) -> Any:
        if template.base_sequence >= 0:  # it will never come again
            return fill_template(self.sequenced, template, codec)
        known = self.templates.get((template, codec))
        if known is None:
            if len(self.templates) > 64:
                self.templates.clear()
            known = self.templates[template, codec] = c_template(template, codec)
        return known


_unused: list[_Arguments] = []


def single(
    value: bytes | None,
    key: bytes | None = None,
    headers: Iterable[Header] = (),
    timestamp: int = -1,
    template: Template = PLAIN,
    codec: int = 0,
    level: int | None = None,
) -> Encoded:
    """One record in one batch.

    Types are checked as in `Columns`; the size is the caller's to check (`encoded.size`), the
    timestamp (ms) too.
    """
    try:
        a = _unused.pop()
    except IndexError:
        a = _Arguments()
    views = _set(a.value, value, "value"), _set(a.key, key, "key")
    check_plain(sum(map(len, views)))  # before so much memory is taken
    size = sum(map(len, views)) + _ROOM
    try:
        some = bool(headers)
    except ValueError:  # an array, which has no truth: what is wrong with its elements is said below
        some = True
    more = headers_of_one(headers) if some else None
    if more:
        size += more.c.names.data_len + more.c.values.data_len + 20 * more.c.names.n
    buffer, batches = np.empty(size, np.uint8), np.empty(1, BATCH)
    encoded = Encoded(buffer, size, batches)
    done = lib.seg_encode(
        a.key, a.value, more.c if more else ffi.NULL, ffi.NULL, timestamp, ffi.NULL, 0, 1, size,
        a.template(template, codec), encoded.ptr, size, encoded.headers, 1, a.left, a.taken,
    )  # fmt: skip
    _unused.append(a)
    checked(done)
    check_plain(done)
    encoded.size = done
    return compressed(encoded, codec, level) if codec else encoded


def _set(column: Any, data: Any, name: str) -> Any:
    """Point a column of one element at `data`; the caller holds what is returned while C reads it."""
    if data is None:
        column.kind = NULLS
        return b""
    if not isinstance(data, _KINDS):
        hint = "; encode it first" if isinstance(data, str) else ""
        allowed = "bytes, bytearray, memoryview or None"
        raise InvalidTypeError(f"{name} is {type(data).__name__}: allowed is {allowed}{hint}")
    # A copy of what can change: what the caller handed in is lent to nobody once this call has failed.
    pointer = held("char[]", data if type(data) is bytes else bytes(data))
    column.kind, column.data = FIXED, pointer
    column.data_len = column.width = len(pointer)
    return pointer
