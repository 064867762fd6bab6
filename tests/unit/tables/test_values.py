"""Decoded columns beside a topic's own: names, policies, functions, and what is read at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typed_tables import decoded_names, read, rows, table, written

import segstore
from segstore.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    MissingPackageError,
    RecordDeserializationError,
    SerializationError,
)
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.storage.scans.topic_scan import TopicScan
from segstore.tables.source import TopicSource
from segstore.tables.table import Table, table_of
from segstore.tables.values import serializer

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
GOOD = b'{"a":1,"b":"x"}'


def test_columns_come_in_place_of_the_value(store: segstore.Store) -> None:
    made = table(store, [GOOD], AB)
    own = TOPIC_SCHEMA.names
    at = own.index("value")
    assert made.schema.names == [*own[:at], "a", "b", *own[at + 1 :]]
    assert all(made.schema.field(name).nullable for name in AB.names)


def test_without_values_all_stays(store: segstore.Store) -> None:
    made = table(store, [b"\xff", None], None)
    assert made.schema == TOPIC_SCHEMA
    assert read(made)["value"].to_pylist() == [b"\xff", None]


@pytest.mark.kind("programs")
def test_other_columns_are_those_of_the_topic(store: segstore.Store) -> None:
    store.create_topic("t", partitions=2)
    for partition in (0, 1):
        log = store.partition("t", partition)
        log.append_batch([GOOD, None], keys=[b"k", None], timestamps=[1, 2], headers=[[("h", b"v")], []])
    made, plain = table_of(store, "t", AB), table_of(store, "t")
    others = [name for name in TOPIC_SCHEMA.names if name != "value"]
    assert read(made).select(others) == read(plain).select(others)
    asked = ["b", "headers", "partition", "a", "offset"]
    assert read(made, asked) == read(made).select(asked)
    assert read(made, asked)["partition"].to_pylist() == [0, 0, 1, 1]
    assert [batch.num_rows for batch in made.batches([], Bounds(partitions=frozenset([1])))] == [2]
    (batch,) = made.batches(["a"], Bounds(frozenset([1]), first_offset=1))
    assert batch["a"].to_pylist() == [None]


NAMES: dict[str, tuple[list[str], dict[str, Any], list[str] | None]] = {
    "none of the topic's": (["a"], {}, ["a"]),
    "the value's own": (["value", "b"], {}, ["value", "b"]),
    "another case": (["Offset"], {}, ["Offset"]),
    "the reason's, without one": (["value_error"], {}, ["value_error"]),
    "the reason's": (["value_error"], {"on_bad": "column"}, None),
    "the reason's, with a prefix": (
        ["value_error"],
        {"on_bad": "column", "value_prefix": "v_"},
        ["v_value_error", "value_error"],
    ),
    "one twice": (["a", "a"], {}, None),
    "the key's with a prefix": (["key"], {"value_prefix": "v_"}, ["v_key"]),
    "one that a prefix makes the topic's": (["set"], {"value_prefix": "off"}, None),
    **{name: ([name], {}, None) for name in TOPIC_SCHEMA.names if name != "value"},
}


@pytest.mark.parametrize("name", NAMES)
def test_names(store: segstore.Store, name: str) -> None:
    fields, options, expected = NAMES[name]
    schema = pa.schema([(field, pa.int64()) for field in fields])
    if expected is None:
        with pytest.raises(InvalidArgumentError, match='value_prefix="v_"'):
            table(store, [], schema, **options)
        return
    made = table(store, [b'{"%s":5}' % fields[0].encode()], schema, **options)
    assert decoded_names(made) == expected
    assert rows(made)[0][expected[0]] == 5


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another name": ({"values": "xml"}, InvalidArgumentError, "values='xml': must be None, 'json'"),
    "another type": ({"values": 5}, InvalidTypeError, "values=5: must be None"),
    "a schema of nothing": (
        {"values": None, "value_schema": AB},
        InvalidArgumentError,
        "value_schema is for",
    ),
    "two schemas": ({"values": AB, "value_schema": AB}, InvalidArgumentError, "value_schema is for"),
    "another policy": ({"values": AB, "on_bad": "skip"}, InvalidArgumentError, "error, null, column"),
    "a policy for nothing": ({"values": None, "on_bad": "skip"}, InvalidArgumentError, "error, null, column"),
    "a prefix that is none": ({"values": AB, "value_prefix": 5}, InvalidTypeError, "value_prefix=5"),
    "an unknown topic": ({"topic": "other"}, segstore.UnknownTopicOrPartitionError, "other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(store: segstore.Store, name: str) -> None:
    given, error, said = REFUSED[name]
    written(store, [GOOD])
    with pytest.raises(error, match=said):
        table_of(store, **{"topic": "t", **given})


def test_an_unknown_column(store: segstore.Store) -> None:
    made = table(store, [GOOD], AB)
    for name in ("value", "value_error", "c"):
        with pytest.raises(InvalidArgumentError, match=f"column '{name}'"):
            list(made.batches(["a", name]))


# --- what is read -------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str] | None]:
    """The columns that scans are asked for."""
    seen: list[Sequence[str] | None] = []
    batches = TopicScan.batches

    def watched(
        scan: TopicScan, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Any = None
    ) -> Iterator[Any]:
        seen.append(columns)
        return batches(scan, columns, bounds, finish)

    monkeypatch.setattr(TopicScan, "batches", watched)
    return seen


@pytest.mark.kind("programs")
@pytest.mark.parametrize("policy", ["error", "null", "column"])
def test_values_are_read_only_for_decoded_columns(
    store: segstore.Store, asked: list[Sequence[str]], policy: str
) -> None:
    """Also if they are bad."""
    made = table(store, [b"bad"] * 3, AB, on_bad=policy)
    assert read(made, ["offset", "key"])["offset"].to_pylist() == [0, 1, 2]
    assert [batch.num_rows for batch in made.batches([])] == [3]
    assert asked == [["offset", "key"], []]
    if policy == "column":
        assert read(made, ["value_error"])["value_error"].null_count == 0
    else:
        assert list(made.batches(["a"], Bounds(last_offset=-1))) == []
    assert "value" in asked[-1]


def test_only_the_columns_asked_for_are_decoded(store: segstore.Store) -> None:
    """With "error": a value may be bad in another one. Otherwise bad values do not depend on columns."""
    written(store, [b'{"a":1,"b":5}', b'{"a":2}'])
    assert read(table_of(store, "t", AB), ["a"])["a"].to_pylist() == [1, 2]
    with pytest.raises(RecordDeserializationError, match="offset 0"):
        read(table_of(store, "t", AB), ["a", "b"])
    for policy in ("null", "column"):
        assert read(table_of(store, "t", AB, on_bad=policy), ["a"])["a"].to_pylist() == [None, 2]


def test_the_error_names_the_record(store: segstore.Store) -> None:
    store.create_topic("t", partitions=3)
    store.partition("t", 0).append_batch([GOOD] * 4)
    store.partition("t", 2).append_batch([GOOD] * 9 + [b"bad", GOOD, b"bad"])
    with pytest.raises(RecordDeserializationError) as raised:
        read(table_of(store, "t", AB))
    error = raised.value
    assert (error.topic, error.partition, error.offset, error.origin) == ("t", 2, 9, "value")
    assert str(error).startswith("t-2, offset 9: its value can't be deserialized: JSONDecodeError")
    assert 'on_bad="null"' in str(error)
    assert len(read(table_of(store, "t", AB, end=9))) == 13


def test_many_batches(store: segstore.Store) -> None:
    """Values of some megabytes, in many batches of which some are bad."""
    values = [b'{"a":%d,"b":"%s"}' % (i, b"x" * 250) for i in range(40_000)]
    bad = {7, 9_999, 25_000, 39_999}
    made = table(store, [b"{" if i in bad else value for i, value in enumerate(values)], AB, on_bad="column")
    assert len(list(made.batches(["a"]))) > 1
    found = read(made, ["a", "value_error", "offset"])
    assert found["offset"].to_pylist() == list(range(len(values)))
    assert {i for i, said in enumerate(found["value_error"].to_pylist()) if said} == bad
    assert [i for i, a in enumerate(found["a"].to_pylist()) if a != i] == sorted(bad)


def test_a_store_is_opened_for_it(store: segstore.Store) -> None:
    made = table(store, [GOOD], None)
    assert isinstance(made, Table)
    opened = Table(TopicSource(store.path, "t"), "json")
    written(store, [GOOD])
    assert rows(opened) == [{"a": 1, "b": "x"}] * 2


# --- functions ----------------------------------------------------------------------------------


def lengths(values: pa.Array) -> pa.Array:
    return pc.binary_length(values)


def parts(values: pa.Array) -> pa.Array:
    text = values.cast(pa.string())
    return pa.StructArray.from_arrays([text, pc.utf8_upper(text)], ["low", "up"])


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], list[tuple[str, pa.DataType]], list[Any]]] = {
    "a column": (lengths, [("value", pa.int32())], [(2,), (None,), (0,)]),
    "a struct": (
        parts,
        [("low", pa.string()), ("up", pa.string())],
        [("ab", "AB"), (None, None), ("", "")],
    ),
    "chunks": (
        lambda values: pa.chunked_array([lengths(values[:1]), lengths(values[1:])]),
        [("value", pa.int32())],
        [(2,), (None,), (0,)],
    ),
    "one that fails for nulls": (
        lambda values: pa.array([len(each) for each in values.to_pylist()], pa.int8()),
        [("value", pa.int8())],
        [(2,), (None,), (0,)],
    ),
    "a struct of constants": (
        lambda values: pa.array([{"low": "l"}] * len(values), pa.struct([("low", pa.string())])),
        [("low", pa.string())],
        [("l",), (None,), ("l",)],
    ),
    "another type for values than for none": (
        lambda values: lengths(values) if len(values) else pa.array([], pa.float64()),
        [("value", pa.float64())],
        [(2.0,), (None,), (0.0,)],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(store: segstore.Store, name: str) -> None:
    function, fields, expected = FUNCTIONS[name]
    made = table(store, [b"ab", None, b""], function)
    assert [(field, made.schema.field(field).type) for field in decoded_names(made)] == fields
    assert [tuple(row.values()) for row in rows(made)] == expected


def test_a_function_that_fails_for_some(store: segstore.Store) -> None:
    values = [b"a", b"\xff", None, b"b", b"\xfe", b"c"]
    found = rows(table(store, values, parts, on_bad="column"))
    assert [row["up"] for row in found] == ["A", None, None, "B", None, "C"]
    assert [i for i, row in enumerate(found) if row["value_error"]] == [1, 4]
    assert "Invalid UTF8" in found[1]["value_error"]
    with pytest.raises(RecordDeserializationError, match=r"offset 1: .*Invalid UTF8"):
        read(table_of(store, "t", parts))


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "no column": (lambda values: values.to_pylist(), InvalidTypeError, "gave list"),
    "one that needs a value": (lambda values: values[0] and values, InvalidArgumentError, "empty column"),
    "another length": (
        lambda values: values[:-1] if len(values) else values,
        InvalidTypeError,
        "gave 2 rows for 3",
    ),
}


@pytest.mark.parametrize("policy", ["error", "null"])
@pytest.mark.parametrize("name", WRONG)
def test_a_function_that_is_wrong(store: segstore.Store, name: str, policy: str) -> None:
    function, error, said = WRONG[name]
    with pytest.raises(error, match=said):
        rows(table(store, [b"a"] * 3, function, on_bad=policy))


# --- packages and serializers -------------------------------------------------------------------

NEEDED = {
    "avro": ("fastavro", "string"),
    "protobuf": ("protobuf", None),
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_package_that_is_not_installed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package, schema = NEEDED[name]
    written(store, [])
    for module in list(sys.modules):
        ours = module.startswith(f"segstore.tables.values.{name}")
        if ours or module.partition(".")[0] in (package, "google"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "fastavro" if name == "avro" else "google.protobuf", None)
    for call in (
        lambda: table_of(store, "t", name, value_schema=schema),
        lambda: serializer(name, schema),
    ):
        with pytest.raises(MissingPackageError, match=f"pip install {package}"):
            call()


@pytest.mark.parametrize("name", NEEDED)
def test_a_serializer_without_pyarrow(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in list(sys.modules):
        if module.startswith(f"segstore.tables.values.{name}"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=f"a serializer of {name.title()} needs pyarrow"):
        serializer(name, NEEDED[name][1])


SERIALIZERS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "another name": (lambda: serializer("xml"), InvalidArgumentError, "must be one of json, avro, protobuf"),
    "a schema of JSON": (lambda: serializer("json", AB), InvalidArgumentError, "without value_schema"),
    "one row as a column": (lambda: serializer("json").column({"a": 1}), InvalidTypeError, "rows is dict"),
    "text as a column": (lambda: serializer("json").column("[1]"), InvalidTypeError, "rows is str"),
    "no schema": (lambda: serializer("avro"), InvalidArgumentError, "value_schema=None"),
    "an id of 0": (lambda: serializer("json", schema_id=0), InvalidArgumentError, "schema_id=0"),
    "what is no JSON": (
        lambda: serializer("json")({"a": object()}),
        SerializationError,
        "as json: TypeError",
    ),
    "bytes that are no text": (
        lambda: serializer("json")({"a": b"\xff"}),
        SerializationError,
        "UnicodeDecode",
    ),
    "a row without a field": (
        lambda: serializer("avro", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})(
            {}
        ),
        SerializationError,
        "as avro",
    ),
}


@pytest.mark.parametrize("name", SERIALIZERS)
def test_a_serializer_refuses(name: str) -> None:
    call, error, said = SERIALIZERS[name]
    with pytest.raises(error, match=said):
        call()


def test_a_serializer_of_rows_in_each_shape(store: segstore.Store) -> None:
    expected = [{"a": 1, "b": "é"}, {"a": None, "b": None}]
    made = serializer("json", schema_id=5)
    whole = pa.Table.from_pylist(expected, AB)
    frame = pl.from_arrow(whole)
    shapes = [expected, whole, whole.to_batches()[0], whole.to_struct_array(), pa.array(expected), frame]
    assert len({tuple(made.column(each).to_pylist()) for each in shapes}) == 1
    assert made(expected[0]) == b'\0\0\0\0\5{"a":1,"b":"\xc3\xa9"}'
    assert made.column([None, None]).null_count == 2
    assert made.column(whole[:1].to_pandas()).to_pylist() == made.column(expected[:1]).to_pylist()
    store.create_topic("t")
    store.partition("t").append_batch(made.column(whole))
    with segstore.Producer(store, value_serializer=made) as producer:
        producer.send("t", expected[0])
        producer.send("t", None)
    assert rows(table_of(store, "t", AB)) == [*expected, *expected]
