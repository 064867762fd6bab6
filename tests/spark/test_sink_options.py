"""Errors of a write are raised when its writer is made: they name the option or column, and what is
allowed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from stores import tree

import segstore
from pyspark_segstore import DefaultSource
from segstore.errors import ConfigError
from segstore.spark.sink import BatchWriter, StreamWriter, stream_writer, writer

PAIR = StructType().add("key", StringType()).add("value", BinaryType())
ALL = {
    "key": BinaryType(),
    "value": StringType(),
    "headers": ArrayType(PAIR),
    "partition": IntegerType(),
    "timestamp": TimestampType(),
    "topic": StringType(),
    "offset": LongType(),
    "timestampType": IntegerType(),
}


def columns(**kinds: Any) -> StructType:
    made = StructType()
    for name, kind in kinds.items():
        made = made.add(name, kind)
    return made


VALUE = columns(value=BinaryType())


@pytest.fixture
def store(store_dir: Path) -> Path:
    with segstore.open(store_dir) as made:
        made.create_topic("t", 2)
        made.create_topic("compacted", config={"cleanup.policy": "compact"})
    return store_dir


def test_what_is_allowed(store: Path) -> None:
    before = tree(store)
    made = writer({"path": f"file://{store}", "jobid": "nightly 7"}, columns(**ALL), False)
    assert isinstance(made, BatchWriter)
    assert (made.id, made.sink.path, made.sink.topic) == ("spark-job/nightly 7", str(store), None)
    assert made.sink.seal_timeout_ms == 120_000
    given = {"path": str(store), "topic": "t", "sealtimeout": "90s", "checkpointlocation": "/x"}
    found = stream_writer(given, VALUE).sink
    assert (found.seal_timeout_ms, found.checkpoint, found.fail_on_data_loss) == (90_000, "/x", True)
    assert not stream_writer({**given, "failondataloss": "false"}, VALUE).sink.fail_on_data_loss
    ids = {writer({"path": str(store), "topic": "t"}, VALUE, False).id for _ in range(3)}
    assert len(ids) == 3
    # Output mode complete; Kafka's sink takes it, too.
    assert isinstance(DefaultSource(given).streamWriter(VALUE, True), StreamWriter)
    assert tree(store).keys() == before.keys()


T = {"topic": "t"}
BAD: dict[str, tuple[dict[str, str], StructType, tuple[str, ...]]] = {
    "no such store": ({"path": "/no/such", **T}, VALUE, ("option path='/no/such'", 'mode="rw" makes it')),
    "no path": ({"path": "", **T}, VALUE, ("option path is missing",)),
    "no such topic": (
        {"topic": "u"},
        VALUE,
        ("option topic: no topic 'u'; there are: compacted, t", "create_topic"),
    ),
    "an empty topic": ({"topic": ""}, VALUE, ("option topic=''",)),
    "no topic": ({}, VALUE, ('option topic="name"', "column topic")),
    "an unknown option": (
        {**T, "topics": "t"},
        VALUE,
        ("option topics is unknown: did you mean topic?", "path, topic"),
    ),
    "a broker": (
        {**T, "kafka.bootstrap.servers": "h:1"},
        VALUE,
        ("option kafka.bootstrap.servers", "option path"),
    ),
    "a bad timeout": ({**T, "sealtimeout": "soon"}, VALUE, ("option sealTimeout='soon'", "10s")),
    "no flag": (
        {**T, "failondataloss": "no"},
        VALUE,
        ("option failOnDataLoss='no'", "one of true, false"),
    ),
    "a bad id": ({**T, "jobid": "a\nb"}, VALUE, (r"option jobId='a\nb'", "500 characters")),
    "no value": (T, columns(key=BinaryType()), ("column value is missing", "binary or string")),
    "a value's type": (T, columns(value=LongType()), ("column value is bigint: must be binary or string",)),
    "a partition's type": (
        T,
        columns(value=BinaryType(), partition=LongType()),
        ("partition is bigint: must be int",),
    ),
    "a time's type": (
        T,
        columns(value=BinaryType(), timestamp=TimestampNTZType()),
        ("timestamp_ntz: must be timestamp",),
    ),
    "headers' type": (
        T,
        columns(value=BinaryType(), headers=ArrayType(StringType())),
        ("headers is array<string>: must be array<struct<key:string,value:binary>>",),
    ),
    "another column": (
        T,
        columns(value=BinaryType(), carrier=StringType()),
        ("column 'carrier'", "headers, partition"),
    ),
    "a column twice": (T, StructType(VALUE.fields * 2), ("column value is there 2 times",)),
    "no key": ({"topic": "compacted"}, VALUE, ("column key is missing", "cleanup.policy=compact")),
}


def shown_alone(error: BaseException) -> bool:
    """Whether a traceback, which Spark prints as a whole, has no error before this one."""
    return error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, store: Path) -> None:
    options, schema, said = BAD[case]
    with pytest.raises(ConfigError) as raised:
        writer({"path": str(store), **options}, schema, False)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)
    assert shown_alone(raised.value)


def test_a_batch_only_appends_and_a_stream_has_ids_of_its_own(store: Path) -> None:
    with pytest.raises(ConfigError, match=r'mode\("overwrite"\).*mode\("append"\)'):
        writer({"path": str(store), **T}, VALUE, True)
    with pytest.raises(ConfigError, match=r"option jobId='x'.*ids of their own"):
        stream_writer({"path": str(store), **T, "jobid": "x"}, VALUE)


def test_a_directory_without_topics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no topic"):
        writer({"path": str(tmp_path)}, columns(value=BinaryType(), topic=StringType()), False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kind("programs")
def test_a_store_that_a_broker_has_locked(store: Path) -> None:
    """Java's lock is one of the process, as `lockf`; segstore's own is of the open file."""
    (locked, tell_locked), (over, tell_over) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        with open(store / ".lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(tell_locked, b"x")
            os.read(over, 1)
        os._exit(0)
    try:
        os.read(locked, 1)
        assert f"process {pid} has the directory locked as a Kafka broker has" in told(store)
    finally:
        os.write(tell_over, b"x")
        os.waitpid(pid, 0)
    assert told(store) == "nothing"
    with segstore.open(store):
        assert told(store) == "nothing"  # this one adopts


def told(store: Path) -> str:
    try:
        writer({"path": str(store), **T}, VALUE, False)
    except ConfigError as error:
        return str(error)
    return "nothing"
