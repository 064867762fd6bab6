"""What each package that segstore brings costs: bytes that it installs, and the time of its import; and what
programs that have just begun cost.

`python -m benchmarks.bench_dependencies` measures all by turns, writes dependencies.json, and puts its tables
into docs/packaging.md. With --before DIRECTORY the programs are measured of the clone there too, which is
built. A size is that of the files which pip has installed, without bytecode. A time is the
processor time, user's and system's, of a Python that runs without `site`, which would import by what is
installed: it says the same on a busy machine, or nearly so.

On disk: nothing but those two files, and the stores of the programs, in temporary directories. Threads: one.
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
BEFORE = "program before"

IMPORTED = {
    "numpy": "numpy",
    "cramjam": "cramjam",
    "cffi": "_cffi_backend",
    "crc32c": "crc32c",
    "rich": "rich.console",
    "click": "click",
}
"""The packages that pyproject.toml names, and the module of each that segstore imports."""

NEW, OLD = "a new directory", "a store that was closed"
"""In place of these, programs are given the path of such a directory."""
CREATE = """
import segstore, sys
with segstore.open(sys.argv[1]) as store:
    store.ensure_topic("t")
    store.partition("t").append(b"")
"""
APPEND = """
import segstore, sys
with segstore.open(sys.argv[1]) as store:
    store.partition("t").append(b"")
"""
READ_ONE = """
import segstore, sys
with segstore.open(sys.argv[1], "r") as store:
    store.partition("t").read_one(0)
"""
READ = """
import segstore, sys
with segstore.open(sys.argv[1], "r") as store:
    store.partition("t").read(0).offsets
"""
METADATA = """
import segstore, socket, struct, sys
with segstore.open(sys.argv[1]) as store, segstore.serve(store, port=0) as server:
    host, port = server.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as client:
        request = struct.pack(">hhihi", 3, 1, 1, -1, -1)
        client.sendall(struct.pack(">i", len(request)) + request)
        client.recv(1 << 16)
"""
PYTHON, NUMPY = 'python -S -c ""', "import numpy"
PROGRAMS = {
    PYTHON: ["-c", ""],
    NUMPY: ["-c", NUMPY],
    "import segstore": ["-c", "import segstore"],
    "import segstore; segstore.open": ["-c", "import segstore; segstore.open"],
    "an append, in a new store": ["-c", CREATE, NEW],
    "an append, in a store that is there": ["-c", APPEND, OLD],
    "a record that is read, in a store that is there": ["-c", READ_ONE, OLD],
    "columns that are read, in a store that is there": ["-c", READ, OLD],
    "a server, in the process, up to its first metadata": ["-c", METADATA, OLD],
    "segstore topics": ["-m", "segstore", "topics", "--store", OLD],
    "segstore --version": ["-m", "segstore", "--version"],
    "segstore --help": ["-m", "segstore", "--help"],
    "segstore topics --help": ["-m", "segstore", "topics", "--help"],
    "segstore produce --help": ["-m", "segstore", "produce", "--help"],
    "segstore groups reset --help": ["-m", "segstore", "groups", "reset", "--help"],
    "segstore serve --help": ["-m", "segstore", "serve", "--help"],
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


def taken(arguments: Sequence[str], root: Path = ROOT, old: str = "") -> dict[str, float]:
    """Return the processor time that a Python takes with these arguments, by the package in `root`.
    RuntimeError where it fails.
    """
    packages = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
    path = os.pathsep.join([str(root), *packages])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory(prefix="segstore-dependencies-") as new:
        places = {NEW: new, OLD: old}
        command = [sys.executable, "-S", *(places.get(each, each) for each in arguments)]
        process = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ends with {process.returncode}")
    return {MS: (used.ru_utime + used.ru_stime) * 1000}


def measured(packages: Mapping[str, str] = IMPORTED, runs: int = RUNS, before: Path | None = None) -> Results:
    with tempfile.TemporaryDirectory(prefix="segstore-dependencies-") as old:
        taken(["-c", CREATE, OLD], old=old)
        imports = {name: ["-c", f"import {module}"] for name, module in packages.items()}
        calls = {name: partial(taken, each, old=old) for name, each in {**PROGRAMS, **imports}.items()}
        for name, each in PROGRAMS.items() if before else ():
            calls[BEFORE + name] = partial(taken, each, before, old)
        for call in calls.values():
            call()  # compiles what has no bytecode yet
        figures = by_turns(calls, runs)
    cells = [Cell({"program": name}, figures[name]) for name in PROGRAMS]
    if before:
        cells += [Cell({BEFORE: name}, figures[BEFORE + name]) for name in PROGRAMS]
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
    base, numpy = (results.cell(program=name).figures[MS].median for name in (PYTHON, NUMPY))
    before = {cell.keys[BEFORE]: cell.figures[MS].median for cell in results.cells if BEFORE in cell.keys}
    yield f"| program | processor time | times that of Python itself | times that of `{NUMPY}` | before |"
    yield "|---|--:|--:|--:|--:|"
    for cell in results.cells:
        if name := cell.keys.get("program"):
            median = cell.figures[MS].median
            told = name if ", " in name else f"`{name}`"
            was = f"{before[name] / before[NUMPY]:.2f}" if before else ""
            yield f"| {told} | {median:.0f} ms | {median / base:.1f} | {median / numpy:.2f} | {was} |"


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
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="An earlier clone, built.")
def main(runs: int, before: Path | None) -> None:
    """Measure, write dependencies.json, and put its tables into docs/packaging.md."""
    write(measured(runs=runs, before=before), RESULTS / "dependencies.json")
    update()


if __name__ == "__main__":
    main()
