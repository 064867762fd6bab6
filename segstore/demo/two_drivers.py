"""The stream under two drivers: the first is killed midway, the second goes on to the end.

On disk: what the drivers write, see `demo.spark_job`; a work directory that is handed in. Threads: one,
beside the reader of each driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from segstore.demo.drivers import Driver
from segstore.demo.interrupted import LastBatch, last_batch
from segstore.demo.stream_board import Progress
from segstore.errors import StorageError

QUERY = "delays"
"""As segstore.demo.spark_job has it."""
_PATIENCE = 0.1  # seconds
_LOOK = 0.004  # seconds between two looks at the log, when its next change is waited for

Show = Callable[[bool], None]


@dataclass(frozen=True)
class Job:
    """The fields of segstore.demo.spark_job.Job."""

    path: str
    rows: int
    late_hours: int
    work: str


class NotRunError(Exception):
    """There is nothing that runs Spark here: what is missing, and how to get it."""


def run_killed(job: Job, progress: Progress, show: Show) -> LastBatch:
    """Start a driver, and kill it, with Java and all, when half of the flights are read, at the moment in
    which the next micro-batch is seen in the log: Spark has hardly heard of it. NotRunError, StorageError.
    """
    seen = -1
    with Driver(asdict(job)) as driver:
        _introduce(driver, progress, "the first driver")
        while True:
            event = _told(driver, progress, _PATIENCE if seen < 0 else _LOOK)
            show(False)
            if seen >= 0 and (event is not None or progress.windows() > seen):
                break
            if seen < 0 and 2 * progress.read >= progress.total:
                seen = progress.windows()
        count = driver.kill()
    left = last_batch(job.path, QUERY)
    progress.say(f"SIGKILL: the driver, Java, Python workers, {count} processes")
    progress.say(str(left))
    return left


def run_to_the_end(job: Job, progress: Progress, show: Show, left: LastBatch) -> None:
    """Start another driver on what was left, and let it end. StorageError."""
    gone_on = False
    with Driver(asdict(job)) as driver:
        _introduce(driver, progress, "the second driver")
        event = None
        while event is None or event["event"] != "done":
            event = _told(driver, progress, _PATIENCE)
            if event is not None and event["event"] == "batch" and not gone_on:
                gone_on = True
                progress.say(_gone_on(event["batch"], left))
            show(False)
        driver.wait()


def _introduce(driver: Driver, progress: Progress, name: str) -> None:
    progress.driver = f"{name}, process {driver.pid}"
    progress.say(f"{progress.driver}, starts Java and Spark")


def _told(driver: Driver, progress: Progress, seconds: float) -> dict[str, Any] | None:
    """What it tells next. NotRunError; StorageError: it failed, or ended before it was done."""
    event = driver.told(seconds)
    if event is None:
        if driver.ended:
            raise StorageError(f"the driver ended before it was done: {driver.last_words()}")
    elif event["event"] == "missing":
        raise NotRunError(event["error"])
    elif event["event"] == "failed":
        raise StorageError(f"the driver failed: {event['error']}")
    else:
        progress.take(event)
    return event


def _gone_on(batch: int, left: LastBatch) -> str:
    if batch != left.planned or left.planned == left.committed:
        return f"goes on with micro-batch {batch}"
    again = "written now" if left.rows is None else "its rows stay in the log, once"
    return f"micro-batch {batch} is run again: {again}"
