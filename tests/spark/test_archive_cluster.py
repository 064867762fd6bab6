"""Two executors with working directories of their own read an archive in an S3 server, and nothing else: the
store is gone, and no path is shared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_archive import make_archive
from places import REPOSITORY, environment

import segstore

pytest.importorskip("pyspark", "4.2")
pytest.importorskip("s3_server")

from s3_server import s3_bucket as s3_bucket
from s3_server import s3_server as s3_server

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark programs")]
RECORDS, RANGES = 20_000, 8
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession

uri, ranges = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
frame = spark.read.format("segstore").option("minPartitions", ranges).load(uri, subscribe="t")

def task(batches):
    import pyarrow as pa
    from pyspark import TaskContext

    offsets = [row for batch in batches for row in batch.column(0).to_pylist()]
    place = [TaskContext.get().partitionId()], [os.getcwd()], [min(offsets)], [len(offsets)]
    yield pa.RecordBatch.from_arrays([pa.array(each) for each in place], ["task", "at", "first", "rows"])

found = frame.select("offset").mapInArrow(task, "task bigint, at string, first bigint, rows bigint").collect()
stream = spark.readStream.format("segstore").option("startingOffsets", "earliest").load(uri, subscribe="t")
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
rows = spark.sql("select count(distinct partition, offset) as n from seen").collect()[0].n
print(json.dumps({"tasks": [row.asDict() for row in found], "stream": rows}))
spark.stop()
"""


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """PySpark's home by links: the executors of a local cluster have their directories in it."""
    import pyspark

    home = tmp_path / "spark-home"
    home.mkdir()
    for name in ("bin", "sbin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def test_one_task_a_range_on_two_executors(tmp_path: Path, s3_bucket: str, spark_home: Path) -> None:
    from segstore.spark.java import find_java

    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": 200_000})
        for partition in range(2):
            for _ in range(10):
                values = [b"%06d" % number * 10 for number in range(RECORDS // 20)]
                store.partition("t", partition).append_batch(values)
    place, _, query = s3_bucket.partition("?")
    uri = f"{place}/log?{query}"
    make_archive(tmp_path / "store", uri)
    shutil.rmtree(tmp_path / "store")
    java = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(spark_home)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, uri, str(RANGES)],
        env={**environment(str(REPOSITORY)), **java, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    tasks = found["tasks"]
    assert len({each["task"] for each in tasks}) == len(tasks) == RANGES
    assert sum(each["rows"] for each in tasks) == RECORDS
    assert len({each["at"] for each in tasks}) == 2
    assert found["stream"] == RECORDS
    assert "secret" not in done.stderr
