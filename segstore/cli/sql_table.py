"""Prints a query's result as a table: the names and types of the columns, the first rows, and the number of
further rows.

Nothing is on disk. Threads: one. The module imports pyarrow, so it is imported only when a query is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segstore.cli.output import console, counted
from segstore.cli.output import table as table_of
from segstore.cli.sql_output import Result
from segstore.cli.sql_text import texts

if TYPE_CHECKING:
    from rich.text import Text

MOST_ROWS = 40
"""The largest number of rows that are printed."""
_LEAST_WIDTH = 7
"""A column of text is not made narrower than this width. If only the name of its type is wider, a column is
not made wider than this width.
"""
_GAP = 2
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEFT_OUT = "…"
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$|BIGNUM|DECIMAL.*[^]]$|FLOAT$|DOUBLE$")
_WHOLE = re.compile(rf"{_NUMBERS.pattern}|(DATE|TIME|TIMESTAMP|BOOLEAN|UUID)[^]]*$")
_PLAN = ["explain_key", "explain_value"]
"""The columns of the result of EXPLAIN. Its values are drawings with several lines."""
_SHORT = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ", '"NULL"': "NULL"}


def show(result: Result, aside: Callable[[], AbstractContextManager[object]]) -> None:
    """Print the first rows as a table. Then read the remaining rows, and print their number. All output is
    printed within `with` blocks of `aside`, which hide the progress bar.
    """
    shown, more = _first(result)
    with aside():
        _print(result, shown)
    more += sum(batch.num_rows for batch in result.batches)
    text = f"{_LEFT_OUT} {counted(more, 'more row')}" if more else counted(shown.num_rows, "row")
    with aside():
        console().print(text, style="dim")


def _first(result: Result) -> tuple[pa.Table, int]:
    """Return (rows to print, number of rows that were read and are not printed)."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in result.batches:
        held.append(batch)
        rows += batch.num_rows
        if rows > MOST_ROWS:
            break
    read = pa.Table.from_batches(held, result.schema)
    return read[:MOST_ROWS], max(0, rows - MOST_ROWS)


def _print(result: Result, rows: pa.Table) -> None:
    out = console()
    if list(result.names) == _PLAN:
        for text in rows[_PLAN[1]].to_pylist():
            out.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    kinds = [_SHORT.get(kind, kind) for kind in result.kinds]
    columns = [
        [name, kind, *_cells(column)]
        for name, kind, column in zip(result.names, kinds, rows.columns, strict=True)
    ]
    widths = [_width(column) for column in columns]
    if out.is_terminal:
        widths = fitted(widths, [_least(column) for column in columns], out.width)
    made = table_of()
    for column, width in zip(columns, widths, strict=True):
        if width:
            right = bool(_NUMBERS.match(str(column[1])))
            made.add_column(_heading(column, width), justify="right" if right else "left", no_wrap=True)
        elif not made.columns or made.columns[-1].header != _LEFT_OUT:
            made.add_column(_LEFT_OUT, no_wrap=True)
    for at in range(rows.num_rows):
        made.add_row(*_row(columns, widths, at + 2))
    out.print(made)


def _cells(column: pa.ChunkedArray) -> Iterator[str | None]:
    for chunk in column.chunks:
        for text in texts(chunk).to_pylist():
            yield None if text is None else _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _width(column: Sequence[str | None]) -> int:
    name, kind, *cells = _lengths(column)
    return max(name, min(kind, _LEAST_WIDTH), *cells)


def _least(column: Sequence[str | None]) -> int:
    """Return the smallest width to which a column may be cut. Numbers and times are never cut."""
    name, _, *cells = _lengths(column)
    widest = max(min(name, _LEAST_WIDTH), *cells, 1)
    return min(_width(column), widest if _WHOLE.match(str(column[1])) else _LEAST_WIDTH)


def _lengths(column: Sequence[str | None]) -> list[int]:
    from rich.cells import cell_len

    return [cell_len("NULL" if each is None else each) for each in column]


def fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return column widths that fit into `room` cells of a terminal. First the widest columns are cut, but no
    column is cut below its width in `least`. If that is not enough, columns in the middle get the width 0:
    one column with an ellipsis is shown in place of all of them.
    """
    count = len(widths)
    for kept in range(count, 1, -1):
        first, last = (kept + 1) // 2, count - kept // 2
        left = room - _GAP * kept - (_GAP + 1 if kept < count else 0)
        cut = _cut([*widths[:first], *widths[last:]], [*least[:first], *least[last:]], left)
        if cut is not None:
            return [*cut[:first], *[0] * (last - first), *cut[first:]]
    return [max(1, min(widths[0], room - 2 * _GAP - 1)), *[0] * (count - 1)]


def _cut(widths: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Cut the widest columns until the sum of all widths is at most `room`, and return the widths. Return
    None if a column would become narrower than its width in `least`.
    """
    for most in range(max(widths), 0, -1):
        cut = [max(low, min(each, most)) for low, each in zip(least, widths, strict=True)]
        if sum(cut) <= room:
            return cut
    return None


def _heading(column: Sequence[str | None], width: int) -> Text:
    from rich.text import Text

    name, kind = (_short(str(each), width) for each in column[:2])
    return Text.assemble((name, "bold"), "\n", (kind, "not bold dim"))


def _row(columns: Sequence[Sequence[str | None]], widths: Sequence[int], at: int) -> Iterator[Any]:
    from rich.text import Text

    is_left_out = False
    for column, width in zip(columns, widths, strict=True):
        if width:
            cell = column[at]
            yield Text("NULL", style="dim") if cell is None else Text(_short(cell, width))
        elif not is_left_out:
            is_left_out = True
            yield _LEFT_OUT


def _short(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}{_LEFT_OUT}"
