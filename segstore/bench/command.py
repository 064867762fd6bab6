"""`segstore bench`: measurements that show why a log is fast. On disk: each measurement writes into a new
directory; results are written to the user's directory. Threads: one.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from segstore.bench.choices import CACHES, RUNS, SINKS, SIZES, STUDIES, TRANSFER_RUNS, WAYS_TO_SEND
from segstore.cli.output import add_row, console
from segstore.cli.output import table as plain_table
from segstore.cli.place_first import PlaceFirst
from segstore.cli.signals import ended_by_signals, status
from segstore.errors import InvalidArgumentError, MissingPackageError

if TYPE_CHECKING:
    from rich.console import Console

    from segstore.bench import results
    from segstore.bench.results import Results
    from segstore.bench.studies import Study
    from segstore.bench.zero_copy.plan import ContenderGroup

# --- command report ----------------------------------------------------------------------------

# `segstore bench report` reads results from JSON files, and shows these results.


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
def report(directory: str) -> None:
    """Show the results that were written to DIR with --out: tables and findings."""
    from segstore.bench import show

    results_by_name = show.all_in(directory)
    if not results_by_name:
        raise InvalidArgumentError(f"{directory} has no results: no file NAME.json")
    screen = console()
    for outcome in results_by_name.values():
        for part in show.tables(outcome):
            screen.print(part)
        screen.print()


# --- command options ---------------------------------------------------------------------------

# The code below has the options that all measurements have, and their progress bar. No other thread may run
# during a run, so the bar is drawn between runs.

F = TypeVar("F", bound=Callable[..., Any])
QUICK_RUNS = 1
_EVERY = 0.1  # minimum time between two updates of the bar, in seconds


def directory_option(command: F) -> F:
    """Add the option --directory DIR. Its value is the argument `directory`, which is None if the option is
    not given.
    """
    return click.option(
        "--directory",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, writable=True),
        help="Directory for the logs that are measured, which are removed again: one on the disk that "
        "matters. By default the one for temporary files.",
    )(command)


def out_option(command: F) -> F:
    """Add the option --out DIR, which sets the argument `out`."""
    return click.option(
        "--out",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Write results into this directory: NAME.json, and pictures as PNG and SVG.",
    )(command)


def effort_options(default: int = RUNS) -> Callable[[F], F]:
    """Return a decorator that adds the options --quick and --runs N, which set the arguments `quick` and
    `runs`.
    """
    quick = click.option(
        "--quick",
        is_flag=True,
        is_eager=True,
        help="Take only seconds: enough to see that it works, not for its figures.",
    )

    def chosen(ctx: click.Context, _param: click.Parameter, runs: int | None) -> int:
        return runs or (QUICK_RUNS if ctx.params["quick"] else default)

    runs = click.option(
        "--runs",
        metavar="N",
        type=click.IntRange(min=1),
        callback=chosen,
        show_default=f"{default}; {QUICK_RUNS} with --quick",
        help="How often each is measured, by turns. With fewer than 5 runs nothing is called better.",
    )
    return lambda command: quick(runs(command))


def json_option(command: F) -> F:
    """Add the option --json, which sets the argument `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else."
    )(command)


def some_of(known: Mapping[str, Any] | Sequence[str]) -> Callable[..., tuple[Any, ...] | None]:
    """Return a callback for an option whose value is a comma-separated list of names. The callback returns
    the values that have these names, in the order of `known`.
    """
    values = known if isinstance(known, Mapping) else {name: name for name in known}

    def parse(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
        if text is None:
            return None
        named = {name.strip() for name in text.split(",")}
        if unknown := sorted(named - values.keys()):
            raise click.BadParameter(f"{unknown[0]!r} must be of {', '.join(values)}")
        return tuple(value for name, value in values.items() if name in named)

    return parse


@contextmanager
def progress_shown(what: str) -> Iterator[results.Progress]:
    """Context manager: show a progress bar if standard error is a terminal. Yields a function that a
    measurement calls to report its progress.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=err, transient=True, auto_refresh=False, disable=not err.is_terminal
    ) as bar:
        task, seen, said = bar.add_task(what, total=None), 0.0, ""

        def report(done: int, total: int, now: str) -> None:
            nonlocal seen, said
            bar.update(task, completed=done, total=total, description=f"{what}: {now}")
            # A new name is shown at once, because the run with this name may take long.
            if now != said or time.monotonic() - seen >= _EVERY:
                seen, said = time.monotonic(), now
                bar.refresh()

        yield report


# --- command study -----------------------------------------------------------------------------

# `segstore bench study` runs studies, each in a new directory.

ALL = "all"
_WIDEST = 100  # maximum width of texts, in columns of the terminal


@click.command("study")
@click.argument("name", metavar="[NAME|all]", required=False, type=click.Choice([*STUDIES, ALL]))
@directory_option
@out_option
@effort_options()
@json_option
def run_study(
    name: str | None, directory: str | None, out: str | None, quick: bool, runs: int, as_json: bool
) -> int:
    """Measure one of the reasons why a log is fast, and show tables and findings; without a NAME, list the
    studies.

    All studies together take some five minutes. With --json, the results are one JSON object for each study,
    one after the other.
    """
    from segstore.bench.studies import study

    if name is None:
        _list()
        return 0
    if out is not None:
        os.makedirs(out, exist_ok=True)
    try:
        for chosen in STUDIES if name == ALL else (name,):
            chosen_study = study(chosen)
            with progress_shown(chosen) as progress:
                outcome = chosen_study.run(directory or tempfile.gettempdir(), quick, runs, progress)
            if out is not None:
                _write(chosen_study, outcome, out)
            _show(chosen_study, outcome, as_json)
    except KeyboardInterrupt as error:
        click.echo("segstore: interrupted; no files of the measurement are left behind", err=True)
        return status(error)
    return 0


def _list() -> None:
    from segstore.bench.studies import study

    shown = plain_table("study", "question")
    for name in STUDIES:
        add_row(shown, name, study(name).QUESTION)
    console().print(shown)


def _write(chosen_study: Study, outcome: Results, out: str) -> None:
    from segstore.bench import results
    from segstore.bench.plots import save

    results.write(outcome, os.path.join(out, f"{chosen_study.NAME}.json"))
    with _pictures_left_out():
        save(chosen_study.plot(outcome), os.path.join(out, chosen_study.NAME))


@contextmanager
def _pictures_left_out() -> Iterator[None]:
    """Context manager for a block that draws pictures. If matplotlib is not installed, print a message, and
    leave the block without an error.
    """
    try:
        yield
    except MissingPackageError as error:
        click.echo(f"no pictures are drawn: {error}", err=True)


def _show(chosen_study: Study, outcome: Results, as_json: bool) -> None:
    from rich.text import Text

    from segstore.bench import results
    from segstore.bench.terminal import findings, machine_text, table

    if as_json:
        click.echo(results.text(outcome), nl=False)
        return
    screen = console()
    screen.print(Text(f"{chosen_study.NAME}: {chosen_study.QUESTION}", style="bold"))
    screen.print(_filled(chosen_study.ABOUT, screen))
    screen.print(table(outcome, figures=chosen_study.SHOWN))
    screen.print(_filled(machine_text(outcome), screen))
    screen.print()
    screen.print(findings(outcome), width=min(screen.width, _WIDEST))


def _filled(text: str, screen: Console) -> str:
    return textwrap.fill(" ".join(text.split()), min(screen.width, _WIDEST))


# --- command zero copy -------------------------------------------------------------------------

# `segstore bench zero-copy` and `segstore bench compare` use `segstore.bench.zero_copy`, which writes into a
# new directory.

DIFFERENT = 1
_FILE = click.Path(exists=True, dir_okay=False)


@click.command("zero-copy")
@directory_option
@out_option
@effort_options(TRANSFER_RUNS)
@click.option("--sizes", metavar="A,B", callback=some_of(SIZES), help=f"Of {', '.join(SIZES)}.")
@click.option("--caches", metavar="A,B", callback=some_of(CACHES), help=f"Of {', '.join(CACHES)}.")
@click.option("--sinks", metavar="A,B", callback=some_of(SINKS), help=f"Of {', '.join(SINKS)}.")
@click.option(
    "--methods", metavar="A,B", callback=some_of(WAYS_TO_SEND), help=f"Of {', '.join(WAYS_TO_SEND)}."
)
@click.option("--all", "everything", is_flag=True, help="Show every cell, with all that was measured.")
@click.option(
    "--against",
    metavar="FILE",
    type=_FILE,
    help="Compare with the results of an earlier run: do both agree on which way wins?",
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
    """Send a log to sockets, pipes and files in each possible way, to find the fastest and the cheapest.

    The ways are read and write, mmap and write, sendfile, splice, copy_file_range, MSG_ZEROCOPY and io_uring.
    They are measured by size, from the page cache and from the disk, with the sender's CPU time, its system
    calls and context switches. Another process receives the bytes. The whole measurement takes some five
    minutes; options leave out sizes, caches, sinks or methods.

    With --against, the exit status is 1 if a cell has different winners in the two runs.
    """
    from segstore.bench import results
    from segstore.bench.zero_copy import plan as cells
    from segstore.bench.zero_copy import run
    from segstore.bench.zero_copy.plan import MeasurementPlan

    earlier = results.load(against) if against else None
    picked: dict[str, Any] = {name: values for name, values in chosen.items() if values is not None}
    plan = replace(MeasurementPlan(runs=runs), **picked)
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
        _command_zero_copy_write(found, out)
    _command_zero_copy_show(found, everything, as_json)
    return _agree(earlier, found, as_json) if earlier is not None else 0


@click.command()
@click.argument("one", metavar="FILE", type=_FILE)
@click.argument("other", metavar="FILE", type=_FILE)
def compare(one: str, other: str) -> int:
    """Compare two results of zero-copy: do they agree on which way wins?

    The exit status is 1 if a cell has different winners in the two results.
    """
    from segstore.bench import results

    return _agree(results.load(one), results.load(other), False)


def _command_zero_copy_write(found: Results, out: str) -> None:
    from segstore.bench import results
    from segstore.bench.zero_copy.report import draw

    results.write(found, os.path.join(out, f"{found.name}.json"))
    with _pictures_left_out():
        draw(found, out)


def _command_zero_copy_show(found: Results, everything: bool, as_json: bool) -> None:
    from segstore.bench import results
    from segstore.bench.zero_copy.report import details, summary

    if as_json:
        click.echo(results.text(found), nl=False)
        return
    screen = console()
    for part in summary(found):
        screen.print(part)
    for part in details(found) if everything else ():
        screen.print(part)


def _agree(first: Results, second: Results, quiet: bool) -> int:
    from segstore.bench.zero_copy import claims as comparing

    compared = comparing.compare(first, second)
    lines = [f"{_place(*key)}: {a} won, and then {b}" for key, (a, b) in compared.different.items()]
    same, both = len(compared.same), len(compared.same) + len(compared.different)
    lines.append(
        f"{same} of {both} wins in both runs have the same winner; {len(compared.once)} are wins in one only"
    )
    for line in lines:
        click.echo(line, err=quiet)
    return DIFFERENT if compared.different else 0


def _place(way: str, group: ContenderGroup, measure: str) -> str:
    return f"{way}, {group.sink}, {group.cache}, {group.size:,} bytes, {measure}"


# --- command ------------------------------------------------------------


@click.group(cls=PlaceFirst, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure why a log is fast, on this machine.

    Everything is measured several times and by turns. One way is called better than another only if their
    intervals don't overlap. Other work on the machine makes the figures worse.
    """
    ctx.with_resource(ended_by_signals())
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (zero_copy, run_study, report, compare):
    bench.add_command(command)
