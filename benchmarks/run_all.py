"""All measurements, one after the other: `python -m benchmarks.run_all`, which is `make bench`.

On disk: results/ (JSON, PNG, SVG, Markdown), the README's part of them, notebooks. Threads: one; each step is
a process, which shows its own progress and cleans up after itself.

A step that fails is told at the end, and the exit status is 1; the others are run all the same. Ctrl-C ends
the step that runs, and everything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Table

from segstore.bench import write

from . import baseline, readme

ROOT = Path(__file__).parents[1]
STEPS = {
    "zero-copy": "how transfers compare, by sink and size",
    "studies": "why a log is fast, one question a study",
    "peers": "other stores, the same work",
    "ratios": "the benches (bench_*.py), compared with the baseline",
}
SMALLER = {"SEGSTORE_COMPACT_MIB": "64", "SEGSTORE_COMPACT_ROUNDS": "3", "STAGED_MB": "256"}
"""For the benches, whose own sizes take twice as long."""

QUICK_BENCH, QUICK_SIZE = "bench_retention.py", {"SEGSTORE_RETENTION_MIB": "2"}
SPARK = ["--ignore-glob=*/bench_spark_*.py", "--ignore=benchmarks/bench_checkpoints.py"]
INTERRUPTED = 130
PATIENCE = 5.0
RUNS = 5
"""Of each figure: the fewest that tell who wins. Zero copy has a number of its own."""
FAILED = 1


class Step(NamedTuple):
    """A command, and what its environment has on top."""

    command: list[str]
    environment: Mapping[str, str] = {}


class Done(NamedTuple):
    name: str
    seconds: float
    status: int


def step(name: str, out: Path, report: Path, quick: bool) -> Step:
    """`report` is where pytest-benchmark writes."""
    short = ["--quick"] if quick else []
    if name == "ratios":
        return benches(report, quick)
    module = {"peers": ["benchmarks.peers"], "zero-copy": ["segstore", "bench", "zero-copy"]}
    command = module.get(name, ["segstore", "bench", "study", "all"])
    runs = [] if name == "zero-copy" else ["--runs", str(RUNS)]
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
            status = finished(step(name, out, report, quick))
            if status == INTERRUPTED:
                raise KeyboardInterrupt
            if name == "ratios" and not status:
                write(baseline.ratios(report, Path(directory)), out / "ratios.json")
            yield Done(name, time.monotonic() - began, status)


def environment() -> dict[str, str]:
    """This one's, without a test run's of several processes: pytest-benchmark would measure nothing."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def finished(one: Step) -> int:
    """Its exit status. The terminal's Ctrl-C reaches it too: it has its time to clean up."""
    with subprocess.Popen(one.command, cwd=ROOT, env={**environment(), **one.environment}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            _ended(process)
            raise


def _ended(process: subprocess.Popen[bytes]) -> None:
    """It ends by the terminal's signal, else by ours."""
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        try:
            process.wait(PATIENCE)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(signal_number)


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
@click.option("--out", default=readme.RESULTS, type=click.Path(file_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Seconds, and no figure to believe; nothing is compared.")
@click.option("--only", multiple=True, type=click.Choice(list(STEPS)), help="These steps alone.")
@click.option(
    "--readme/--no-readme", "page", default=True, help="Put the results into README.md and notebooks."
)
@click.option("--baseline", "keep", is_flag=True, help="The ratios of this run become baseline.json.")
def main(out: Path, quick: bool, only: tuple[str, ...], page: bool, keep: bool) -> None:
    """Measure everything, in under a quarter of an hour on two cores."""
    console = Console()
    try:
        done = list(run(only or tuple(STEPS), out.resolve(), quick, console))
    except KeyboardInterrupt:
        console.print("Interrupted; nothing is left behind.")
        raise SystemExit(INTERRUPTED) from None
    status = max((FAILED for one in done if one.status), default=0)
    measured = any(one.name == "ratios" and not one.status for one in done)
    if keep and measured:
        write(baseline.load(out / "ratios.json"), baseline.BASELINE)
    elif measured and not quick:
        status = max(status, judged(out))
    console.print(table(done))
    if page and not quick:
        status = max(status, shown(out.resolve(), everything=not only))
    raise SystemExit(status)


def shown(out: Path, everything: bool) -> int:
    """The pages, and the notebooks too where all was measured: exit status."""
    readme.update(directory=out)
    if not everything:
        return 0
    command = [sys.executable, "-m", "benchmarks.notebooks"]
    return FAILED if finished(Step(command, {"SEGSTORE_RESULTS": str(out)})) else 0


if __name__ == "__main__":
    main()
