"""One record of one batch becomes the same `ConsumerRecord` as among others; tables of every size."""

from __future__ import annotations

from typing import Any

import pytest

import segstore
from segstore.client.consumer.arrow_tables import table
from segstore.client.consumer.records import Deserializers, consumer_records
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
