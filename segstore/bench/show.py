"""Shows any results by their name: which pictures, which tables. On disk: pictures where the caller wants
them.

Threads: one draws. Comparisons with peers have tables of their own in `benchmarks.peers`, which is not in
the package; here they are cells like others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from segstore.bench.plots import save
from segstore.bench.results import Results, load
from segstore.bench.studies import MODULES, study
from segstore.bench.terminal import findings, machine_text, table
from segstore.files import Path

ZERO_COPY = "zero-copy"


def draw(results: Results, directory: str) -> list[str]:
    """Write the pictures of these results: their paths, PNG and SVG of each. Raises OSError;
    InvalidArgumentError without matplotlib.
    """
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import draw as draw_zero_copy

        return draw_zero_copy(results, directory)
    if results.name in MODULES:
        return save(study(results.name).plot(results), os.path.join(directory, results.name))
    return []


def tables(results: Results) -> Iterator[RenderableType]:
    """What a terminal shows: question, machine, tables, findings."""
    yield Text(f"{results.name}: {results.question}", style="bold")
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import summary

        yield from summary(results)
        return
    yield Text(machine_text(results))
    yield table(results, figures=study(results.name).SHOWN if results.name in MODULES else None)
    yield findings(results)


def about(name: str) -> str:
    """What a study measures, and what limits it, as one line; nothing for what is no study."""
    return " ".join(study(name).ABOUT.split()) if name in MODULES else ""


def all_in(directory: Path) -> dict[str, Results]:
    """By name, the results that were written there, zero copy first and the studies in their order. Raises
    OSError; InvalidArgumentError where a file holds none.
    """
    names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    found = {one.name: one for one in (load(os.path.join(directory, name)) for name in names)}
    order = [name for name in (ZERO_COPY, *MODULES) if name in found]
    return {name: found[name] for name in dict.fromkeys([*order, *found])}


def pngs(results: Results) -> list[bytes]:
    """The pictures themselves, for a notebook."""
    with tempfile.TemporaryDirectory() as directory:
        found = []
        for path in draw(results, directory):
            if path.endswith(".png"):
                with open(path, "rb") as file:
                    found.append(file.read())
        return found


def said(results: Results) -> str:
    """The findings as Markdown."""
    return "\n".join(f"- **{one.claim}** {one.answer}" for one in results.findings)
