"""The figures of a first day with segstore, again: as an application developer measured them at b5b6180,
and as they are now.

`python -m benchmarks.first_day` measures all of it, each in a process of its own, by turns, in some three
minutes, and prints a table with both figures; `--out` keeps first-day.json and first-day.md. The old figures
are those of a busy machine of 2 cores, one run each: compare what differs by a multiple.

On disk: stores in a temporary directory, up to 5 GB, removed at the end. Threads: one, and those that are
measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import segstore
from segstore.bench import Results, write
from segstore.bench.figures import by_turns
from segstore.bench.results import Cell, machine
from segstore.bench.terminal import figure_text, machine_text

Measured = dict[str, float]
VALUE = b"x" * 100
LONGEST = 600.0
_processes = multiprocessing.get_context("spawn")


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


# --- what is measured --------------------------------------------------------------------------

# Each function has a directory of its own, and a share of the usual amount of work.


def single_appends(path: Path, share: float, **more: Any) -> Measured:
    with segstore.open(path) as store:
        log = store.create_topic("t") and store.partition("t")
        count = int(100_000 * share)
        took = seconds(lambda: [log.append(VALUE, **more) for _ in range(count)])
    return {"records/s": count / took}


def appends_of_threads(path: Path, share: float, threads: int) -> Measured:
    """Each thread appends one by one to a partition of its own."""
    count, took = int(20_000 * share), []

    def work(log: Any) -> None:
        for _ in range(count):
            at = time.perf_counter()
            log.append(VALUE)
            took.append(time.perf_counter() - at)

    with segstore.open(path) as store:
        store.create_topic("t", partitions=threads)
        each = [threading.Thread(target=work, args=[store.partition("t", n)]) for n in range(threads)]
        whole = seconds(lambda: [*(one.start() for one in each), *(one.join() for one in each)])
    p50, p99 = np.percentile(np.array(took) * 1000, (50, 99))
    return {"records/s": threads * count / whole, "p50 ms": float(p50), "p99 ms": float(p99)}


def sends_of_threads(path: Path, share: float, threads: int) -> Measured:
    count = int(400_000 * share) // threads
    with segstore.open(path) as store:
        store.create_topic("t", partitions=4)
        with segstore.Producer(store) as producer:

            def work() -> None:
                for _ in range(count):
                    producer.send("t", VALUE)

            each = [threading.Thread(target=work) for _ in range(threads)]
            whole = seconds(
                lambda: [*(one.start() for one in each), *(one.join() for one in each), producer.flush()]
            )
    return {"records/s": threads * count / whole}


def tasks(path: Path, share: float) -> Measured:
    """Eight tasks of asyncio, each of which waits for its record."""
    count, took = int(1000 * share), []

    async def work(producer: Any) -> None:
        for _ in range(count):
            at = time.perf_counter()
            await producer.send_and_wait("t", VALUE)
            took.append(time.perf_counter() - at)

    async def main() -> None:
        with segstore.open(path) as store:
            store.create_topic("t")
            async with segstore.AsyncProducer(store) as producer:
                await asyncio.gather(*(work(producer) for _ in range(8)))

    whole = seconds(lambda: asyncio.run(main()))
    return {"records/s": 8 * count / whole, "p50 ms": float(np.median(took) * 1000)}


def one_loop(path: Path, share: float) -> Measured:
    """What a plain loop sees of 100,000 records."""
    with segstore.open(path) as store:
        log = store.create_topic("t") and store.partition("t")
        log.append_batch([VALUE] * 100_000)
        return {"of 100,000 records": float(sum(1 for _ in log))}


def left_by_close(path: Path, share: float) -> Measured:
    """What is in the log of 10,000 records that a producer still held when the store was closed."""
    with segstore.open(path) as store:
        store.create_topic("t")
        producer = segstore.Producer(store)
        for _ in range(10_000):
            producer.send("t", VALUE)
    with segstore.open(path, "r") as store:
        return {"of 10,000 records": float(store.partition("t").end_offset)}


def cell_run_twice(path: Path, share: float) -> Measured:
    """A notebook's cell is run again: how long until the group's new consumer has a record?"""
    with segstore.open(path) as store:
        store.create_topic("t")
        store.partition("t").append(VALUE)

        def cell() -> segstore.Consumer:
            consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest")
            while not consumer.poll(100):
                pass
            return consumer

        kept = [cell()]
        kept.clear()
        return {"s": seconds(cell)}


def to_arrow(path: Path, share: float) -> Measured:
    import pyarrow  # noqa: F401 its import is no part of what is measured, as it was not on a first day

    with segstore.open(path) as store:
        log = store.create_topic("t") and store.partition("t")
        log.append_batch([VALUE] * int(903_014 * share))
        return {"s": seconds(lambda: log.scan().to_arrow())}


def two_gigabytes(path: Path, share: float) -> Measured:
    """Two million records of 1,000 bytes in one partition."""
    batch = [b"%07d" % number + bytes(993) for number in range(10_000)]
    rounds = max(int(200 * share), 1)
    found: Measured = {}
    with segstore.open(path) as store:
        log = store.create_topic("t") and store.partition("t")
        found["append s"] = seconds(lambda: [log.append_batch(batch) for _ in range(rounds)])
    found["open s"] = seconds(lambda: segstore.open(path).close())
    with segstore.open(path, "r") as store:
        log = store.partition("t")
        found["scan s"] = seconds(lambda: _read_through(log))
        found["each record s"] = seconds(lambda: sum(1 for _ in log.scan()))
        found["columns s"] = seconds(lambda: [len(part.offsets) for part in log.scan().reads()])
        wanted = np.random.default_rng(1).integers(0, log.end_offset, 1000)
        found["point read µs"] = seconds(lambda: [log.read_one(int(at)) for at in wanted]) * 1000
    found["check s"] = seconds(lambda: segstore.check(path))
    found["copy s"] = seconds(lambda: segstore.copy(path, f"{path}-copy"))
    found["resident MB"] = megabytes()
    found["export to Parquet s"] = seconds(partial(_command, "export", "t", f"{path}.parquet", "-s", path))
    return found


def _read_through(log: Any) -> None:
    """Read a partition to its end, as the loop of a first day did, when there was no `scan`. No record
    becomes an object by this.
    """
    offset = log.start_offset
    while offset < log.end_offset:
        offset = log.read(offset).next_offset


def unclean(path: Path, share: float) -> Measured:
    """A store of 1.1 GB is opened whose writer was killed."""
    writer = _processes.Process(target=_write_and_die, args=(path, max(int(110 * share), 1)))
    writer.start()
    writer.join(LONGEST)
    return {"s": seconds(lambda: segstore.open(path).close())}


def _write_and_die(path: Path, rounds: int) -> None:
    log = (store := segstore.open(path)).create_topic("t") and store.partition("t")
    for _ in range(rounds):
        log.append_batch([bytes(1000)] * 10_000)
    os.kill(os.getpid(), signal.SIGKILL)


def large_values(path: Path, share: float) -> Measured:
    with segstore.open(path) as store:
        store.create_topic("t", config={"max.message.bytes": 20_000_000})
        log, value = store.partition("t"), os.urandom(10_000_000)
        return {"ms": seconds(lambda: [log.append(value) for _ in range(10)]) * 100}


def thousand_topics(path: Path, share: float) -> Measured:
    names = [f"t{number}" for number in range(max(int(1000 * share), 1))]
    with segstore.open(path) as store:
        made = seconds(lambda: [store.create_topic(name) for name in names])
        wrote = seconds(lambda: [store.partition(name).append(VALUE) for name in names])
        descriptors = float(len(os.listdir("/proc/self/fd")))
    reopened = seconds(lambda: segstore.open(path).close())
    found = {"create s": made, "append s": wrote, "reopen s": reopened}
    return {**found, "descriptors": descriptors, "resident MB": megabytes()}


def reader(path: Path, share: float) -> Measured:
    with segstore.open(path) as store:
        store.create_topic("t")
        store.partition("t").append(VALUE)
        return {"ms": seconds(lambda: segstore.open(path, "r").close()) * 1000}


def start(path: Path, share: float) -> Measured:
    segstore.open(path).close()
    python = [sys.executable, "-c"]
    return {
        "python -c '' s": seconds(partial(_run, *python, "")),
        "import segstore s": seconds(partial(_run, *python, "import segstore")),
        "--version s": seconds(partial(_command, "--version")),
        "--help s": seconds(partial(_command, "--help")),
        "topics s": seconds(partial(_command, "topics", "-s", path)),
    }


def _command(*arguments: object) -> None:
    _run(sys.executable, "-m", "segstore", *map(str, arguments))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=LONGEST)


WORKS: Mapping[str, Callable[[Path, float], Measured]] = {
    "append one by one": single_appends,
    "the same, with a header": partial(single_appends, headers=[("a", b"b")]),
    "append one by one, 1 thread": partial(appends_of_threads, threads=1),
    "append one by one, 6 threads": partial(appends_of_threads, threads=6),
    "Producer.send, 1 thread": partial(sends_of_threads, threads=1),
    "Producer.send, 8 threads": partial(sends_of_threads, threads=8),
    "send_and_wait, 8 tasks": tasks,
    "a plain loop": one_loop,
    "in the log after close": left_by_close,
    "a notebook's cell, run twice": cell_run_twice,
    "903,014 records to Arrow": to_arrow,
    "2 GB": two_gigabytes,
    "1.1 GB, opened after a kill": unclean,
    "a value of 10 MB": large_values,
    "1,000 topics": thousand_topics,
    "open to read beside the writer": reader,
    "segstore": start,
}
BEFORE: Mapping[tuple[str, str], str] = {
    ("append one by one", "records/s"): "14,000–18,000",
    ("the same, with a header", "records/s"): "7,500",
    ("append one by one, 1 thread", "records/s"): "13,000",
    ("append one by one, 6 threads", "records/s"): "4,971",
    ("append one by one, 6 threads", "p50 ms"): "1.1",
    ("append one by one, 6 threads", "p99 ms"): "4",
    ("Producer.send, 1 thread", "records/s"): "480,000–560,000",
    ("Producer.send, 8 threads", "records/s"): "480,000–560,000",
    ("send_and_wait, 8 tasks", "records/s"): "4,000",
    ("send_and_wait, 8 tasks", "p50 ms"): "2",
    ("a plain loop", "of 100,000 records"): "9,520",
    ("in the log after close", "of 10,000 records"): "0 to 9,434",
    ("a notebook's cell, run twice", "s"): "45",
    ("903,014 records to Arrow", "s"): "0.4",
    ("2 GB", "append s"): "2.5",
    ("2 GB", "open s"): "0.005",
    ("2 GB", "scan s"): "0.7",
    ("2 GB", "columns s"): "0.8",
    ("2 GB", "point read µs"): "50",
    ("2 GB", "check s"): "2.1",
    ("2 GB", "copy s"): "6.9",
    ("2 GB", "resident MB"): "200",
    ("2 GB", "export to Parquet s"): "6.8",
    ("1.1 GB, opened after a kill", "s"): "0.41",
    ("a value of 10 MB", "ms"): "30",
    ("1,000 topics", "create s"): "3.8",
    ("1,000 topics", "append s"): "1.3",
    ("1,000 topics", "reopen s"): "0.25",
    ("1,000 topics", "descriptors"): "2,008",
    ("1,000 topics", "resident MB"): "95",
    ("open to read beside the writer", "ms"): "2",
    ("segstore", "import segstore s"): "0.36–0.55",
    ("segstore", "--version s"): "0.6",
    ("segstore", "topics s"): "0.6",
}
"""What was measured at b5b6180. Processes that append are in bench_processes.py, other stores in peers."""

# --- runs --------------------------------------------------------------------------------------


def measure(name: str, share: float, directory: str | None) -> Measured:
    """Measure one work once, in a process of its own. Raises RuntimeError where that fails."""
    with tempfile.TemporaryDirectory(prefix="segstore-first-day-", dir=directory) as made:
        ours, theirs = _processes.Pipe(duplex=False)
        process = _processes.Process(target=_work, args=(name, Path(made, "store"), share, theirs))
        process.start()
        theirs.close()
        with contextlib.suppress(EOFError):
            if ours.poll(LONGEST):
                found: Measured = ours.recv()
                process.join(LONGEST)
                return found
        process.kill()
        process.join()
        raise RuntimeError(f"{name}: nothing was measured, status {process.exitcode}")


def _work(name: str, path: Path, share: float, out: Any) -> None:
    out.send(WORKS[name](path, share))
    out.close()


def measured(names: list[str], runs: int, share: float, directory: str | None) -> Results:
    variants = {name: partial(measure, name, share, directory) for name in names}
    figures = by_turns(variants, runs, lambda name: click.echo(name, err=True))
    return Results(
        "first-day",
        "What did an application developer measure on a first day, and what is it now?",
        machine(directory or tempfile.gettempdir()),
        {"runs": runs, "share": share},
        [Cell({"work": name}, figures[name]) for name in names],
    )


def table(results: Results) -> str:
    """The figures as Markdown, beside those of the first day."""
    return "\n".join([*_lines(results), ""])


def _lines(results: Results) -> Iterator[str]:
    yield f"Measured on {machine_text(results)}; load {results.machine['load']:g}."
    yield from ("", "| work | figure | first day | now |", "|---|---|--:|--:|")
    for cell, name in itertools.chain.from_iterable([(c, n) for n in c.figures] for c in results.cells):
        work = cell.keys["work"]
        yield f"| {work} | {name} | {BEFORE.get((work, name), '–')} | {figure_text(cell.figures[name])} |"


@click.command()
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Runs of each work.")
@click.option("--quick", is_flag=True, help="One run, a hundredth of the work: figures that mean nothing.")
@click.option("--only", multiple=True, type=click.Choice(list(WORKS)), help="These works alone.")
@click.option("--directory", type=click.Path(file_okay=False), help="Where stores are written.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the results there.")
def main(runs: int, quick: bool, only: tuple[str, ...], directory: str | None, out: Path | None) -> None:
    """Measure again what was measured on a first day."""
    results = measured(list(only or WORKS), 1 if quick else runs, 0.01 if quick else 1.0, directory)
    click.echo(table(results))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "first-day.json")
        (out / "first-day.md").write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
