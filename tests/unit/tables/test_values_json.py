"""JSON values as columns: each value is one row of its own, whatever bytes it has."""

from __future__ import annotations

import json
import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from typed_tables import decoded_names, read, rows, spoilt, table, written

import segstore
from segstore.errors import InvalidArgumentError, InvalidTypeError, RecordDeserializationError
from segstore.tables.table import table_of
from segstore.tables.values import serializer

I64, TEXT = pa.int64(), pa.string()
AB = pa.schema([("a", I64), ("b", TEXT)])
NESTED = pa.schema([("a", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.list_(TEXT))])))])
UTC = timezone.utc

READ: dict[str, tuple[pa.Schema, bytes | None, dict[str, Any]]] = {
    "an object": (AB, b'{"a":1,"b":"x"}', {"a": 1, "b": "x"}),
    "no fields": (AB, b"{}", {"a": None, "b": None}),
    "another order": (AB, b'{"b":"x","a":1}', {"a": 1, "b": "x"}),
    "a field more": (AB, b'{"a":1,"z":{"q":[1,{}]}}', {"a": 1, "b": None}),
    "nulls": (AB, b'{"a":null,"b":null}', {"a": None, "b": None}),
    "a null value": (AB, None, {"a": None, "b": None}),
    "JSON's null": (AB, b" null\n", {"a": None, "b": None}),
    "blanks around": (AB, b' \t\r\n{"a":1}\n ', {"a": 1, "b": None}),
    "lines within": (AB, b'{\n"a":\r\n1\n}', {"a": 1, "b": None}),
    "an escaped line's end": (AB, b'{"b":"x\\ny"}', {"a": None, "b": "x\ny"}),
    "an escaped NUL": (AB, b'{"b":"\\u0000"}', {"a": None, "b": "\0"}),
    "what looks like two objects": (AB, b'{"b":"}\\n{"}', {"a": None, "b": "}\n{"}),
    "other scripts": (AB, '{"b":"é漢😀"}'.encode(), {"a": None, "b": "é漢😀"}),
    "a surrogate pair": (AB, b'{"b":"\\ud83d\\ude00"}', {"a": None, "b": "😀"}),
    "the largest int64": (AB, b'{"a":9223372036854775807}', {"a": 2**63 - 1, "b": None}),
    "the smallest int64": (AB, b'{"a":-9223372036854775808}', {"a": -(2**63), "b": None}),
    "above a double's whole numbers": (AB, b'{"a":9007199254740993}', {"a": 2**53 + 1, "b": None}),
    "Confluent's prefix": (AB, b'\0\0\0\0\7{"a":1}', {"a": 1, "b": None}),
    "nested": (
        NESTED,
        b'{"a":[{"x":1,"y":["p",null]},null,{}]}',
        {"a": [{"x": 1.0, "y": ["p", None]}, None, {"x": None, "y": None}]},
    ),
    "a time": (
        pa.schema([("a", pa.timestamp("ms", "UTC"))]),
        b'{"a":"2020-01-01T02:00:00.5+02:00"}',
        {"a": datetime(2020, 1, 1, 0, 0, 0, 500_000, UTC)},
    ),
    "a date": (pa.schema([("a", pa.date32())]), b'{"a":"2020-02-29"}', {"a": date(2020, 2, 29)}),
    "a nested date": (
        pa.schema([("a", pa.list_(pa.struct([("d", pa.date32())])))]),
        b'{"a":[{"d":"2020-02-29"}]}',
        {"a": [{"d": date(2020, 2, 29)}]},
    ),
    "a decimal": (pa.schema([("a", pa.decimal128(6, 2))]), b'{"a":1.25}', {"a": Decimal("1.25")}),
    "a dictionary": (pa.schema([("a", pa.dictionary(pa.int32(), TEXT))]), b'{"a":"x"}', {"a": "x"}),
}


@pytest.mark.parametrize("name", READ)
def test_a_value_is_read(store: segstore.Store, name: str) -> None:
    schema, value, row = READ[name]
    assert rows(table(store, [b"{}", value, b"{}"], schema))[1] == row


BAD: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "no bytes"),
    "blanks alone": (b" \n", "no bytes"),
    "a byte 0": (b"\0", "JSONDecodeError"),
    "a prefix alone": (b"\0\0\0\0\7", "no bytes"),
    "no UTF-8": (b'{"b":"\xff"}', "UnicodeDecodeError"),
    "no UTF-8 in a field that is no column": (b'{"z":"\xff"}', "UnicodeDecodeError"),
    "a surrogate alone": (b'{"b":"\\ud800"}', "surrogate"),
    "a byte order mark": (b'\xef\xbb\xbf{"a":1}', "BOM"),
    "a number": (b"5", "no object"),
    "a list": (b'[{"a":1}]', "no object"),
    "two objects": (b'{"a":1}{"a":2}', "2 JSON values"),
    "two objects in lines": (b'{"a":1}\n{"a":2}', "2 JSON values"),
    "half an object": (b'{"a":', "JSONDecodeError"),
    "the other half": (b'1}', "JSONDecodeError"),
    "an object that is not closed": (b'{"a":{}', "JSON parse error"),
    "a line's end in a string": (b'{"b":"x\ny"}', "JSON parse error"),
    "something behind it": (b'{"a":1} x', "JSONDecodeError"),
    "a comma too many": (b'{"a":1,}', "JSON parse error"),
    "one field twice": (b'{"a":1,"a":2}', "twice"),
    "above int64": (b'{"a":9223372036854775808}', "int64"),
    "above a double": (b'{"b":"x","a":1e999}', "too big"),
    "a fraction": (b'{"a":1.5}', "int64"),
    "another type": (b'{"a":"1"}', "string"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named_and_shifts_no_row(store: segstore.Store, name: str) -> None:
    value, reason = BAD[name]
    good = [b'{"a":%d}' % i for i in range(7)]
    made = table(store, [*good[:3], value, *good[3:]], AB, on_bad="column")
    found = read(made, ["offset", "a", "b", "value_error"]).to_pylist()
    assert [row["a"] for row in found] == [0, 1, 2, None, 3, 4, 5, 6]
    assert [row["offset"] for row in found if row["value_error"]] == [3]
    assert reason in found[3]["value_error"]
    with pytest.raises(RecordDeserializationError, match=f"t-0, offset 3: .*{reason}"):
        read(table_of(store, "t", AB))


def test_halves_that_are_an_object_together_are_bad(store: segstore.Store) -> None:
    """An empty line more and one less: there are as many rows as values all the same."""
    values = [b'{"a":1}{"a":2}', b"", b'{"a":', b"3}", b'{"a":4}', b'{"a":5},"x":{"a":6}']
    found = rows(table(store, values, AB, on_bad="column"))
    assert [row["a"] for row in found] == [None, None, None, None, 4, None]
    assert [row["value_error"] is None for row in found] == [False, False, False, False, True, False]


PLAIN: dict[str, tuple[pa.DataType, list[bytes | None], list[Any], list[int]]] = {
    "numbers": (
        pa.float64(),
        [b"1", b" 2.5\n", None, b"null", b"-1e3", b'"x"'],
        [1, 2.5, None, None, -1000, None],
        [5],
    ),
    "strings": (TEXT, [b'"a"', b'"}\\n{"', b'""', b"1"], ["a", "}\n{", "", None], [3]),
    "injected": (
        I64,
        [b"1", b'2}{"value":3', b'4,"x":5', b"6}\n", b"", b"7"],
        [1, None, None, None, None, 7],
        [1, 2, 3, 4],
    ),
    "booleans": (pa.bool_(), [b"true", b"false", b"tru"], [True, False, None], [2]),
    "lists": (
        pa.list_(I64),
        [b"[]", b"[1,null]", b'[1],"x":[2]', b"[[1]]"],
        [[], [1, None], None, None],
        [2, 3],
    ),
    "lists of objects": (
        pa.list_(pa.struct([("y", I64)])),
        [b'[{"y":1}]', b'[{"y":1}],"x":2', b"[null]", b'[{"y":'],
        [[{"y": 1}], None, [None], None],
        [1, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_values_that_are_no_objects_are_the_column_value(store: segstore.Store, name: str) -> None:
    kind, values, expected, bad = PLAIN[name]
    made = table(store, values, "json", on_bad="column")
    assert made.schema.field("value").type == kind
    found = rows(made)
    assert [row["value"] for row in found] == expected
    assert [i for i, row in enumerate(found) if row["value_error"]] == bad


INFERRED: dict[str, tuple[list[bytes | None], list[tuple[str, pa.DataType]]]] = {
    "whole numbers": ([b'{"a":1}', b'{"a":-5}'], [("a", I64)]),
    "numbers with fractions": ([b'{"a":1}', b'{"a":2.5}'], [("a", pa.float64())]),
    "numbers above int64": ([b'{"a":1}', b'{"a":18446744073709551616}'], [("a", pa.float64())]),
    "times stay strings": ([b'{"a":"2020-01-01T00:00:00Z"}'], [("a", TEXT)]),
    "booleans": ([b'{"a":true}'], [("a", pa.bool_())]),
    "fields of later values": ([b'{"a":1}', b'{"b":"x"}'], [("a", I64), ("b", TEXT)]),
    "null alone": ([b'{"a":null}'], [("a", pa.null())]),
    "null, then a type": ([b'{"a":null}', b'{"a":1}'], [("a", I64)]),
    "nested": (
        [b'{"a":{"x":[]}}', b'{"a":{"x":[1,2.5],"y":{"z":null}}}'],
        [("a", pa.struct([("x", pa.list_(pa.float64())), ("y", pa.struct([("z", pa.null())]))]))],
    ),
    "the first type counts": ([b'{"a":1}', b'{"a":"x","b":1}', b'{"c":1}'], [("a", I64), ("c", I64)]),
    "bad values count for nothing": ([None, b"", b"\xff", b"null", b'{"a"', b'{"a":1}'], [("a", I64)]),
    "objects, then a number": ([b'{"a":1}', b"5"], [("a", I64)]),
    "a number, then objects": ([b"5", b'{"a":1}'], [("value", I64)]),
    "too deep": ([b'{"a":1}', b'{"b":' + b"[" * 90_000 + b"]" * 90_000 + b"}"], [("a", I64)]),
    "Confluent's prefix": ([b'\0\0\0\0\1{"a":1}'], [("a", I64)]),
}


@pytest.mark.parametrize("name", INFERRED)
def test_a_schema_is_inferred(store: segstore.Store, name: str) -> None:
    values, fields = INFERRED[name]
    made = table(store, values, "json", on_bad="null")
    assert decoded_names(made) == [field for field, _ in fields]
    assert [made.schema.field(field).type for field, _ in fields] == [kind for _, kind in fields]
    assert len(rows(made)) == len(values)


def test_an_inferred_schema_stays(store: segstore.Store) -> None:
    made = table(store, [b'{"a":1}'], "json", on_bad="column")
    written(store, [b'{"a":"x"}', b'{"a":2,"b":1}'])
    found = rows(made)
    assert [row["a"] for row in found] == [1, None, 2]
    assert [row["value_error"] is None for row in found] == [True, False, True]


def test_only_the_first_values_are_inferred_from(store: segstore.Store) -> None:
    values = [b'{"a":1}'] * 999 + [b'{"a":1,"b":1}', b'{"c":1}']
    assert decoded_names(table(store, values, "json")) == ["a", "b"]


@pytest.mark.parametrize("values", [[], [None], [b"", b"{", b"null"]], ids=["empty", "nulls", "bad"])
def test_nothing_to_infer_from_is_refused(store: segstore.Store, values: list[bytes | None]) -> None:
    with pytest.raises(InvalidArgumentError, match="value_schema"):
        table(store, values, "json")


def test_a_field_that_must_not_be_null(store: segstore.Store) -> None:
    schema = pa.schema([pa.field("a", I64, nullable=False)])
    made = table(store, [b'{"a":1}', None, b"{}", b'{"a":null}'], schema, on_bad="column")
    absent = "a is absent, and must not be null"
    assert [row["value_error"] for row in rows(made)] == [None, None, absent, absent]


@pytest.mark.parametrize("kind", [pa.map_(TEXT, I64), pa.float16(), pa.duration("ms")], ids=str)
def test_a_type_that_is_not_read_is_refused(store: segstore.Store, kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="value_schema has m"):
        table(store, [], pa.schema([("m", pa.list_(kind))]))


def test_a_schema_is_given_either_way(store: segstore.Store) -> None:
    made = table(store, [b'{"a":1}'], "json", value_schema=AB)
    assert made.schema == table_of(store, "t", AB).schema
    with pytest.raises(InvalidTypeError, match=r"pyarrow\.Schema"):
        table_of(store, "t", "json", value_schema={"a": "int"})


@pytest.mark.parametrize("policy", ["error", "null", "column"])
def test_bad_values_in_drawn_positions(store: segstore.Store, rng: random.Random, policy: str) -> None:
    bad = [value for value, _ in BAD.values()]
    values, at = spoilt(rng, lambda i: b'{"a":%d,"b":"x"}' % i, lambda: rng.choice(bad), rng.choice([3, 500]))
    made = table(store, values, AB, on_bad=policy)
    if policy == "error":
        with pytest.raises(RecordDeserializationError) as raised:
            rows(made)
        error = raised.value
        assert (error.topic, error.partition, error.offset) == ("t", 0, at[0])
        return
    found = rows(made)
    none = [i for i, value in enumerate(values) if value is None]
    assert [i for i, row in enumerate(found) if row["a"] != i] == sorted({*at, *none})
    assert all(found[i]["a"] is None and found[i]["b"] is None for i in at)
    if policy == "column":
        assert [i for i, row in enumerate(found) if row["value_error"] is not None] == at


TYPES = {
    I64: lambda rng: rng.randrange(-(2**63), 2**63),
    pa.float64(): lambda rng: rng.choice([0.0, -1.5, 1e300, rng.random()]),
    TEXT: lambda rng: "".join(rng.choices('a"\\\n\0é漢😀{}[],: ', k=rng.randrange(9))),
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.date32(): lambda rng: date.fromordinal(rng.randrange(1, 3_000_000)),
    pa.timestamp("us", "UTC"): lambda rng: datetime.fromtimestamp(rng.randrange(4 * 10**9), UTC),
    pa.decimal128(12, 3): lambda rng: Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-3),
    pa.binary(): lambda rng: rng.choice([b"", b"abc"]),
}


def _drawn_type(rng: random.Random, depth: int = 0) -> pa.DataType:
    nests = rng.random() < 0.3 and depth < 3
    if nests and rng.random() < 0.5:
        return pa.list_(_drawn_type(rng, depth + 1))
    if nests:
        return pa.struct([(f"f{i}", _drawn_type(rng, depth + 1)) for i in range(rng.randrange(1, 4))])
    return rng.choice(list(TYPES))


def _drawn(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.15:
        return None
    if pa.types.is_list(kind):
        return [_drawn(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {field.name: _drawn(rng, field.type) for field in kind}
    return TYPES[kind](rng)


@pytest.mark.parametrize("turn", range(5))
def test_drawn_rows_come_back(store: segstore.Store, rng: random.Random, turn: int) -> None:
    schema = pa.schema([(f"c{i}", _drawn_type(rng)) for i in range(rng.randrange(1, 6))])
    expected = [
        {field.name: _drawn(rng, field.type) for field in schema} for _ in range(rng.choice([1, 300]))
    ]
    store.create_topic("t")
    store.partition("t").append_batch(serializer("json").column(pa.Table.from_pylist(expected, schema)))
    made = table_of(store, "t", schema)
    assert read(made, schema.names).schema == schema
    assert rows(made) == expected
    one = rng.choice(schema.names)
    assert read(made, [one]).to_pylist() == [{one: row[one]} for row in expected]


@pytest.mark.parametrize("turn", range(5))
def test_a_value_s_row_does_not_depend_on_its_neighbours(
    store: segstore.Store, rng: random.Random, turn: int
) -> None:
    """Bytes are put into JSON, so that objects are cut, joined and doubled."""
    pieces = [b"{", b"}", b"\n", b",", b'"', b"[", b"]", b"null", b"\0", b"\xff", b"}{", b'},"x":{']
    values = []
    for i in range(60):
        text = json.dumps({"a": i, "b": "}\n{", "z": [None, {}]}).encode()
        at = rng.randrange(len(text) + 1)
        values.append(text[:at] + rng.choice([b"", *pieces]) + text[at + rng.choice([0, 0, 1]) :])
    together = rows(table(store, values, AB, on_bad="column"))
    for i, value in enumerate(values):
        written(store, [value], f"t{i}")
        assert rows(table_of(store, f"t{i}", AB, on_bad="column")) == [together[i]], value
        if together[i]["value_error"] is None:
            said = json.loads(value)
            assert (said or {}).get("a") == together[i]["a"]
