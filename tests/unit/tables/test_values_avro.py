"""Avro values as columns: Arrow's types of Avro's, Confluent's prefix, and schemas by id."""

from __future__ import annotations

import json
import random
import struct
from datetime import date, datetime, time, timezone
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from typed_tables import read, rows, spoilt, table, written

import segstore
from segstore.errors import InvalidArgumentError, RecordDeserializationError, SerializationError
from segstore.tables.table import table_of
from segstore.tables.values import serializer

UTC = timezone.utc
UUID_1 = "12345678-1234-5678-1234-567812345678"
E = {"type": "enum", "name": "n.E", "symbols": ["A", "B"]}
F = {"type": "fixed", "name": "F", "size": 2}
R = {"type": "record", "name": "n.R", "fields": [{"name": "x", "type": ["null", "float"]}]}


def record(*types: Any, name: str = "Top") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": each} for i, each in enumerate(types)],
    }


def logical(base: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def by_fastavro(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


TS_1 = datetime(2020, 1, 2, 3, 4, 5, 678_000, UTC)
READ: dict[str, tuple[Any, pa.DataType, Any, Any]] = {
    "null": ("null", pa.null(), None, None),
    "boolean": ("boolean", pa.bool_(), True, True),
    "int": ("int", pa.int32(), -(2**31), -(2**31)),
    "long": ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
    "float": ("float", pa.float32(), 1.5, 1.5),
    "double": ("double", pa.float64(), 1e300, 1e300),
    "bytes": ("bytes", pa.binary(), b"\0\xff", b"\0\xff"),
    "string": ("string", pa.string(), "é漢😀\0", "é漢😀\0"),
    "enum": (E, pa.string(), "B", "B"),
    "fixed": (F, pa.binary(2), b"ab", b"ab"),
    "array": ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [1, 2], [1, 2]),
    "an empty array": ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [], []),
    "map": ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), {"k": 1}, [("k", 1)]),
    "a map of records": (
        {"type": "map", "values": R},
        pa.map_(pa.string(), pa.struct([("x", pa.float32())])),
        {"k": {"x": 1.5}},
        [("k", {"x": 1.5})],
    ),
    "an array of maps": (
        {"type": "array", "items": {"type": "map", "values": "string"}},
        pa.list_(pa.map_(pa.string(), pa.string())),
        [{"k": "v"}, {}],
        [[("k", "v")], []],
    ),
    "record": (R, pa.struct([("x", pa.float32())]), {"x": None}, {"x": None}),
    "null or long, null": (["null", "long"], pa.int64(), None, None),
    "null or long, 5": (["null", "long"], pa.int64(), 5, 5),
    "null last": (["string", "null"], pa.string(), "x", "x"),
    "null or record": (["null", R], pa.struct([("x", pa.float32())]), {"x": 1.5}, {"x": 1.5}),
    "null or enum": (["null", E], pa.string(), "A", "A"),
    "null or map": (["null", {"type": "map", "values": "int"}], pa.map_(pa.string(), pa.int32()), None, None),
    "int or long": (["int", "long"], pa.int64(), 2**40, 2**40),
    "float or double": (["null", "float", "double"], pa.float64(), 0.5, 0.5),
    "a union of three": (
        ["null", "string", "long", R],
        pa.struct([("string", pa.string()), ("long", pa.int64()), ("R", pa.struct([("x", pa.float32())]))]),
        {"x": 1.5},
        {"string": None, "long": None, "R": {"x": 1.5}},
    ),
    "a union of three, long": (
        ["null", "string", "long", R],
        pa.struct([("string", pa.string()), ("long", pa.int64()), ("R", pa.struct([("x", pa.float32())]))]),
        7,
        {"string": None, "long": 7, "R": None},
    ),
    "a union of two records": (
        [record("int", name="A"), record("int", name="B")],
        pa.struct([("A", pa.struct([("f0", pa.int32())])), ("B", pa.struct([("f0", pa.int32())]))]),
        ("B", {"f0": 3}),
        {"A": None, "B": {"f0": 3}},
    ),
    "date": (logical("int", "date"), pa.date32(), date(2020, 2, 29), date(2020, 2, 29)),
    "time-millis": (logical("int", "time-millis"), pa.time32("ms"), time(1, 2, 3, 4000), time(1, 2, 3, 4000)),
    "time-micros": (logical("long", "time-micros"), pa.time64("us"), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    "timestamp-millis": (logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC"), TS_1, TS_1),
    "timestamp-micros": (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), TS_1, TS_1),
    "before 1970": (
        logical("long", "timestamp-micros"),
        pa.timestamp("us", "UTC"),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ),
    "local-timestamp-millis": (
        logical("long", "local-timestamp-millis"),
        pa.timestamp("ms"),
        TS_1.replace(tzinfo=None),
        TS_1.replace(tzinfo=None),
    ),
    "a nullable time": (["null", logical("long", "timestamp-millis")], pa.timestamp("ms", "UTC"), TS_1, TS_1),
    "decimal": (
        logical("bytes", "decimal", precision=10, scale=2),
        pa.decimal128(10, 2),
        Decimal("-1.25"),
        Decimal("-1.25"),
    ),
    "decimal in fixed": (
        logical("fixed", "decimal", name="D", size=20, precision=40, scale=1),
        pa.decimal256(40, 1),
        Decimal(10**38) / 10,
        Decimal(10**38) / 10,
    ),
    "uuid": (logical("string", "uuid"), pa.string(), UUID_1, UUID_1),
    "uuid in fixed": (
        logical("fixed", "uuid", name="U", size=16),
        pa.string(),
        UUID(UUID_1).bytes,
        UUID_1,
    ),
    "an unknown logical type": (logical("string", "color"), pa.string(), "red", "red"),
    "a logical type of another base": (logical("string", "date"), pa.string(), "x", "x"),
}


@pytest.mark.parametrize("name", READ)
def test_a_field_is_read(store: segstore.Store, name: str) -> None:
    schema, kind, value, expected = READ[name]
    whole = record("int", schema)
    made = table(store, [by_fastavro(whole, {"f0": 1, "f1": value})], "avro", value_schema=whole)
    assert made.schema.field("f1").type == kind
    assert rows(made) == [{"f0": 1, "f1": expected}]
    assert read(made, ["f1"]).to_pylist() == [{"f1": expected}]


@pytest.mark.parametrize("name", [name for name in READ if not name.startswith(("record", "null or record"))])
def test_a_value_that_is_no_record_is_the_column_value(store: segstore.Store, name: str) -> None:
    schema, kind, value, expected = READ[name]
    made = table(store, [by_fastavro(schema, value), None], "avro", value_schema=json.dumps(schema))
    assert made.schema.field("value").type == kind
    assert rows(made) == [{"value": expected}, {"value": None}]


def test_names_that_are_given_once(store: segstore.Store) -> None:
    schema = record(
        E, ["null", "n.E"], {"type": "array", "items": "n.E"}, R, "n.R", ["null", "n.R", "string"]
    )
    row = {"f0": "A", "f1": "B", "f2": ["A"], "f3": {"x": 1.0}, "f4": {"x": 2.0}, "f5": {"x": 3.0}}
    made = table(store, [by_fastavro(schema, row)], "avro", value_schema=schema)
    assert rows(made) == [{**row, "f5": {"R": {"x": 3.0}, "string": None}}]


def test_a_year_above_9999(store: segstore.Store) -> None:
    schema = record(logical("long", "timestamp-millis"))
    value = by_fastavro(record("long"), {"f0": 10**15})
    found = read(table(store, [value], "avro", value_schema=schema), ["f0"])
    assert found["f0"].cast(pa.int64()).to_pylist() == [10**15]


def test_a_record_within_itself_is_refused(store: segstore.Store) -> None:
    with pytest.raises(InvalidArgumentError, match="Top has itself as a part"):
        table(store, [], "avro", value_schema=record(["null", "Top"]))


REFUSED: dict[str, Any] = {
    "no schema": None,
    "no JSON": "{",
    "an unknown type": "integer",
    "an unknown name": record("n.Unknown"),
    "no type": {"name": "x"},
    "a number": 5,
    "no ids": {},
    "ids that are no ints": {"1": "string"},
    "a bad schema by id": {1: "integer"},
    "a wide decimal": record(logical("bytes", "decimal", precision=80)),
    "ids of an empty topic": lambda number: "string",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_schema_is_refused(store: segstore.Store, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="value_schema"):
        table(store, [], "avro", value_schema=REFUSED[name])


# --- Confluent's prefix -------------------------------------------------------------------------

AB = {
    "type": "record",
    "name": "AB",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
}
ABC = {**AB, "fields": [*AB["fields"], {"name": "c", "type": ["null", "long"], "default": None}]}
AC = {**AB, "fields": [AB["fields"][0], ABC["fields"][2]]}


def prefixed(number: int, schema: Any, value: Any) -> bytes:
    return struct.pack(">bi", 0, number) + by_fastavro(schema, value)


def test_values_with_a_prefix_and_without(store: segstore.Store) -> None:
    """Also those without one that begin with a byte 0."""
    values = [
        by_fastavro(AB, {"a": 1, "b": "x"}),
        prefixed(7, AB, {"a": 2, "b": "y"}),
        by_fastavro(AB, {"a": 0, "b": ""}),
        by_fastavro(AB, {"a": 0, "b": "\0\0\1abc"}),
        prefixed(1 << 30, AB, {"a": 0, "b": ""}),
    ]
    assert rows(table(store, values, "avro", value_schema=AB)) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
        {"a": 0, "b": ""},
        {"a": 0, "b": "\0\0\1abc"},
        {"a": 0, "b": ""},
    ]


TWO = record("string", "boolean", {"type": "array", "items": "string"})
BOTH = by_fastavro(TWO, {"f0": "", "f1": False, "f2": ["\0\0", ""]})
"""A whole value of TWO, and one behind a prefix."""


@pytest.mark.parametrize("number", [None, 9], ids=["plain", "prefixed"])
def test_bytes_that_are_a_value_in_both_ways_are_read_as_the_others(
    store: segstore.Store, number: int | None
) -> None:
    row = {"f0": "", "f1": False, "f2": ["\0\0", ""]}
    others = serializer("avro", TWO, schema_id=number).column([{**row, "f0": "x"}, {**row, "f1": True}])
    made = table(store, [BOTH, *others.to_pylist()], "avro", value_schema=TWO)
    assert rows(made)[0] == (row if number is None else {**row, "f2": []})


SCHEMAS = {3: AB, 5: ABC, 4: AC}
BY_ID = {
    "a mapping": SCHEMAS,
    "a callable": SCHEMAS.get,
    "a callable that raises": SCHEMAS.__getitem__,
    "JSON texts": {number: json.dumps(schema) for number, schema in SCHEMAS.items()},
}


@pytest.mark.parametrize("name", BY_ID)
def test_schemas_by_id(store: segstore.Store, name: str) -> None:
    """The one with the highest id has the columns; what an older one does not have is the default, or bad if
    there is none."""
    values = [
        prefixed(3, AB, {"a": 1, "b": "x"}),
        None,
        prefixed(5, ABC, {"a": 2, "b": "y", "c": 9}),
        prefixed(4, AC, {"a": 3, "c": 8}),
        prefixed(6, AB, {"a": 4, "b": "z"}),
        by_fastavro(AB, {"a": 5, "b": "z"}),
        b"",
    ]
    schemas = BY_ID[name]
    given = values if name in ("a mapping", "JSON texts") else [v for i, v in enumerate(values) if i != 4]
    made = table(store, given, "avro", value_schema=schemas, on_bad="column")
    found = {row["a"]: row for row in rows(made)}
    assert [(row["a"], row["b"], row["c"]) for row in found.values() if row["a"]] == [
        (1, "x", None),
        (2, "y", 9),
    ]
    said = [row["value_error"] for row in rows(made) if row["value_error"]]
    assert len(said) == len(given) - 3
    assert said[-1] == "ValueError: no schema id of Confluent's prefix before it: b''"
    if len(given) == len(values):
        assert said[1] == "ValueError: there is no schema of id 6"


def test_a_callable_that_fails_is_no_value_s_fault(store: segstore.Store) -> None:
    def asked(number: int) -> Any:
        if number == 4:
            raise ConnectionError("no registry")
        return AB

    values = [prefixed(5, AB, {"a": 1, "b": "x"}), prefixed(4, AB, {"a": 1, "b": "x"})]
    made = table(store, values, "avro", value_schema=asked, on_bad="null")
    with pytest.raises(InvalidArgumentError, match="no registry"):
        rows(made)


# --- bad values ---------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "Error"),
    "cut": (by_fastavro(AB, {"a": 1, "b": "xyz"})[:-1], "Error"),
    "a byte more": (by_fastavro(AB, {"a": 1, "b": "x"}) + b"!", "1 bytes are left"),
    "no UTF-8": (b"\2\4\xff\xff", "UnicodeDecodeError"),
    "a negative length": (b"\2\3", "Error"),
    "a length that is too large": (b"\2\xfe\xff\xff\xff\x0f", "Error"),
    "a number without an end": (b"\xff" * 30, "Error"),
    "a prefix alone": (b"\0\0\0\0\7", "left"),
    "text": (b'{"a":1}', ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named(store: segstore.Store, name: str) -> None:
    value, reason = BAD[name]
    good = [by_fastavro(AB, {"a": i, "b": "x"}) for i in range(5)]
    made = table(store, [*good[:3], value, *good[3:]], "avro", value_schema=AB, on_bad="column")
    found = rows(made)
    assert [row["a"] for row in found] == [0, 1, 2, None, 3, 4]
    assert reason in found[3]["value_error"]
    with pytest.raises(RecordDeserializationError, match="t-0, offset 3"):
        read(table_of(store, "t", "avro", value_schema=AB), ["a"])


def test_a_decimal_that_is_too_long(store: segstore.Store) -> None:
    """Each value is one, and together they are no column."""
    wide = [by_fastavro(record("bytes"), {"f0": b"\x7f" * n}) for n in (1, 2, 30, 1, 30)]
    schema = record(logical("bytes", "decimal", precision=5, scale=0))
    found = rows(table(store, wide, "avro", value_schema=schema, on_bad="column"))
    assert [row["f0"] is None for row in found] == [False, False, True, False, True]
    assert [row["value_error"] is None for row in found] == [True, True, False, True, False]


@pytest.mark.parametrize("policy", ["error", "null", "column"])
def test_bad_values_in_drawn_positions(store: segstore.Store, rng: random.Random, policy: str) -> None:
    bad = [value for value, _ in BAD.values()]
    values, at = spoilt(
        rng, lambda i: by_fastavro(AB, {"a": i, "b": "x"}), lambda: rng.choice(bad), rng.choice([3, 300])
    )
    made = table(store, values, "avro", value_schema=AB, on_bad=policy)
    if policy == "error":
        with pytest.raises(RecordDeserializationError) as raised:
            rows(made)
        assert (raised.value.partition, raised.value.offset) == (0, at[0])
        return
    found = rows(made)
    none = [i for i, value in enumerate(values) if value is None]
    assert [i for i, row in enumerate(found) if row["a"] != i] == sorted({*at, *none})
    if policy == "column":
        assert [i for i, row in enumerate(found) if row["value_error"] is not None] == at


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("number", [None, 7], ids=["plain", "prefixed"])
def test_rows_of_a_table_are_the_same_values_again(
    store: segstore.Store, name: str, number: int | None
) -> None:
    schema, _, value, _ = READ[name]
    whole = record(schema)
    made = serializer("avro", whole, schema_id=number)
    first = made({"f0": value})
    assert first == (b"" if number is None else struct.pack(">bi", 0, 7)) + by_fastavro(whole, {"f0": value})
    found = read(table(store, [first], "avro", value_schema=whole), ["f0"])
    assert made.column(found).to_pylist() == [first]


def _drawn(rng: random.Random, kind: Any) -> Any:
    drawn: dict[str, Any] = {
        "int": lambda: rng.randrange(-(2**31), 2**31),
        "long": lambda: rng.choice([0, -1, 2**63 - 1, rng.randrange(2**40)]),
        "double": lambda: rng.choice([0.0, -1.5, 1e300]),
        "string": lambda: "".join(rng.choices("a\0é漢😀", k=rng.randrange(6))),
        "bytes": lambda: rng.randbytes(rng.randrange(6)),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
    }
    if isinstance(kind, list):
        return _drawn(rng, rng.choice(kind))
    if isinstance(kind, str):
        return drawn[kind]()
    if kind["type"] == "array":
        return [_drawn(rng, kind["items"]) for _ in range(rng.randrange(4))]
    return {field["name"]: _drawn(rng, field["type"]) for field in kind["fields"]}


def _schema(rng: random.Random, depth: int = 0) -> Any:
    simple = rng.choice(["int", "long", "double", "string", "bytes", "boolean"])
    if depth < 3 and rng.random() < 0.3:
        inner = _schema(rng, depth + 1)
        return rng.choice([{"type": "array", "items": inner}, record(inner, name=f"R{rng.getrandbits(60)}")])
    return ["null", simple] if rng.random() < 0.4 else simple


@pytest.mark.parametrize("turn", range(5))
def test_drawn_rows_come_back(store: segstore.Store, rng: random.Random, turn: int) -> None:
    schema = record(*(_schema(rng) for _ in range(rng.randrange(1, 6))))
    number, n = rng.choice([(None, 1), (None, 200), (3, 200)])
    expected = [_drawn(rng, schema) for _ in range(n)]
    made = serializer("avro", schema, schema_id=number)
    values = made.column(expected)
    found = table(store, values.to_pylist(), "avro", value_schema=schema)
    assert rows(found) == expected
    assert made.column(read(found, [field["name"] for field in schema["fields"]])) == values


def test_a_producer_s_serializer(store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.Producer(store, value_serializer=serializer("avro", AB)) as producer:
        producer.send("t", {"a": 1, "b": "x"})
        producer.send("t", None)
        with pytest.raises(SerializationError, match="can't be serialized as avro"):
            producer.send("t", {"a": "no number", "b": "x"})
    assert rows(table_of(store, "t", "avro", value_schema=AB)) == [{"a": 1, "b": "x"}, {"a": None, "b": None}]


def test_a_column_that_is_not_asked_for_is_in_no_batch(store: segstore.Store) -> None:
    written(store, [by_fastavro(AB, {"a": 1, "b": "x"})])
    found = read(table_of(store, "t", "avro", value_schema=AB), ["b", "offset"])
    assert found.to_pylist() == [{"b": "x", "offset": 0}]
