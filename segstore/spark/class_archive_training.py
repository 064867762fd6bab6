"""A program that runs a typical batch query and a typical streaming query in a JVM that makes a class
archive. The archive then contains the classes that these queries have loaded.

On disk: a store and a checkpoint, in the directory that is the program's argument. Threads: one, in a process
of its own.
"""

from __future__ import annotations

import os

from segstore.spark.launch import running, start
from segstore.storage.store import store as storage

_TOPIC = "t"
_SECONDS = 600


def train(work: str, archive: str) -> None:
    """Run a batch query and a streaming query, and then stop the JVM. The JVM writes the class archive when
    it exits.
    """
    path = os.path.join(work, "store")
    with storage.open(path) as store:
        store.create_topic(_TOPIC)
        store.partition(_TOPIC).append_batch([b"%d" % i for i in range(100)])
    spark = start("local[2]", {"spark.sql.shuffle.partitions": 2}, quick=True, archive=archive)
    options = {"path": path, "subscribe": _TOPIC, "startingOffsets": "earliest", "includeHeaders": "true"}
    rows = spark.read.format("segstore").options(**options).load()
    rows.where("offset >= 10").groupBy("topic").count().collect()
    rows.orderBy("offset").limit(3).collect()
    new = spark.readStream.format("segstore").options(**options).load().groupBy("partition").count()
    query = new.writeStream.format("noop").outputMode("complete").trigger(availableNow=True)
    query.option("checkpointLocation", os.path.join(work, "checkpoint")).start().awaitTermination(_SECONDS)
    spark.stop()
    (process,) = running()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(_SECONDS)
