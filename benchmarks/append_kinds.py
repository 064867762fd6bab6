"""What each kind of append takes, beside a plain one: `python -m benchmarks.append_kinds`, which is
`make bench-append`.

Kinds take turns in one run, of some hundred calls each; a call is timed alone, from before it to its answer.
A ratio is of the medians of two kinds in the same round. Stores are fresh, and stay open during all turns; at
the end the log of each kind must have all that was acknowledged.

On disk: stores in a temporary directory; results/append-kinds.json, results/README.md, and the table in
docs/benchmarks.md.
Threads: one, those of the stores, and a sweeper; the standby is a process.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

import segstore
from benchmarks import result_pages
from benchmarks.result_pages import placed
from benchmarks.standbys import following
from segstore.bench import Cell, Figure, Results, load, machine, write
from segstore.bench.figures import by_turns
from segstore.bench.terminal import figure_text, machine_text, number_text
from segstore.records import Columns, Template, encode

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- append kinds -->\n", "<!-- end of append kinds -->\n"
VALUE, KILOBYTE, LARGE = b"v" * 100, b"v" * 1_000, b"v" * 20_480
RUNS, CALLS, QUICK_CALLS, WARM = 9, 300, 5, 20
SWEEP_SECONDS, FLUSH_MS, TIMEOUT = 0.01, 1_000, 60.0
PLAIN, SEND = "plain", "send and get"
P50, P99, RATIO = "p50 us", "p99 us", "ratio"
Calls = list[Callable[[], object]]


class Setup(NamedTuple):
    """`prepare` returns so many calls, which are made within `during`; `log` gets `offsets` with each."""

    log: segstore.PartitionLog
    prepare: Callable[[int], Calls]
    offsets: int = 1
    during: Callable[[], AbstractContextManager[object]] = nullcontext


class Place:
    """The directory of one kind; what it opens is closed by `stack`."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        path.mkdir()

    def log(self, **config: Any) -> segstore.PartitionLog:
        """Return the empty log of a plain store, whose topic has such settings, with dots for underscores."""
        store = self._stack.enter_context(segstore.open(self._path / "store"))
        return self._log(store, config)

    def replicated(self) -> Any:
        """Return the empty log of two replicas, which appends write inline."""
        paths = [self._path / "0", self._path / "1"]
        settings = {"min.insync.replicas": 2}
        opened = segstore.open_replicated(paths, config=settings, inline=True)
        store = self._stack.enter_context(opened)
        return self._log(store, {}, replication_factor=2)

    def followed(self) -> segstore.PartitionLog:
        """Return the empty log of a primary, whose standby in sync mode is another process."""
        log = self.log()
        server = self._stack.enter_context(segstore.serve(log.store, port=0))
        self._stack.enter_context(following(server.bootstrap_servers, self._path / "standby", "sync"))
        return log

    def producer(self, log: segstore.PartitionLog, **settings: Any) -> segstore.Producer:
        made = segstore.Producer(log.store, linger_ms=0, **settings)
        return self._stack.enter_context(made)

    @staticmethod
    def _log(store: segstore.Store, config: dict[str, Any], **more: Any) -> segstore.PartitionLog:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        store.create_topic("t", config=settings or None, **more)
        return store.partition("t", 0)


# --- kinds ---------------------------------------------------------------------------------------


def appends(log: Any, *given: object, **config: Any) -> Setup:
    """Appends of one record each."""
    return Setup(log, lambda n: [partial(log.append, *given)] * n)


def batches(log: segstore.PartitionLog, size: int) -> Setup:
    values = [VALUE] * size
    return Setup(log, lambda n: [partial(log.append_batch, values)] * n, size)


def sequenced(log: segstore.PartitionLog, producers: int) -> Setup:
    """Batches of one record as producers with ids send them, by turns."""
    numbers = count()

    def prepare(n: int) -> Calls:
        sent = [batch_of(number % producers, number // producers) for number in islice(numbers, n)]
        return [partial(log.append_as_leader, each, acks=-1) for each in sent]

    return Setup(log, prepare)


def batch_of(producer_id: int, sequence: int, offset: int = 0) -> bytearray:
    columns = Columns([VALUE], timestamp=time.time_ns() // 1_000_000)
    template = Template(0, producer_id, 0, sequence, base_offset=offset, leader_epoch=0)
    (encoded,) = encode(columns, template=template)
    return bytearray(memoryview(encoded.data)[: encoded.size])


def follower(log: segstore.PartitionLog) -> Setup:
    """A replica that follows takes batches of a producer with an id, as a fetch brings them."""
    side = log.store.engine  # type: ignore[attr-defined]
    replica, numbers = side.partitions.replica("t", 0), count()
    replica.follow()

    def prepare(n: int) -> Calls:
        some = islice(numbers, n)
        return [partial(taken, replica, batch_of(7, number, number), number + 1) for number in some]

    return Setup(log, prepare)


def taken(replica: Any, data: bytearray, end: int) -> None:
    if replica.append_next(data, end) is None:
        replica.append_as_follower(data, end)


def swept(log: segstore.PartitionLog) -> Setup:
    """Appends while another thread sweeps the store."""

    @contextmanager
    def during() -> Iterator[None]:
        ended = threading.Event()

        def sweep() -> None:
            while not ended.wait(SWEEP_SECONDS):
                log.store.sweep()

        thread = threading.Thread(target=sweep)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    return Setup(log, lambda n: [partial(log.append, VALUE)] * n, during=during)


def sends(place: Place, log: segstore.PartitionLog, producers: int = 1, **settings: Any) -> Setup:
    """Records of producers by turns, each answered before the next."""
    made = [place.producer(log, **settings) for _ in range(producers)]
    turns = count()

    def send(producer: segstore.Producer) -> None:
        producer.send("t", VALUE).get(TIMEOUT)

    return Setup(log, lambda n: [partial(send, made[turn % producers]) for turn in islice(turns, n)])


def transactions(place: Place, log: segstore.PartitionLog) -> Setup:
    producer = place.producer(log, transactional_id="t")
    producer.init_transactions()

    def transaction() -> None:
        producer.begin_transaction()
        producer.send("t", VALUE)
        producer.commit_transaction()

    return Setup(log, lambda n: [transaction] * n, offsets=2)


class Kind(NamedTuple):
    """How a kind is set up, and the ratio to the kind `of` that it may have at most, None for any."""

    setup: Callable[[Place], Setup]
    wanted: float | None = 3.0
    of: str = PLAIN


KINDS: dict[str, Kind] = {
    PLAIN: Kind(lambda at: appends(at.log(), VALUE), None),
    "a header": Kind(lambda at: appends(at.log(), VALUE, None, [("h", b"v")])),
    "LogAppendTime": Kind(lambda at: appends(at.log(message_timestamp_type="LogAppendTime"), VALUE)),
    "compression.type=zstd": Kind(lambda at: appends(at.log(compression_type="zstd"), VALUE), None),
    "20 KiB": Kind(lambda at: appends(at.log(), LARGE), None),
    "append_batch of 10": Kind(lambda at: batches(at.log(), 10), 4.0),
    "append_batch of 1,000": Kind(lambda at: batches(at.log(), 1_000), None),
    "5 producers with ids by turns": Kind(lambda at: sequenced(at.log(), 5)),
    "50 producers with ids by turns": Kind(lambda at: sequenced(at.log(), 50)),
    "a producer with an id, 2 replicas": Kind(lambda at: sequenced(at.replicated(), 1), None),
    "a producer with an id, standby in sync": Kind(lambda at: sequenced(at.followed(), 1), None),
    "a follower, of a producer with an id": Kind(lambda at: follower(at.log())),
    "1,000 bytes, a roll each MiB": Kind(lambda at: appends(at.log(segment_bytes=1 << 20), KILOBYTE)),
    "a sweep each 10 ms": Kind(lambda at: swept(at.log())),
    "flush.ms=1000": Kind(lambda at: appends(at.log(flush_ms=FLUSH_MS), VALUE)),
    "flush.messages=1": Kind(lambda at: appends(at.log(flush_messages=1), VALUE), None),
    "standby in sync": Kind(lambda at: appends(at.followed(), VALUE), None),
    "2 replicas": Kind(lambda at: appends(at.replicated(), VALUE), None),
    SEND: Kind(lambda at: sends(at, at.log()), None),
    "send and get, 8 producers by turns": Kind(lambda at: sends(at, at.log(), 8), 2.0, SEND),
    "send and get, acks=all, 2 replicas": Kind(lambda at: sends(at, at.replicated(), acks="all"), 4.0, SEND),
    "a transaction of one record": Kind(lambda at: transactions(at, at.log()), 8.0, SEND),
}


# --- runs ----------------------------------------------------------------------------------------


def timed(setup: Setup, n: int) -> dict[str, float]:
    """Make `n` calls, and return the median and the 99th percentile of their times."""
    calls, took, clock = setup.prepare(n), [], time.perf_counter_ns
    with setup.during():
        for call in calls:
            began = clock()
            call()
            took.append(clock() - began)
    p50, p99 = np.percentile(took, (50, 99)) / 1_000
    return {P50: float(p50), P99: float(p99)}


def measured(
    names: Sequence[str], runs: int, calls: int, directory: str | None, ran: Callable[[str], None]
) -> dict[str, dict[str, Figure]]:
    """Return p50 and p99 of kinds, and of each the ratio to the kind that it is compared with, where that is
    measured too. RuntimeError where a log lacks what was acknowledged.
    """
    with tempfile.TemporaryDirectory(prefix="segstore-append-", dir=directory) as made, ExitStack() as stack:
        at = {name: Place(Path(made, str(number)), stack) for number, name in enumerate(names)}
        setups = {name: KINDS[name].setup(place) for name, place in at.items()}
        for setup in setups.values():
            timed(setup, min(WARM, calls))
        figures = by_turns({name: partial(timed, setups[name], calls) for name in names}, runs, ran)
        for name, setup in setups.items():
            expected = setup.offsets * (runs * calls + min(WARM, calls))
            if (end := setup.log.log_end_offset) != expected:
                raise RuntimeError(f"{name}: the log ends at {end}, and not at {expected}")
    for name in names:
        if (other := KINDS[name].of) in figures:
            pairs = zip(figures[name][P50].runs, figures[other][P50].runs, strict=True)
            figures[name][RATIO] = Figure.of(mine / theirs for mine, theirs in pairs)
    return figures


def results_of(
    figures: dict[str, dict[str, Figure]], runs: int, calls: int, directory: str | None
) -> Results:
    return Results(
        "append-kinds",
        "What does each kind of append take, beside a plain one?",
        machine(Path(directory or tempfile.gettempdir())),
        {"runs": runs, "calls": calls, "value_bytes": len(VALUE)},
        [Cell({"kind": name, "of": KINDS[name].of}, found) for name, found in figures.items()],
    )


# --- the page ------------------------------------------------------------------------------------


def rendered(results: Results | None) -> str:
    """Return the part of docs/benchmarks.md that is made of the results."""
    if results is None:
        return "No figures have been taken yet: `make bench-append` takes them.\n"
    settings, others = results.settings, results.machine["load"]
    lines = [
        f"Measured by `make bench-append` on {machine_text(results)}, with a load of {others:g} by other"
        f" processes at the start. Medians of {settings['runs']} rounds of {settings['calls']} calls, ± the"
        " distance to the farther end of the interval.\n",
        f"| kind | {P50} | {P99} | {RATIO} | of | wanted |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for cell in results.cells:
        name, of = str(cell.keys["kind"]), str(cell.keys["of"])
        wanted = KINDS[name].wanted if name in KINDS else None
        figures = [figure_text(cell.figures[each]) for each in (P50, P99)]
        figures.append(figure_text(cell.figures[RATIO]) if RATIO in cell.figures else "")
        most = "" if wanted is None else f"at most {number_text(wanted)}"
        lines.append(f"| {' | '.join([name, *figures, of, most])} |")
    return "".join(line + "\n" for line in lines)


def page(text: str, results: Results | None) -> str:
    """Return the page with the table of these results. ValueError where it has not both marks."""
    return placed(text, rendered(results), BEGIN, END)


def stored(directory: Path = RESULTS) -> Results | None:
    """Return the results that are kept, None where none are."""
    path = directory / "append-kinds.json"
    return load(path) if path.exists() else None


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--runs", default=RUNS, show_default=True, type=click.IntRange(1))
@click.option("--calls", default=CALLS, show_default=True, type=click.IntRange(1))
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="These alone.")
@click.option("--quick", is_flag=True, help="One round of few calls, and no figure to believe.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False), help="Where the stores are made.")
@click.option("--page/--no-page", "shows", default=True, help="Put the table into docs/benchmarks.md.")
def main(
    out: Path, runs: int, calls: int, kinds: Sequence[str], quick: bool, directory: str | None, shows: bool
) -> None:
    """Measure what each kind of append takes."""
    names, runs, calls = kinds or list(KINDS), 1 if quick else runs, QUICK_CALLS if quick else calls
    with click.progressbar(length=len(names) * runs, label="appending") as bar:
        figures = measured(names, runs, calls, directory, lambda _: bar.update(1))
    results = results_of(figures, runs, calls, directory)
    click.echo(rendered(results))
    if not quick and not kinds:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "append-kinds.json")
        if shows and out == RESULTS:
            PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
            result_pages.update(directory=out)


if __name__ == "__main__":
    main()
