"""`.load` of an archive, alone and below its live store: rows out equal those of the store, with nothing but
the archive's place in the tasks."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from compaction import clean, put, roll
from drawn_logs import fill, transactions
from made_archive import make_archive
from stores import START_MS, Clock

import segstore
from segstore import spark as jobs
from segstore.archiving.object_names import ArchiverClaim
from segstore.archiving.verify import verify
from segstore.errors import ConfigError, CorruptArchiveError, DataLossError
from segstore.records import CODECS

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import types
from spark import read, rows

from segstore.spark.filters import push
from segstore.spark.options import parse_options
from segstore.spark.slices import OffsetSlice
from segstore.spark.source import FilteringReader, StreamReader, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kind("Spark")

LEVELS = ("read_uncommitted", "read_committed")
COLUMNS = types.StructType().add("topic", types.StringType()).add("offset", types.LongType())
COLUMNS = COLUMNS.add("value", types.BinaryType()).add("timestamp", types.TimestampType())
NEXT = ArchiverClaim(2, "00000000000000bb")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Path]:
    """`store`: a topic for each codec, one with gaps after compaction, one with transactions; `archive`."""
    rng, path = random.Random(f"{seed} spark archive"), tmp_path_factory.mktemp("archive")
    with segstore.open(path / "store", clock=Clock(step=1), config={"log.cleaner.threads": 0}) as made:
        for codec in CODECS:
            made.create_topic(codec, partitions=2, config={"segment.bytes": 4000, "compression.type": codec})
            for partition in range(2):
                fill(made.partition(codec, partition), rng, least=8)
        made.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        for i in range(40):
            put(made.partition("t"), *[(b"k%d" % rng.randrange(9), b"%d" % i) for _ in range(4)])
        roll(made)
        clean(made)
        transactions(made, rng, **{"segment.bytes": 2000})
    make_archive(path / "store", path / "archive")
    yield path
    assert list(segstore.check(path / "store")) == []


@pytest.mark.judge("spark")
@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_of_the_store(spark: SparkSession, place: Path, level: str) -> None:
    options = {"includeHeaders": True, "kafka_isolation_level": level, "minPartitions": 20}
    expected = rows(read(spark, place / "store", **options))
    assert len({row.topic for row in expected}) == len(CODECS) + 2
    for path in (place / "archive", f"file://{place / 'archive'}"):
        assert rows(read(spark, path, **options)) == expected
    assert rows(read(spark, place / "store", archive=place / "archive", **options)) == expected


@pytest.mark.judge("spark")
def test_a_stream_reads_what_is_there_and_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    with segstore.open(store) as made:
        made.create_topic("t", partitions=2, config={"segment.bytes": 2000})
    given = {"path": str(archive), "subscribe": "t", "startingOffsets": "earliest"}
    for turn, limit in ((1, {}), (2, {"maxOffsetsPerTrigger": "30"})):
        with segstore.open(store) as made:
            for partition in range(2):
                append(made, 50, partition)
        make_archive(store, archive, claim=ArchiverClaim(turn, "00000000000000cc"))
        frame = spark.readStream.format("segstore").options(**given, **limit).load()
        query = (
            frame.select("partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        found = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted((row.partition, row.offset) for row in found) == [
            (partition, offset) for partition in range(2) for offset in range(50 * turn)
        ]


def append(store: segstore.Store, n: int, partition: int = 0) -> None:
    for number in range(n):
        store.partition("t", partition).append(b"%03d" % number * 20)


# --- without a JVM ------------------------------------------------------------------------


def batch(
    path: Path | str, filters: Any = (), **options: Any
) -> tuple[list[OffsetSlice], list[dict[str, Any]]]:
    """The slices of a read and its rows: each task has a copy of reader and slice, as Spark gives it."""
    given = {"path": str(path), **{name.replace("_", "."): str(value) for name, value in options.items()}}
    reader = FilteringReader(parse_options(given), arrow_schema(COLUMNS))
    reader.pushed, _ = push(filters)
    parts = [part for part in reader.partitions() if isinstance(part, OffsetSlice)]
    found = []
    for part in parts:
        theirs, mine = pickle.loads(pickle.dumps((reader, part)))
        for made in theirs.read(mine):
            found += made.to_pylist()
    return parts, found


def test_slices_name_objects_and_are_cut_at_batches(place: Path) -> None:
    for topic in ("none", "zstd"):
        parts, found = batch(place / "archive", subscribe=topic, minPartitions=9)
        assert len(parts) >= 5  # fewer than 9 if two edges are one batch's
        _, expected = batch(place / "store", subscribe=topic)
        key = repr
        assert sorted(found, key=key) == sorted(expected, key=key)
        for part in parts:
            assert part.archived is not None
            assert part.archived.extents[0].first <= part.start < part.archived.extents[0].end
            assert len(part.archived.extents) <= 6
        capped, _ = batch(place / "archive", subscribe=topic, maxRecordsPerPartition=25)
        assert max(part.end - part.start for part in capped) <= 25


def test_filters_narrow_what_is_read(place: Path) -> None:
    from datetime import datetime, timezone

    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    middle = datetime.fromtimestamp((START_MS - 500_000) / 1000, timezone.utc)
    for filters in (
        [GreaterThanOrEqual(("offset",), 20), LessThan(("offset",), 60), EqualTo(("partition",), 1)],
        [GreaterThanOrEqual(("timestamp",), middle), EqualTo(("topic",), "lz4")],
    ):
        found = [batch(place / each, filters, subscribePattern=".*")[1] for each in ("store", "archive")]
        assert found[0]
        assert found[0] == found[1]


def test_a_time_begins_where_the_store_s_does(place: Path) -> None:
    given = {"assign": '{"none":[0]}', "startingTimestamp": START_MS - 300_000}
    given["startingOffsetsByTimestampStrategy"] = "latest"
    assert batch(place / "archive", **given)[1] == batch(place / "store", **given)[1]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    with segstore.open(tmp_path / "store") as made:
        made.create_topic("t", config={"segment.bytes": 2000})
        append(made, 100)
    make_archive(tmp_path / "store", tmp_path / "archive")
    return tmp_path


def test_a_missing_object_fails_the_tasks_that_read_it_by_its_name(small: Path) -> None:
    gone = sorted((small / "archive" / "topics").rglob("*.log"))[2]
    gone.unlink()
    with pytest.raises(CorruptArchiveError, match="it is missing") as raised:
        batch(small / "archive", subscribe="t")
    assert gone.match(f"*/{raised.value.object}")
    base = int(gone.name[:20])
    _, found = batch(small / "archive", subscribe="t", endingOffsets=json.dumps({"t": {"0": base}}))
    assert [row["offset"] for row in found] == list(range(base))


def stream(path: Path, **options: str) -> StreamReader:
    held = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", **options}
    return StreamReader(held, COLUMNS)


def through(reader: StreamReader, at: Any) -> tuple[Any, list[int]]:
    """The end of the next micro-batch, and the offsets that its tasks read."""
    end = json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
    parts = [] if end == at else reader.partitions(at, end)
    read = [row for part in parts for rows in reader.read(part) for row in rows.to_pylist()]
    return end, [row["offset"] for row in read]


def test_a_stream_follows_the_archive(small: Path) -> None:
    reader = stream(small / "archive", maxOffsetsPerTrigger="70")
    at, found = reader.initialOffset(), []
    for _ in range(3):
        at, some = through(reader, at)
        found += some
    assert found == list(range(100))
    with segstore.open(small / "store") as made:
        append(made, 30)
    make_archive(small / "store", small / "archive", claim=NEXT)
    at, found = through(reader, at)
    assert found == list(range(100, 130))
    assert through(reader, at) == (at, [])
    reader.stop()


def test_a_stream_notices_an_archive_that_went_another_way(small: Path) -> None:
    shutil.copytree(small / "store", small / "copy")
    with segstore.open(small / "store") as made:
        append(made, 30)
    make_archive(small / "store", small / "archive", claim=NEXT)
    reader = stream(small / "archive")
    at, found = through(reader, reader.initialOffset())
    assert len(found) == 130
    with segstore.open(small / "copy") as made:
        append(made, 60)
    make_archive(small / "copy", small / "archive", claim=ArchiverClaim(3, NEXT.nonce))
    with pytest.raises(DataLossError, match=r"t-0: records before offset 130, .*another way from offset 100"):
        through(reader, at)
    reader.stop()


# --- the archive below, and the store above -----------------------------------------------------


def test_what_retention_took_comes_from_the_archive(small: Path) -> None:
    _, expected = batch(small / "store", subscribe="t")
    with segstore.open(small / "store") as made:
        append(made, 20)
        made.partition("t").delete_records(57)
    both = {"subscribe": "t", "archive": small / "archive"}
    parts, found = batch(small / "store", **both)
    assert [(part.start, part.end, part.archived is None) for part in parts] == [
        (0, 57, False),
        (57, 120, True),
    ]
    assert found[:100] == expected
    assert [row["offset"] for row in found] == list(range(120))
    parts, again = batch(small / "store", **both, minPartitions=6)
    assert len(parts) >= 6
    assert again == found
    time = expected[30]["timestamp"].timestamp()
    _, late = batch(small / "store", **both, startingTimestamp=round(time * 1000))
    assert late == [row for row in found if row["timestamp"].timestamp() >= time]
    reader = stream(small / "store", archive=str(small / "archive"))
    assert through(reader, reader.initialOffset())[1] == list(range(120))
    reader.stop()


def test_records_that_retention_takes_after_the_plan(small: Path) -> None:
    given = {"path": str(small / "store"), "subscribe": "t", "archive": str(small / "archive")}
    for archive, lost in ((True, False), (False, True)):
        if not archive:
            del given["archive"]
        reader = FilteringReader(parse_options(given), arrow_schema(COLUMNS))
        parts = reader.partitions()
        with segstore.open(small / "store") as made:
            made.partition("t").delete_records(40 if archive else 60)
        if lost:
            with pytest.raises(DataLossError):
                [list(reader.read(part)) for part in parts]
        else:
            found = [row for part in parts for rows in reader.read(part) for row in rows.to_pylist()]
            assert [row["offset"] for row in found] == list(range(100))


def test_a_gap_between_archive_and_store_is_told(small: Path) -> None:
    with segstore.open(small / "store") as made:
        append(made, 100)
        made.partition("t").delete_records(150)
    both = {"subscribe": "t", "archive": small / "archive"}
    with pytest.raises(DataLossError, match="of offsets 0 to 200 there are 0 to 100, 150 to 200"):
        batch(small / "store", **both)
    _, found = batch(small / "store", **both, failOnDataLoss="false")
    assert [row["offset"] for row in found] == [*range(100), *range(150, 200)]


def test_an_archive_of_another_store_is_refused(small: Path) -> None:
    both = {"subscribe": "t", "archive": small / "archive"}
    with segstore.open(small / "other") as made:
        made.create_topic("t", config={"segment.bytes": 2000})
        append(made, 100)
        made.partition("t").delete_records(50)
    with pytest.raises(ConfigError, match="it is not that of the store: topic 't' has the id"):
        batch(small / "other", **both)


def test_an_archive_that_has_other_records_than_the_store_is_refused(small: Path) -> None:
    shutil.copytree(small / "store", small / "copy")
    with segstore.open(small / "store") as made:
        append(made, 30)
    make_archive(small / "store", small / "archive", claim=NEXT)
    with segstore.open(small / "copy") as made:
        append(made, 60)
        made.partition("t").delete_records(50)
    with pytest.raises(DataLossError, match="t-0: archive and store have other records from offset 100 on"):
        batch(small / "copy", subscribe="t", archive=small / "archive")


# --- options ----------------------------------------------------------------------------


def test_a_function_that_is_not_there(small: Path) -> None:
    for opener in ("nothing:there", f"{__name__}:nothing"):
        with pytest.raises(
            ConfigError, match=f"option archiveFilesystem='{opener}': must be module:function"
        ):
            batch("bucket/log", subscribe="t", archiveFilesystem=opener)


def test_no_secret_is_shown() -> None:
    uri = "s3://KEY:hidden@bucket/log?region=here&session_token=hidden2"
    options = parse_options({"path": uri, "subscribe": "t"})
    assert options.path == "s3://bucket/log?region=here&session_token=***"
    assert "hidden" not in repr(options)
    assert options.archive is not None
    assert options.archive.uri == uri
    with pytest.raises(ConfigError) as raised:
        parse_options({"path": uri, "archive": uri, "subscribe": "t"})
    assert "hidden" not in str(raised.value)


def local(uri: str) -> tuple[Any, str]:
    """The function of a user, whose file system has a root of its own."""
    from pyarrow import fs

    root, _, path = uri.partition("!")
    return fs.SubTreeFileSystem(root, fs.LocalFileSystem()), path


def test_a_file_system_of_the_user_s_own(small: Path) -> None:
    given = {"subscribe": "t", "archiveFilesystem": f"{__name__}:local"}
    _, found = batch(f"{small}!archive", **given)
    assert [row["offset"] for row in found] == list(range(100))


# --- verification --------------------------------------------------------------------------------


def test_verify_of_an_archive_tells_what_the_library_tells(
    spark: SparkSession, place: Path, tmp_path: Path
) -> None:
    assert jobs.verify(spark, place / "archive") == []
    damaged = tmp_path / "archive"
    shutil.copytree(place / "archive", damaged)
    logs, indexes = sorted(damaged.rglob("*.log")), sorted(damaged.rglob("*.index"))
    data = bytearray(logs[0].read_bytes())
    data[len(data) // 2] ^= 1
    logs[0].write_bytes(data)
    indexes[-1].unlink()
    found = jobs.verify(spark, str(damaged))
    assert sorted(found, key=repr) == sorted(verify(str(damaged)).findings, key=repr)
    assert {each.path for each in found} == {
        str(each.relative_to(damaged)) for each in (logs[0], indexes[-1])
    }
