"""Several processes append to one log: by staging, by a server, by a queue to the process that has the store.

`python -m benchmarks.bench_processes` measures all ways by turns, each with WORKERS processes that append as
fast as they are answered, writes processes.json, and puts its table into docs/processes.md. A call is one
append that waits for its acknowledgement: of one record, as a request of a web server makes it, or of 100.
"durable" calls return after a sync; the others survive the death of any process, not a power cut.

On disk: a store for each run, in a temporary directory. Threads: one; the workers are processes, and so is
the one that has the store open.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import confluent_kafka
import numpy as np

import segstore
from benchmarks import result_pages
from benchmarks.result_pages import placed
from segstore.bench import Results, load, write
from segstore.bench.figures import by_turns
from segstore.bench.results import Cell, machine
from segstore.bench.terminal import figure_text, key_text, machine_text
from segstore.storage.staging import Stager, seal

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "processes.md"
BEGIN, END = "<!-- processes -->\n", "<!-- end of processes -->\n"
TOPIC, VALUE = "events", b"x" * 100
WORKERS, RUNS, LONGEST = 4, 5, 120.0
STAGE, SERVE, QUEUE = "stage", "serve", "queue"
_processes = multiprocessing.get_context("spawn")
Append = Callable[[Sequence[bytes]], None]


class Case(NamedTuple):
    """How workers append, whether a call waits for a sync, records a call, and calls of each worker."""

    way: str
    durable: bool
    records: int
    calls: int


CASES = [
    *(Case(STAGE, True, records, 40) for records in (1, 100)),
    *(
        Case(way, durable, records, 100 if durable else 400)
        for durable in (True, False)
        for records in (1, 100)
        for way in (SERVE, QUEUE)
    ),
]


# --- workers ----------------------------------------------------------------------------------


@contextmanager
def by_staging(path: str) -> Iterator[Append]:
    """Stages each call, which the writer adopts once it is sealed."""

    def append(values: Sequence[bytes]) -> None:
        with Stager(path) as stager:
            stager.append_batch(TOPIC, 0, list(values))
            message = stager.finish()
        seal(path, uuid.uuid4().hex, [message])

    yield append


@contextmanager
def by_server(bootstrap_servers: str) -> Iterator[Append]:
    """Sends each call to a server, by librdkafka."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    failed: list[object] = []

    def answered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    def append(values: Sequence[bytes]) -> None:
        for value in values:
            producer.produce(TOPIC, value, partition=0, on_delivery=answered)
        if producer.flush(LONGEST) or failed:
            raise RuntimeError(f"not all was acknowledged: {failed[:1]}")

    yield append


@contextmanager
def by_queue(ends: tuple[Any, int, Any]) -> Iterator[Append]:
    """Gives each call to the process that has the store, and waits for its word."""
    requests, number, answers = ends

    def append(values: Sequence[bytes]) -> None:
        requests.put((number, list(values)))
        answers.recv()

    yield append


WAYS: dict[str, Callable[[Any], Any]] = {STAGE: by_staging, SERVE: by_server, QUEUE: by_queue}


def work(way: str, where: Any, calls: int, records: int, begin: Any, out: Any) -> None:
    """Append as a worker, and tell when it began and ended, and how long each call took, in seconds."""
    values = [VALUE] * records
    with WAYS[way](where) as append:
        append(values)  # connections and imports are no part of it
        begin.wait(LONGEST)
        took, began = [], time.monotonic()
        for _ in range(calls):
            at = time.monotonic()
            append(values)
            took.append(time.monotonic() - at)
        out.put((began, time.monotonic(), took))


# --- the process that has the store -----------------------------------------------------------


def keep(way: str, path: str, durable: bool, told: Any, requests: Any, answers: Sequence[Any]) -> None:
    """Have the store open, and serve the workers until None comes."""
    with segstore.open(path) as store:
        store.create_topic(TOPIC, config={"flush.messages": 1} if durable else {})
        if way == SERVE:
            with segstore.serve(store, port=0) as server:
                told.send(server.bootstrap_servers)
                told.recv()
        elif way == STAGE:
            told.send(path)
            told.recv()
        else:
            told.send(None)
            answer_all(store.partition(TOPIC), requests, answers)


def answer_all(log: segstore.PartitionLog, requests: Any, answers: Sequence[Any]) -> None:
    """Append what waits in the queue, all of it at once."""
    while (first := requests.get()) is not None:
        waiting = [first]
        while len(waiting) < WORKERS and not requests.empty():
            more = requests.get()
            if more is None:
                return
            waiting.append(more)
        log.append_batch([value for _, values in waiting for value in values])
        for number, _ in waiting:
            answers[number].send(True)


# --- runs -------------------------------------------------------------------------------------


def measure(case: Case, directory: str | None = None, workers: int = WORKERS) -> dict[str, float]:
    """Run one case in a store of its own, and see that the log has all that was acknowledged."""
    with tempfile.TemporaryDirectory(prefix="segstore-processes-", dir=directory) as made:
        path = str(Path(made, "store"))
        came = _run(case, path, workers)
        with segstore.open(path) as store:
            there = store.partition(TOPIC).end_offset
    expected = workers * (case.calls + 1) * case.records
    if there != expected:
        raise RuntimeError(f"{case}: the log has {there} records, and {expected} were acknowledged")
    seconds = max(ended for _, ended, _ in came) - min(began for began, _, _ in came)
    took = np.concatenate([took for _, _, took in came]) * 1000
    p50, p99 = np.percentile(took, (50, 99))
    rate = workers * case.calls * case.records / seconds
    return {"records/s": rate, "p50 ms": float(p50), "p99 ms": float(p99)}


def _run(case: Case, path: str, workers: int) -> list[tuple[float, float, list[float]]]:
    ours, theirs = _processes.Pipe()
    pipes = [_processes.Pipe(duplex=False) for _ in range(workers)]
    requests, out, begin = _processes.SimpleQueue(), _processes.Queue(), _processes.Barrier(workers)
    senders = [sender for _, sender in pipes]
    keeper = _processes.Process(
        target=keep, args=(case.way, path, case.durable, theirs, requests, senders), daemon=True
    )
    keeper.start()
    if not ours.poll(LONGEST):
        raise RuntimeError(f"{case}: the store was not opened")
    where = ours.recv()
    each = [(requests, n, pipes[n][0]) if case.way == QUEUE else where for n in range(workers)]
    started = [
        _processes.Process(
            target=work, args=(case.way, each[n], case.calls, case.records, begin, out), daemon=True
        )
        for n in range(workers)
    ]
    for process in started:
        process.start()
    came = [out.get(timeout=LONGEST) for _ in started]
    for process in started:
        process.join(LONGEST)
    requests.put(None) if case.way == QUEUE else ours.send(None)
    keeper.join(LONGEST)
    return came


def measured(cases: Sequence[Case], runs: int, directory: str | None, ran: Callable[[Any], None]) -> Results:
    variants = {case: partial(measure, case, directory) for case in cases}
    figures = by_turns(variants, runs, ran)
    cells = [
        Cell({"way": case.way, "durable": case.durable, "records a call": case.records}, figures[case])
        for case in cases
    ]
    return Results(
        "processes",
        f"How fast do {WORKERS} processes append to one log, and how long does each wait?",
        machine(directory or tempfile.gettempdir(), ("confluent-kafka",)),
        {"workers": WORKERS, "value_bytes": len(VALUE), "runs": runs},
        cells,
    )


# --- the page ---------------------------------------------------------------------------------


def rendered(results: Results) -> str:
    """The part of docs/processes.md that is made of the results."""
    heads = ["records a call", "durable", "way", *(figures := ["records/s", "p50 ms", "p99 ms"])]
    settings, load_then = results.settings, results.machine["load"]
    lines = [
        f"Measured by `python -m benchmarks.bench_processes` with {settings['workers']} workers and values of"
        f" {settings['value_bytes']} bytes on {machine_text(results)}, with a load of"
        f" {load_then:g} by other processes at the start.\n",
        f"| {' | '.join(heads)} |",
        "|--:|---|---|--:|--:|--:|",
    ]
    for cell in sorted(results.cells, key=lambda cell: (cell.keys[heads[0]], not cell.keys["durable"])):
        keys = [key_text(cell.keys[heads[0]]), "yes" if cell.keys["durable"] else "no", cell.keys["way"]]
        lines.append(f"| {' | '.join([*keys, *(figure_text(cell.figures[name]) for name in figures)])} |")
    runs = f"Medians of {settings['runs']} runs, ± the distance to the farther end of the interval."
    lines += ["", runs if settings["runs"] > 1 else "A single run, which says little."]
    return "".join(line + "\n" for line in lines)


def page(text: str, results: Results) -> str:
    """The page with the table of these results. ValueError where it has not both marks."""
    return placed(text, rendered(results), BEGIN, END)


def update() -> None:
    """Put the results that are kept into the page, and what they say into results/README.md."""
    results = load(RESULTS / "processes.json")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    result_pages.update(directory=RESULTS)


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--runs", default=RUNS, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="One run of few calls, and no figure to believe.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False), help="Where the stores are made.")
@click.option("--page/--no-page", "shows", default=True, help="Put the table into docs/processes.md.")
def main(out: Path, runs: int, quick: bool, directory: str | None, shows: bool) -> None:
    """Measure how several processes append to one log."""
    cases = [case._replace(calls=3) for case in CASES] if quick else CASES
    with click.progressbar(length=len(cases) * (1 if quick else runs), label="appending") as bar:
        results = measured(cases, 1 if quick else runs, directory, lambda _: bar.update(1))
    out.mkdir(parents=True, exist_ok=True)
    write(results, out / "processes.json")
    click.echo(rendered(results))
    if shows and out == RESULTS and not quick:
        update()


if __name__ == "__main__":
    main()
