"""`segstore bench zero-copy` and `compare`. On disk: through `segstore.bench.zero_copy`, in a directory of
its own; results where the user wants them. Threads: one.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from typing import Any

import rich_click as click

from segstore.bench import results
from segstore.bench.command_options import (
    directory_option,
    effort_options,
    json_option,
    out_option,
    progress_shown,
    some_of,
)
from segstore.bench.results import Results
from segstore.bench.zero_copy import cells, run
from segstore.bench.zero_copy import compare as comparing
from segstore.bench.zero_copy.cells import CACHES, SIZES, Group, Plan
from segstore.bench.zero_copy.receivers import SINKS
from segstore.bench.zero_copy.tables import details, summary
from segstore.cli.output import console
from segstore.cli.signals import status
from segstore.storage.transfer import METHODS

DIFFERENT = 1
_FILE = click.Path(exists=True, dir_okay=False)


@click.command("zero-copy")
@directory_option
@out_option
@effort_options(cells.RUNS)
@click.option("--sizes", metavar="A,B", callback=some_of(SIZES), help=f"Of {', '.join(SIZES)}.")
@click.option("--caches", metavar="A,B", callback=some_of(CACHES), help=f"Of {', '.join(CACHES)}.")
@click.option("--sinks", metavar="A,B", callback=some_of(SINKS), help=f"Of {', '.join(SINKS)}.")
@click.option("--methods", metavar="A,B", callback=some_of(METHODS), help=f"Of {', '.join(METHODS)}.")
@click.option("--all", "everything", is_flag=True, help="Show every cell, with all that was measured.")
@click.option(
    "--against", metavar="FILE", type=_FILE, help="Results of an earlier run: do both agree on who wins?"
)
@json_option
def zero_copy(
    directory: str | None,
    out: str | None,
    quick: bool,
    runs: int,
    everything: bool,
    against: str | None,
    as_json: bool,
    **chosen: tuple[Any, ...] | None,
) -> int:
    """Send a log to sockets, pipes and files in each way there is: which is the fastest, which the cheapest?

    read and write, mmap and write, sendfile, splice, copy_file_range, MSG_ZEROCOPY, io_uring: by size, from
    the page cache and from the disk, with the sender's CPU time, its system calls and context switches. Who
    receives is another process. All of it takes some five minutes; each of the lists may be cut short.

    --against: exit status 1 where a cell that both runs call a win has another winner.
    """
    earlier = results.load(against) if against else None
    picked: dict[str, Any] = {name: values for name, values in chosen.items() if values is not None}
    plan = replace(Plan(runs=runs), **picked)
    plan = cells.quick(plan) if quick else plan
    if out is not None:
        os.makedirs(out, exist_ok=True)
    try:
        with progress_shown("zero-copy") as progress:
            found = run.run(directory or tempfile.gettempdir(), plan, progress, strace=not quick)
    except KeyboardInterrupt as error:
        click.echo("segstore: interrupted; nothing is left behind, and nothing was written", err=True)
        return status(error)
    if out is not None:
        _write(found, out)
    _show(found, everything, as_json)
    return _agree(earlier, found, as_json) if earlier is not None else 0


@click.command()
@click.argument("one", metavar="FILE", type=_FILE)
@click.argument("other", metavar="FILE", type=_FILE)
def compare(one: str, other: str) -> int:
    """Hold two results of zero-copy against each other: do they agree on who wins?

    Exit status 1 where a cell that both call a win has another winner.
    """
    return _agree(results.load(one), results.load(other), False)


def _write(found: Results, out: str) -> None:
    from segstore.bench.zero_copy.pictures import draw

    results.write(found, os.path.join(out, f"{found.name}.json"))
    draw(found, out)


def _show(found: Results, everything: bool, as_json: bool) -> None:
    if as_json:
        click.echo(results.text(found), nl=False)
        return
    screen = console()
    for part in summary(found):
        screen.print(part)
    for part in details(found) if everything else ():
        screen.print(part)


def _agree(one: Results, other: Results, quiet: bool) -> int:
    held = comparing.compare(one, other)
    lines = [f"{_place(*key)}: {a} won, and then {b}" for key, (a, b) in held.different.items()]
    same, both = len(held.same), len(held.same) + len(held.different)
    lines.append(
        f"{same} of {both} wins in both runs have the same winner; {len(held.once)} are wins in one only"
    )
    for line in lines:
        click.echo(line, err=quiet)
    return DIFFERENT if held.different else 0


def _place(way: str, group: Group, measure: str) -> str:
    return f"{way}, {group.sink}, {group.cache}, {group.size:,} bytes, {measure}"
