"""What a topic as a table costs beside a Parquet file: `python -m benchmarks.bench_tables`, which is
`make bench-tables`.

The same engine does the same work on both, by turns in one run (`table_works`); a ratio is of two turns in
the same round. What is wanted, and whether it is met, is told at the end.

On disk: a store and a Parquet file in a temporary directory; results/tables.json, results/README.md, and the
table in docs/tables.md. Threads: those of the engines.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import table_works
from benchmarks.table_works import (
    BARE,
    COUNT,
    DIRECTORY,
    DUCKDB,
    ITSELF,
    MS,
    OFFSETS,
    PARQUET,
    PEAK,
    POLARS,
    SEGSTORE,
    TIMES,
    VALUES,
    Case,
)
from segstore.bench import Cell, ClaimFinding, Figure, Results, load, machine, write
from segstore.bench.figures import by_turns
from segstore.bench.terminal import figure_text, machine_text, number_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "tables.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
RECORDS, QUICK_RECORDS, VALUE_BYTES, RUNS, QUICK_RUNS = 10_000_000, 20_000, 100, 7, 2
ALL_BYTES = Case("all bytes", BARE)
Figures = Mapping[Case, Mapping[str, Figure]]


class Wanted(NamedTuple):
    """The most that a case's time may be of another case's."""

    claim: str
    of: Case
    to: Case
    most: float


WANTED = [
    *(
        Wanted(f"{work}, by {engine}: at most 2 times its Parquet scan.", Case(work, engine),
               Case(work, engine, PARQUET), 2.0)
        for work in (COUNT, OFFSETS)
        for engine in (DUCKDB, POLARS)
    ),
    *(
        Wanted(f"{work}, by {engine}: at least half the rate of its Parquet scan.", Case(work, engine),
               Case(work, engine, PARQUET), 2.0)
        for work in (VALUES,)
        for engine in (DUCKDB, POLARS)
    ),
    Wanted("Timestamps: at least a third of the rate of a bare read and CRC.", Case(TIMES, ITSELF),
           ALL_BYTES, 3.0),
]  # fmt: skip
STREAMED = [Case(VALUES, engine) for engine in (DUCKDB, POLARS, ITSELF)]
"""The works of which the memory is told."""


def ratio(figures: Figures, wanted: Wanted) -> Figure:
    """Return the ratio of both times, by rounds."""
    mine, theirs = (figures[case][MS].runs for case in (wanted.of, wanted.to))
    return Figure.of(a / b for a, b in zip(mine, theirs, strict=True))


def findings(figures: Figures) -> Iterator[ClaimFinding]:
    """Yield each ratio that is wanted, and whether it is met."""
    for wanted in WANTED:
        found = ratio(figures, wanted)
        said = "Yes" if found.median <= wanted.most else "No"
        low, high = number_text(min(found.runs)), number_text(max(found.runs))
        yield ClaimFinding(
            wanted.claim, f"{said}: {number_text(found.median)} times its time ({low} to {high})."
        )


def results_of(figures: Figures, peaks: Mapping[Case, float], settings: dict[str, Any]) -> Results:
    cells = [
        Cell(case._asdict(), found, {PEAK: peaks[case]} if case in peaks else {})
        for case, found in figures.items()
    ]
    return Results(
        "tables",
        "What does it cost to read a topic as a table, beside a Parquet file of the same records?",
        machine(tempfile.gettempdir(), ("duckdb", "polars", "pyarrow")),
        settings,
        cells,
        list(findings(figures)),
    )


# --- the page ------------------------------------------------------------------------------------


def rendered(results: Results | None) -> str:
    """Return the part of docs/tables.md that is made of the results."""
    if results is None:
        return "No figures have been taken yet: `make bench-tables` takes them.\n"
    settings, others = results.settings, results.machine["load"]
    lines = [
        f"Measured by `make bench-tables` on {machine_text(results)}, with a load of {others:g} by other"
        f" processes at the start: {settings['records']:,} records of {settings['value_bytes']} bytes."
        f" Medians of {settings['runs']} rounds, ± the distance to the farther end of the interval.\n",
        f"| work | by | ms, {SEGSTORE} | ms, {DIRECTORY} | ms, {PARQUET} | {PEAK} |",
        "|---|---|--:|--:|--:|--:|",
        *(_line(results, cell) for cell in results.cells if cell.keys["source"] == SEGSTORE),
        "",
        "| what is wanted | |",
        "|---|---|",
        *(f"| {finding.claim} | {finding.answer} |" for finding in results.findings),
    ]
    return "".join(line + "\n" for line in lines)


def _line(results: Results, cell: Cell) -> str:
    work, engine = cell.keys["work"], cell.keys["engine"]
    peak = number_text(cell.notes[PEAK]) if PEAK in cell.notes else ""
    cells = [results.where(work=work, engine=engine, source=each) for each in (SEGSTORE, DIRECTORY, PARQUET)]
    times = (figure_text(found[0].figures[MS]) if found else "–" for found in cells)
    return f"| {work} | {engine} | {' | '.join(times)} | {peak} |"


def page(text: str, results: Results | None) -> str:
    """Return the page with the tables of these results. ValueError if it has not both marks."""
    from benchmarks.result_pages import placed

    return placed(text, rendered(results), BEGIN, END)


def stored(directory: Path = RESULTS) -> Results | None:
    """Return the results that are kept, None if none are."""
    path = directory / "tables.json"
    return load(path) if path.exists() else None


def update() -> None:
    """Put the results that are kept into the page, and what they say into results/README.md."""
    from benchmarks import result_pages

    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), stored()), encoding="utf-8")
    result_pages.update(directory=RESULTS)


def measured(
    records: int, value_bytes: int, runs: int, directory: str | None
) -> tuple[Figures, dict[Case, float]]:
    """Return the figures by turns, and the memory of those that are told of it."""
    with tempfile.TemporaryDirectory(prefix="segstore-tables-", dir=directory) as made, ExitStack() as stack:
        data = stack.enter_context(table_works.made(Path(made), records, value_bytes))
        every = list(table_works.cases())
        with click.progressbar(length=len(every) * (runs + 1), label="reading tables") as bar:
            variants = {case: partial(table_works.run, case, data) for case in every}
            by_turns(variants, 1, lambda _: bar.update(1))  # the page cache is warm, and so are the engines
            figures = by_turns(variants, runs, lambda _: bar.update(1))
        return figures, {case: table_works.peak(case, data) for case in STREAMED}


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--records", type=click.IntRange(1), help=f"By default {RECORDS:,}.")
@click.option("--runs", type=click.IntRange(1), help=f"Rounds, {RUNS} by default.")
@click.option("--quick", is_flag=True, help="Few records, and no figure to believe; writes nothing.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False), help="Where the store is made.")
def main(out: Path, records: int | None, runs: int | None, quick: bool, directory: str | None) -> None:
    """Measure what engines take to read a topic as a table, beside a Parquet file."""
    records = records or (QUICK_RECORDS if quick else RECORDS)
    runs = runs or (QUICK_RUNS if quick else RUNS)
    figures, peaks = measured(records, VALUE_BYTES, runs, directory)
    results = results_of(figures, peaks, {"records": records, "value_bytes": VALUE_BYTES, "runs": runs})
    click.echo(rendered(results))
    if not quick:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "tables.json")
        if out == RESULTS:
            update()


if __name__ == "__main__":
    main()
