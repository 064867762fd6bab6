"""`spark.read.format("segstore")`: rows out equal what the engine, and a Kafka consumer, read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from compaction import clean, put, roll
from drawn_logs import transactions
from partitions import Expected, broker_roots
from spark import read, rows, told
from stores import START_MS, Clock, tree

import segstore
from segstore.records import CODECS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]
SETTING = "spark.sql.python.filterPushdown.enabled"


# --- rows -----------------------------------------------------------------------------------


def test_rows_of_every_partition_that_a_broker_wrote(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    looked_at = 0
    for root, sources in broker_roots(tmp_path_factory).items():
        before = tree(root)
        found = rows(read(spark, root, includeHeaders=True))
        for source in sources:
            topic, _, partition = source.path.name.rpartition("-")
            mine = [row[2:] for row in found if row[:2] == (topic, int(partition))]
            assert mine == [as_row(record) for record in source.expected()], source.id
            looked_at += 1
        assert len(found) == sum(len(source.expected()) for source in sources)
        assert tree(root) == before
    assert looked_at >= 16


def as_row(record: Expected) -> tuple[Any, ...]:
    kind = {"CreateTime": 0, "LogAppendTime": 1}[record.timestamp_type]
    return (record.offset, record.timestamp, record.key, record.value, record.headers or None, kind)


@pytest.fixture(scope="module")
def seeded(seed: int) -> random.Random:
    return random.Random(f"{seed} spark")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, seeded: random.Random) -> Iterator[segstore.Store]:
    """A topic for each codec, one with gaps after compaction, one with transactions of each outcome, one that
    the log stamps."""
    path = tmp_path_factory.mktemp("spark") / "store"
    with segstore.open(path, clock=Clock(step=1), config={"log.cleaner.threads": 0}) as made:
        for codec in CODECS:
            made.create_topic(codec, partitions=2, config={"segment.bytes": 4000, "compression.type": codec})
            for partition in range(2):
                fill(made.partition(codec, partition), seeded)
        stamped = made.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
        fill(made.partition(stamped.name), seeded)
        made.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        for i in range(40):
            put(made.partition("t"), *[(b"k%d" % seeded.randrange(9), b"%d" % i) for _ in range(4)])
        roll(made)
        clean(made)
        transactions(made, seeded, appends=30, ended_of=0.8)
        yield made
    assert list(segstore.check(path)) == []


def fill(log: segstore.PartitionLog, rng: random.Random) -> None:
    """Nulls, empty ones, headers, stamps in no order, batches of many sizes."""
    for _ in range(rng.randrange(5, 12)):
        n = rng.randrange(1, 60)
        log.append_batch(
            [piece(rng) for _ in range(n)],
            keys=[piece(rng) for _ in range(n)],
            headers=[[("h\u00e9", piece(rng)) for _ in range(rng.choice((0, 0, 1, 3)))] for _ in range(n)],
            timestamps=[START_MS - rng.randrange(10**6) for _ in range(n)],
            batch_bytes=rng.choice((200, 2000)),
        )


def piece(rng: random.Random) -> bytes | None:
    return rng.choice((None, b"", rng.randbytes(rng.randrange(1, 50)), b"a" * 30))


def engine_rows(store: segstore.Store, level: str = "read_uncommitted") -> list[tuple[Any, ...]]:
    """What `rows` should give."""
    found = []
    for topic, info in store.topics().items():
        for partition in info.partition_ids:
            log = store.partition(topic, partition)
            at = log.start_offset
            end = log.end_offset if level == "read_uncommitted" else log.last_stable_offset
            while at < end:
                part = log.read(at, isolation_level=level)
                kinds = part.timestamp_types.tolist()
                for record, kind in zip(part, kinds, strict=True):
                    made = (*record[:4], record.headers or None, kind)
                    found.append((topic, partition, *made))
                at = part.next_offset
    return found


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_rows_of_a_random_store(spark: SparkSession, store: segstore.Store, seed: int, level: str) -> None:
    expected = engine_rows(store, level)
    frame = read(spark, store.path, includeHeaders=True, kafka_isolation_level=level, minPartitions=20)
    assert rows(frame) == expected
    kinds = {None, b""}
    for column in (4, 5):
        assert kinds < {row[column] for row in expected}


def test_a_subset_of_columns_in_any_order(spark: SparkSession, store: segstore.Store, seed: int) -> None:
    options = {"path": store.path, "subscribe": "zstd,txn"}
    frame = (
        spark.read.format("segstore")
        .schema("offset long, value binary, topic string")
        .options(**options)
        .load()
    )
    expected = [(row[2], row[5], row[0]) for row in engine_rows(store) if row[0] in ("zstd", "txn")]
    found = [(row.offset, row.value and bytes(row.value), row.topic) for row in frame.collect()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_types_are_those_of_spark_s_kafka_source(spark: SparkSession, store: segstore.Store) -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    kinds = ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    assert read(spark, store.path).dtypes == list(zip(names, kinds, strict=True))
    headers = ("headers", "array<struct<key:string,value:binary>>")
    assert read(spark, store.path, includeHeaders="true").dtypes[-1] == headers


def test_ranges(spark: SparkSession, store: segstore.Store, seed: int) -> None:
    log = store.partition("none", 0)
    options = {
        "assign": '{"none":[0]}',
        "startingOffsets": '{"none":{"0":3}}',
        "endingOffsets": '{"none":{"0":17}}',
    }
    assert offsets(read(spark, store.path, **options)) == list(range(3, 17))
    late = log.offset_for_time(START_MS - 10_000)
    options = {"assign": '{"none":[0]}', "startingTimestamp": START_MS - 10_000}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    expected = [] if late is None else list(range(late, log.end_offset))
    assert offsets(read(spark, store.path, **options, maxRecordsPerPartition=7)) == expected


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


# --- filters --------------------------------------------------------------------------------

FILTERS = {
    "offset between 5 and 9 and partition = 1": lambda row: 5 <= row[2] <= 9 and row[1] == 1,
    "topic like 'z%' and offset <> 3": lambda row: row[0].startswith("z") and row[2] != 3,
    "timestamp >= timestamp_millis({mid}) and topic in ('lz4', 'gzip')": (
        lambda row: row[3] >= MID and row[0] in ("lz4", "gzip")
    ),
    "timestamp < timestamp_millis({mid}) or offset < 2": lambda row: row[3] < MID or row[2] < 2,
    "value is null and key = X''": lambda row: row[5] is None and row[4] == b"",
}
MID = START_MS - 500_000


def test_filters_give_the_same_pushed_and_not(spark: SparkSession, store: segstore.Store, seed: int) -> None:
    expected = engine_rows(store)
    was = spark.conf.get(SETTING)
    try:
        for setting, option in (("true", "true"), ("false", "true")):
            spark.conf.set(SETTING, setting)
            for text, passes in FILTERS.items():
                frame = read(spark, store.path, includeHeaders=True, filterPushdown=option)
                found = rows(frame.where(text.format(mid=MID)))
                assert found == [row for row in expected if passes(row)], (setting, option, text)
    finally:
        spark.conf.set(SETTING, was)


def test_a_pushed_filter_is_not_evaluated_again(spark: SparkSession, store: segstore.Store) -> None:
    frame = read(spark, store.path, filterPushdown="true")
    frame = frame.where("offset < 4 and partition = 1 and offset % 2 = 1")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" in plan
    assert "< 4" not in plan
    assert frame.rdd.getNumPartitions() == len([t for t in store.topics().values() if t.partitions == 2])


def test_scans_of_one_frame_do_not_take_each_other_s_filters(
    spark: SparkSession, store: segstore.Store
) -> None:
    """PySpark 4.3 gives all scans of a DataFrame what was planned for the last that had a filter."""
    total, few = len(engine_rows(store)), len([row for row in engine_rows(store) if row[2] < 4])
    frame = read(spark, store.path)
    assert frame.where("offset < 4").count() == few
    assert frame.count() == total
    assert frame.where("offset < 4").unionAll(frame).count() == few + total
    assert frame.where("offset < 4").unionAll(frame.where("offset >= 4")).count() == total


# --- bad input ------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "missing path": ({"path": "/no/such/store"}, ("option path='/no/such/store'", "give the directory")),
    "no such topic": ({"subscribe": "flights"}, ("option subscribe: no topic 'flights'; there are: gzip,",)),
    "bad JSON": ({"startingOffsets": "{0:1}"}, ("option startingOffsets='{0:1}'", '{"topic": {"0": 23')),
    "an unknown option": ({"startingOffset": "earliest"}, ("startingoffset is unknown", "startingOffsets?")),
    "a broker": ({"kafka.bootstrap.servers": "h:1"}, ("option kafka.bootstrap.servers", "no broker")),
    "latest": ({"startingOffsets": "latest"}, ("option startingOffsets=latest",)),
    "offsets that are gone": (
        {"subscribe": "stamped", "startingOffsets": '{"stamped":{"0":99999}}'},
        ("option startingOffsets: offset 99999 of stamped-0", "failOnDataLoss=false"),
    ),
    "a column of the wrong type": (
        {"schema": "value string"},
        ("column value is binary, not string", "cast"),
    ),
    "a column that is not there": ({"schema": "body binary"}, ("no column 'body'; allowed are key, value",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_before_tasks_start(name: str, spark: SparkSession, store: segstore.Store) -> None:
    options, said = BAD[name]
    options = {
        "path": store.path,
        **({} if "subscribe" in options else {"subscribePattern": ".*"}),
        **options,
    }
    reader = spark.read.format("segstore")
    if "schema" in options:
        reader = reader.schema(options.pop("schema"))
    spark.sparkContext.setJobGroup(name, name)
    try:
        message = told(lambda: reader.options(**options).load().collect())
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(name)) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert [part for part in said if part not in message] == [], message


def test_damage_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store", clock=Clock()) as store:
        store.create_topic("t")
        for _ in range(3):
            store.partition("t").append(b"v" * 50)
    (path,) = (tmp_path / "store" / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for fail in ("true", "false"):
        frame = read(spark, tmp_path / "store", failOnDataLoss=fail)
        assert "corrupt batch at position" in told(frame.collect)
