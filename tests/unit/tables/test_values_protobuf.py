"""Protobuf messages as columns, of classes that are built from descriptors."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import duration_pb2 as duration_pb2
from google.protobuf import struct_pb2 as struct_pb2
from google.protobuf import timestamp_pb2 as timestamp_pb2
from google.protobuf import wrappers_pb2 as wrappers_pb2
from typed_tables import read, rows, spoilt, table, written

import segstore
from segstore.errors import InvalidArgumentError, RecordDeserializationError, SerializationError
from segstore.tables.table import table_of
from segstore.tables.values import serializer

UTC = timezone.utc
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    **{name: pa.int32() for name in ("int32", "sint32", "sfixed32")},
    **{name: pa.int64() for name in ("int64", "sint64", "sfixed64")},
    **{name: pa.uint32() for name in ("uint32", "fixed32")},
    **{name: pa.uint64() for name in ("uint64", "fixed64")},
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def _add(message: Any, name: str, kind: str, repeated: bool = False, oneof: int | None = None) -> Any:
    """Add a field of a scalar type, or of a message or enum by its full name."""
    field = message.field.add(name=name, number=len(message.field) + 1)
    field.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    if kind in SCALARS:
        field.type = getattr(Field, f"TYPE_{kind.upper()}")
    else:
        field.type_name, field.type = kind, Field.TYPE_ENUM if kind.endswith("Color") else Field.TYPE_MESSAGE
    if oneof is not None:
        field.oneof_index = oneof
    return field


def _optional(message: Any, name: str, kind: str) -> None:
    field = _add(message, name, kind, oneof=len(message.oneof_decl))
    field.proto3_optional = True
    message.oneof_decl.add(name=f"_{name}")


def _map(message: Any, name: str, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    _add(entry, "key", key)
    _add(entry, "value", value)
    _add(message, name, f".t.{message.name}.{entry.name}", repeated=True)


@cache
def classes() -> dict[str, Any]:
    """Return the messages of a file, by their names."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.extend(
        f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers", "struct")
    )
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("NONE", "RED", "BLUE")):
        color.value.add(name=name, number=number)
    file.message_type.add(name="First")
    scalars = file.message_type.add(name="Scalars")
    for name in SCALARS:
        _add(scalars, f"f_{name}", name)
    inner = file.message_type.add(name="Inner")
    _add(inner, "x", "int32")
    _optional(inner, "y", "string")
    outer = file.message_type.add(name="Outer")
    outer.oneof_decl.add(name="choice")
    _add(outer, "one", "int64", oneof=0)
    _add(outer, "two", ".t.Inner", oneof=0)
    _optional(outer, "maybe", "int32")
    _add(outer, "color", ".t.Color")
    _add(outer, "colors", ".t.Color", repeated=True)
    _add(outer, "inner", ".t.Inner")
    _add(outer, "inners", ".t.Inner", repeated=True)
    _add(outer, "numbers", "sint64", repeated=True)
    _map(outer, "counts", "string", "int32")
    _map(outer, "parts", "int32", ".t.Inner")
    for name, kind in (("at", "Timestamp"), ("took", "Duration"), ("number", "Int64Value"), ("any", "Value")):
        _add(outer, name, f".google.protobuf.{kind}")
    _add(outer, "texts", ".google.protobuf.StringValue", repeated=True)
    _add(outer, "again", ".t.Outer")
    nested = outer.nested_type.add(name="Deep")
    _add(nested, "z", "bool")
    pool = descriptor_pool.Default()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"t.{name}") for name in ("First", "Scalars", "Inner", "Outer")}
    found["Deep"] = found["Outer"].nested_types_by_name["Deep"]
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def made(name: str, **fields: Any) -> bytes:
    return classes()[name](**fields).SerializeToString()


UNSET: dict[str, Any] = {
    **dict.fromkeys(("one", "two", "maybe", "inner", "at", "took", "number", "any", "again")),
    **{name: [] for name in ("colors", "inners", "numbers", "counts", "parts", "texts")},
    "color": "NONE",
}
INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
TYPES = {
    "one": pa.int64(),
    "two": INNER,
    "maybe": pa.int32(),
    "color": pa.string(),
    "colors": pa.list_(pa.string()),
    "inner": INNER,
    "inners": pa.list_(INNER),
    "numbers": pa.list_(pa.int64()),
    "counts": pa.map_(pa.string(), pa.int32()),
    "parts": pa.map_(pa.int32(), INNER),
    "at": pa.timestamp("us", "UTC"),
    "took": pa.duration("us"),
    "number": pa.int64(),
    "any": pa.string(),
    "texts": pa.list_(pa.string()),
    "again": pa.binary(),
}


def test_types(store: segstore.Store) -> None:
    found = table(store, [], "protobuf", value_schema=classes()["Outer"]).schema
    assert {name: found.field(name).type for name in TYPES} == TYPES
    scalars = table_of(store, "t", "protobuf", value_schema=classes()["Scalars"]).schema
    assert {name: scalars.field(f"f_{name}").type for name in SCALARS} == SCALARS


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "an optional zero": ({"maybe": 0}, {"maybe": 0}),
    "one of, the first": ({"one": 0}, {"one": 0}),
    "one of, the second": ({"two": {}}, {"two": {"x": 0, "y": None}}),
    "an enum": ({"color": 2, "colors": [1, 0, 77]}, {"color": "BLUE", "colors": ["RED", "NONE", "77"]}),
    "a message": ({"inner": {"x": 5, "y": ""}}, {"inner": {"x": 5, "y": ""}}),
    "an empty message": ({"inner": {}}, {"inner": {"x": 0, "y": None}}),
    "messages": (
        {"inners": [{"x": 1}, {}, {"y": "é漢😀"}]},
        {"inners": [{"x": 1, "y": None}, {"x": 0, "y": None}, {"x": 0, "y": "é漢😀"}]},
    ),
    "numbers": ({"numbers": [-(2**63), 0, 2**63 - 1]}, {"numbers": [-(2**63), 0, 2**63 - 1]}),
    "a map": ({"counts": {"k": 1}}, {"counts": [("k", 1)]}),
    "a map of messages": ({"parts": {7: {"x": 1}}}, {"parts": [(7, {"x": 1, "y": None})]}),
    "a time": (
        {"at": timestamp_pb2.Timestamp(seconds=1, nanos=5_000)},
        {"at": datetime(1970, 1, 1, 0, 0, 1, 5, UTC)},
    ),
    "the first year": (
        {"at": timestamp_pb2.Timestamp(seconds=-62135596800)},
        {"at": datetime(1, 1, 1, tzinfo=UTC)},
    ),
    "the last second": (
        {"at": timestamp_pb2.Timestamp(seconds=253402300799)},
        {"at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)},
    ),
    "just before 1970": (
        {"at": timestamp_pb2.Timestamp(seconds=-1, nanos=999_999_000)},
        {"at": datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)},
    ),
    "a duration below 0": (
        {"took": duration_pb2.Duration(seconds=-1, nanos=-500_000_000)},
        {"took": timedelta(seconds=-1.5)},
    ),
    "a wrapped zero": ({"number": wrappers_pb2.Int64Value(value=0)}, {"number": 0}),
    "wrapped texts": (
        {"texts": [wrappers_pb2.StringValue(value="x"), wrappers_pb2.StringValue()]},
        {"texts": ["x", ""]},
    ),
    "a value of JSON": ({"any": struct_pb2.Value(string_value="é")}, {"any": '"é"'}),
}


@pytest.mark.parametrize("name", READ)
def test_a_message_is_read(store: segstore.Store, name: str) -> None:
    fields, expected = READ[name]
    found = table(store, [made("Outer", **fields), None], "protobuf", value_schema=classes()["Outer"])
    assert rows(found) == [{**UNSET, **expected}, dict.fromkeys(UNSET)]
    for column, value in expected.items():
        assert read(found, [column])[column].to_pylist() == [value, None]


def test_a_message_within_itself_is_bytes(store: segstore.Store) -> None:
    value = classes()["Outer"](one=1, again={"one": 2, "again": {"one": 3}})
    found = rows(table(store, [value.SerializeToString()], "protobuf", value_schema=classes()["Outer"]))
    assert found[0]["again"] == value.again.SerializeToString()


LIMITS: dict[str, list[Any]] = {
    **{name: [-(2**31), 2**31 - 1] for name in ("int32", "sint32", "sfixed32")},
    **{name: [-(2**63), 2**63 - 1] for name in ("int64", "sint64", "sfixed64")},
    **{name: [2**32 - 1] for name in ("uint32", "fixed32")},
    **{name: [2**64 - 1] for name in ("uint64", "fixed64")},
    "float": [0.5, float("inf")],
    "double": [-1e300, float("-inf")],
    "bool": [True],
    "string": ["é漢😀\0"],
    "bytes": [b"\0\xff"],
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(store: segstore.Store, name: str) -> None:
    values = [made("Scalars", **{f"f_{name}": each}) for each in LIMITS[name]]
    found = table(store, [*values, b""], "protobuf", value_schema=classes()["Scalars"].DESCRIPTOR)
    column = read(found, [f"f_{name}"])[0].to_pylist()
    assert column == [*LIMITS[name], type(LIMITS[name][0])()]


@pytest.mark.parametrize("schema", [None, "Outer", int, {"type": "record"}], ids=repr)
def test_what_is_no_message_is_refused(store: segstore.Store, schema: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="value_schema"):
        table(store, [], "protobuf", value_schema=schema)


# --- Confluent's prefix -------------------------------------------------------------------------

PREFIXED = {
    "the first of a file": ("First", b"\0", {}),
    "the second": ("Scalars", b"\2\2", {"f_int32": 7}),
    "the fourth": ("Outer", b"\2\6", {"one": 7}),
    "the third within the fourth": ("Deep", b"\4\6\4", {"z": True}),
}


@pytest.mark.parametrize("name", PREFIXED)
def test_a_prefix_is_passed_over_and_made(store: segstore.Store, name: str) -> None:
    kind, path, fields = PREFIXED[name]
    plain = made(kind, **fields)
    value = b"\0\0\0\0\7" + path + plain
    found = rows(table(store, [plain, value], "protobuf", value_schema=classes()[kind]))
    assert found[0] == found[1]
    assert {key: found[1][key] for key in fields} == fields
    assert serializer("protobuf", classes()[kind], schema_id=7)(fields) == value


# --- bad values ---------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "cut": (made("Inner", x=1, y="xyz")[:-1], "DecodeError"),
    "no UTF-8": (b"\x12\2\xff\xff", "Error"),
    "text": (b'{"x":1}', "DecodeError"),
    "a byte 0": (b"\0", "message indexes"),
    "a prefix alone": (b"\0\0\0\0\7", "message indexes"),
    "a path without an end": (b"\0\0\0\0\7\xff\xff\xff\xff\xff\xff", "message indexes"),
    "a path that is cut": (b"\0\0\0\0\7\4\2", "message indexes"),
    "a path of a length below 0": (b"\0\0\0\0\7\1", "-1 message indexes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named(store: segstore.Store, name: str) -> None:
    value, reason = BAD[name]
    good = [made("Inner", x=i) for i in range(5)]
    inner = classes()["Inner"]
    found = rows(table(store, [*good[:3], value, *good[3:]], "protobuf", value_schema=inner, on_bad="column"))
    assert [row["x"] for row in found] == [0, 1, 2, None, 3, 4]
    assert reason in found[3]["value_error"]
    with pytest.raises(RecordDeserializationError, match="t-0, offset 3"):
        read(table_of(store, "t", "protobuf", value_schema=inner), ["x"])


@pytest.mark.parametrize("policy", ["error", "null", "column"])
def test_bad_values_in_drawn_positions(store: segstore.Store, rng: random.Random, policy: str) -> None:
    bad = [value for value, _ in BAD.values()]
    values, at = spoilt(rng, lambda i: made("Inner", x=i), lambda: rng.choice(bad), rng.choice([3, 300]))
    found = table(store, values, "protobuf", value_schema=classes()["Inner"], on_bad=policy)
    if policy == "error":
        with pytest.raises(RecordDeserializationError) as raised:
            rows(found)
        assert (raised.value.partition, raised.value.offset) == (0, at[0])
        return
    none = [i for i, value in enumerate(values) if value is None]
    assert [i for i, row in enumerate(rows(found)) if row["x"] != i] == sorted({*at, *none})
    if policy == "column":
        assert [i for i, row in enumerate(rows(found)) if row["value_error"] is not None] == at


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ)
def test_rows_of_a_table_are_the_same_values_again(store: segstore.Store, name: str) -> None:
    value = made("Outer", **READ[name][0])
    found = read(table(store, [value, None], "protobuf", value_schema=classes()["Outer"]), list(TYPES))
    assert serializer("protobuf", classes()["Outer"]).column(found.slice(0, 1)).to_pylist() == [value]


def test_a_message_is_a_row(store: segstore.Store) -> None:
    message = classes()["Outer"].FromString(made("Outer", **next(iter(READ.values()))[0]))
    assert serializer("protobuf", classes()["Outer"]).column([message]).to_pylist() == [
        message.SerializeToString(deterministic=True)
    ]
    time = timestamp_pb2.Timestamp(seconds=3, nanos=5)
    assert serializer("protobuf", timestamp_pb2.Timestamp)(time) == time.SerializeToString()


def _drawn(rng: random.Random) -> dict[str, Any]:
    def inner() -> dict[str, Any]:
        return {"x": rng.randrange(-9, 9), "y": rng.choice([None, "", "é漢"])}

    draws: dict[str, Any] = {
        "maybe": lambda: rng.choice([None, 0, -1]),
        "color": lambda: rng.choice(["NONE", "RED", "BLUE", "77"]),
        "inner": lambda: rng.choice([None, inner()]),
        "inners": lambda: [inner() for _ in range(rng.randrange(3))],
        "numbers": lambda: [rng.randrange(-(2**63), 2**63) for _ in range(rng.randrange(3))],
        "counts": lambda: [("k", rng.randrange(9))] if rng.random() < 0.5 else [],
        "parts": lambda: [(rng.randrange(9), inner())] if rng.random() < 0.5 else [],
        "at": lambda: (
            datetime(2020, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(-(10**16), 10**16))
        ),
        "took": lambda: timedelta(microseconds=rng.randrange(-(10**12), 10**12)),
        "number": lambda: rng.choice([None, 0, 2**63 - 1]),
        "any": lambda: rng.choice([None, "null", "true", '["é", 1.5]', '{"k": {"l": []}}']),
        "texts": lambda: rng.choices(["", "x"], k=rng.randrange(3)),
    }
    one = rng.choice([{}, {"one": rng.randrange(9)}, {"two": inner()}])
    return {**UNSET, **{name: draw() for name, draw in draws.items()}, **one}


@pytest.mark.parametrize("turn", range(5))
def test_drawn_rows_come_back(store: segstore.Store, rng: random.Random, turn: int) -> None:
    expected = [_drawn(rng) for _ in range(rng.choice([1, 200]))]
    writes = serializer("protobuf", classes()["Outer"], schema_id=rng.choice([None, 9]))
    values = writes.column(expected)
    found = table(store, values.to_pylist(), "protobuf", value_schema=classes()["Outer"])
    assert rows(found) == expected
    assert writes.column(read(found, list(TYPES))) == values


REFUSED = {
    "no such field": ({"w": 1}, "t.Inner has no field 'w': it has x, y"),
    "another type": ({"x": "1"}, "can't be serialized as protobuf"),
    "too large": ({"x": 2**31}, "can't be serialized as protobuf"),
    "no row": (5, "can't be serialized as protobuf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_is_no_message(name: str) -> None:
    row, said = REFUSED[name]
    with pytest.raises(SerializationError, match=said):
        serializer("protobuf", classes()["Inner"])(row)


def test_a_producer_s_serializer(store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.Producer(store, value_serializer=serializer("protobuf", classes()["Inner"])) as producer:
        producer.send("t", {"x": 3, "y": "a"})
    written(store, [None])
    found = rows(table_of(store, "t", "protobuf", value_schema=classes()["Inner"]))
    assert found == [{"x": 3, "y": "a"}, {"x": None, "y": None}]
