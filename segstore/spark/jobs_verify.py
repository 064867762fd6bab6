"""`verify`: every CRC, record and index of a store, on all executors. On disk: reads only. Threads: one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from segstore.coordinator.checking import check_internal
from segstore.spark.jobs_run import bundles, run
from segstore.storage.check.by_segment import Checked, Part, check_part, check_rest, parts
from segstore.storage.check.check import Finding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
"""A task checks about so much, or a segment that is larger."""


def verify(spark: SparkSession, path: str | os.PathLike[str]) -> list[Finding]:
    """See `segstore.spark.verify`."""
    root = os.path.abspath(os.fsdecode(path))
    tasks = bundles(parts(root), lambda part: part.size, TASK_BYTES)
    done = (checked for each in run(spark, tasks, _check_all) for checked in each)
    return [*check_rest(root, {checked.part: checked for checked in done}), *check_internal(root)]


def _check_all(bundle: list[Part]) -> list[Checked]:
    return [checked for checked in map(check_part, bundle) if checked is not None]
