"""What a queue on a log costs: `python -m benchmarks.bench_queue`, which is `make bench-queues`.

Cases take turns in one run, and each is a fresh store whose jobs consumers take and acknowledge
(`queue_consumers`): a share group, and beside it a consumer group, persist-queue and a table of SQLite. A
ratio is of two cases in the same round. Rates depend on who else uses the cores; the processor time of a job
does so less. What is wanted, and whether it is met, is told at the end.

On disk: stores and databases in a temporary directory; results/queues.json, results/README.md, and the table
in docs/queues.md. Threads: one, those of stores, and one for each consumer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import queue_consumers
from benchmarks.queue_consumers import (
    CONSUMER,
    CPU,
    FIRST,
    FIRST_OF_ALL,
    LEAST,
    MS,
    P50,
    P99,
    PERSIST,
    RATE,
    SHARE,
    SQLITE,
    VALUE,
    Case,
    can_run,
)
from segstore.bench import Cell, ClaimFinding, Figure, Results, load, machine, write
from segstore.bench.figures import by_turns
from segstore.bench.terminal import figure_text, key_text, machine_text, number_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "queues.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
RUNS, QUICK_RUNS, SECONDS, QUICK_SECONDS = 9, 3, 0.5, 0.05
MANY, SOME = 500, 100
BY_500, ONE_BY_ONE, ONE_DURABLE = Case(SHARE, 1, MANY), Case(SHARE), Case(SHARE, durable=True)
ONE, EIGHT = Case(SHARE, 1, SOME), Case(SHARE, 8, SOME)
NEW_GROUP, NEW_PROCESS = Case(FIRST), Case(FIRST_OF_ALL)
CASES = [
    BY_500,
    Case(CONSUMER, 1, MANY),
    ONE,
    EIGHT,
    ONE_BY_ONE,
    Case(SHARE, 8),
    Case(CONSUMER),
    *(Case(way, consumers) for way in (SQLITE, PERSIST) for consumers in (1, 8)),
    Case(SHARE, 1, MANY, durable=True),
    ONE_DURABLE,
    Case(SHARE, 8, durable=True),
    Case(CONSUMER, durable=True),
    *(Case(way, consumers, durable=True) for way in (SQLITE, PERSIST) for consumers in (1, 8)),
    NEW_GROUP,
    NEW_PROCESS,
]
Figures = Mapping[Case, Mapping[str, Figure]]


class Wanted(NamedTuple):
    """What is wanted of a case's figure, or, with `to`, of its ratio to another case's."""

    claim: str
    figure: str
    of: Case
    to: Case | None = None
    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


WANTED = [
    Wanted("100,000 single acknowledgements a second, committed by 500.", RATE, BY_500, least=100_000),
    Wanted("20,000 acknowledgements a second, committed one by one.", RATE, ONE_BY_ONE, least=20_000),
    Wanted("Eight consumers of a partition do at least 0.8 times as much as one.", RATE, EIGHT, ONE, 0.8),
    Wanted(
        "Acknowledging one costs at most 3 times the processor time of committing one.",
        CPU,
        ONE_BY_ONE,
        Case(CONSUMER),
        most=3,
    ),
    Wanted(
        "Committed by 500, half the rate of a consumer group.", RATE, BY_500, Case(CONSUMER, 1, MANY), 0.5
    ),
    *(Wanted(f"One by one, more than {way}.", RATE, ONE_BY_ONE, Case(way), 1.0) for way in (PERSIST, SQLITE)),
    *(
        Wanted(f"One by one and synced, more than {way}.", RATE, ONE_DURABLE, Case(way, durable=True), 1.0)
        for way in (PERSIST, SQLITE)
    ),
    Wanted("A new group has its first job within 100 ms.", MS, NEW_GROUP, most=100),
]


# --- runs ----------------------------------------------------------------------------------------


def measured(
    cases: Sequence[Case], runs: int, seconds: float, directory: str | None, ran: Callable[[Any], None]
) -> dict[Case, dict[str, Figure]]:
    """Return the figures of the cases that can be run here, by turns."""
    variants = {
        case: partial(queue_consumers.run, case, seconds, directory) for case in cases if can_run(case)
    }
    return by_turns(variants, runs, ran)


def value(figures: Figures, wanted: Wanted) -> Figure | None:
    """Return the figure in each round, or the ratio; None if a case was not measured."""
    if not {wanted.of, wanted.to or wanted.of} <= set(figures):
        return None
    mine = figures[wanted.of][wanted.figure]
    if wanted.to is None:
        return mine
    theirs = figures[wanted.to][wanted.figure].runs
    return Figure.of(a / b for a, b in zip(mine.runs, theirs, strict=True))


def findings(figures: Figures) -> Iterator[ClaimFinding]:
    """Yield each figure that is wanted, and whether it is met."""
    for wanted in WANTED:
        found = value(figures, wanted)
        if found is not None:
            said = "Yes" if wanted.is_met(found.median) else "No"
            low, high = number_text(min(found.runs)), number_text(max(found.runs))
            kind = wanted.figure if wanted.to is None else f"by {wanted.figure}"
            yield ClaimFinding(
                wanted.claim, f"{said}: {number_text(found.median)} ({low} to {high}), {kind}."
            )


def results_of(figures: Figures, settings: dict[str, Any], directory: str | None) -> Results:
    cells = [Cell(case._asdict(), found) for case, found in figures.items()]
    return Results(
        "queues",
        "What does it cost to take jobs from a share group, and to acknowledge them?",
        machine(directory or tempfile.gettempdir(), ("persist-queue",)),
        {**settings, "value_bytes": len(VALUE)},
        cells,
        list(findings(figures)),
    )


# --- the page ------------------------------------------------------------------------------------


def rendered(results: Results | None) -> str:
    """Return the part of docs/queues.md that is made of the results."""
    if results is None:
        return "No figures have been taken yet: `make bench-queues` takes them.\n"
    settings, others = results.settings, results.machine["load"]
    shown = [RATE, CPU, P50, P99, LEAST]
    titles = ["jobs/s in sum", "processor us", P50, P99, "slowest one's share"]
    lines = [
        f"Measured by `make bench-queues` on {machine_text(results)}, with a load of {others:g} by other"
        f" processes at the start. Medians of {settings['runs']} rounds, ± the distance to the farther end of"
        " the interval; p50 and p99 are of commits.\n",
        f"| way | consumers | a commit | synced | {' | '.join(titles)} |",
        f"|---|--:|--:|---{'|--:' * len(titles)}|",
        *(_line(cell, shown) for cell in results.cells if RATE in cell.figures),
        "",
        f"| way | {MS} |",
        "|---|--:|",
        *(f"| {c.keys['way']} | {figure_text(c.figures[MS])} |" for c in results.cells if MS in c.figures),
        "",
        "| what is wanted | |",
        "|---|---|",
        *(f"| {finding.claim} | {finding.answer} |" for finding in results.findings),
    ]
    return "".join(line + "\n" for line in lines)


def _line(cell: Cell, shown: Sequence[str]) -> str:
    keys = cell.keys
    numbers = (key_text(keys[name]) for name in ("consumers", "together"))
    texts = [keys["way"], *numbers, "yes" if keys["durable"] else "no"]
    return f"| {' | '.join([*texts, *(figure_text(cell.figures[name]) for name in shown)])} |"


def page(text: str, results: Results | None) -> str:
    """Return the page with the tables of these results. ValueError if it has not both marks."""
    from benchmarks.result_pages import placed

    return placed(text, rendered(results), BEGIN, END)


def stored(directory: Path = RESULTS) -> Results | None:
    """Return the results that are kept, None if none are."""
    path = directory / "queues.json"
    return load(path) if path.exists() else None


def update() -> None:
    """Put the results that are kept into the page, and what they say into results/README.md."""
    from benchmarks import result_pages

    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), stored()), encoding="utf-8")
    result_pages.update(directory=RESULTS)


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--runs", type=click.IntRange(1), help=f"Rounds, {RUNS} by default.")
@click.option("--seconds", type=click.FloatRange(0.01), help=f"About so long a run, {SECONDS} by default.")
@click.option("--quick", is_flag=True, help="Few short rounds, and no figure to believe; writes nothing.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False), help="Where the stores are made.")
@click.option("--page/--no-page", "shows", default=True, help="Put the tables into docs/queues.md.")
def main(
    out: Path, runs: int | None, seconds: float | None, quick: bool, directory: str | None, shows: bool
) -> None:
    """Measure how fast consumers take jobs from a queue, and how soon a new group has its first one."""
    runs = runs or (QUICK_RUNS if quick else RUNS)
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    for way in sorted({case.way for case in CASES if not can_run(case)}):
        click.echo(f"{way} is left out: its package is not installed", err=True)
    with click.progressbar(length=sum(map(can_run, CASES)) * runs, label="taking jobs") as bar:
        figures = measured(CASES, runs, seconds, directory, lambda _: bar.update(1))
    results = results_of(figures, {"runs": runs, "seconds": seconds}, directory)
    click.echo(rendered(results))
    if not quick:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "queues.json")
        if shows and out == RESULTS:
            update()


if __name__ == "__main__":
    main()
