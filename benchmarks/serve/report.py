"""What a run's results look like: a table of works, and findings: is each of the targets met?

On disk: nothing. Threads: any. A ratio is the median of the ratios of the rounds, whose two turns lie next to
each other in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from segstore.bench import Cell, ClaimFinding, Results
from segstore.bench.terminal import figure_text, number_text

from . import terms
from .terms import KAFKA, OURS, SENDFILE

HEADINGS = ["work", "figure", OURS, KAFKA, "ratio", "wanted", ""]


class Target(NamedTuple):
    """`bound` is the least ratio of ours to the other's, or the most."""

    work: str
    figure: str
    bound: float
    is_least: bool
    other: str = KAFKA

    @property
    def wanted(self) -> str:
        return f"{'at least' if self.is_least else 'at most'} {self.bound:g}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.is_least else ratio <= self.bound


_STREAMS = [
    way(name)
    for name in (*terms.LIBRDKAFKA.values(), *terms.JAVA.values())
    for way in (terms.PRODUCE, terms.CONSUME)
]
TARGETS = [
    *(target for work in _STREAMS for target in (
        Target(work, terms.RATE, 1.0, True), Target(work, terms.CPU_MILLION, 0.5, False),
    )),
    Target(terms.SHARE, terms.RATE, 1.5, True),
    Target(terms.SHARE, terms.CPU_MILLION, 0.5, False),
    Target(terms.SMALL_PRODUCE, terms.REQUESTS, 2.0, True),
    Target(terms.SMALL_FETCH, terms.REQUESTS, 2.0, True),
    Target(terms.END_TO_END, terms.P50, 1.0, False),
    Target(terms.END_TO_END, terms.P99, 1.0, False),
    Target(terms.CACHED, terms.BYTES, 0.7, True, SENDFILE),
    Target(terms.STARTED, terms.START, 0.1, False),
    Target(terms.FRESH, terms.RESIDENT, 0.25, False),
    Target(terms.WORN, terms.RESIDENT, 0.25, False),
]  # fmt: skip
"""What the server is to reach."""


def ratio(results: Results, work: str, figure: str, other: str = KAFKA) -> float | None:
    """Ours to the other's; None where one of them has no such figure."""
    ours, theirs = (results.where(work=work, server=name) for name in (OURS, other))
    if not all(cells and figure in cells[0].figures for cells in (ours, theirs)):
        return None
    pairs = zip(ours[0].figures[figure].runs, theirs[0].figures[figure].runs, strict=True)
    return median(mine / other if other else float("inf") for mine, other in pairs)


def rows(results: Results) -> Iterable[list[str]]:
    """A row a work and figure."""
    for work in results.values("work"):
        cells = [cell for name in (OURS, KAFKA) for cell in results.where(work=work, server=name)]
        for figure in next((cell.figures for cell in cells if cell.figures), ["–"]):
            yield [work, figure, *_texts(results, work, figure), *_judged(results, work, figure)]


def _texts(results: Results, work: str, figure: str) -> list[str]:
    return [_text(results.where(work=work, server=name), figure) for name in (OURS, KAFKA)]


def _text(cells: list[Cell], figure: str) -> str:
    if not cells:
        return "–"
    return figure_text(cells[0].figures[figure]) if cells[0].figures else "**failed**"


def _judged(results: Results, work: str, figure: str) -> list[str]:
    """Ratio, what is wanted of it, and whether it is so."""
    found = ratio(results, work, figure)
    if found is None:
        return ["–", "", ""]
    mine = [target for target in TARGETS if target[:2] == (work, figure) and target.other == KAFKA]
    if not mine:
        return [number_text(found), "", ""]
    return [number_text(found), mine[0].wanted, "met" if mine[0].is_met(found) else "**missed**"]


def bare_rows(results: Results) -> Iterable[list[str]]:
    """The fetch of cached segments beside loops that do nothing else: server, rate, CPU, ours to its rate."""
    for cell in results.where(work=terms.CACHED):
        server = cell.keys["server"]
        shown = [_text([cell], name) for name in (terms.BYTES, terms.CPU_GB)]
        told = "–"
        if server != OURS and (found := ratio(results, terms.CACHED, terms.BYTES, server)) is not None:
            told = number_text(found)
        yield [server, *shown, told]


def markdown(results: Results) -> str:
    """Both tables, and what is behind them."""
    parts = [_table(HEADINGS, rows(results), 2)]
    if bare := list(bare_rows(results)):
        headings = ["fetch of cached segments", terms.BYTES, terms.CPU_GB, f"{OURS} to it"]
        parts.append(_table(headings, bare, 1))
    return "\n".join([*parts, legend(results)])


def _table(headings: list[str], lines: Iterable[list[str]], left: int) -> str:
    marks = [":--"] * left + ["--:"] * (len(headings) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in [headings, marks, *lines])


def legend(results: Results) -> str:
    settings = results.settings
    told = [
        f"Medians of {settings['runs']} rounds, ± the distance to the farther end of the interval. A ratio"
        f" is the median of the rounds' ratios, of {OURS} to Kafka.",
        "; ".join(
            f"{name}: {', '.join(f'{what} {number}' for what, number in sorted(of_it.items()))}"
            for name, of_it in (*settings["servers"].items(), ("clients", settings["clients"]))
        )
        + ".",
    ]
    if settings["quick"]:
        told.append("This was a quick run, whose figures mean nothing.")
    told += [
        f"{cell.keys['work']}, {cell.keys['server']}: failed: {why}."
        for cell in results.cells
        for why in cell.notes.values()
    ]
    told += [f"{name} is absent: {why}." for name, why in settings["absent"].items()]
    return "\n".join(told) + "\n"


def table(results: Results) -> Table:
    """For a terminal."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(HEADINGS):
        made.add_column(heading, justify="left" if at < 2 else "right")
    for row in rows(results):
        missed = row[-1].startswith("**")
        made.add_row(*(Text(text.strip("*"), style="bold red" if missed else "") for text in row))
    return made


def findings(results: Results) -> list[ClaimFinding]:
    """Of each target that the run can judge."""
    found = []
    for target in TARGETS:
        reached = ratio(results, target.work, target.figure, target.other)
        if reached is not None:
            claim = f"{target.work}, {target.figure}: {target.wanted} of {target.other}'s"
            answer = f"{'Yes' if target.is_met(reached) else 'No'}: {number_text(reached)}."
            found.append(ClaimFinding(claim, answer))
    return found
