"""The Spark part: flights stream through a windowed aggregation into a topic, exactly once, although the
driver is killed midway; the result is what a batch says.

On disk: topics of the demo's store, by the engine; a temporary directory, for what Java and Spark leave lying
about. Threads: one, and the reader of a driver.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import segstore
from segstore.cli.options import open_reading
from segstore.cli.output import add_row, table, time_text
from segstore.demo.answer import batch_answer, compare, streamed_answer, worst
from segstore.demo.flights import TOPIC, Flights
from segstore.demo.screen import Screen
from segstore.demo.stream_board import Progress, shown
from segstore.demo.two_drivers import Job, NotRunError, run_killed, run_to_the_end

HEARTBEATS, TARGET = "heartbeats", "delays"
"""As segstore.demo.spark_job has them."""
PARTITIONS = 2
_BATCHES, _LEAST_BATCHES = 20, 6  # micro-batches, about
_FEW = 1000  # records in each: with fewer there are fewer micro-batches
_HOUR_MS = 3_600_000
_WORST, _LEAST = 3, 10  # how many hours are shown, and flights that one of them must have


def stream(screen: Screen, path: str, held: Flights) -> None:
    """All of it. StorageError where the result is not the batch answer, or a driver failed."""
    with screen.step("Spark", "delays per airline and hour, streamed exactly once, through a kill"):
        try:
            with _mended(screen, path):
                _run(screen, path, held)
        except NotRunError as error:
            screen.say(f"left out: {error}")
            return
    with screen.step("The batch answer", f"by pyarrow, from the flights' own file, beside topic {TARGET}"):
        prove(screen, path, len(held))


def _run(screen: Screen, path: str, held: Flights) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NotRunError(
            "PySpark is not installed: pip install 'segstore[spark]' (it brings Java too, if there is none)"
        )
    with (
        tempfile.TemporaryDirectory(prefix="segstore-demo-spark-") as work,
        open_reading(path) as store,
    ):
        job = Job(os.path.abspath(path), rows(len(held)), late_hours(held), work)
        screen.say(f"readStream of {TOPIC}, {job.rows:,} records a micro-batch; writeStream to {TARGET};")
        screen.say("checkpoints in a topic of the same store; an hour is over when a flight")
        screen.say(f"is seen that is {job.late_hours} hours later")
        _make_topics(path)
        logs = [store.partition(TARGET, p) for p in range(PARTITIONS)]
        progress = Progress(len(held), lambda: sum(log.end_offset for log in logs))
        with shown(screen, progress) as show:
            left = run_killed(job, progress, show)
            run_to_the_end(job, progress, show, left)
            show(True)


def rows(records: int) -> int:
    """How many a micro-batch has: one of a few records takes as long as one of a thousand."""
    return max(records // _BATCHES, min(records // _LEAST_BATCHES, _FEW), 1)


def late_hours(held: Flights) -> int:
    """How much later than another a flight may be read and still count. Partitions are read in step by
    records, not by time; a 25th of all that the flights span is about twice what they come apart by.
    """
    span = int(held.timestamps[-1] - held.timestamps[0])
    return max(span // 25 // _HOUR_MS, 24)


def _make_topics(path: str) -> None:
    with segstore.open(path) as store:
        store.create_topic(HEARTBEATS)
        store.create_topic(TARGET, partitions=PARTITIONS)


@contextmanager
def _mended(screen: Screen, path: str) -> Iterator[None]:
    """The store is sound, whatever ended the driver that had it open."""
    try:
        yield
    except BaseException as error:
        with segstore.open(path):  # recovery
            pass
        if isinstance(error, KeyboardInterrupt):
            screen.say("Ctrl-C: the driver, Java and Python workers are gone, the store is recovered")
        raise


def prove(screen: Screen, path: str, records: int) -> None:
    """That the topic has each airline's hours once, and counts what the raw data have. StorageError."""
    answer = batch_answer(records)
    with open_reading(path) as store:
        compare(streamed_answer([store.partition(TARGET, p) for p in range(PARTITIONS)]), answer)
    made = table("scheduled (UTC)", "airline", "flights", "mean delay", right=("flights", "mean delay"))
    for airline, hour, flights, delay in worst(answer, _LEAST, _WORST):
        add_row(made, time_text(hour), airline, flights, f"{delay:.0f} minutes")
    screen.table(made)
    screen.good(f"all {answer.num_rows:,} hours are in the log, each once, and equal the batch answer")
