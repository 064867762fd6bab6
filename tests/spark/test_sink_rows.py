"""Rows go where Kafka's producer would send them, in their order, and nothing of them is lost or changed."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow as pa
from sinks import HEADERS, batch

from segstore.client.producer.partitioner import partition_for_key
from segstore.errors import InvalidArgumentError, InvalidRecordError, UnknownTopicOrPartitionError
from segstore.records import Columns, decode, encode
from segstore.spark.sink_rows import Divider, columns_of
from segstore.storage.meta.topics import TopicInfo

NOW = 1_700_000_000_000
TOPICS = {
    "t": TopicInfo("t", (0, 1, 2, 3), ""),
    "one": TopicInfo("one", (0,), ""),
    "odd": TopicInfo("odd", (2, 5), ""),
}


def divided(rows: pa.RecordBatch, topic: str | None = "t") -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for group in Divider(TOPICS.__getitem__, topic).groups(rows):
        assert group.rows.num_rows
        assert (group.topic, group.partition) not in found
        found[group.topic, group.partition] = group.rows.to_pylist()
    return found


def test_keys_go_to_kafka_s_partition_in_their_order(rng: random.Random) -> None:
    keys = [rng.randbytes(rng.randrange(9)) for _ in range(500)]
    found = divided(batch(key=keys, value=[b"%d" % i for i in range(500)]))
    expected: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for i, key in enumerate(keys):
        expected.setdefault(("t", partition_for_key(key, 4)), []).append({"key": key, "value": b"%d" % i})
    assert found == expected


def test_a_row_s_own_partition_counts_before_its_key() -> None:
    keys = [b"k%d" % i for i in range(40)]
    own = [None if i % 3 else i % 4 for i in range(40)]
    found = divided(batch(key=keys, value=keys, partition=own))
    for (_, partition), rows in found.items():
        for row in rows:
            assert partition == (
                row["partition"] if row["partition"] is not None else partition_for_key(row["key"], 4)
            )
    assert sum(map(len, found.values())) == 40
    assert divided(batch(value=[b"a", b"b", b"c"], partition=[5, 2, 5]), "odd").keys() == {
        ("odd", 2),
        ("odd", 5),
    }


@pytest.mark.parametrize("own", [[3, 3, 1, 1], [1, 3, 1, 3], [2, 2, 2, 2], [3, 1, 1, 3]], ids=str)
def test_rows_that_lie_side_by_side_and_rows_that_do_not(own: list[int]) -> None:
    values = [b"%d" % i for i in range(4)]
    found = divided(batch(value=values, partition=own))
    expected = {("t", p): [v for v, o in zip(values, own, strict=True) if o == p] for p in own}
    assert {key: [row["value"] for row in rows] for key, rows in found.items()} == expected


def test_each_row_goes_to_its_topic_with_the_option_before_the_column(rng: random.Random) -> None:
    topics = [rng.choice(["t", "one", "odd"]) for _ in range(300)]
    rows = batch(key=[rng.randbytes(3) for _ in topics], value=[b"%d" % i for i in range(300)], topic=topics)
    found = divided(rows, None)
    for (topic, partition), held in found.items():
        ids = TOPICS[topic].partition_ids
        assert {row["topic"] for row in held} == {topic}
        assert {ids[partition_for_key(row["key"], len(ids))] for row in held} == {partition}
        assert [int(row["value"]) for row in held] == sorted(int(row["value"]) for row in held)
    assert sum(map(len, found.values())) == 300
    assert set(divided(rows, "one")) == {("one", 0)}


def test_rows_without_a_key_stick_and_go_on() -> None:
    divider = Divider(TOPICS.__getitem__, "t")
    small = [next(divider.groups(batch(value=[b"v"] * 9))) for _ in range(8)]
    assert [group.rows.num_rows for group in small] == [9] * 8
    first = small[0].partition
    assert [group.partition for group in small] == [(first + i) % 4 for i in range(8)]
    large = list(divider.groups(batch(value=[bytes(1000)] * 9000)))
    assert sorted((group.partition, group.rows.num_rows) for group in large) == [(p, 2250) for p in range(4)]
    # With keys among them, those stay where they belong.
    keys = [b"k" if i % 2 else None for i in range(100)]
    mixed = {
        group.partition: group.rows.column("key").to_pylist()
        for group in divider.groups(batch(key=keys, value=keys))
    }
    assert mixed[partition_for_key(b"k", 4)].count(b"k") == 50
    assert sum(len(held) for held in mixed.values()) == 100
    assert sum(held.count(None) > 0 for held in mixed.values()) == 1


def test_tasks_begin_at_partitions_of_their_own() -> None:
    begun = {next(Divider(TOPICS.__getitem__, "t").groups(batch(value=[b"v"]))).partition for _ in range(200)}
    assert begun == {0, 1, 2, 3}


# --- columns --------------------------------------------------------------------------------


def test_columns_encode_to_what_they_were(rng: random.Random) -> None:
    def piece() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(5)])

    def headers() -> list[dict[str, Any]] | None:
        return rng.choice([None, [], [{"key": "hé", "value": piece()}] * rng.randrange(1, 4)])

    for _ in range(20):
        n = rng.randrange(1, 40)
        stamps = [rng.choice([None, -1000, rng.randrange(10**15)]) for _ in range(n)]
        rows = batch(
            key=[piece() for _ in range(n)],
            value=[piece() for _ in range(n)],
            headers=[headers() for _ in range(n)],
            timestamp=pa.array(stamps, pa.int64()).cast(pa.timestamp("us", "UTC")),
        )
        part = rows.slice(rng.randrange(n))
        (encoded,) = encode(Columns(**columns_of(part, NOW)), batch_bytes=1 << 20)
        found = [(r.key, r.value, r.headers, r.timestamp) for r in decode(encoded.data, encoded.batches, "")]
        held = part.drop_columns(["timestamp"]).to_pylist()
        micros = part.column("timestamp").cast(pa.int64()).to_pylist()
        assert found == [
            (
                row["key"],
                row["value"],
                [(pair["key"], pair["value"]) for pair in row["headers"] or ()],
                NOW if stamp is None else stamp // 1000,
            )
            for row, stamp in zip(held, micros, strict=True)
        ]


def test_null_lists_that_have_bytes_behind_them() -> None:
    """Arrow allows elements under a null list: they are none of its headers."""
    whole = pa.array([[("a", b"1")], [("b", b"2"), ("c", b"3")], [("d", b"4")]], HEADERS)
    hidden = pa.Array.from_buffers(
        HEADERS, 3, [pa.py_buffer(b"\x05"), whole.buffers()[1]], 1, 0, [whole.values]
    )
    rows = batch(value=[b"0", b"1", b"2"], headers=hidden, timestamp=[NOW] * 3)
    (encoded,) = encode(Columns(**columns_of(rows, NOW)))
    assert [r.headers for r in decode(encoded.data, encoded.batches, "")] == [
        [("a", b"1")],
        [],
        [("d", b"4")],
    ]


BAD = {
    "a null topic": (None, {"value": [b"v"], "topic": [None]}, InvalidRecordError, "column topic is null"),
    "no such partition": (
        "t",
        {"value": [b"v"] * 2, "partition": [3, 4]},
        UnknownTopicOrPartitionError,
        "partition is 4",
    ),
    "a negative one": (
        "t",
        {"value": [b"v"], "partition": [-1]},
        UnknownTopicOrPartitionError,
        "partitions 0 to 3",
    ),
    "one that is missing": (
        "odd",
        {"value": [b"v"], "partition": [3]},
        UnknownTopicOrPartitionError,
        "partition is 3",
    ),
    "a time before 1970": (
        "t",
        {"value": [b"v"], "timestamp": [-2000]},
        InvalidArgumentError,
        "-2 ms before 1970",
    ),
    "a header without key": (
        "t",
        {"value": [b"v"], "headers": [[{"key": None, "value": b"x"}]]},
        InvalidRecordError,
        "header without a key",
    ),
    "a null header": (
        "t",
        {"value": [b"v"], "headers": [[None]]},
        InvalidRecordError,
        "header without a key",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows(case: str) -> None:
    topic, columns, kind, said = BAD[case]
    with pytest.raises(kind, match=said):
        stage(topic, batch(**columns))


def stage(topic: str | None, rows: pa.RecordBatch) -> None:
    for group in Divider(TOPICS.__getitem__, topic).groups(rows):
        columns_of(group.rows, NOW)
