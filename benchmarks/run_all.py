"""All measurements, one after the other: `python -m benchmarks.run_all`, which is `make bench`.

On disk: results/ (JSON, PNG, SVG, Markdown), the pages of docs/ that show them, notebooks. Threads: one; each
step is a process, which shows its own progress and cleans up after itself.

A step that fails is told at the end, and the exit status is 1; the others are run all the same. Ctrl-C,
SIGTERM and SIGHUP end the step that runs, and everything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich import box
from rich.console import Console
from rich.table import Table

from segstore.bench import write
from segstore.cli.signals import ended_by_signals, status

from . import baseline, result_pages
from .steps import ROOT, Step, finished

STEPS = {
    "zero-copy": "how transfers compare, by sink and size",
    "studies": "why a log is fast, one question a study",
    "peers": "other stores, the same work",
    "processes": "several processes that append to one log",
    "ratios": "the benches (bench_*.py), compared with the baseline",
}
SMALLER = {"SEGSTORE_COMPACT_MIB": "64", "SEGSTORE_COMPACT_ROUNDS": "3", "STAGED_MB": "256"}
"""For the benches, whose own sizes take twice as long."""

QUICK_BENCH, QUICK_SIZE = "bench_retention.py", {"SEGSTORE_RETENTION_MIB": "2"}
SPARK = ["--ignore-glob=*/bench_spark_*.py", "--ignore=benchmarks/bench_checkpoints.py"]
INTERRUPTED = 130
PAGES = ("choosing_table.py", "pictures.py")
"""What puts the stored results into pages of the documentation."""
RUNS = 5
"""Of each figure: the fewest that tell who wins. Zero copy has a number of its own."""
FAILED = 1


class Done(NamedTuple):
    name: str
    seconds: float
    status: int


def step(name: str, out: Path, report: Path, quick: bool) -> Step:
    """`report` is where pytest-benchmark writes."""
    short = ["--quick"] if quick else []
    if name == "ratios":
        return benches(report, quick)
    module = {
        "peers": ["benchmarks.peers"],
        "processes": ["benchmarks.bench_processes"],
        "zero-copy": ["segstore", "bench", "zero-copy"],
    }
    command = module.get(name, ["segstore", "bench", "study", "all"])
    runs = [] if quick or name == "zero-copy" else ["--runs", str(RUNS)]
    return Step([sys.executable, "-m", *command, "--out", str(out), *runs, *short])


def benches(report: Path, quick: bool) -> Step:
    """All but those of Spark, which take as long as all else: `make bench-spark`."""
    where = f"benchmarks/{QUICK_BENCH}" if quick else "benchmarks"
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        where,
        "-o",
        "python_files=bench_*.py",
        "-m",
        "not slow",
        *SPARK,
    ]
    options = ["-q", "-p", "no:cacheprovider", "--benchmark-only", "--benchmark-columns=min,median,rounds"]
    environment = SMALLER | (QUICK_SIZE if quick else {})
    return Step([*pytest, *options, f"--benchmark-json={report}"], environment)


def run(names: Sequence[str], out: Path, quick: bool, console: Console) -> Iterator[Done]:
    """Each as it is done. KeyboardInterrupt once the step that was interrupted has ended."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segstore-bench-") as directory:
        report = Path(directory, "report.json")
        for number, name in enumerate(names, 1):
            console.rule(f"{number} of {len(names)}: {name}, {STEPS[name]}", align="left")
            began = time.monotonic()
            ended = finished(step(name, out, report, quick))
            if ended == INTERRUPTED:
                raise KeyboardInterrupt
            if name == "ratios" and not ended:
                write(baseline.ratios(report, Path(directory)), out / "ratios.json")
            yield Done(name, time.monotonic() - began, ended)


def judged(out: Path) -> int:
    """Exit status of the comparison with the baseline."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.baseline", str(out / "ratios.json")], cwd=ROOT, check=False
    ).returncode


def table(all_of_them: Sequence[Done]) -> Table:
    made = Table("step", "seconds", "", box=box.SIMPLE_HEAD)
    for one in all_of_them:
        made.add_row(one.name, f"{one.seconds:.0f}", "done" if not one.status else f"FAILED ({one.status})")
    return made


@click.command()
@click.option("--out", default=result_pages.RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Seconds, and no figure to believe; nothing is compared.")
@click.option("--only", multiple=True, type=click.Choice(list(STEPS)), help="These steps alone.")
@click.option(
    "--pages/--no-pages",
    "page",
    default=True,
    help="Put the results into docs/, results/README.md and notebooks.",
)
@click.option("--baseline", "keep", is_flag=True, help="The ratios of this run become baseline.json.")
def main(out: Path, quick: bool, only: tuple[str, ...], page: bool, keep: bool) -> None:
    """Measure everything, in under a quarter of an hour on two cores."""
    console = Console()
    try:
        with ended_by_signals():
            done = list(run(only or tuple(STEPS), out.resolve(), quick, console))
            result = max((FAILED for one in done if one.status), default=0)
            if any(one.name == "ratios" and not one.status for one in done):
                result = max(result, compared(out, quick, keep))
            console.print(table(done))
            if page and not quick:
                result = max(result, shown(out.resolve(), everything=not only))
    except KeyboardInterrupt as error:
        console.print("Interrupted; nothing is left behind.")
        result = status(error)
    raise SystemExit(result)


def compared(out: Path, quick: bool, keep: bool) -> int:
    """What becomes of the ratios: the baseline, or compared with it. Exit status."""
    if keep:
        write(baseline.load(out / "ratios.json"), baseline.BASELINE)
        return 0
    return 0 if quick else judged(out)


def shown(out: Path, everything: bool) -> int:
    """Put results into the pages, and run the notebooks if the results of all steps are there: those of this
    run, or the stored ones, which pages and notebooks show alike. Returns the exit status.
    """
    result_pages.update(directory=out)
    stored = out == result_pages.RESULTS.resolve()
    if not (everything or stored):
        return 0
    commands = [[sys.executable, "-m", "benchmarks.notebooks"]]
    if stored:
        commands += [[sys.executable, str(ROOT / "tools" / tool)] for tool in PAGES]
    steps = [finished(Step(command, {"SEGSTORE_RESULTS": str(out)})) for command in commands]
    return FAILED if any(steps) else 0


if __name__ == "__main__":
    main()
