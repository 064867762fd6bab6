"""`python -m benchmarks.peers`: runs, shows, and writes peers.json, .md, .png and .svg where it is told to.

On disk: those. Threads: one. Ctrl-C, SIGTERM and SIGHUP end it with one line; the broker and all logs are
gone then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segstore.bench import Results, write
from segstore.bench.terminal import findings as findings_text
from segstore.bench.terminal import machine_text
from segstore.cli.signals import ended_by_signals, status

from . import report
from .running import MAKERS, RUNS, SIZES, run
from .turn import WORKS

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--directory", type=DIRECTORY, help="Where the logs lie; by default the temporary directory.")
@click.option("--out", type=DIRECTORY, help="Write peers.json, peers.md, peers.png and peers.svg there.")
@click.option("--quick", is_flag=True, help="Few records: seconds, and no figure to believe.")
@click.option("--runs", type=click.IntRange(1), help=f"Rounds; by default {RUNS}.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(MAKERS)), help="Only these.")
@click.option(
    "--size", "sizes", multiple=True, type=click.Choice([*map(str, SIZES)]), help="Only these values."
)
@click.option("--work", "works", multiple=True, type=click.Choice([*WORKS]), help="Only these works.")
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, and nothing else.")
def main(
    directory: Path | None, out: Path | None, quick: bool, runs: int | None, peers: tuple[str, ...],
    sizes: tuple[str, ...], works: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """segstore beside LMDB, SQLite, RocksDB, persist-queue, diskcache and a Kafka broker."""
    chosen = {int(size): SIZES[int(size)] for size in sizes}
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("starting", total=None)

        def progress(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        results = run(
            directory, quick=quick, runs=runs, peers=peers or tuple(MAKERS), sizes=chosen,
            works=works or tuple(WORKS), progress=progress,
        )  # fmt: skip
    if as_json:
        print(json.dumps(results.as_json()))
    else:
        show(results)
    if out is not None:
        keep(results, out)


def show(results: Results) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    for size in results.values("value bytes"):
        console.print(report.table(results, size))
    console.print(report.legend(results), markup=False)
    console.print(machine_text(results), markup=False)
    console.print(findings_text(results))


def keep(results: Results, out: Path) -> None:
    """JSON first: all else can be made of it again."""
    out.mkdir(parents=True, exist_ok=True)
    write(results, out / "peers.json")
    (out / "peers.md").write_text(f"{report.markdown(results)}\n{report.settings(results)}")
    report.draw(results, out / "peers")


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
