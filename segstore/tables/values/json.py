"""`JsonDecoder`: decodes the JSON values of a batch to columns by one call of pyarrow's JSON reader.

The reader expects one object in each line. So each value becomes a line, and checks ensure that each value is
one object. A value must begin with "{" and end with "}", so it can't continue in the next line. The reader
itself refuses a string with a line end. The number of rows must be the number of values, so no value has two
objects. If values are not objects, each value is put into an object with one field; the reader then refuses
any other field.

Nothing is on disk. Threads: any number of threads may use a decoder at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from segstore.arrays import np
from segstore.errors import InvalidArgumentError
from segstore.integers import INT32_MAX

from .confluent import SIZE
from .decoding import VALUE, BadValues, Columns, reason_of, without
from .json_types import ConflictError, checked, has_struct, is_good, merged, read_type, type_of

BLANKS = b" \t\r\n"
OPEN, CLOSE = b"{}"


class JsonDecoder:
    """A decoder for values whose fields are the columns of a schema; other fields of a value are ignored. If
    `is_object` is False, values are not objects, and the schema's only field, `value`, has their type.
    """

    def __init__(self, schema: pa.Schema, is_object: bool = True) -> None:
        self.schema, self.is_object = checked(schema), is_object
        self._deep = has_struct(schema.field(0).type) if not is_object else False

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Decode the values, and return the columns `names`. Raises BadValues, pyarrow.ArrowInvalid,
        ValueError.
        """
        fields = [self.schema.field(name) for name in names]
        if not len(values):
            return [pa.array([], field.type) for field in fields]
        texts = self._checked(unframed(values))
        try:
            return self._read(texts, fields)
        except (pa.ArrowException, ValueError):
            reasons = self._confirmed(texts, fields) if len(texts) > 1 else {}
            if reasons:
                raise BadValues(reasons) from None
            raise

    def _read(self, texts: pa.Array, fields: Sequence[pa.Field]) -> Columns:
        given = pa.schema([(field.name, read_type(field.type)) for field in fields])
        if self.is_object:
            table = _table(_lines(pc.fill_null(texts, b"{}")), given, "ignore")
        else:
            line = pc.binary_join_element_wise(b'{"value":', pc.fill_null(texts, b"null"), b"}", b"")
            table = _table(_lines(line), given, "ignore" if self._deep else "error")
        if len(table) != len(texts):
            raise ValueError(f"{len(table)} JSON values in place of {len(texts)}")
        made = [table[field.name].combine_chunks().cast(field.type) for field in fields]
        _refuse_absent(fields, made, texts)
        return made

    def _confirmed(self, texts: pa.Array, fields: Sequence[pa.Field]) -> dict[int, str]:
        """Return a dict from the indexes of bad values to the reasons. A value is bad if the reader refuses
        it when it is the only value; this is only tried for values that `is_good` rejects.
        """
        kind = pa.struct(fields) if self.is_object else fields[0].type
        reasons: dict[int, str] = {}
        for i, text in enumerate(texts.to_pylist()):
            if text is not None and not is_good(text, kind):
                try:
                    self._read(texts.slice(i, 1), fields)
                except BadValues as error:
                    reasons[i] = error.reasons[0]
                except (pa.ArrowException, ValueError) as error:
                    reasons[i] = reason_of(error)
        return reasons

    def _checked(self, values: pa.Array) -> pa.Array:
        """Return the values; if they are objects, those that are JSON's null become nulls. Raises BadValues
        if the reader might misread a value.
        """
        reasons = not_unicode(values)
        if self.is_object:
            nulls, others = _no_objects(values)
            reasons |= others
            values = without(values, nulls) if nulls else values
        else:
            reasons |= _no_json(values) if self._deep else _blank(values)
        if reasons:
            raise BadValues(reasons)
        return values


def unframed(values: pa.Array) -> pa.Array:
    """Return the values without Confluent's prefix. A value has the prefix if its first byte is 0, because
    JSON never begins with a byte 0.
    """
    if not len(values):
        return values
    at, content = _content(values)
    _, first, _, lengths = _edges(values)
    framed = (first == 0) & (lengths >= SIZE)
    if not framed.any():
        return values
    kept = np.ones(len(content), bool)
    kept[(at[:-1][framed][:, None] + np.arange(SIZE)).ravel()] = False
    offsets = np.zeros(len(at), np.int32)
    np.cumsum(lengths - SIZE * framed, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content[kept])]
    made = pa.Array.from_buffers(values.type, len(values), buffers)
    return pc.if_else(values.is_valid(), made, pa.scalar(None, values.type)) if values.null_count else made


def _content(values: pa.Array) -> tuple[Any, Any]:
    """Return (offsets of the values in the bytes, bytes) for a binary array that is not empty."""
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
    return at - at[0], np.frombuffer(b"" if data is None else data, np.uint8)[at[0] : at[-1]]


def not_unicode(values: pa.Array) -> dict[int, str]:
    """Return a dict from the indexes of values that are not UTF-8 to the reasons. pyarrow's JSON reader would
    accept invalid UTF-8.
    """
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return {i: reason for i, each in enumerate(values.to_pylist()) if (reason := _undecodable(each))}
    return {}


def _undecodable(value: bytes | None) -> str:
    try:
        (value or b"").decode()
    except UnicodeDecodeError as error:
        return reason_of(error)
    return ""


def _edges(values: pa.Array) -> tuple[Any, Any, Any, Any]:
    """Return four arrays with an item for each value: True if the value is not null; its first byte and its
    last byte, -1 if it has none; and its length.
    """
    n = len(values)
    at, content = _content(values)
    lengths = np.diff(at)
    there = np.asarray(values.is_valid())
    some = there & (lengths > 0)
    first, last = np.full(n, -1, np.int16), np.full(n, -1, np.int16)
    if some.any():
        first[some], last[some] = content[at[:-1][some]], content[at[1:][some] - 1]
    return there, first, last, lengths


def _no_objects(values: pa.Array) -> tuple[list[int], dict[int, str]]:
    """Return (indexes of the values that are JSON's null; a dict from the indexes of values that don't begin
    with "{" and end with "}" to the reasons).
    """
    there, first, last, lengths = _edges(values)
    nulls: list[int] = []
    reasons: dict[int, str] = {}
    for i in np.flatnonzero(there & ((first != OPEN) | (last != CLOSE) | (lengths < 2))).tolist():
        text = values[i].as_py().strip(BLANKS)
        if text == b"null":
            nulls.append(i)
        elif not (text.startswith(b"{") and text.endswith(b"}") and len(text) > 1):
            reasons[i] = _json_error(text) or f"JSON, but no object: {text[:40]!r}"
    return nulls, reasons


def _blank(values: pa.Array) -> dict[int, str]:
    there, first, _, _ = _edges(values)
    return dict.fromkeys(np.flatnonzero(there & (first < 0)).tolist(), "it has no bytes")


def _no_json(values: pa.Array) -> dict[int, str]:
    found = ((i, None if each is None else _json_error(each)) for i, each in enumerate(values.to_pylist()))
    return {i: reason for i, reason in found if reason}


def _json_error(text: bytes) -> str:
    """Return the reason why a text is not JSON; "" if it is JSON."""
    if not text:
        return "it has no bytes"
    try:
        json.loads(text.decode())  # `loads` gets a str, because it would guess the encoding of bytes.
    except (ValueError, RecursionError) as error:
        return reason_of(error)
    return ""


def _refuse_absent(fields: Sequence[pa.Field], made: Columns, texts: pa.Array) -> None:
    """Raise BadValues if values do not have a field that the schema does not allow to be null."""
    for field, column in zip(fields, made, strict=True):
        if not field.nullable and column.null_count > texts.null_count:
            absent = np.flatnonzero(np.asarray(column.is_null()) & np.asarray(texts.is_valid()))
            raise BadValues(dict.fromkeys(absent.tolist(), f"{field.name} is absent, and must not be null"))


def _lines(values: pa.Array) -> pa.Buffer:
    if values.nbytes + len(values) > INT32_MAX:
        values = values.cast(pa.large_binary())
    kind = pa.LargeListArray if pa.types.is_large_binary(values.type) else pa.ListArray
    return pc.binary_join(kind.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()


def _table(lines: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Read all lines as one block. If there were two blocks, a value could be cut at the border."""
    return pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=min(len(lines) + 1, INT32_MAX)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def inferred(values: pa.Array) -> JsonDecoder:
    """Return a decoder whose columns are inferred from these values.

    If the first value that is JSON and not null is an object, all values must be objects, else no value may
    be an object. A column has the common type of all values; a value that has no common type with the values
    before it is ignored. Whole numbers are int64 if they fit; other numbers are double. All JSON strings are
    strings, even dates. Raises InvalidArgumentError if no value is JSON.
    """
    kind = pa.null()
    for text in unframed(values).drop_null().to_pylist():
        try:
            found = type_of(json.loads(text.decode()))
        except (ValueError, RecursionError):  # A scan will report this value as bad.
            continue
        if not pa.types.is_null(kind) and pa.types.is_struct(kind) != pa.types.is_struct(found):
            continue
        try:
            kind = merged(kind, found)
        except ConflictError:
            continue
    if pa.types.is_null(kind):
        raise InvalidArgumentError(
            'values="json" infers the columns from the first records, and none has JSON: give value_schema'
        )
    is_object = pa.types.is_struct(kind)
    return JsonDecoder(pa.schema(list(kind) if is_object else [(VALUE, kind)]), is_object)
