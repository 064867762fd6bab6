"""The study of how the size of batches affects throughput and latency, and how linger_ms affects batch size
and latency (the linger curve).

On disk: a topic for each run, deleted after the run. Threads: the calling thread, and the sender thread of a
producer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.common import (
    concluded,
    measure,
    new_log,
    percentile,
    records_of,
    scratch,
    scratch_store,
    seconds,
)
from segstore.bench.studies.words import answer, contest, size_text
from segstore.bench.terminal import number_text
from segstore.client.producer import Producer
from segstore.files import Path
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


# --- batches -----------------------------------------------------------------------------------

# Each function below makes one run, and measures it.

APPEND, SYNCED, SIZE, LINGER = "append_batch", "append_batch, synced", "batch_size", "linger_ms"
TOPIC = "t"
UNFILLED = 1 << 20  # a batch_size so large that `paced` never fills a batch
TICK = 0.001  # precision of a sleep, in seconds


@contextmanager
def _topic(store: Store, **config: int) -> Iterator[PartitionLog]:
    log = new_log(store, TOPIC, **config)
    try:
        yield log
        # This flush is not measured. Without it the next run would have to write this run's records, too.
        log.flush()
    finally:
        store.delete_topic(TOPIC)


def appended(
    store: Store, values: Sequence[bytes], each: int, calls: int, synced: bool = False
) -> Mapping[str, float]:
    """Call `append_batch` with `each` values in each call, and return the figures. If `synced`, make `calls`
    calls, and sync after each call. If not `synced`, make as many calls as are needed to append each of
    `values` once.
    """
    with _topic(store, **({"flush_messages": 1} if synced else {})) as log:
        starts = range(0, calls * each, each) if synced else range(0, len(values), each)
        batches = [values[at : at + each] for at in (start % len(values) for start in starts)]
        took = [seconds(lambda b=batch: log.append_batch(b)) for batch in batches]  # type: ignore[misc]
    rate = sum(map(len, batches)) / sum(took)
    return {"records/s": rate, **_latency(took)}


def flooded(store: Store, values: Sequence[bytes], count: int, batch_size: int) -> Mapping[str, float]:
    """Send `count` records by a Producer, as fast as possible, and return the rate."""
    with _topic(store):
        began = time.perf_counter()
        with Producer(store, linger_ms=5, batch_size=batch_size) as producer:
            for at in range(count):
                producer.send(TOPIC, values[at % len(values)])
        return {"records/s": count / (time.perf_counter() - began)}


def paced(
    store: Store, values: Sequence[bytes], rate: int, length: float, linger_ms: int
) -> Mapping[str, float]:
    """Send `rate` records per second for `length` seconds by a Producer, and return the figures. The latency
    of a record is the time from the call of `send` until the record's future is done.
    """
    count, took = int(rate * length), list[float]()
    clock = time.perf_counter

    def done(began: float, _: object) -> None:
        took.append(clock() - began)

    with _topic(store), Producer(store, linger_ms=linger_ms, batch_size=UNFILLED) as producer:
        # The first send opens the partition, so that no measured send opens it.
        producer.send(TOPIC, b"first").get(timeout=10)
        began = clock()
        for at in range(count):
            while (ahead := began + at / rate - clock()) > 0:
                time.sleep(max(ahead, TICK))
            producer.send(TOPIC, values[at % len(values)]).add_callback(done, clock())
        producer.flush()
        spent = clock() - began
        metrics = producer.metrics()
        assert metrics is not None  # metrics are on by default
        # There is one partition, so each request has one batch. The first request is not counted.
        batches = metrics["producer-metrics"]["request-total"] - 1
    return {"records/s": count / spent, "records a batch": count / batches, **_latency(took)}


def _latency(took: Sequence[float]) -> dict[str, float]:
    return {"p50 ms": percentile(took, 0.5) * 1e3, "p99 ms": percentile(took, 0.99) * 1e3}


# --- batching ------------------------------------------------------------

NAME = "batching"
QUESTION = "What do larger batches, and waiting for them, do to throughput and latency?"
ABOUT = """\
Records of 100 bytes are written to one partition in four ways: by `append_batch` of 1 to 10,000 records a
call; by the same with each call made durable (flush.messages=1), with fewer calls; by a Producer that is
sent records as fast as Python can, with a batch_size from 512 bytes to 1 MiB and linger_ms=5; and, for the
linger curve, by a Producer with a batch_size too large to fill that is sent 5,000 records a second, evenly,
with a linger_ms from 0 to 100. Latency is the time of a call; for the Producer it is the time from `send`
until the record's future is done (acks=1). The sender's thread and the one that sends share Python's GIL,
which affects both latency and throughput. There is no network, whose cost for each request is what batches
save most for Kafka's producer."""

SHOWN = ("records/s", "p50 ms", "p99 ms", "records a batch")
CALLS = (1, 10, 100, 1_000, 10_000)
SIZES = (512, 4096, 16384, 65536, 1 << 20)
LINGERS = (0, 1, 2, 5, 10, 20, 50, 100)
VALUE_TEXT: dict[str, Callable[[int], str]] = {
    APPEND: "{:,} a call".format,
    SYNCED: "{:,} a call".format,
    SIZE: size_text,
    LINGER: "{} ms".format,
}


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure append_batch with several batch sizes, without syncs and with syncs, and a Producer with
    several values of batch_size and of linger_ms. Return the results. Raises OSError.
    """
    many, synced, sent, rate, time = (
        (1_000, 3, 1_000, 5_000, 0.04) if quick else (20_000, 16, 20_000, 5_000, 0.4)
    )
    largest = 1_000 if quick else CALLS[-1]
    values = records_of(max(many, largest), 100)
    with scratch(directory) as path, scratch_store(path) as store:
        variants = {
            **{(APPEND, n): partial(appended, store, values[:many], n, many) for n in CALLS if n <= largest},
            **{(SYNCED, n): partial(appended, store, values, n, synced, True) for n in CALLS if n <= largest},
            **{(SIZE, size): partial(flooded, store, values, sent, size) for size in SIZES},
            **{(LINGER, ms): partial(paced, store, values, rate, time, ms) for ms in LINGERS},
        }
        cells = measure(("by", "value"), variants, runs, progress, NAME)
        settings = {
            "runs": runs,
            "quick": quick,
            "record bytes": 100,
            "records": many,
            "synced calls": synced,
        }
        more = {"records sent": sent, "records/s paced": rate, "seconds paced": time}
        return concluded(sys.modules[__name__], path, cells, {**settings, **more})


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings, each of which compares the largest value of a setting with the smallest value. The
    first finding also has sentences that `knee` makes.
    """

    return [
        ClaimFinding(
            "Larger batches give more throughput.",
            f"{_ends(results, (APPEND, SYNCED, SIZE), 'records/s', True)} "
            f"{' '.join(knee(results, by) for by in (APPEND, SYNCED, SIZE))}",
        ),
        ClaimFinding(
            "A larger batch takes longer to return.", _ends(results, (APPEND, SYNCED), "p50 ms", False)
        ),
        ClaimFinding(
            "Lingering makes batches larger.",
            f"{_ends(results, (LINGER,), 'records a batch', True)} {curve(results, 'records a batch')}",
        ),
        ClaimFinding(
            "Lingering is paid for with latency.",
            f"{_ends(results, (LINGER,), 'p50 ms', False)} {curve(results, 'p50 ms')}",
        ),
    ]


def _ends(results: Results, kinds: Sequence[str], figure: str, more: bool) -> str:
    """Return a sentence on the claim that the largest value wins if `more`, or that the smallest value wins
    if not `more`.
    """
    contests = []
    for by in kinds:
        few, *_, many = (cell.keys["value"] for cell in results.where(by=by))
        first, second = (many, few) if more else (few, many)
        words = (by, VALUE_TEXT[by](first), VALUE_TEXT[by](second))
        contests.append(contest(results, "value", (first, second), figure, more, {"by": by}, words))
    return answer(contests)


def knee(results: Results, by: str) -> str:
    """Return a sentence that names the smallest value that has at least nine tenths of the best rate."""
    rates = {cell.keys["value"]: cell.figures["records/s"].median for cell in results.where(by=by)}
    best = max(rates.values())
    enough = min(value for value, rate in rates.items() if rate >= 0.9 * best)
    return f"{by}: nine tenths of the most, {number_text(best)} records/s, from {VALUE_TEXT[by](enough)} on."


def curve(results: Results, figure: str) -> str:
    """Return a sentence with the median of `figure` for each value of linger_ms."""
    points = [(cell.keys["value"], cell.figures[figure].median) for cell in results.where(by=LINGER)]
    return f"{figure} by linger_ms: {', '.join(f'{ms}: {number_text(value)}' for ms, value in points)}."


def plot(results: Results) -> Picture:
    """Return a picture with four panels: throughput by the size of an append_batch call, throughput by
    batch_size, and latency and batch size by linger_ms.
    """

    def points(by: str, figure: str) -> dict[float, Figure]:
        return {float(cell.keys["value"]): cell.figures[figure] for cell in results.where(by=by)}

    with panels("Batching: throughput, latency and the linger curve", 4, columns=2) as all_axes:
        calls, sizes, latency, linger = all_axes
        label(calls, "records a call of append_batch", "records/s", xlog=True, ylog=True)
        lines(calls, {by: points(by, "records/s") for by in (APPEND, SYNCED)})
        label(sizes, "batch_size of the Producer, bytes (linger_ms=5)", "records/s", xlog=True)
        lines(sizes, {"as fast as it can be sent": points(SIZE, "records/s")})
        label(latency, "linger_ms, at 5,000 records/s", "ms from send to done")
        lines(latency, {"median": points(LINGER, "p50 ms"), "99th percentile": points(LINGER, "p99 ms")})
        label(linger, "linger_ms, at 5,000 records/s", "records a batch")
        lines(linger, {"records a batch": points(LINGER, "records a batch")})
        return calls.figure  # type: ignore[return-value]
