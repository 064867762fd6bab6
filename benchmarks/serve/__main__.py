"""`python -m benchmarks.serve`: runs, shows, and writes serve.json and the pages where it is told to.

On disk: those. Threads: one. Ctrl-C, SIGTERM and SIGHUP end it with one line; the servers and their
directories are gone then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import result_pages
from segstore.bench import Results, write
from segstore.bench.terminal import findings, machine_text
from segstore.cli.signals import ended_by_signals, status

from . import report
from .running import RUNS, WORKS, run
from .terms import KAFKA, OURS

FAILED = 1
DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--directory", type=DIRECTORY, help="Where the logs lie; by default the temporary directory.")
@click.option("--out", type=DIRECTORY, help="Write serve.json there.")
@click.option("--pages", is_flag=True, help="Make the pages anew of what is in --out.")
@click.option("--quick", is_flag=True, help="Little work: seconds, and no figure to believe.")
@click.option("--runs", type=click.IntRange(1), help=f"Rounds; by default {RUNS}.")
@click.option("--server", "servers", multiple=True, type=click.Choice([OURS, KAFKA]), help="Only these.")
@click.option("--work", "works", multiple=True, type=click.Choice([*WORKS]), help="Only these works.")
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, and nothing else.")
def main(
    directory: Path | None, out: Path | None, pages: bool, quick: bool, runs: int | None,
    servers: tuple[str, ...], works: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """segstore serve beside a Kafka broker: librdkafka, Java's perf tools, raw requests, memory, start.

    A work that fails is told in its place, and the exit status is 1; the others go on.
    """
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("starting", total=None)

        def progress(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        results = run(
            directory, quick=quick, runs=runs, servers=servers or (OURS, KAFKA), works=works or WORKS,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print(json.dumps(results.as_json()))
    else:
        show(results)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(results, out / "serve.json")
        if pages and not quick:
            result_pages.update(directory=out)
    if any(cell.notes for cell in results.cells):
        raise SystemExit(FAILED)


def show(results: Results) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(report.table(results))
    console.print(report.legend(results), markup=False)
    console.print(machine_text(results), markup=False)
    console.print(findings(results))


if __name__ == "__main__":
    try:
        with ended_by_signals():
            main(standalone_mode=False)
    except click.Abort as error:  # what click makes of a KeyboardInterrupt
        print("Interrupted; nothing is left behind.", file=sys.stderr)
        raise SystemExit(status(error.__context__)) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
