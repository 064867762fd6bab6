"""The study of how the number of partitions affects throughput, memory, and the time of a flush.

On disk: stores in the scratch directory. Threads: each run has a child process, with a main thread and the
sender thread of a producer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels, ticks
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.child import ask, memory
from segstore.bench.studies.common import concluded, measure, records_of, scratch
from segstore.bench.studies.words import answer, contest
from segstore.bench.terminal import number_text
from segstore.client.producer import Producer
from segstore.coordinator.open import open as open_store
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

NAME = "partitions"
QUESTION = "What do more partitions cost in throughput, memory and the time of a flush?"
ABOUT = """\
The same records of 100 bytes are sent to 1, 10, 100 and 1,000 partitions in turn (the first record to the
first partition, and so on), by one Producer with linger_ms=5. Each run is a new process: it opens the store
and all partitions, sends, and flushes every partition, with at least one fdatasync each. Memory is the
growth of the process since before it opened the store: once all partitions are open, and after sending.
More partitions make smaller batches, since all of them share the records of each linger time. A flush takes
the time of the disk, and a virtual disk that of its host. The study can't show what partitions are for in
Kafka, where brokers and consumers share the work by them; here there is one writer, and one Python."""

COUNTS = (1, 10, 100, 1_000)
RATE, FLUSH, OPEN, REST, SENT = SHOWN = "records/s", "flush ms", "open ms", "open MiB", "sent MiB"


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure a store with each number of partitions, and return the results. Raises OSError, and
    StorageError if a child process fails.
    """
    counts, records = ((1, 10, 30), 2_000) if quick else (COUNTS, 50_000)
    with scratch(directory) as path:
        stores = {count: os.path.join(path, f"store-{count}") for count in counts}
        for count, name in stores.items():
            progress(0, runs * len(counts), f"{NAME}: making {count:,}")
            with open_store(name) as store:
                store.create_topic("t", partitions=count)
        variants = {(count,): partial(_run, name, count, records) for count, name in stores.items()}
        cells = measure(("partitions",), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "records": records, "record bytes": 100}
        return concluded(sys.modules[__name__], path, cells, settings)


def _run(name: str, partitions: int, records: int) -> Mapping[str, float]:
    figures: dict[str, float] = ask(__name__, "sent", path=name, partitions=partitions, records=records)
    return figures


def sent(path: str, partitions: int, records: int) -> Mapping[str, float]:
    """Open a store, send records to all partitions, and flush all logs. Return the figures. Called in the
    child process.
    """
    values, clock = records_of(min(records, 10_000), 100), time.perf_counter
    rest, began = memory()["own"], clock()
    with open_store(path) as store:
        logs = [store.partition("t", number) for number in range(partitions)]
        opened, open_bytes, start = clock() - began, memory()["own"], clock()
        with Producer(store, linger_ms=5) as producer:
            for at in range(records):
                producer.send("t", values[at % len(values)], partition=at % partitions)
        sending, sent_bytes, start_flush = clock() - start, memory()["own"], clock()
        for log in logs:
            log.flush()
        flushing = clock() - start_flush
    return {
        RATE: records / sending,
        FLUSH: flushing * 1e3,
        OPEN: opened * 1e3,
        REST: (open_bytes - rest) / (1 << 20),
        SENT: (sent_bytes - rest) / (1 << 20),
    }


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings that compare the smallest number of partitions with the largest number. Two findings
    also have the cost of each further partition, in memory and in time.
    """
    few, *_, many = results.values("partitions")

    def said(figure: str, more: bool) -> str:
        words = (figure.partition(" ")[0], f"{few:,} partition", f"{many:,} partitions")
        return answer([contest(results, "partitions", (few, many), figure, more, {}, words)])

    def each(figure: str, unit: str, times: float) -> str:
        fewest, most = (results.cell(partitions=n).figures[figure].median for n in (few, many))
        return f"Each partition more costs {number_text((most - fewest) / (many - few) * times)} {unit}."

    return [
        ClaimFinding("More partitions lower throughput.", said(RATE, True)),
        ClaimFinding("More partitions take memory.", f"{said(REST, False)} {each(REST, 'KiB', 1024)}"),
        ClaimFinding(
            "A flush takes as much longer as there are partitions.",
            f"{said(FLUSH, False)} {each(FLUSH, 'ms', 1)}",
        ),
    ]


def plot(results: Results) -> Picture:
    """Return a picture of throughput, memory and times, by the number of partitions."""
    counts = results.values("partitions")

    def points(figure: str) -> dict[float, Figure]:
        return {float(cell.keys["partitions"]): cell.figures[figure] for cell in results.cells}

    with panels("What more partitions cost", 3) as all_axes:
        rate, memory, times = all_axes
        label(rate, "partitions", RATE, xlog=True)
        lines(rate, {"by one Producer": points(RATE)})
        label(memory, "partitions", "MiB the process has grown by", xlog=True)
        lines(memory, {"all open": points(REST), "all open, records sent": points(SENT)})
        label(times, "partitions", "ms", xlog=True, ylog=True)
        lines(times, {"flush of all": points(FLUSH), "opening all": points(OPEN)})
        for axes in all_axes:
            ticks(axes, counts, [f"{count:,}" for count in counts])
        return rate.figure  # type: ignore[return-value]
