"""`segstore.spark.verify`, `latest`, `export` and `reprocess`, compared with the same work without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow as pa
import pyarrow.compute as pc
from producers import send
from spark import told
from staging import left_in_inbox
from stores import START_MS, stored

import segstore
from segstore import spark as jobs
from segstore.errors import ConfigError, InvalidTypeError
from segstore.spark.job_tasks import bundles, fitting, source_options
from segstore.storage.log.transaction_markers import end_transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[segstore.Store]:
    """Topic "t" of three partitions: nulls, tombstones, keys in several partitions, stamps in no order, of
    four days or none, an aborted transaction; "to", empty."""
    rng = random.Random(f"{seed} jobs")
    path = tmp_path_factory.mktemp("jobs") / "store"
    with segstore.open(path) as made:
        made.create_topic("t", 3, {"segment.bytes": 2000, "index.interval.bytes": 200})
        made.create_topic("to", 4)
        for partition in range(3):
            log = made.partition("t", partition)
            for _ in range(6):
                n = rng.randrange(1, 40)
                log.append_batch(
                    [rng.choice((None, b"", rng.randbytes(8))) for _ in range(n)],
                    keys=[rng.choice((None, b"", b"k%d" % rng.randrange(20))) for _ in range(n)],
                    headers=[[("h", b"1")] * rng.randrange(2) for _ in range(n)],
                    timestamps=[rng.choice((-1, START_MS + rng.randrange(4 * DAY_MS))) for _ in range(n)],
                )
            send(log, 7, 0, n=3, txn=True)
            end_transaction([log], 7, 0, 0, commit=False)
        yield made
    assert list(segstore.check(path)) == []


def committed(store: segstore.Store) -> list[tuple[int, segstore.Record]]:
    """(partition, record) of topic "t"."""
    found = []
    for partition in range(3):
        log = store.partition("t", partition)
        at = log.start_offset
        while at < log.end_offset:
            part = log.read(at, isolation_level="read_committed")
            found += [(partition, record) for record in part]
            at = part.next_offset
    return found


# --- verify ---------------------------------------------------------------------------------


def test_verify_tells_what_check_tells(spark: SparkSession, store: segstore.Store, tmp_path: Path) -> None:
    assert jobs.verify(spark, store.path) == []
    segstore.copy(store.path, tmp_path / "copy")
    for path in (tmp_path / "copy").glob(f"t-*/{0:020d}.log"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    findings = jobs.verify(spark, tmp_path / "copy")
    assert len(findings) >= 3
    assert findings == list(segstore.check(tmp_path / "copy"))


def test_small_pieces_share_a_task() -> None:
    assert bundles([5, 5, 90, 3, 3, 200], int, 10) == [[5, 5], [90], [3, 3, 200]]
    assert bundles([], int, 10) == []


# --- latest ---------------------------------------------------------------------------------


def newest(store: segstore.Store) -> dict[bytes, tuple[int, segstore.Record]]:
    by_partition = {(r.key, p): (p, r) for p, r in committed(store) if r.key is not None}
    found: dict[bytes, tuple[int, segstore.Record]] = {}
    for (key, _), (partition, record) in by_partition.items():
        rank = record.timestamp, partition
        if key not in found or rank > (found[key][1].timestamp, found[key][0]):
            found[key] = partition, record
    return found


def test_latest_of_each_key(spark: SparkSession, store: segstore.Store) -> None:
    expected = newest(store)
    rows = jobs.latest(spark, store.path, "t", tombstones=True).collect()
    assert {bytes(r.key): (r.partition, r.offset, r.value) for r in rows} == {
        key: (p, record.offset, record.value) for key, (p, record) in expected.items()
    }
    assert len(rows) == len(expected) > 15
    some = jobs.latest(spark, store.path, "t")
    assert some.columns == ["key", "value", "headers", "timestamp", "partition", "offset"]
    assert some.count() == sum(record.value is not None for _, record in expected.values())


# --- export ---------------------------------------------------------------------------------


def test_export_by_day(spark: SparkSession, store: segstore.Store, tmp_path: Path) -> None:
    was = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        jobs.export(spark, store.path, "t", tmp_path / "out")
        frame = spark.read.parquet(str(tmp_path / "out"))
        found = {(r.partition, r.offset): (r.day, r.key, r.value) for r in frame.collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", was)

    def day(ms: int) -> date | None:
        return None if ms < 0 else date.fromordinal(date(1970, 1, 1).toordinal() + ms // DAY_MS)

    assert found == {(p, r.offset): (day(r.timestamp), r.key, r.value) for p, r in committed(store)}
    days = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert len(days) == len({day(r.timestamp) for _, r in committed(store)}) > 3
    assert "already exists" in told(lambda: jobs.export(spark, store.path, "t", tmp_path / "out")).lower()


# --- reprocess ------------------------------------------------------------------------------


def without_empty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a value; where they were does not count."""
    kept = batch.filter(pc.fill_null(pc.greater(pc.binary_length(batch.column("value")), 0), False))
    return kept.drop_columns(["partition"])


def test_reprocess(spark: SparkSession, store: segstore.Store) -> None:
    expected = [(r.key, r.value, r.headers, r.timestamp) for _, r in committed(store) if r.value]
    done = jobs.reprocess(spark, store.path, "t", "to", without_empty, job_id="j", minPartitions=9)
    again = jobs.reprocess(spark, store.path, "t", "to", without_empty, job_id="j")
    assert again == done
    found = stored(store, "to")
    assert sum(end - first for first, end in done.offsets.values()) == len(found)
    assert sorted(map(str, expected)) == sorted(str((r.key, r.value, r.headers, r.timestamp)) for r in found)
    # What has a key is in the order of its source partition.
    for key in {r.key for r in found} - {None}:
        assert [r.value for r in found if r.key == key] == [value for k, value, *_ in expected if k == key]
    assert jobs.reprocess(spark, store.path, "t", "to", lambda batch: None) is None
    assert left_in_inbox(Path(store.path)) == []


def test_reprocess_of_bad_input(spark: SparkSession, store: segstore.Store) -> None:
    for source, target, said in (("u", "to", "no topic 'u'"), ("t", "u", "option topic: no topic 'u'")):
        with pytest.raises(ConfigError, match=said):
            jobs.reprocess(spark, store.path, source, target, without_empty)
    before = len(stored(store, "to"))
    message = told(lambda: jobs.reprocess(spark, store.path, "t", "to", lambda batch: 7))
    assert "the function gave int: allowed are RecordBatch" in message
    assert len(stored(store, "to")) == before


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp", "startingOffsets"])
def test_an_option_that_is_none_is_refused(name: str) -> None:
    """Spark would drop it, and read everything."""
    nothing: Any = None
    with pytest.raises(InvalidTypeError, match=f"option {name}=None: must have a value"):
        source_options("/log", "t", {name: nothing})
    with pytest.raises(InvalidTypeError, match=f"option {name}=None: must have a value"):
        jobs.reprocess(nothing, "/log", "t", "u", lambda rows: rows, **{name: nothing})


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


FITTING = {
    "a batch": (batch(value=[b"a"]), 1),
    "a table": (pa.table({"value": ["a", "b"], "key": [None, None]}), 1),
    "several": ([batch(value=[b"a"]), batch(value=["b"], offset=[1], topic=["x"])], 2),
    "none of several": ([], 0),
    "an int64 partition": (batch(value=[b"a"], partition=[3], timestamp=pa.array([None])), 1),
}
NOT_FITTING = {
    "no value": (batch(key=[b"a"]), "value must be there"),
    "another column": (
        batch(value=[b"a"], carrier=["x"]),
        "allowed are key, value, headers, partition, timestamp",
    ),
    "numbers": (batch(value=[1]), "column value as int64: must be binary or string"),
    "a time": (batch(value=[b"a"], timestamp=[5]), "column timestamp as int64: must be a timestamp"),
    "headers": (batch(value=[b"a"], headers=[1]), "column headers as int64: must be list"),
    "text": ("value", "the function gave str"),
}


@pytest.mark.parametrize("case", FITTING)
def test_what_a_function_may_give(case: str) -> None:
    made, batches = FITTING[case]
    found = list(fitting(made))
    assert len(found) == batches
    assert all(set(each.schema.names) <= {"key", "value", "partition", "timestamp"} for each in found)


@pytest.mark.parametrize("case", NOT_FITTING)
def test_what_it_may_not(case: str) -> None:
    made, said = NOT_FITTING[case]
    with pytest.raises(InvalidTypeError, match=said):
        list(fitting(made))
