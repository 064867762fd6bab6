"""Promise: Spark's own Kafka source and sink (`format("kafka")`) read and write a store that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_tools
import pytest
from places import SUPPORT
from waiting import PATIENCE

import segstore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.judge("spark"),
    pytest.mark.skipif(bool(kafka_tools.why_not()), reason=str(kafka_tools.why_not())),
    pytest.mark.kind("Spark programs"),
]


@pytest.fixture(scope="module")
def connected(spark: SparkSession) -> SparkSession:
    """The session, with the connector's jars."""
    for jar in kafka_tools.classpath(SUPPORT / "kafka" / "spark_kafka" / "pom.xml").split(":"):
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def server(store: segstore.Store) -> Iterator[segstore.Server]:
    """Serves topic "t", whose partitions 0 to 2 have ten records each, stamped 1000, 1001, ..."""
    store.create_topic("t", 3)
    for number in range(3):
        store.partition("t", number).append_batch(
            [b"%d.%d" % (number, n) for n in range(10)],
            keys=[b"k%d" % n for n in range(10)],
            timestamps=range(1000, 1010),
            headers=[[("h", b"1"), ("null", None)]] * 10,
        )
    with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
        yield server


def reading(reader: Any, server: segstore.Server, **options: Any) -> DataFrame:
    options = {"subscribe": "t", "startingOffsets": "earliest", **options}
    at = {"kafka.bootstrap.servers": server.bootstrap_servers}
    found: DataFrame = reader.format("kafka").options(**at, **options).load()
    return found


HEADERS = "array(named_struct('key', 'h', 'value', key)) AS headers"


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


EVERY = [f"{number}.{n}" for number in range(3) for n in range(10)]
RANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all, in more tasks than partitions": ({"minPartitions": 7}, EVERY),
    "offsets": (
        {
            "startingOffsets": '{"t": {"0": 3, "1": -2, "2": 9}}',
            "endingOffsets": '{"t": {"0": 5, "1": 1, "2": -1}}',
        },
        ["0.3", "0.4", "1.0", "2.9"],
    ),
    "times": (
        {"startingTimestamp": 1008, "endingTimestamp": 1009},
        ["0.8", "1.8", "2.8"],
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_is_read(connected: SparkSession, server: segstore.Server, name: str) -> None:
    options, wanted = RANGES[name]
    assert values(reading(connected.read, server, **options)) == wanted


def test_rows_have_keys_times_and_headers(connected: SparkSession, server: segstore.Server) -> None:
    frame = reading(connected.read, server, includeHeaders=True)
    row = frame.where("partition = 1 AND offset = 4").selectExpr("*", "unix_millis(timestamp) AS ms").first()
    assert row is not None
    assert (row.topic, bytes(row.key), bytes(row.value), row.ms) == ("t", b"k4", b"1.4", 1004)
    assert [(each.key, each.value) for each in row.headers] == [("h", b"1"), ("null", None)]


def test_a_stream_goes_on_after_a_restart(
    connected: SparkSession, server: segstore.Server, store: segstore.Store, tmp_path: Path
) -> None:
    """Each run copies what is new from "t" to "u", which the sink's producer has created."""
    for more in (0, 5):
        for n in range(more):
            store.partition("t", n % 3).append(b"new %d" % n)
        query = (
            reading(connected.readStream, server, maxOffsetsPerTrigger=12)
            .selectExpr(
                "'u' AS topic", "key", "value", "array(named_struct('key', 'h', 'value', key)) AS headers"
            )
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", server.bootstrap_servers)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(2 * PATIENCE)
    copied = list(store.partition("u").read(0))
    assert sorted(record.value.decode() for record in copied) == sorted(
        EVERY + [f"new {n}" for n in range(5)]
    )
    with_keys = [record for record in copied if record.key is not None]
    assert len(with_keys) == 30
    assert all(record.headers == [("h", record.key)] for record in with_keys)


def test_a_batch_is_written(connected: SparkSession, server: segstore.Server, store: segstore.Store) -> None:
    store.create_topic("u", 2)
    frame = connected.range(100).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 2 AS INT) AS partition")
    at = {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": "u"}
    frame.write.format("kafka").options(**at).save()
    for number in (0, 1):
        found = sorted(int(record.value) for record in store.partition("u", number).read(0))
        assert found == list(range(number, 100, 2))


def test_aborted_records_are_left_out(
    connected: SparkSession, server: segstore.Server, store: segstore.Store
) -> None:
    store.create_topic("x")
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        for value, end in ((b"aborted", producer.abort_transaction), (b"kept", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send("x", value)
            producer.flush()
            end()
    level = {"kafka.isolation.level": "read_committed"}
    assert values(reading(connected.read, server, subscribe="x", **level)) == ["kept"]
    assert values(reading(connected.read, server, subscribe="x")) == ["aborted", "kept"]
