"""Results as tables for a terminal of 80 columns. Nothing on disk. Threads: any.

A star marks who wins in a cell: in colour, without, and in a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from segstore.bench.results import Cell, Results
from segstore.bench.terminal import findings, machine_text, number_text
from segstore.bench.zero_copy.cells import LOG
from segstore.bench.zero_copy.claims import contenders, name
from segstore.bench.zero_copy.copies import HEADINGS, rows, told_size
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT
from segstore.bench.zero_copy.wins import win

WON = "*"
TITLES = {THROUGHPUT: "MB/s", CPU: "the sender's CPU, s/GB"}
DETAILS = ("MB/s", "±", "CPU s/GB", "±", "system", "calls/MB", "switches/MB", "p50 us", "p99 us")


def summary(results: Results) -> Iterator[RenderableType]:
    """For each sink and cache what log.transfer reaches, by size and method; the copies; the findings."""
    yield Text(machine_text(results))
    runs = results.settings["runs"]
    yield Text(
        f"Medians of {runs} runs of log.transfer; {WON} wins: its interval lies apart from all others."
    )
    for sink in results.values("sink"):
        for cache in results.values("cache"):
            for measure in TITLES:
                yield _grid(results, sink, cache, measure)
    yield _copies(results)
    yield findings(results)


def details(results: Results) -> Iterator[RenderableType]:
    """Every cell with all its figures, a table for each sink, cache and size."""
    for way in results.values("way"):
        for sink in results.values("sink"):
            for cache in results.values("cache"):
                for size in results.values("size"):
                    if cells := results.where(way=way, sink=sink, cache=cache, size=size):
                        yield _details(f"{way}, {sink}, {cache}, {name(size)}", cells)


def _grid(results: Results, sink: str, cache: str, measure: str) -> Table:
    keys: dict[str, Any] = {"way": LOG, "sink": sink, "cache": cache}
    methods = list(dict.fromkeys(cell.keys["method"] for cell in results.where(**keys)))
    made = _table(f"{sink}, {cache}: {TITLES[measure]}", "size", *methods)
    for size in results.values("size"):
        best = win(contenders(results, measure, size=size, **keys), measure)
        cells = {cell.keys["method"]: cell for cell in results.where(size=size, **keys)}
        made.add_row(name(size), *(_number(cells[method], measure, method == best) for method in methods))
    return made


def _number(cell: Cell, measure: str, won: bool) -> Text:
    if measure not in cell.figures:
        return Text("-")
    text = number_text(cell.figures[measure].median)
    return Text(text + WON, style="bold green") if won else Text(text + " ")


def _copies(results: Results) -> Table:
    title = f"As it is told, and switches counted at {name(told_size(results))}, bare"
    made = _table(title, *HEADINGS, *results.values("sink"))
    for row in rows(results):
        made.add_row(*row)
    return made


def _details(title: str, cells: list[Cell]) -> Table:
    made = _table(title, "method", *DETAILS)
    for cell in cells:
        if cell.figures:
            made.add_row(cell.keys["method"], *_all_figures(cell))
    return made


def _all_figures(cell: Cell) -> Iterator[str]:
    middle = {measure: figure.median for measure, figure in cell.figures.items()}
    for measure in (THROUGHPUT, CPU):
        yield number_text(middle[measure])
        yield f"{cell.figures[measure].spread:.0%}"
    yield f"{middle['system s/GB'] / middle[CPU]:.0%}" if middle[CPU] else ""
    yield number_text(cell.notes["calls per MB"]) if cell.notes.get("calls") else ""
    yield from (number_text(middle[measure]) for measure in ("switches 1/MB", "p50 us", "p99 us"))


def _table(title: str, first: str, *columns: str) -> Table:
    made = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True
    )
    made.add_column(Text(first))
    for column in columns:
        made.add_column(Text(column), justify="right")
    return made
