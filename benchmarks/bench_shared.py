"""What sharing a store costs and gives: `python -m benchmarks.bench_shared`, which is `make bench-shared`.

Cases take turns in one run, and each is a fresh store that several processes append to at the same time, one
record of 100 bytes after the other (`shared_appends`): one that does not share, members of a shared store,
and beside them clients of `segstore serve`, SQLite and LMDB. A ratio is of two cases in the same round. Rates
of one process and of four depend on who else uses the cores; the processor time of an append does so less.
Behind the rounds hosts are killed (`successions`). What is wanted, and whether it is met, is told at the end.

On disk: stores and databases in a temporary directory; results/shared.json, results/README.md, and the table
in docs/processes.md. Threads: one, and those of stores; who appends are processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import shared_appends
from benchmarks.shared_appends import (
    ALONE,
    BOTH,
    CPU,
    GUESTS,
    HOST,
    LEAST,
    LMDB,
    P50,
    P99,
    PER_SYNC,
    RATE,
    SERVE,
    SQLITE,
    VALUE,
    Case,
    can_run,
)
from benchmarks.successions import MS, succession
from segstore.bench import Cell, ClaimFinding, Figure, Results, load, machine, write
from segstore.bench.figures import by_turns
from segstore.bench.terminal import figure_text, key_text, machine_text, number_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "processes.md"
BEGIN, END = "<!-- shared -->\n", "<!-- end of shared -->\n"
RUNS, QUICK_RUNS, SECONDS, QUICK_SECONDS = 9, 3, 0.5, 0.25
CHANGES, QUICK_CHANGES = 21, 7
PARTITIONS = 1, 1_000
ONE = Case(ALONE, 1)
ONE_DURABLE = Case(ALONE, 1, True)
CASES = [
    ONE,
    Case(HOST, 1),
    *(Case(GUESTS, n) for n in (1, 2, 4)),
    Case(BOTH, 4),
    Case(SERVE, 4),
    *(Case(f"{SQLITE}{level}", 4) for level in ("OFF", "NORMAL")),
    Case(f"{LMDB}no sync", 4),
    ONE_DURABLE,
    *(Case(GUESTS, n, True) for n in (1, 4, 8)),
    Case(f"{SQLITE}FULL", 4, True),
    Case(f"{LMDB}sync", 4, True),
]
Figures = Mapping[Case, Mapping[str, Figure]]


class Wanted(NamedTuple):
    """What is wanted of the ratio of one case's figure to another's; None: nothing, it is only told."""

    claim: str
    figure: str
    of: Case
    to: Case
    least: float | None = None
    most: float | None = None

    def is_met(self, ratio: float) -> bool:
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most)


FOUR, EIGHT_DURABLE = Case(GUESTS, 4), Case(GUESTS, 8, True)
WANTED = [
    *(
        Wanted(f"An append of {who} takes at most 1/0.9 of the processor time.", CPU, case, ONE, most=1 / 0.9)
        for who, case in {"a host": Case(HOST, 1), "a guest": Case(GUESTS, 1)}.items()
    ),
    *(
        Wanted(
            f"Four {who} append at least 0.8 times as much as one that does not share.", RATE, case, ONE, 0.8
        )
        for who, case in {"guests": FOUR, "members, one of them the host,": Case(BOTH, 4)}.items()
    ),
    Wanted("The median append of four takes at most 1.5 times as long.", P50, FOUR, ONE, most=1.5),
    Wanted(
        "Four guests append at least 10 times as much as four clients of a server.",
        RATE,
        FOUR,
        Case(SERVE, 4),
        10,
    ),
    *(
        Wanted(f"Four guests append more than four processes by {way}.", RATE, FOUR, Case(way, 4), 1.0)
        for way in (f"{SQLITE}OFF", f"{SQLITE}NORMAL", f"{LMDB}no sync")
    ),
    Wanted(
        "Eight durable guests append at least 4 times as much as one process.",
        RATE,
        EIGHT_DURABLE,
        ONE_DURABLE,
        4,
    ),
    *(
        Wanted(
            f"Four durable guests append more than four processes by {way}.",
            RATE,
            Case(GUESTS, 4, True),
            Case(way, 4, True),
            1.0,
        )
        for way in (f"{SQLITE}FULL", f"{LMDB}sync")
    ),
]
NEW_HOST_MS = 100.0


# --- runs ----------------------------------------------------------------------------------------


def measured(
    cases: Sequence[Case], runs: int, seconds: float, directory: str | None, ran: Callable[[Any], None]
) -> dict[Case, dict[str, Figure]]:
    """Return the figures of the cases that can be run here, by turns."""
    variants = {
        case: partial(shared_appends.run, case, seconds, directory) for case in cases if can_run(case)
    }
    return by_turns(variants, runs, ran)


def changed(changes: int, directory: str | None, ran: Callable[[Any], None]) -> dict[int, dict[str, Figure]]:
    """Return how long a new host takes, by partitions."""
    with tempfile.TemporaryDirectory(prefix="segstore-hosts-", dir=directory) as made, ExitStack() as stack:
        each = {n: stack.enter_context(succession(str(Path(made, str(n))), n)) for n in PARTITIONS}
        return by_turns({n: found.change for n, found in each.items()}, changes, ran)


def ratio(figures: Figures, wanted: Wanted) -> Figure | None:
    """Return the ratio in each round; None if one of the two was not measured."""
    if wanted.of not in figures or wanted.to not in figures:
        return None
    mine, theirs = (figures[case][wanted.figure].runs for case in (wanted.of, wanted.to))
    return Figure.of(a / b for a, b in zip(mine, theirs, strict=True))


def findings(figures: Figures, hosts: Mapping[int, Mapping[str, Figure]]) -> Iterator[ClaimFinding]:
    """Yield each figure that is wanted, and whether it is met."""
    for wanted in WANTED:
        found = ratio(figures, wanted)
        if found is not None:
            said = "Yes" if wanted.is_met(found.median) else "No"
            low, high = number_text(min(found.runs)), number_text(max(found.runs))
            told = f"{said}: {number_text(found.median)} ({low} to {high}), by {wanted.figure}."
            yield ClaimFinding(wanted.claim, told)
    for partitions, taken in hosts.items():
        median = taken[MS].median
        claim = f"A new host answers within 100 ms of a kill, with {key_text(partitions)} partitions."
        said = "Yes" if median <= NEW_HOST_MS else "No"
        most = number_text(max(taken[MS].runs))
        yield ClaimFinding(claim, f"{said}: {number_text(median)} ms, {most} at the most.")


def results_of(
    figures: Figures,
    hosts: Mapping[int, Mapping[str, Figure]],
    settings: dict[str, Any],
    directory: str | None,
) -> Results:
    cells = [
        *(
            Cell({"way": case.way, "processes": case.processes, "durable": case.durable}, found)
            for case, found in figures.items()
        ),
        *(Cell({"partitions": partitions}, found) for partitions, found in hosts.items()),
    ]
    return Results(
        "shared",
        "What does it cost and give to share a store, and how soon has it a new host?",
        machine(directory or tempfile.gettempdir(), ("confluent-kafka", "lmdb")),
        {**settings, "value_bytes": len(VALUE)},
        cells,
        list(findings(figures, hosts)),
    )


# --- the page ------------------------------------------------------------------------------------


def rendered(results: Results | None) -> str:
    """Return the part of docs/processes.md that is made of the results."""
    if results is None:
        return "No figures have been taken yet: `make bench-shared` takes them.\n"
    settings, others = results.settings, results.machine["load"]
    heads = ["way", "processes", "durable"]
    shown = [RATE, CPU, P50, P99, LEAST, PER_SYNC]
    titles = ["appends/s in sum", "processor us", P50, P99, "slowest one's share", "appends a sync"]
    lines = [
        f"Measured by `make bench-shared` on {machine_text(results)}, with a load of {others:g} by other"
        f" processes at the start. Medians of {settings['runs']} rounds of {settings['seconds']:g} s, ± the"
        " distance to the farther end of the interval.\n",
        f"| {' | '.join([*heads, *titles])} |",
        f"|---|--:|---{'|--:' * len(titles)}|",
    ]
    for cell in results.cells:
        if "way" in cell.keys:
            keys = [
                cell.keys["way"],
                key_text(cell.keys["processes"]),
                "yes" if cell.keys["durable"] else "no",
            ]
            figures = [figure_text(cell.figures[name]) for name in shown[:-1]]
            figures.append(figure_text(cell.figures[PER_SYNC]) if PER_SYNC in cell.figures else "")
            lines.append(f"| {' | '.join([*keys, *figures])} |")
    lines += ["", "| what is wanted | |", "|---|---|"]
    lines += [f"| {finding.claim} | {finding.answer} |" for finding in results.findings]
    return "".join(line + "\n" for line in lines)


def page(text: str, results: Results | None) -> str:
    """Return the page with the tables of these results. ValueError if it has not both marks."""
    from benchmarks.result_pages import placed

    return placed(text, rendered(results), BEGIN, END)


def stored(directory: Path = RESULTS) -> Results | None:
    """Return the results that are kept, None if none are."""
    path = directory / "shared.json"
    return load(path) if path.exists() else None


def update() -> None:
    """Put the results that are kept into the page, and what they say into results/README.md."""
    from benchmarks import result_pages

    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), stored()), encoding="utf-8")
    result_pages.update(directory=RESULTS)


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--runs", type=click.IntRange(1), help=f"Rounds, {RUNS} by default.")
@click.option("--seconds", type=click.FloatRange(0.01), help=f"Of a case in a round, {SECONDS} by default.")
@click.option("--changes", type=click.IntRange(1), help=f"Kills of hosts, {CHANGES} by default.")
@click.option("--quick", is_flag=True, help="Few short rounds, and no figure to believe; writes nothing.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False), help="Where the stores are made.")
@click.option("--page/--no-page", "shows", default=True, help="Put the tables into docs/processes.md.")
def main(
    out: Path,
    runs: int | None,
    seconds: float | None,
    changes: int | None,
    quick: bool,
    directory: str | None,
    shows: bool,
) -> None:
    """Measure what several processes that share a store append, and how soon it has a new host."""
    runs = runs or (QUICK_RUNS if quick else RUNS)
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    changes = changes or (QUICK_CHANGES if quick else CHANGES)
    for case in CASES:
        if not can_run(case):
            click.echo(f"{case.way} is left out: its package is not installed", err=True)
    turns = sum(map(can_run, CASES)) * runs
    with click.progressbar(length=turns + changes * len(PARTITIONS), label="appending") as bar:
        figures = measured(CASES, runs, seconds, directory, lambda _: bar.update(1))
        hosts = changed(changes, directory, lambda _: bar.update(1))
    settings = {"runs": runs, "seconds": seconds, "changes": changes}
    results = results_of(figures, hosts, settings, directory)
    click.echo(rendered(results))
    if not quick:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "shared.json")
        if shows and out == RESULTS:
            update()


if __name__ == "__main__":
    main()
