"""Ratios of a run against those of a stored one: `python -m benchmarks.baseline RUN.json [--write]`.

On disk: baseline.json beside this file, written by --write alone. Threads: one.

A ratio is what a reference took to what segstore took, measured by turns in the same run; more is better.
A bench is worse where three quarters of its ratios lie below the baseline's lower quarter, by more than
TOLERANCE of that: so neither a few slow rounds nor a spread that the baseline has too count as worse. A bench
that the run has not is told; it fails nothing, as a run may be of some benches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from segstore.bench import Cell, Figure, Results, load, machine, write

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 0.25
QUESTION = "What segstore takes, against a reference in the same run: more is better"
RATIO = "ratio"


class Compared(NamedTuple):
    """One bench; `before` or `now` is None where the baseline or the run has it not."""

    bench: str
    before: Figure | None
    now: Figure | None

    @property
    def worse(self) -> bool:
        if self.before is None or self.now is None:
            return False
        lower, upper = np.percentile(self.before.runs, 25), np.percentile(self.now.runs, 75)
        return bool(upper < (1 - TOLERANCE) * lower)

    @property
    def verdict(self) -> str:
        if self.before is None:
            return "new"
        return "not run" if self.now is None else "WORSE" if self.worse else "as before"


def ratios(report: Path, directory: Path) -> Results:
    """Those of pytest-benchmark's JSON, measured on stores in `directory`."""
    benches = json.loads(report.read_text())["benchmarks"]
    kept = {one["fullname"].rpartition("/")[2]: one["extra_info"].get("ratios") for one in benches}
    cells = [Cell({"bench": name}, {RATIO: Figure.of(kept[name])}) for name in sorted(kept) if kept[name]]
    return Results("ratios", QUESTION, machine(directory), {"tolerance": TOLERANCE}, cells)


def compared(before: Results, now: Results) -> list[Compared]:
    names = sorted({*before.values("bench"), *now.values("bench")})
    return [Compared(name, _of(before, name), _of(now, name)) for name in names]


def _of(results: Results, name: str) -> Figure | None:
    return next((cell.figures[RATIO] for cell in results.where(bench=name)), None)


def table(all_of_them: Iterable[Compared]) -> Table:
    """Quarters of each, and what is to be said."""
    made = Table("bench", "baseline", "now", "", title="ratios: more is better", box=box.SIMPLE_HEAD)
    for one in all_of_them:
        style = "bold red" if one.worse else ""
        made.add_row(Text(one.bench), _quarters(one.before), _quarters(one.now), Text(one.verdict, style))
    return made


def _quarters(figure: Figure | None) -> str:
    if figure is None:
        return ""
    low, middle, high = np.percentile(figure.runs, [25, 50, 75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


@click.command()
@click.argument("run", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--baseline", default=BASELINE, type=click.Path(dir_okay=False, path_type=Path), help="Its file."
)
@click.option("--write", "keep", is_flag=True, help="RUN becomes the baseline.")
def main(run: Path, baseline: Path, keep: bool) -> None:
    """Compare the ratios in RUN with the baseline's; exit status 1 where one is worse."""
    now = load(run)
    if keep:
        write(now, baseline)
        return
    found = compared(load(baseline), now)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table(found))
    if worse := [one.bench for one in found if one.worse]:
        console.print(
            f"Worse by more than {TOLERANCE:.0%} than {baseline}: {', '.join(worse)}.", markup=False
        )
        console.print("`make bench-baseline` takes what is as the baseline.", markup=False)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
