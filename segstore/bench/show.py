"""Chooses how results are shown, as pictures and tables, by the results' name. On disk: writes pictures into
the caller's directory.

Threads: only one thread may draw. Comparisons with other packages have tables of their own in
`benchmarks.peers`, which is not in this package. This module shows such comparisons like other results.
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
    """Write the pictures of these results, each as PNG and as SVG, and return the paths of all files. Raises
    OSError, and MissingPackageError if matplotlib is not installed.
    """
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import draw as draw_zero_copy

        return draw_zero_copy(results, directory)
    if results.name in STUDIES:
        return save(study(results.name).plot(results), os.path.join(directory, results.name))
    return []


def tables(results: Results) -> Iterator[RenderableType]:
    """Yield the parts of the results that a terminal shows: question, machine, tables and findings."""
    yield Text(f"{results.name}: {results.question}", style="bold")
    if results.name == ZERO_COPY:
        from segstore.bench.zero_copy.report import summary

        yield from summary(results)
        return
    yield Text(machine_text(results))
    yield table(results, figures=study(results.name).SHOWN if results.name in STUDIES else None)
    yield findings(results)


def about(name: str) -> str:
    """Return one line about what a study measures and what it can't show, "" if `name` is not a study."""
    return " ".join(study(name).ABOUT.split()) if name in STUDIES else ""


def all_in(directory: Path) -> dict[str, Results]:
    """Return the results in a directory, by their names. The results of zero copy come first, then those of
    the studies in the order of STUDIES, then all others. Raises OSError, and InvalidArgumentError if a JSON
    file does not contain results.
    """
    names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    found = {one.name: one for one in (load(os.path.join(directory, name)) for name in names)}
    order = [name for name in (ZERO_COPY, *STUDIES) if name in found]
    return {name: found[name] for name in dict.fromkeys([*order, *found])}


def studies_in(directory: Path) -> dict[str, Results]:
    """Return those results in a directory that are of zero copy or of a study, by their names."""
    return {name: one for name, one in all_in(directory).items() if name in (ZERO_COPY, *STUDIES)}


def measured_on(found: Mapping[str, Results]) -> str:
    """Return a description of the machine on which the results were measured, as Markdown. If they were
    measured on several machines, list each machine with the names of its results.
    """
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault(machine_text(one), []).append(name)
    if len(names) == 1:
        return f"Measured on {next(iter(names))}."
    return "\n".join(f"- {', '.join(each)}: measured on {machine}" for machine, each in names.items())


def not_measured(name: str) -> str:
    """Return a sentence in Markdown, which says that results are missing, and names the command that makes
    them.
    """
    what = ZERO_COPY if name == ZERO_COPY else f"study {name}"
    return f"No results of {name} are here: `segstore bench {what} --out benchmarks/results` makes them."


def pngs(results: Results) -> list[bytes]:
    """Return the pictures as bytes of PNG files, for a notebook."""
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
