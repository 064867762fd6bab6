"""Chooses the pictures and tables of results by their name. On disk: pictures in the caller's directory.

Threads: one thread draws. Comparisons with peers have tables of their own in `benchmarks.peers`, which is not
in the package; here they are shown like other cells.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from segstore.bench.choices import STUDIES
from segstore.bench.plots import save
from segstore.bench.results import Results, load
from segstore.bench.studies import study
from segstore.bench.terminal import findings, machine_text, table
from segstore.files import Path

ZERO_COPY = "zero-copy"


def draw(results: Results, directory: str) -> list[str]:
    """Write the pictures of these results, and return their paths, PNG and SVG of each. Raises OSError;
    MissingPackageError without matplotlib.
    """
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import draw as draw_zero_copy

        return draw_zero_copy(results, directory)
    if results.name in STUDIES:
        return save(study(results.name).plot(results), os.path.join(directory, results.name))
    return []


def tables(results: Results) -> Iterator[RenderableType]:
    """Yield the results' parts for a terminal: question, machine, tables, findings."""
    yield Text(f"{results.name}: {results.question}", style="bold")
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import summary

        yield from summary(results)
        return
    yield Text(machine_text(results))
    yield table(results, figures=study(results.name).SHOWN if results.name in STUDIES else None)
    yield findings(results)


def about(name: str) -> str:
    """Return a study's measurement and its limits as one line; "" if `name` is not a study."""
    return " ".join(study(name).ABOUT.split()) if name in STUDIES else ""


def all_in(directory: Path) -> dict[str, Results]:
    """Return the results in a directory by their names: zero copy first, then the studies in their order.
    Raises OSError; InvalidArgumentError if a file has no results.
    """
    names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    found = {one.name: one for one in (load(os.path.join(directory, name)) for name in names)}
    order = [name for name in (ZERO_COPY, *STUDIES) if name in found]
    return {name: found[name] for name in dict.fromkeys([*order, *found])}


def studies_in(directory: Path) -> dict[str, Results]:
    """Return the results of zero copy and of the studies in a directory, by their names."""
    return {name: one for name, one in all_in(directory).items() if name in (ZERO_COPY, *STUDIES)}


def measured_on(found: Mapping[str, Results]) -> str:
    """Return the machine of the results as Markdown. If there are several machines, each is listed with the
    names of its results.
    """
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault(machine_text(one), []).append(name)
    if len(names) == 1:
        return f"Measured on {next(iter(names))}."
    return "\n".join(f"- {', '.join(each)}: measured on {machine}" for machine, each in names.items())


def not_measured(name: str) -> str:
    """Return a sentence in Markdown with the command that makes missing results."""
    what = ZERO_COPY if name == ZERO_COPY else f"study {name}"
    return f"No results of {name} are here: `segstore bench {what} --out benchmarks/results` makes them."


def pngs(results: Results) -> list[bytes]:
    """Return the bytes of the pictures, for a notebook."""
    with tempfile.TemporaryDirectory() as directory:
        found = []
        for path in draw(results, directory):
            if path.endswith(".png"):
                with open(path, "rb") as file:
                    found.append(file.read())
        return found


def said(results: Results) -> str:
    """Return the findings as Markdown."""
    return "\n".join(f"- **{finding.claim}** {finding.answer}" for finding in results.findings)
