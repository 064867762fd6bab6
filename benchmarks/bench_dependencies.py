"""What each package that segstore brings costs: bytes that it installs, and the time of its import.

`python -m benchmarks.bench_dependencies` measures all by turns, writes dependencies.json, and puts its tables
into docs/packaging.md. A size is that of the files which pip has installed, without bytecode. A time is the
processor time, user's and system's, of a Python that runs without `site`, which would import by what is
installed: it says the same on a busy machine, or nearly so.

On disk: nothing but those two files, and the store of one program, in a temporary directory. Threads: one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import click
from packaging.requirements import Requirement

from benchmarks import result_pages
from benchmarks.result_pages import placed
from segstore.bench import Results, load, write
from segstore.bench.figures import by_turns
from segstore.bench.results import Cell, machine
from segstore.bench.terminal import machine_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "packaging.md"
BEGIN, END = "<!-- dependencies -->\n", "<!-- end of dependencies -->\n"
RUNS, MS = 9, "cpu ms"

IMPORTED = {
    "numpy": "numpy",
    "cramjam": "cramjam",
    "cffi": "_cffi_backend",
    "crc32c": "crc32c",
    "rich": "rich.console",
    "click": "click",
}
"""The packages that pyproject.toml names, and the module of each that segstore imports."""

APPEND = """
import segstore, sys
with segstore.open(sys.argv[1]) as store:
    store.ensure_topic("t")
    store.partition("t").append(b"")
"""
PYTHON = 'python -S -c ""'
PROGRAMS = {
    PYTHON: ["-c", ""],
    "import segstore": ["-c", "import segstore"],
    "import segstore; segstore.open": ["-c", "import segstore; segstore.open"],
    "an append, in a new store": ["-c", APPEND],
    "segstore --version": ["-m", "segstore", "--version"],
    "segstore --help": ["-m", "segstore", "--help"],
    "segstore topics --help": ["-m", "segstore", "topics", "--help"],
}


# --- sizes ------------------------------------------------------------------------------------


def needs(name: str, without: Sequence[str] = ()) -> list[str]:
    """Return the packages that a package needs, and those that these need, but not `without`."""
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        for text in distribution(waiting.pop()).requires or ():
            wanted = Requirement(text)
            # Names are compared as pip does it.
            needed = re.sub(r"[-_.]+", "-", wanted.name).lower()
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            if needed not in found and needed not in without:
                found[needed] = None
                waiting.append(needed)
    return sorted(found)


def installed(name: str) -> int:
    """Return how many bytes the files of an installed package take, without bytecode."""
    files = distribution(name).files or ()
    return sum(_size(Path(str(file.locate()))) for file in files)


def own() -> int:
    """Return how many bytes the files of segstore itself take, without bytecode."""
    return sum(_size(file) for file in (ROOT / "segstore").rglob("*"))


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() and file.suffix != ".pyc" else 0


# --- times ------------------------------------------------------------------------------------


def taken(arguments: Sequence[str]) -> dict[str, float]:
    """Return the processor time that a Python takes with these arguments. RuntimeError where it fails."""
    packages = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}
    with tempfile.TemporaryDirectory(prefix="segstore-dependencies-") as store:
        command = [sys.executable, "-S", *arguments, *([store] if arguments[0] == "-c" else ())]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ends with {process.returncode}")
    return {MS: (used.ru_utime + used.ru_stime) * 1000}


def measured(packages: Mapping[str, str] = IMPORTED, runs: int = RUNS) -> Results:
    commands = {**PROGRAMS, **{name: ["-c", f"import {module}"] for name, module in packages.items()}}
    for command in commands.values():
        taken(command)  # compiles what has no bytecode yet
    figures = by_turns({name: partial(taken, command) for name, command in commands.items()}, runs)
    cells = [Cell({"program": name}, figures[name]) for name in PROGRAMS]
    for name in packages:
        more = needs(name, [*packages])
        sizes = {"bytes": installed(name) + sum(map(installed, more)), "needs": more}
        cells.append(Cell({"package": name}, figures[name], sizes))
    return Results(
        "dependencies",
        "What does each package that segstore brings cost?",
        machine(tempfile.gettempdir(), [*packages]),
        {"runs": runs, "own_bytes": own()},
        cells,
    )


# --- the page ---------------------------------------------------------------------------------


def rendered(results: Results) -> str:
    """The part of docs/packaging.md that is made of the results."""
    return "".join(f"{line}\n" for line in (*_packages(results), "", *_programs(results)))


def _packages(results: Results) -> Iterator[str]:
    base = results.cell(program=PYTHON).figures[MS].median
    versions = results.machine["packages"]
    load_then, runs = results.machine["load"], results.settings["runs"]
    yield (
        f"Measured by `python -m benchmarks.bench_dependencies` on {machine_text(results)}, with a load of"
        f" {load_then:g} by other processes at the start. Medians of {runs} runs.\n"
    )
    yield "| package | version | with what it needs | installed | its import |"
    yield "|---|---|---|--:|--:|"
    total = results.settings["own_bytes"]
    own_import = results.cell(program="import segstore").figures[MS].median - base
    yield f"| segstore itself | – | – | {_megabytes(total)} | {own_import:.0f} ms |"
    for cell in results.cells:
        if name := cell.keys.get("package"):
            total += cell.notes["bytes"]
            more, size = ", ".join(cell.notes["needs"]) or "–", _megabytes(cell.notes["bytes"])
            added = f"{max(cell.figures[MS].median - base, 0):.0f} ms"
            yield f"| {name} | {versions[name]} | {more} | {size} | {added} |"
    yield f"| in all | | | {_megabytes(total)} | |"


def _programs(results: Results) -> Iterator[str]:
    base = results.cell(program=PYTHON).figures[MS].median
    yield "| program | processor time | times that of Python itself |"
    yield "|---|--:|--:|"
    for cell in results.cells:
        if name := cell.keys.get("program"):
            median = cell.figures[MS].median
            yield f"| {name if ' in ' in name else f'`{name}`'} | {median:.0f} ms | {median / base:.1f} |"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def page(text: str, results: Results) -> str:
    """The page with the tables of these results. ValueError where it has not both marks."""
    return placed(text, rendered(results), BEGIN, END)


def update() -> None:
    """Put the results that are kept into the page, and what they say into results/README.md."""
    results = load(RESULTS / "dependencies.json")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    result_pages.update(directory=RESULTS)


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True)
def main(runs: int) -> None:
    """Measure, write dependencies.json, and put its tables into docs/packaging.md."""
    write(measured(runs=runs), RESULTS / "dependencies.json")
    update()


if __name__ == "__main__":
    main()
