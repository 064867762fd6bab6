"""What `dump` shows: tables for people, an object a line for programs. Nothing on disk. Threads: one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from segstore.cli.output import add_row, console, print_json, shown, table, time_text

PAGE = 1000
"""Rows whose columns are made to fit at a time: a file may have millions."""

ABSENT: tuple[Any, ...] = (-1, "", None, [])
"""Values that say nothing: a column of these alone is left out of a table."""


@dataclass(frozen=True)
class Row:
    """One thing in a file.

    `cells` are by name, times in ms under names with "timestamp"; `damage` says what is wrong, in this row or
    instead of it; `brief` is what a table shows in place of the cells, so that it fits a terminal.
    """

    kind: str
    cells: dict[str, Any] = field(default_factory=dict)
    damage: str | None = None
    brief: dict[str, Any] | None = None

    def as_json(self, path: str) -> dict[str, Any]:
        row = {"file": path, "type": self.kind, **self.cells}
        return row if self.damage is None else {**row, "damage": self.damage}


def print_rows(path: str, rows: Iterable[Row], as_json: bool) -> bool:
    """Print a file's rows; whether there was damage."""
    return _print_json(path, rows) if as_json else _print_tables(path, rows)


def _print_json(path: str, rows: Iterable[Row]) -> bool:
    damaged = False
    for row in rows:
        print_json(row.as_json(path))
        damaged |= row.damage is not None
    return damaged


def _print_tables(path: str, rows: Iterable[Row]) -> bool:
    out = console()
    out.print(Text(path, style="bold"))
    damaged, empty = False, True
    for kind, group in groupby(rows, lambda row: (row.kind, tuple(row.cells))):
        for page in _pages(group):
            empty = False
            if page[0].cells and kind[0] != "damage":
                out.print(_table(page))
            for row in page:
                if row.damage is not None:
                    damaged = True
                    out.print(Text(f"  {_where(row)}{row.damage}", style="bold red"))
                elif not row.cells:
                    out.print(Text(f"  {kind[0]}", style="dim"))
    if empty:
        out.print(Text("  empty\n", style="dim"))
    return damaged


def _pages(rows: Iterator[Row]) -> Iterator[list[Row]]:
    page: list[Row] = []
    for row in rows:
        page.append(row)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _table(rows: list[Row]) -> Table:
    cells = [row.brief or row.cells for row in rows]
    columns = [c for c in cells[0] if any(held[c] not in ABSENT for held in cells)]
    numbers = tuple(c for c in columns if isinstance(cells[0][c], int) and "timestamp" not in c)
    made = table(*(c.replace("_", " ") for c in columns), right=tuple(c.replace("_", " ") for c in numbers))
    for row, held in zip(rows, cells, strict=True):
        add_row(made, *(_cell(c, held[c]) for c in columns), style="red" if row.damage else None)
    return made


def _cell(name: str, value: Any) -> str:
    if "timestamp" in name and isinstance(value, int):
        return time_text(value)
    return str(value) if isinstance(value, int) else shown(value)


def _where(row: Row) -> str:
    return "".join(
        f"{name} {row.cells[name]}: " for name in ("position", "entry", "line") if name in row.cells
    )
