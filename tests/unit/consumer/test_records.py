"""One record of one batch becomes the same `ConsumerRecord` as among others; tables of every size."""

from __future__ import annotations

import copy
import pickle
import random
import struct
from typing import Any

import pytest

import segstore
from segstore._native import make_consumer_records
from segstore.client.consumer.arrow_tables import table
from segstore.client.consumer.records import (
    ConsumerRecord,
    DeliveredRecord,
    Deserializers,
    consumer_records,
)
from segstore.coordinator.structs import TopicPartition
from segstore.records import arrow

ROWS: dict[str, tuple[Any, ...]] = {
    "value": (b"v",),
    "null": (None,),
    "empty": (b"", b""),
    "key": (None, b"key"),
    "headers": (b"v", b"k", [("ä", b"12"), ("b", None)]),
}
TP = TopicPartition("t", 0)
PLAIN = Deserializers(None, None)


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_alone_as_among_others(store: segstore.Store, stamps: str) -> None:
    store.create_topic("t", config={"message.timestamp.type": stamps})
    log = store.partition("t")
    for at, row in enumerate(ROWS.values()):
        log.append(*row, timestamp=1_000 + at)
    together, _ = consumer_records(TP, log.read(0), PLAIN)
    assert len(together) == len(ROWS)
    for at, name in enumerate(ROWS):
        alone, error = consumer_records(TP, log.read(at, 1), PLAIN)
        assert (alone, error) == ([together[at]], None), name
        assert type(alone[0]) is type(together[at])


def test_c_makes_the_records_that_python_makes(store: segstore.Store, rng: random.Random) -> None:
    """Batches of several leader epochs and kinds of timestamps; the deserializers leave bytes as they are."""

    def same(_topic: str, _headers: Any, data: bytes | None) -> bytes | None:
        return data

    def drawn() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(300))])

    store.create_topic("t")
    for kind in ("CreateTime", "LogAppendTime"):
        store.alter_topic("t", {"message.timestamp.type": kind})
        for _ in range(20):
            n = rng.randrange(1, 30)
            store.partition("t").append_batch([drawn() for _ in range(n)], keys=[drawn() for _ in range(n)])
    found = store.partition("t").read(0, 1 << 24)
    for records in (found, found[3:4], found[5:-5], found[7:7]):
        plain, error = consumer_records(TP, records, PLAIN)
        assert (plain, error) == consumer_records(TP, records, Deserializers(same, same))
        assert {type(record) for record in plain} <= {ConsumerRecord}


def one(n: int) -> bytes:
    return struct.pack("=q", n)


WRONG: dict[str, dict[int, Any]] = {
    "a slice behind its arena": {8: one(3)},
    "a slice before it": {8: one(-1)},
    "a slice that is too long": {9: one(4)},
    "another number of rows": {6: one(0) * 2},
    "another type": {7: bytearray(b"abc")},
    "no subclass of tuple": {0: list},
    "fewer delivery counts than records": {13: []},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_columns_are_refused(name: str) -> None:
    given: list[Any] = [
        ConsumerRecord,
        "t",
        0,
        0,
        0,
        one(5),
        one(9),
        b"abc",
        one(1),
        one(2),
        b"",
        one(0),
        one(-1),
        None,
    ]
    (record,) = make_consumer_records(*given)
    assert record == ("t", 0, 0, 5, 9, 0, b"bc", None, [], None, 2, -1, -1)
    for at, item in WRONG[name].items():
        given[at] = item
    with pytest.raises((TypeError, ValueError, IndexError)):
        make_consumer_records(*given)


COUNTS: dict[str, Any] = {"one for all": 3, "one for each": [1, 5, 2]}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("headers", [[], [("h", b"x")]], ids=["plain", "with headers"])
def test_delivered_records_have_a_field_more(store: segstore.Store, counts: Any, headers: Any) -> None:
    store.create_topic("t")
    for value in (b"a", b"b", b"c"):
        store.partition("t").append(value, headers=headers)
    records = store.partition("t").read(0)
    uncounted, _ = consumer_records(TP, records, PLAIN)
    counted, _ = consumer_records(TP, records, PLAIN, counts)
    assert [record.delivery_count for record in uncounted] == [None] * 3
    assert [record.delivery_count for record in counted] == (counts if isinstance(counts, list) else [3] * 3)
    assert [record[:13] for record in counted] == [tuple(record) for record in uncounted]
    assert {type(record) for record in counted} == {DeliveredRecord}


def test_a_delivered_record_is_a_consumer_record_and_a_named_tuple(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append(b"a")
    (record,), _ = consumer_records(TP, store.partition("t").read(0), PLAIN, 2)
    assert isinstance(record, ConsumerRecord)
    assert record._fields == (*ConsumerRecord._fields, "delivery_count")
    for copied in (pickle.loads(pickle.dumps(record)), copy.copy(record), type(record)._make(record)):
        assert (type(copied), copied) == (DeliveredRecord, record)
    changed = record._replace(value=b"b", delivery_count=9)  # type: ignore[call-arg]
    assert (changed.value, changed.delivery_count, changed.offset) == (b"b", 9, 0)
    assert record._asdict()["delivery_count"] == 2
    assert repr(record).endswith("delivery_count=2)")
    with pytest.raises(ValueError, match="other"):
        record._replace(other=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        DeliveredRecord("t", 0)


def test_the_last_record_left_of_several(store: segstore.Store) -> None:
    """A slice of one record keeps the batches that were read with it."""
    store.create_topic("t")
    log = store.partition("t")
    log.append_batch([b"a", b"b", b"c"])
    log.append(b"d")
    for at in range(4):
        records = log.read(0)[at : at + 1]
        (record,), _ = consumer_records(TP, records, PLAIN)
        assert (record.offset, record.value) == (at, b"abcd"[at : at + 1])


def test_a_deserializer_sees_the_only_record(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append(b"1")
    seen, _ = consumer_records(
        TP, store.partition("t").read(0), Deserializers(None, lambda t, h, data: int(data))
    )
    assert [record.value for record in seen] == [1]


@pytest.mark.parametrize("most", [1, 4, 1 << 17], ids=["made anew", "some shared", "shared"])
@pytest.mark.parametrize("n", [1, 4, 5])
def test_constant_columns_of_every_size(
    monkeypatch: pytest.MonkeyPatch, store: segstore.Store, n: int, most: int
) -> None:
    monkeypatch.setattr(arrow, "_LEAST", 1)
    monkeypatch.setattr(arrow, "_MOST", most)
    store.create_topic("t")
    store.partition("t").append_batch([b"%d" % i for i in range(n)])
    records = store.partition("t").read(0)
    parts = [(TopicPartition("a", 1), records), (TopicPartition("b", 2), records)]
    rows = table(parts).to_pylist()
    assert [(row["topic"], row["partition"]) for row in rows] == [("a", 1)] * n + [("b", 2)] * n
    assert [row["value"] for row in rows] == 2 * records.values.tolist()
    assert {row["key"] for row in rows} == {row["headers"] for row in rows} == {None}
