"""Shows results as text: as tables of the library rich for a terminal, or as Markdown for a page. Threads:
any. A figure is shown as its median, with the distance from the median to the farther end of the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from segstore.bench.figures import Figure
from segstore.bench.results import Cell, Results


def figure_text(figure: Figure) -> str:
    """Return a text such as "1,234 ±5%". If there is only one run, the text is only the number."""
    shown = number_text(figure.median)
    return f"{shown} ±{figure.spread:.0%}" if len(figure.runs) > 1 else shown


def number_text(value: float) -> str:
    """Return a number as text. From 100 on a number has no decimals (1,234). From 10 on it has one decimal,
    from 1 on two, and from 0.001 on three (12.3, 1.23, 0.123). A smaller number has two significant digits
    (1.2e-04).
    """
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 0.001:
        return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"
    return f"{value:.1e}"


def key_text(value: Any) -> str:
    """Return the value of a key as text. An integer has commas between thousands."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def rows(
    results: Results, cells: Iterable[Cell] | None = None, figures: Sequence[str] | None = None
) -> tuple[list[str], list[list[str]], int]:
    """Return (headings, rows, number of key columns) for a table of `cells` and `figures` (by default all).
    If a cell does not have a key or a figure, the text is empty.
    """
    chosen = list(results.cells if cells is None else cells)
    keys = list(dict.fromkeys(key for cell in chosen for key in cell.keys))
    names = list(figures or dict.fromkeys(name for cell in chosen for name in cell.figures))
    table = [
        [
            *(key_text(cell.keys[key]) if key in cell.keys else "" for key in keys),
            *(figure_text(cell.figures[name]) if name in cell.figures else "" for name in names),
        ]
        for cell in chosen
    ]
    return [*keys, *names], table, len(keys)


def table(
    results: Results, cells: Iterable[Cell] | None = None, figures: Sequence[str] | None = None
) -> Table:
    """Return the result of `rows` as a table, with keys on the left and figures on the right."""
    headings, lines, keys = rows(results, cells, figures)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    numbers = _numbers(results, headings[:keys])
    for at, name in enumerate(headings):
        made.add_column(Text(name), justify="right" if at >= keys or name in numbers else "left")
    for line in lines:
        made.add_row(*map(Text, line))
    return made


def findings(results: Results) -> Text:
    """Return a text with each claim, and below the claim its answer."""
    text = Text()
    for finding in results.findings:
        text.append(f"“{finding.claim}”\n", style="bold")
        text.append(f"{finding.answer}\n")
    return text


def machine_text(results: Results) -> str:
    """Return one line that describes the machine."""
    where = results.machine
    disk = where["filesystem"]
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['memory'] / 1e9:.0f} GB, Linux {where['kernel']}, "
        f"{disk['type']} on {disk['device']}, Python {where['python']}"
    )


def markdown(
    results: Results, cells: Iterable[Cell] | None = None, figures: Sequence[str] | None = None
) -> str:
    """Return the result of `rows` as a Markdown table."""
    headings, lines, keys = rows(results, cells, figures)
    numbers = _numbers(results, headings[:keys])
    rule = ["--:" if at >= keys or name in numbers else ":--" for at, name in enumerate(headings)]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in [headings, rule, *lines])


def _numbers(results: Results, keys: Sequence[str]) -> set[str]:
    """Return the keys whose values are all numbers."""
    plain = (int, float)
    return {k for k in keys if all(isinstance(v, plain) for v in results.values(k))}


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
