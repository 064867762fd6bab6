"""What a consumer fetches: turns of partitions, limits, deserializers, interceptors, metrics, tables."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from consumers import LONG_MS, append, drain, earliest, fill, offsets, tp
from stores import logs
from waiting import PATIENCE

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.structs import TopicPartition
from segstore.errors import CorruptRecordError, RecordDeserializationError, SerializationError

# --- turns -----------------------------------------------------------------------------------


def test_partitions_take_turns(store: segstore.Store) -> None:
    """None waits longer than one round of the others, however much they have."""
    fill(store, partitions=4, records=40)
    consumer = earliest(store, "t", max_poll_records=5)
    for _ in range(8):
        round_of = [consumer.poll() for _ in range(4)]
        assert sorted(part.partition for polled in round_of for part in polled) == [0, 1, 2, 3]
        assert all(len(records) == 5 for polled in round_of for records in polled.values())
    assert consumer.poll() == {}


def test_a_poll_is_filled_from_the_next_partitions(store: segstore.Store) -> None:
    fill(store, partitions=3, records=4)
    consumer = earliest(store, "t", max_poll_records=6)
    first, second = consumer.poll(), consumer.poll()
    assert [len(records) for records in first.values()] == [4, 2]
    assert sum(len(records) for records in second.values()) == 6
    assert consumer.poll() == {}


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
def test_each_record_comes_once_and_in_order(store: segstore.Store, most: int) -> None:
    fill(store, partitions=3, records=50)
    got = drain(earliest(store, "t", max_poll_records=most, max_partition_fetch_bytes=300))
    for partition in range(3):
        assert offsets(got, partition) == list(range(50))
        assert [r.value for r in got if r.partition == partition] == [
            b"%d-%d" % (partition, i) for i in range(50)
        ]


def test_a_partition_with_nothing_keeps_none_waiting(store: segstore.Store) -> None:
    fill(store, partitions=3, records=0)
    append(store, 5, partition=1)
    consumer = earliest(store, "t")
    assert list(consumer.poll()) == [tp(1)]


# --- limits ----------------------------------------------------------------------------------


def test_one_batch_is_given_however_small_the_limits(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = earliest(store, "t", fetch_max_bytes=0, max_partition_fetch_bytes=0)
    assert sorted(offsets(drain(consumer))) == list(range(10))
    consumer.seek_to_beginning()
    assert consumer.poll_arrow().num_rows == 4


def test_what_is_kept_is_bounded(store: segstore.Store) -> None:
    """Each poll leaves most of what was read; without a bound all 40 partitions would lie in memory."""
    store.create_topic("t", partitions=40)
    for partition in range(40):
        store.partition("t", partition).append_batch([bytes(1000)] * 100)
    limit = 400_000
    consumer = earliest(store, "t", fetch_max_bytes=limit, max_poll_records=1)
    most = 0
    for _ in range(200):
        consumer.poll()
        most = max(most, consumer._fetcher._memory)
    assert limit / 2 < most < limit + 200_000
    counts = dict.fromkeys(range(40), 0)
    for record in drain(consumer):
        counts[record.partition] += 1
    assert sum(counts.values()) == 4000 - 200


def test_paused_partitions_do_not_hold_the_room(store: segstore.Store) -> None:
    fill(store, partitions=2, records=40)
    consumer = earliest(store, "t", fetch_max_bytes=1, max_poll_records=1)
    (first,) = consumer.poll()
    consumer.pause(first)
    assert len(drain(consumer)) == 40
    consumer.resume(first)
    assert len(drain(consumer)) == 39


def test_a_fetch_waits_for_its_least_bytes(store: segstore.Store) -> None:
    fill(store, records=4)
    consumer = earliest(store, "t", fetch_min_bytes=400, fetch_max_wait_ms=60_000)
    assert consumer.poll(20) == {}
    assert consumer.poll_arrow().num_rows == 0
    append(store, 60)
    assert len(consumer.poll()[tp()]) == 64


def test_a_fetch_waits_no_longer_than_it_should(store: segstore.Store) -> None:
    fill(store, records=4)
    consumer = earliest(store, "t", fetch_min_bytes=1 << 20, fetch_max_wait_ms=30)
    began = time.monotonic()
    assert len(consumer.poll(LONG_MS)[tp()]) == 4
    assert 0.03 <= time.monotonic() - began < PATIENCE / 2


# --- damage ----------------------------------------------------------------------------------


def test_damage_in_one_partition_does_not_hide_the_others(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "s") as store:
        fill(store, partitions=2, records=12)
    path = logs(tmp_path / "s", "t-0")[0]
    data = bytearray(path.read_bytes())
    data[-10] ^= 1  # in the last of three batches
    path.write_bytes(data)
    with segstore.open(tmp_path / "s", mode="r") as store:
        consumer = earliest(store, "t", max_poll_records=4)
        got, errors = [], []
        for _ in range(12):
            try:
                for records in consumer.poll().values():
                    got += records
            except CorruptRecordError as error:
                errors.append(error)
        assert offsets(got, 0) == list(range(8))
        assert offsets(got, 1) == list(range(12))
        assert {error.offset for error in errors} == {8}
        assert errors[0].next_offset == 12
        consumer.seek(tp(0), errors[0].next_offset)
        assert consumer.poll() == {}
        unchecked = earliest(store, "t", check_crcs=False)
        assert offsets(drain(unchecked), 0) == list(range(12))


# --- deserializers ---------------------------------------------------------------------------


class Json:
    """As kafka-python's JsonSerializer."""

    closed = 0

    def deserialize(self, topic: str, headers: list, data: bytes | None) -> Any:
        return None if data is None else {"topic": topic, "headers": headers, "value": json.loads(data)}

    def close(self) -> None:
        self.closed += 1


def test_keys_and_values_are_deserialized(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append(b'{"a": 1}', key=b"k", headers=[("h", b"x")])
    store.partition("t").append(None)
    made = Json()
    with earliest(
        store, "t", key_deserializer=lambda b: b and b.decode(), value_deserializer=made
    ) as consumer:
        first, null = consumer.poll()[tp()]
    assert (first.key, first.value) == ("k", {"topic": "t", "headers": [("h", b"x")], "value": {"a": 1}})
    assert (first.serialized_key_size, first.serialized_value_size) == (1, 8)
    assert (null.key, null.value) == (None, None)
    assert made.closed == 1


@pytest.mark.parametrize("origin", ["key", "value"])
@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_a_record_that_cannot_be_deserialized(store: segstore.Store, origin: str, how: str) -> None:
    """Those before it are given, then the error each time, until the application goes past it."""
    store.create_topic("t")
    column = [b"0", b"1", b"x", b"3"]
    store.partition("t").append_batch(column, keys=column)
    deserializer = {f"{origin}_deserializer": int}
    consumer = earliest(store, "t", **deserializer, consumer_timeout_ms=0)

    def look() -> list[int]:
        records = list(consumer) if how == "iterate" else consumer.poll().get(tp(), [])
        return [getattr(record, origin) for record in records]

    got: list[int] = []
    if how == "poll":
        got = look()
        assert got == [0, 1]
    else:
        for record in [next(consumer), next(consumer)]:
            got.append(getattr(record, origin))
    for _ in range(2):
        with pytest.raises(
            RecordDeserializationError, match=rf"t-0, offset 2: its {origin} can't be"
        ) as caught:
            look()
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.origin) == ("t", 0, 2, origin)
        assert isinstance(error, SerializationError)
        assert isinstance(error.__cause__, ValueError)
        assert consumer.position(tp()) == 2
    consumer.seek(tp(), error.offset + 1)
    assert look() == [3]


# --- interceptors ----------------------------------------------------------------------------


class Interceptor:
    def __init__(self, drop: int | None = None) -> None:
        self.seen: list[int] = []
        self.drop, self.closed = drop, 0

    def on_consume(self, records: dict) -> dict:
        self.seen += [record.offset for part in records.values() for record in part]
        return {t: [r for r in part if r.offset != self.drop] for t, part in records.items()}

    def on_commit(self, offsets: Any) -> None:
        raise AssertionError("nothing was committed")

    def close(self) -> None:
        self.closed += 1


class Fails:
    def on_consume(self, records: dict) -> dict:
        raise ValueError("interceptor's own")


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_interceptors_see_and_change_what_is_given(
    store: segstore.Store, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    fill(store)
    first, last = Interceptor(drop=3), Interceptor()
    with (
        caplog.at_level(logging.ERROR),
        earliest(store, "t", interceptors=[first, Fails(), last], consumer_timeout_ms=0) as consumer,
    ):
        got = offsets(drain(consumer) if how == "poll" else list(consumer))
        assert consumer.position(tp()) == 10
    assert first.seen == list(range(10))
    assert last.seen == got == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert "failed in on_consume" in caplog.text
    assert (first.closed, last.closed) == (1, 1)


# --- metrics ---------------------------------------------------------------------------------


def test_metrics_have_kafkas_names(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = earliest(store, "t", max_poll_records=7)
    consumer.poll()
    consumer.poll()
    measured = consumer.metrics()
    fetching = measured["consumer-fetch-manager-metrics"]
    stored = sum(path.stat().st_size for p in ("t-0", "t-1") for path in logs(Path(store.path), p))
    assert fetching["bytes-consumed-total"] == stored
    assert fetching["records-consumed-total"] == 20
    assert fetching["fetch-total"] == 2
    assert fetching["fetch-size-avg"] == fetching["fetch-size-max"] == stored / 2
    assert fetching["records-per-request-avg"] == 10
    assert fetching["records-lag-max"] == 3
    lags = {fetching["t-0.records-lag"], fetching["t-1.records-lag"]}
    assert lags <= {0, 3, 6}
    assert fetching["fetch-latency-max"] >= fetching["fetch-latency-avg"] > 0
    assert min(fetching["fetch-rate"], fetching["bytes-consumed-rate"], fetching["records-consumed-rate"]) > 0
    assert measured["consumer-metrics"]["time-between-poll-avg"] > 0
    assert 0 <= measured["consumer-metrics"]["last-poll-seconds-ago"] < PATIENCE
    drain(consumer)
    after = consumer.metrics()["consumer-fetch-manager-metrics"]
    assert (after["t-0.records-lag"], after["t-1.records-lag"], after["t-0.records-lead"]) == (0, 0, 10)
    consumer.unsubscribe()
    assert "t-0.records-lag" not in consumer.metrics()["consumer-fetch-manager-metrics"]


def test_metrics_before_anything_and_without(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t", metric_group_prefix="mine")
    measured = consumer.metrics()
    assert set(measured) == {"mine-fetch-manager-metrics", "mine-metrics"}
    assert math.isnan(measured["mine-fetch-manager-metrics"]["fetch-size-avg"])
    assert measured["mine-metrics"]["last-poll-seconds-ago"] == -1
    silent = earliest(store, "t", metrics_enabled=False)
    assert len(drain(silent)) == 10
    assert silent.metrics() == {}


# --- Arrow -----------------------------------------------------------------------------------


def rows(consumer: Consumer) -> list[dict]:
    found: list[dict] = []
    while (table := consumer.poll_arrow()).num_rows:
        found += table.to_pylist()
    return found


def test_a_table_is_a_whole_fetch_of_all_partitions(store: segstore.Store) -> None:
    fill(store, "a", partitions=2, records=600)
    fill(store, "b", partitions=1, records=5)
    consumer = earliest(store, "a", "b")
    table = consumer.poll_arrow()
    assert table.num_rows == 1205
    assert table.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.schema.field("topic").type == pa.dictionary(pa.int32(), pa.string())
    table.validate(full=True)
    for topic, partition, n in (("a", 0, 600), ("a", 1, 600), ("b", 0, 5)):
        mine = [r for r in table.to_pylist() if (r["topic"], r["partition"]) == (topic, partition)]
        assert [r["offset"] for r in mine] == list(range(n))
        assert [r["value"] for r in mine] == [b"%d-%d" % (partition, i) for i in range(n)]
        assert consumer.position(TopicPartition(topic, partition)) == n
    empty = consumer.poll_arrow(5)
    assert (empty.num_rows, empty.schema) == (0, table.schema)


def test_tables_and_records_say_the_same(golden: Path) -> None:
    with segstore.open(golden / "clean", mode="r") as store:
        topics = [topic for topic in store.topics() if topic != "flights-txn"]
        for settings in ({}, {"isolation_level": "read_committed", "max_partition_fetch_bytes": 5000}):
            records = drain(earliest(store, *topics, "flights-txn", **settings))
            table = rows(earliest(store, *topics, "flights-txn", **settings))
            key = ("topic", "partition", "offset")
            records.sort(key=lambda r: (*r[:2], r.offset))
            table.sort(key=lambda r: [r[k] for k in key])
            assert len(table) == len(records) > 1000
            for row, record in zip(table, records, strict=True):
                headers = [(h["key"], h["value"]) for h in row.pop("headers") or ()]
                assert (row, headers) == ({k: getattr(record, k) for k in row}, record.headers)


def test_a_table_keeps_to_its_limits(store: segstore.Store) -> None:
    store.create_topic("t", partitions=8)
    for partition in range(8):
        store.partition("t", partition).append_batch(np.zeros((1000, 100), np.uint8), batch_bytes=10_000)
    consumer = earliest(store, "t", max_partition_fetch_bytes=30_000, fetch_max_bytes=100_000)
    table = consumer.poll_arrow()
    assert 60_000 < table.num_rows * 100 <= 110_000  # whole batches, values of 100 bytes
    assert 3 <= len(set(table["partition"].to_pylist())) <= 5
    assert len(rows(consumer)) + table.num_rows == 8000


def test_a_table_begins_where_records_ended(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t", max_poll_records=3)
    consumer.poll()
    assert consumer.poll_arrow()["offset"].to_pylist() == [3, 4, 5, 6, 7, 8, 9]
    consumer.seek(tp(), 1)
    assert offsets(consumer.poll()[tp()]) == [1, 2, 3]
    assert next(consumer).offset == 4
    assert consumer.poll_arrow()["offset"].to_pylist() == [5, 6, 7, 8, 9]
