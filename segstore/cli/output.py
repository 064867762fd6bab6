"""Formats all output: consoles, tables, progress bars, and sizes and times as text. Threads: one.

On a terminal the output is in colour, and as wide as the terminal. In a pipe the output has no colours, and
no line is cut.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

R = TypeVar("R")

NOTED = "magenta"
"""The style of cells that deserve attention. Magenta and red are readable on dark and on light backgrounds.
Yellow, green and cyan can't be read on most terminals.
"""
LEAST_RECORDS, LEAST_SECONDS = 1000, 1.0
"""A rate is printed only if there are at least this number of records and this number of seconds."""
_PIPE_WIDTH = 10_000
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints to standard output, or to standard error if `stderr`."""
    from segstore.cli.consoles import PipedConsole, TerminalConsole

    stream = sys.stderr if stderr else sys.stdout
    kind, width = (TerminalConsole, None) if stream.isatty() else (PipedConsole, _PIPE_WIDTH)
    return kind(file=stream, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Return a table with these headings. Columns in `right` are aligned to the right. No column is cut. If
    standard output is a pipe, the table is printed without border lines.
    """
    from rich import box
    from rich.table import Table

    terminal = sys.stdout.isatty()
    made = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        title=title,
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1) if terminal else (0, 2, 0, 0),
    )
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def add_row(to: Table, *cells: Any, style: str | None = None) -> None:
    """Add a row of cells to a table. Text is not parsed as markup. Numbers are printed with thousands
    separators.
    """
    from rich.text import Text

    from segstore.cli.consoles import WrappedCell

    to.add_row(*(c if isinstance(c, Text) else WrappedCell(shown(c)) for c in cells), style=style)


def styled(text: str, style: str = "") -> Text:
    """Return text for a cell, with a style."""
    from rich.text import Text

    return Text(text, style=style)


def shown(value: Any) -> str:
    """Return the text of a cell's value, "" if the value is None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def is_internal(topic: str) -> bool:
    """Return whether a topic with this name is an internal topic of segstore or Kafka."""
    return topic.startswith("__")


def own_last(rows: Iterable[R], topic: Callable[[R], str]) -> list[R]:
    """Return the rows, with the rows of internal topics after all other rows."""
    return sorted(rows, key=lambda row: is_internal(topic(row)))


def print_json(row: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(row, ensure_ascii=False))


def size_text(count: float) -> str:
    """Return a number of bytes as text in the largest decimal unit that fits, for example 12.3 MB."""
    step = 0
    while abs(count) >= 999.95 and step < len(_UNITS) - 1:
        count, step = count / 1000, step + 1
    return f"{count:.1f} {_UNITS[step]}" if step else f"{count:.0f} bytes"


def time_text(timestamp: int) -> str:
    """Return a time, given as ms since the epoch, in ISO 8601 and UTC. If the number is negative or too
    large, return its digits.
    """
    try:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    if timestamp < 0:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds" if timestamp % 1000 else "seconds") + "Z"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun as text. If the number is not 1, the noun gets an s: 1 record, 1,234
    records.
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def rate_text(records: int, size: int, seconds: float) -> str:
    """Return a text with numbers of records, bytes and seconds. If there are at least LEAST_RECORDS records
    and LEAST_SECONDS seconds, the text also has the rates per second. With fewer records or seconds the rates
    would measure the start-up, or the user's typing.
    """
    text = f"{counted(records, 'record')}, {size_text(size)} in {seconds:.2f} s"
    if records < LEAST_RECORDS or seconds < LEAST_SECONDS:
        return text
    return f"{text}: {records / seconds:,.0f} records/s, {size_text(size / seconds)}/s"


def status_line(what: str) -> Progress:
    """Return a status line for work of unknown length. The status line is printed to standard error if that
    is a terminal, and is cut to the terminal's width. The status line is a context manager with one task,
    whose description the caller updates.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    err = console(stderr=True)
    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    line = Progress(SpinnerColumn(), text, console=err, transient=True, disable=not err.is_terminal)
    line.add_task(what, total=None)
    return line


def progress_bar(total: int | None, what: str, of: str = "bytes") -> Progress:
    """Return a progress bar, which counts bytes or another unit. The progress bar is printed to standard
    error. It is a context manager with one task.

    The progress bar is shown only if standard error is a terminal on which the user is not typing the
    command's input.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    err = console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if of == "bytes" else TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + of),
        TimeRemainingColumn(),
    )
    bar = Progress(
        *columns,
        console=err,
        transient=True,
        disable=not err.is_terminal or (total is None and sys.stdin.isatty()),
    )
    bar.add_task(what, total=total)
    return bar
